"""Clients that wait for the next free session of a queue."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

from kombu_paired.emulator.broker.errors import Condition, Refusal
from kombu_paired.emulator.broker.queues import Queue
from kombu_paired.emulator.server.sessions import Carrier
from kombu_paired.emulator.server.timers import Timers

__all__ = ("Waiter", "Waiters")


@dataclass(eq=False)
class Waiter:
    """A client that waits.

    Attributes:
        connection: the client's.
        path, queue: what it wants a session of.
        take: gives it one, and says whether there was one; a :class:`.Refusal` when there will be none.
        refuse: tells it that it gets none.
    """

    connection: Carrier
    path: str
    queue: Queue
    take: Callable[[], bool]
    refuse: Callable[[Refusal], None]


class Waiters:
    """All of them; first come, first served."""

    def __init__(self, timers: Timers) -> None:
        self._timers = timers
        self._waiting: list[Waiter] = []

    def add(self, waiter: Waiter, seconds: float) -> None:
        """Let a client wait, for so long."""
        self._waiting.append(waiter)
        too_late = Refusal(Condition.TIMEOUT, "no session with messages became free in time")
        self._timers.later(seconds, lambda: self._give_up(waiter, too_late))

    def offer(self, queue: Queue) -> None:
        """A session of a queue may be free."""
        for waiter in list(self._waiting):
            if waiter.connection.over:
                self._waiting.remove(waiter)
            elif waiter.queue is queue:
                try:
                    if waiter.take():
                        self._waiting.remove(waiter)
                except Refusal as refusal:
                    self._give_up(waiter, refusal)

    def gone(self, path: str, refusal: Refusal) -> None:
        """An entity was deleted."""
        for waiter in [each for each in self._waiting if each.path.lower() == path.lower()]:
            self._give_up(waiter, refusal)

    def _give_up(self, waiter: Waiter, refusal: Refusal) -> None:
        if waiter in self._waiting:
            self._waiting.remove(waiter)
            waiter.refuse(refusal)
