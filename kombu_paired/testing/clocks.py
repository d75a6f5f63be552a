"""Time for tests: as it is, and as a test says."""

from __future__ import annotations

import threading
import time

__all__ = ("Clock", "ManualClock")


class Clock:
    """Time as it is, in monotonic seconds."""

    def __call__(self) -> float:
        return time.monotonic()

    def sleep(self, seconds: float) -> None:
        time.sleep(seconds)

    def wait(self, condition: threading.Condition, seconds: float) -> None:
        """Wait until something happened, at most so long."""
        condition.wait(seconds)


class ManualClock(Clock):
    """Time that passes only when somebody sleeps or waits on it, and then at once.

    Attributes:
        now: seconds; a test may set it.
    """

    def __init__(self, now: float = 1000.0) -> None:
        self.now = now

    def __call__(self) -> float:
        return self.now

    def sleep(self, seconds: float) -> None:
        self.now += seconds

    def wait(self, condition: threading.Condition, seconds: float) -> None:
        self.now += seconds
