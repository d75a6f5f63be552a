"""The stand-in queues of a pairing, as far as this process has made or seen them."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from kombu_paired.brokers.roles import StandsIn
from kombu_paired.stand_in import stand_in_name

__all__ = ("StandInQueues",)


class StandInQueues:
    """Makes each the first time that somebody needs it, and removes those that nobody does.

    Arguments:
        secondary: where they are.
        primary: the primary's name.
        timeout: seconds that each step may take.
    """

    def __init__(self, secondary: StandsIn, primary: str, timeout: float) -> None:
        self._secondary = secondary
        self._primary = primary
        self._timeout = timeout
        self._known: set[str] = set()

    def __contains__(self, name: str) -> bool:
        """Whether one is known to be there."""
        return name in self._known

    def ensure(self, queue: str, arguments: Mapping[str, Any]) -> str:
        """Make the stand-in of a queue, the first time it is asked for; returns its name.

        Arguments:
            queue: its name at home.
            arguments: those of its declaration there.

        Raises:
            NamespaceFailure: the secondary failed, or does not allow it.
        """
        name = stand_in_name(self._primary, queue)
        if name not in self._known:
            self._secondary.ensure_stand_in_queue(self._primary, name, arguments, self._timeout)
            self._known.add(name)
        return name

    def forget(self, name: str) -> None:
        """It may be gone: it is made anew when it is needed."""
        self._known.discard(name)

    def remove(self, name: str) -> None:
        """Remove one that is empty and that nobody consumes from.

        Raises:
            NamespaceFailure: the secondary failed.
        """
        self.forget(name)
        self._secondary.forget_stand_in_queue(self._primary, name, self._timeout)
