"""Stand-in queues that come home: what workers that stood in have left there, or workers that were killed."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable

from kombu_paired.errors import NamespaceFailure
from kombu_paired.pairing import Pairing
from kombu_paired.syphon.pump import MessagePump
from kombu_paired.syphon.teller import Teller

__all__ = ("StandIns",)

#: Seconds between two looks at them: while something is there or may come, and while nothing does.
SOON, SELDOM = 1.0, 30.0
#: Seconds after the primary's return in which syphons that have not heard of it may still hand out.
NEWS_TRAVEL = 15.0
#: Looks in a row that find nothing until all are taken for empty: on RabbitMQ a look overlooks one whose name somebody
#: else reads at that moment.
SURE_LOOKS = 2
#: Seconds for which one has to be empty before it is removed.
EMPTY_FOR = 600.0


class StandIns:
    """Which stand-in queues a pump is to move home: those that hold something, while the primary works.

    Arguments:
        pairing: whose.
        pump: moves them.
        teller: is told of a look that fails.
        clock: monotonic seconds.

    Attributes:
        are_empty: the last looks found nothing in any of them.
    """

    def __init__(
        self, pairing: Pairing, pump: MessagePump, teller: Teller, clock: Callable[[], float] = time.monotonic
    ) -> None:
        self._empty_looks = 0
        self._pairing = pairing
        self._pump = pump
        self._teller = teller
        self._clock = clock
        self._moving: set[str] = set()
        self._empty_since: dict[str, float] = {}
        self._next_look = float("-inf")
        self._often_until: float | None = None
        self._has_failed = False
        self._lock = threading.Lock()
        self._times_left = 0

    @property
    def are_empty(self) -> bool:
        return self._empty_looks >= SURE_LOOKS

    def leave(self) -> None:
        """The primary is away: they are for the workers that stand in, and looked at anew when it is back.

        The pump calls it before it receives again, while the watch may be looking: what that finds is of no use then.
        """
        with self._lock:
            self._times_left += 1
            self._next_look, self._often_until = float("-inf"), None
            self._empty_looks = 0
            for queue in self._moving:
                self._pump.remove(queue)
            self._moving.clear()

    def tend(self) -> None:
        """Move home what holds something, and remove what has long been empty."""
        now, times_left = self._clock(), self._times_left
        if self._often_until is None:
            self._often_until = now + NEWS_TRAVEL
        if now < self._next_look:
            return
        try:
            found = self._look()
        except NamespaceFailure as failure:
            self._next_look = now + SELDOM
            if not self._has_failed:
                self._teller.tries_again("cannot look for stand-in queues", failure)
            self._has_failed = True
            return
        self._has_failed = False
        with self._lock:
            if self._times_left != times_left:
                return
            for queue, messages in found.items():
                self._tend_one(queue, messages, now)
            self._empty_looks = 0 if any(found.values()) else self._empty_looks + 1
            self._next_look = now + (SELDOM if self.are_empty and now >= self._often_until else SOON)
        self._remove_what_is_long_empty(now)

    def _look(self) -> dict[str, int]:
        """The stand-in queues of this primary, and how many messages are in each."""
        secondary, timeout = self._pairing.secondary, self._pairing.options.send_timeout
        found = secondary.stand_in_queues(self._pairing.name, timeout, give_back=True)
        # On RabbitMQ a name is missing for the moment in which somebody else reads it.
        names = sorted({*found, *self._moving, *self._empty_since})
        depths = secondary.backlog_depths(names, timeout) if names else []
        return {each.queue: each.messages or 0 for each in depths}

    def _tend_one(self, queue: str, messages: int, now: float) -> None:
        if messages:
            self._empty_since.pop(queue, None)
            if queue not in self._moving:
                self._moving.add(queue)
                self._pump.add(queue)
            return
        if queue in self._moving:
            self._moving.discard(queue)
            self._pump.remove(queue)
        self._empty_since.setdefault(queue, now)

    def _remove_what_is_long_empty(self, now: float) -> None:
        for queue in [each for each, since in self._empty_since.items() if now - since >= EMPTY_FOR]:
            del self._empty_since[queue]
            try:
                self._pairing.stand_in_queues.remove(queue)
            except NamespaceFailure as failure:
                self._teller.tries_again(f"cannot remove {queue}", failure)
