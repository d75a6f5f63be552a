"""The time that one call has, over all that it does (docs/architecture.md, rule 26). Pure: the clock is injected."""

from __future__ import annotations

from collections.abc import Callable

__all__ = ("LEAST", "Deadline")

#: Seconds that a step gets when nothing is left: drivers take zero for "for ever".
LEAST = 0.001


class Deadline:
    """When a call must be over.

    Arguments:
        seconds: from now on.
        clock: monotonic seconds.
        whole: the deadline of which this is a part; it ends no later.
    """

    __slots__ = ("_clock", "_until", "_whole")

    def __init__(self, seconds: float, clock: Callable[[], float], whole: Deadline | None = None) -> None:
        self._clock = clock
        self._whole = whole
        self._until: float = clock() + seconds
        if whole is not None:
            self._until = min(self._until, whole._until)

    @property
    def left(self) -> float:
        """Seconds for the next step; never zero."""
        return max(self._until - self._clock(), LEAST)

    @property
    def is_over(self) -> bool:
        return self._clock() >= self._until

    def part(self, seconds: float) -> Deadline:
        """So much of it for one of its steps."""
        return Deadline(seconds, self._clock, self)

    def postpone(self, seconds: float) -> None:
        """A wait that a busy namespace asks for is not the call's own time."""
        self._until += seconds
        if self._whole is not None:
            self._whole.postpone(seconds)
