"""Now, soon and later, on the event loop that an emulator runs in."""

from __future__ import annotations

import asyncio
from collections.abc import Callable

__all__ = ("Timers",)


class Timers:
    """The clock of an emulator, and what it does when.

    Arguments:
        now: the clock, seconds since 1970.
    """

    def __init__(self, now: Callable[[], float]) -> None:
        self.now = now
        self._loop: asyncio.AbstractEventLoop | None = None

    def start(self, loop: asyncio.AbstractEventLoop) -> None:
        """Before this, what is to be done soon is not done: there are no clients yet."""
        self._loop = loop

    def time(self) -> float:
        """Seconds that only pass."""
        assert self._loop is not None
        return self._loop.time()

    def soon(self, action: Callable[[], None]) -> None:
        """Run it when the event loop comes round."""
        if self._loop is not None:
            self._loop.call_soon(action)

    def later(self, seconds: float, action: Callable[[], None]) -> asyncio.TimerHandle:
        """Run it after a while."""
        assert self._loop is not None
        return self._loop.call_later(seconds, action)
