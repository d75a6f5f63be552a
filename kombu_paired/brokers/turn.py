"""Who brings home a backlog that only the processes of one machine can reach."""

from __future__ import annotations

from abc import ABC, abstractmethod

__all__ = ("Turn",)


class Turn(ABC):
    """The turn to bring a backlog home, as one syphon sees it: one of a machine has it, and others may stand by.

    More than one syphon does no harm: a message is held by one of them. It would only be of no use in hundreds of
    processes of one machine. For one thread at a time. Each step may raise what its disk does, ``OSError`` above all.
    """

    @abstractmethod
    def arrive(self) -> None:
        """A syphon is there from now on, whether it has the turn or stands by."""

    @abstractmethod
    def take(self) -> bool:
        """Try to have the turn; whether this syphon has it. It does not wait.

        Who has it and shows no life any more (it was stopped, and not ended) does not keep others from taking it.
        """

    @abstractmethod
    def show_life(self) -> None:
        """Whoever has the turn calls this every second or so."""

    @abstractmethod
    def leave(self) -> None:
        """The syphon has stopped."""

    @abstractmethod
    def anybody(self) -> bool:
        """Whether any syphon of this machine is there."""
