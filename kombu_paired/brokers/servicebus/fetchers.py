"""The fetchers of one channel, and the room that they share."""

from __future__ import annotations

import threading
from collections.abc import Callable

from kombu_paired.brokers.servicebus.fetching import Fetcher
from kombu_paired.brokers.servicebus.settling import Outcome
from kombu_paired.deadline import Deadline

__all__ = ("FETCH_AHEAD", "Fetchers")

#: Messages that a consumer without a prefetch count, or without acknowledgements, fetches ahead.
FETCH_AHEAD = 100


class Fetchers:
    """The fetchers of one channel. What they hold together is bounded by its prefetch count.

    A queue that was cancelled and is consumed again has two: the first one stays until what it delivered is settled.

    Arguments:
        prefetch_count: how many messages the consumer wants to hold unsettled; 0 for no bound.
    """

    def __init__(self, prefetch_count: Callable[[], int]) -> None:
        self._prefetch_count = prefetch_count
        self._all: list[Fetcher] = []
        self._handing = threading.RLock()
        self._turn = 0

    def start(self, fetcher: Fetcher) -> None:
        self._all = [each for each in self._all if not each.is_over] + [fetcher]
        fetcher.start()

    def room(self, fetcher: Fetcher) -> int:
        """How many further messages a fetcher should have on their way: as many as there is room for, and some ahead.

        Who fetches ahead leaves no room, so there is always a place for the first message of another queue: it does not
        wait long, since the consumer is fast.
        """
        prefetch = self._prefetch_count()
        if fetcher.no_ack or not prefetch:
            return FETCH_AHEAD - fetcher.buffered
        room = self._left(prefetch)
        if room <= 0:
            room = int(any(each.ahead_wanted for each in self._all if each is not fetcher))
        return room + fetcher.ahead_wanted - fetcher.holding.ahead

    def _left(self, prefetch: int) -> int:
        return prefetch - sum(each.holding.handed_out for each in self._all)

    def hand_out(self) -> None:
        """Hand out what was fetched, as far as there is room: of each queue in turn."""
        with self._handing:
            in_turn = [each for each in self._all if each.holding.ahead and not each.holding.is_full]
            prefetch = self._prefetch_count()
            while in_turn and (not prefetch or self._left(prefetch) > 0):
                self._turn += 1
                fetcher = in_turn[self._turn % len(in_turn)]
                if not fetcher.hand_out():
                    in_turn.remove(fetcher)

    def wake(self) -> None:
        """There may be room again."""
        self.hand_out()
        for fetcher in self._all:
            fetcher.wake()

    def cancel(self, queue: str) -> None:
        """Fetch no more from a queue; what was delivered can still be settled."""
        for fetcher in self._of(queue):
            fetcher.cancel()

    def end(self, queue: str) -> None:
        """The queue is about to be deleted: nothing in it counts any more."""
        ended = self._of(queue)
        self._all = [each for each in self._all if each not in ended]
        for fetcher in ended:
            fetcher.drop()

    def settle(self, tag: str, outcome: Outcome) -> bool:
        """Have a message settled soon; False if none of them holds it any more."""
        is_held = any(each.holding.settle(tag, outcome) for each in self._all)
        if is_held:
            self.wake()
        return is_held

    def give_back(self) -> None:
        """Have all that is not settled come again."""
        for fetcher in self._all:
            fetcher.holding.give_back()

    def stop(self, timeout: float) -> None:
        """Settle what is to be settled, give back the rest, and end, in so many seconds altogether."""
        for fetcher in self._all:
            fetcher.stop()
        deadline = Deadline(timeout)
        for fetcher in self._all:
            fetcher.join(deadline.left)

    def drop(self) -> None:
        """Let go of all at once."""
        for fetcher in self._all:
            fetcher.drop()

    def _of(self, queue: str) -> list[Fetcher]:
        return [each for each in self._all if each.queue == queue]
