"""How far away the emulator is: what is on its way arrives later, in order, and any amount of it at once."""

from __future__ import annotations

import asyncio
from collections import deque
from collections.abc import Callable

from kombu_paired.emulator.server.timers import Timers

__all__ = ("Road",)


class Road:
    """One direction of a wire.

    Arguments:
        timers: of the emulator.
        seconds: that everything is on its way. 0: no time at all.
    """

    def __init__(self, timers: Timers, seconds: float) -> None:
        self._timers = timers
        self._seconds = seconds
        self._under_way: deque[tuple[float, Callable[[], None]]] = deque()
        self._timer: asyncio.TimerHandle | None = None
        self._paused = False

    def send(self, arrive: Callable[[], None]) -> None:
        """Let something happen at the other end, after all that was sent before."""
        if not self._seconds and not self._under_way and not self._paused:
            arrive()
            return
        self._under_way.append((self._timers.time() + self._seconds, arrive))
        self._wait()

    def pause(self, paused: bool) -> None:
        """Let nothing arrive, or again what has waited."""
        self._paused = paused
        self._wait()

    def close(self) -> None:
        """What is under way never arrives."""
        self._under_way.clear()

    def _wait(self) -> None:
        if self._timer is None and self._under_way and not self._paused:
            left = max(self._under_way[0][0] - self._timers.time(), 0)
            self._timer = self._timers.later(left, self._arrive)

    def _arrive(self) -> None:
        self._timer = None
        while self._under_way and not self._paused and self._under_way[0][0] <= self._timers.time():
            self._under_way.popleft()[1]()
        self._wait()
