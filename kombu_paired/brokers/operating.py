"""What operators ask of a secondary: what lies in a queue, and what is isolated.

Like the roles, of which it is a part; it knows none of them.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Sequence

from kombu_paired.errors import ConfigurationError
from kombu_paired.message import Message

__all__ = ("IsLookedInto", "KeepsNotices", "Notices")


class Notices(ABC):
    """A link to the notices about one primary. It connects when it is used, and is kept. For one thread."""

    @abstractmethod
    def read(self, timeout: float, *, create: bool = True) -> dict[str, float]:
        """What is isolated: name -> since when (seconds since 1970, UTC).

        Arguments:
            create: make the place where notices are kept, where the broker has one and it is missing.

        Raises:
            NamespaceFailure: the namespace failed, or does not let one see it.
        """

    @abstractmethod
    def put(self, name: str, at: float, timeout: float) -> None:
        """Isolate an entity; one that is isolated stays so.

        Arguments:
            at: since when (seconds since 1970, UTC).

        Raises:
            NamespaceFailure: the namespace failed, or does not allow it.
        """

    @abstractmethod
    def take(self, name: str, timeout: float) -> None:
        """It is isolated no more, if it was.

        Raises:
            NamespaceFailure: as for :meth:`put`.
        """

    @abstractmethod
    def close(self) -> None:
        """Let go of the link, promptly."""


class KeepsNotices:
    """It keeps notices of what is isolated.

    Attributes:
        keeps_notices: whether it really does; else nothing can be isolated.
    """

    keeps_notices: bool = False
    label: str

    def notices(self, primary: str) -> Notices:
        """A link to the notices about a primary, not connected.

        Raises:
            ConfigurationError: it keeps none.
        """
        raise ConfigurationError(
            f"{self.label} keeps no notices, so nothing can be isolated by hand: that takes a secondary on RabbitMQ, "
            "Redis or Azure Service Bus, or a spool"
        )


class IsLookedInto:
    """It shows what is in a queue, and leaves it there."""

    label: str

    def look_into(self, queues: Sequence[str], limit: int, timeout: float) -> dict[str, list[Message]]:
        """What is in backlog queues, stand-in queues or dead-letter queues: the oldest messages of each, in order.

        Arguments:
            limit: so many of each at most.

        Returns:
            Name of the queue -> messages; a queue that is missing has none.

        Raises:
            NamespaceFailure: the namespace failed.
            ConfigurationError: it cannot be looked into.
        """
        raise ConfigurationError(
            f"{self.label} cannot be looked into without taking: that takes a secondary on RabbitMQ, Redis or Azure "
            "Service Bus, or a spool"
        )
