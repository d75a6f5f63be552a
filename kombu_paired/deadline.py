"""The time that one call has, over all that it does (docs/architecture.md, rule 26). Pure: the clock is injected."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from time import monotonic

__all__ = ("LEAST", "Deadline")

#: Seconds that a step gets when nothing is left: drivers take zero for "for ever", and less for the caller's fault.
LEAST = 0.001


class Deadline:
    """When a call must be over; never, unless it is said.

    Arguments:
        seconds: from now on.
        clock: monotonic seconds.
        whole: the deadline of which this is a part; it ends no later.

    Attributes:
        at: when, on that clock.
    """

    __slots__ = ("_clock", "_whole", "at")

    def __init__(
        self, seconds: float = math.inf, clock: Callable[[], float] = monotonic, whole: Deadline | None = None
    ) -> None:
        self._clock = clock
        self._whole = whole
        self.at: float = clock() + seconds
        if whole is not None and self.at > whole.at:
            self.at = whole.at

    @property
    def left(self) -> float:
        """Seconds for the next step, as a driver takes them for a time limit: never zero, and never less."""
        left = self.at - self._clock()
        return left if left > LEAST else LEAST  # not max(): several of these are asked for with each message

    @property
    def is_over(self) -> bool:
        return self._clock() >= self.at

    def part(self, seconds: float) -> Deadline:
        """So much of it for one of its steps."""
        return Deadline(seconds, self._clock, self)

    def postpone(self, seconds: float) -> None:
        """A wait that a busy namespace asks for is not the call's own time."""
        self.at += seconds
        if self._whole is not None:
            self._whole.postpone(seconds)

    @contextmanager
    def within(self, seconds: float) -> Iterator[None]:
        """What is done in the block takes at most so many seconds, and no longer than it might without."""
        before = self.at
        self.at = min(before, self._clock() + seconds)
        try:
            yield
        finally:
            self.at = before
