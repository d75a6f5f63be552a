"""How much a consumer fetches beyond what it may hold, so that the way to the service costs it no time. A pure rule.

A consumer that holds eight messages and settles one every half millisecond is idle for most of a round trip of 30 ms:
what follows a message that it settled is that long on its way. So as many more are on their way as it settles in that
time. Where a task takes longer than a round trip that is none at all, and nothing is taken that another worker could
run.
"""

from __future__ import annotations

import math
import time
from collections import deque
from collections.abc import Callable

__all__ = ("KEEP_AHEAD", "MOST_AHEAD", "Pace")

#: Messages that are fetched ahead at most, whatever the rule says.
MOST_AHEAD = 500
#: Round trips whose messages are fetched ahead. What is on its way takes one; more is asked for by quarters; and on a
#: busy machine all comes late, at a pace that would be taken for that of the consumer.
ROUND_TRIPS = 3.0
#: What is fetched ahead is handed out within this part of its lock, at the consumer's pace.
PART_OF_LOCK = 0.05
#: Seconds after which what was fetched ahead, and is not handed out, is given back: the consumer has become slow.
KEEP_AHEAD = 1.0
#: Seconds over which the pace is measured, in so many parts.
WINDOW, PARTS = 0.5, 10
#: Round trips that are remembered. The middle one counts: one that took long says nothing of the next.
REMEMBERED = 15


class Pace:
    """How fast messages of one queue are settled, and how far away the service is.

    Arguments:
        clock: in seconds.
    """

    def __init__(self, clock: Callable[[], float] = time.monotonic) -> None:
        self._clock = clock
        self._settled: deque[list[float]] = deque()  # [since, how many]
        self._round_trips: deque[float] = deque(maxlen=REMEMBERED)

    def settled(self) -> None:
        """The consumer is done with a message."""
        now = self._clock()
        if not self._settled or now - self._settled[-1][0] >= WINDOW / PARTS:
            self._settled.append([now, 0])
            self._forget(now)
        self._settled[-1][1] += 1

    def answered(self, seconds: float) -> None:
        """The service has answered, so long after it was told something."""
        self._round_trips.append(seconds)

    @property
    def rate(self) -> float:
        """Messages a second that the consumer is done with."""
        self._forget(self._clock())
        return sum(count for _, count in self._settled) / WINDOW

    @property
    def round_trip(self) -> float:
        """Seconds to the service and back; 0 while that is not known."""
        return sorted(self._round_trips)[len(self._round_trips) // 2] if self._round_trips else 0.0

    def ahead(self, lock: float) -> int:
        """How many messages to fetch ahead.

        Arguments:
            lock: seconds that a message is locked for.
        """
        return min(math.floor(self.rate * min(ROUND_TRIPS * self.round_trip, PART_OF_LOCK * lock)), MOST_AHEAD)

    def _forget(self, now: float) -> None:
        while self._settled and self._settled[0][0] <= now - WINDOW:
            self._settled.popleft()
