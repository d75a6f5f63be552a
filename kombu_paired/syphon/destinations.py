"""Which entities of the primary fail at the moment, and until when each is left alone. Pure but for its clock."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable

from kombu_paired.declarations import Entity

__all__ = ("Destinations",)

#: Seconds for which a failing destination is left alone: at first, and at most.
FIRST_REST, LONGEST_REST = 2.0, 60.0


class Destinations:
    """Which entities rest: they failed, and are left alone for a while.

    Arguments:
        clock: monotonic seconds.
    """

    def __init__(self, clock: Callable[[], float] = time.monotonic) -> None:
        self._clock = clock
        self._lock = threading.Lock()
        self._resting: dict[Entity, tuple[float, float, float]] = {}  # failing since, rest, until

    def is_resting(self, entity: Entity) -> bool:
        if not self._resting:
            return False
        with self._lock:
            found = self._resting.get(entity)
            return found is not None and self._clock() < found[2]

    def failed(self, entity: Entity) -> float:
        """It failed: let it rest, longer each time. Returns for how many seconds it has been failing."""
        with self._lock:
            now = self._clock()
            since, rest, until = self._resting.get(entity, (now, FIRST_REST / 2, now))
            if now >= until:
                rest = min(2 * rest, LONGEST_REST)
                self._resting[entity] = (since, rest, now + rest)
            return now - since

    def busy(self, entity: Entity, seconds: float) -> None:
        """It works, and asks to be left alone for so long."""
        with self._lock:
            now = self._clock()
            since, rest, until = self._resting.get(entity, (now, FIRST_REST / 2, now))
            self._resting[entity] = (since, rest, max(until, now + seconds))

    def worked(self, entity: Entity) -> None:
        if self._resting:
            with self._lock:
                self._resting.pop(entity, None)

    def next_wake(self) -> float:
        """Seconds until the first of them is tried again; 0 when none rests."""
        with self._lock:
            if not self._resting:
                return 0.0
            return max(0.0, min(until for _, _, until in self._resting.values()) - self._clock())
