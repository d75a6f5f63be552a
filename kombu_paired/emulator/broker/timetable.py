"""What is due when. Pure: who calls :meth:`Timetable.run` says what time it is."""

from __future__ import annotations

import heapq
from collections.abc import Callable

__all__ = ("Timetable",)


class Timetable:
    """Actions in the order of their times; those of the same time in the order in which they were noted."""

    def __init__(self) -> None:
        self._due: list[tuple[float, int, Callable[[], None]]] = []
        self._ticket = 0

    def at(self, when: float, action: Callable[[], None]) -> None:
        """Note an action, seconds since 1970."""
        self._ticket += 1
        heapq.heappush(self._due, (when, self._ticket, action))

    def run(self, now: float) -> None:
        """Do what is due."""
        while self._due and self._due[0][0] <= now:
            heapq.heappop(self._due)[2]()
