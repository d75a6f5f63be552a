"""Senders that wait to be used again."""

from __future__ import annotations

import time
from collections import deque
from collections.abc import Callable, Iterator
from typing import Any

from kombu_paired.namespaces.base import Sender

__all__ = ("BacklogSender", "SenderPool")

#: Seconds for which a pool that closes says goodbye on idle connections; the rest is dropped.
GOODBYES = 1.0


class SenderPool:
    """Idle senders of one namespace; the one that was used last comes first."""

    def __init__(self, make: Callable[[], Any]) -> None:
        self._make = make
        self._idle: deque[Any] = deque()

    def take(self) -> Any:
        try:
            return self._idle.pop()
        except IndexError:
            return self._make()

    def give_back(self, sender: Any) -> None:
        self._idle.append(sender)

    def drop_idle(self) -> None:
        """Their connections are as dead as the one that just failed."""
        for sender in self._take_all():
            sender.drop()

    def close(self) -> None:
        """Say goodbye on the idle ones, as far as time allows."""
        deadline = time.monotonic() + GOODBYES
        for sender in self._take_all():
            if time.monotonic() < deadline:
                sender.close()
            else:
                sender.drop()

    def _take_all(self) -> Iterator[Any]:
        while True:
            try:
                yield self._idle.pop()
            except IndexError:
                return


class BacklogSender:
    """A sender to the secondary, and the backlog queue it stays with."""

    def __init__(self, sender: Sender) -> None:
        self.sender = sender
        self.queue: str | None = None

    def close(self) -> None:
        self.sender.close()

    def drop(self) -> None:
        self.sender.drop()
