"""Which backlog queue to use, and which ones are pulled. Pure: clock and random source are injected."""

from __future__ import annotations

import random
import threading
from collections.abc import Callable, Collection, Iterable

__all__ = ("BacklogRotation",)


class BacklogRotation:
    """The backlog queues of a pairing, shared by every sender of the process.

    A sender picks one at random and stays with it. A queue that fails is pulled for all senders; it is on trial again
    after ``retry_interval``, or when no other is left (docs/architecture.md, rule 9).

    Arguments:
        queues: the names of the usable backlog queues.
        retry_interval: seconds a pulled queue stays out.
        clock: monotonic seconds.
        choose: picks one of a list; :func:`random.choice` in production.
    """

    def __init__(
        self,
        queues: Iterable[str],
        retry_interval: float,
        clock: Callable[[], float],
        choose: Callable[[list[str]], str] = random.choice,
    ) -> None:
        self._queues = tuple(queues)
        self._retry_interval = retry_interval
        self._clock = clock
        self._choose = choose
        self._lock = threading.Lock()
        self._pulled_until: dict[str, float] = {}

    def __len__(self) -> int:
        return len(self._queues)

    @property
    def queues(self) -> tuple[str, ...]:
        return self._queues

    def use(self, queues: Iterable[str]) -> bool:
        """Take these, unless others were found before. True if they were taken."""
        with self._lock:
            if self._queues:
                return False
            self._queues = tuple(queues)
            return True

    def pick(self, current: str | None = None, tried: Collection[str] = ()) -> str | None:
        """The queue to send to: ``current`` while it is in the rotation, else another one.

        When all are pulled, the one that was pulled first is on trial before its time: whoever asks has nowhere else
        to go.

        Arguments:
            tried: queues that have just failed the caller.

        Returns:
            None when there is no queue left to try.
        """
        with self._lock:
            if current in self._queues and current not in tried and not self._is_pulled(current):
                return current
            untried = [queue for queue in self._queues if queue not in tried]
            usable = [queue for queue in untried if not self._is_pulled(queue)]
            if usable:
                return self._choose(usable)
            return min(untried, key=self._pulled_until.__getitem__, default=None)

    def pull(self, queue: str) -> bool:
        """Take a queue that failed out of the rotation. True if it was in."""
        with self._lock:
            was_in = not self._is_pulled(queue)
            self._pulled_until[queue] = self._clock() + self._retry_interval
            return was_in

    def readmit(self, queue: str) -> bool:
        """A send to the queue succeeded. True if it was on trial since it had been pulled."""
        if not self._pulled_until:
            return False
        with self._lock:
            return self._pulled_until.pop(queue, None) is not None

    def pulled(self) -> list[str]:
        """The queues that are out at the moment."""
        with self._lock:
            return [queue for queue in self._queues if self._is_pulled(queue)]

    def _is_pulled(self, queue: str | None) -> bool:
        if queue is None:
            return True
        return self._clock() < self._pulled_until.get(queue, float("-inf"))
