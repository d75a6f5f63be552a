"""The queues that a pump receives from: which it should, and what is done about one that fails alone."""

from __future__ import annotations

import random
import threading
import time
from collections.abc import Callable, Iterable

from kombu_paired.brokers.roles import KeepsBacklog, Receiver
from kombu_paired.errors import NamespaceFailure
from kombu_paired.failures import FailureKind
from kombu_paired.options import PairedNamespaceOptions
from kombu_paired.syphon.patience import FIRST_WAIT, LONGEST_WAIT
from kombu_paired.syphon.teller import Teller

__all__ = ("Queues",)


class _Trouble:
    """A queue that failed alone, and when it is tried again: later each time."""

    def __init__(self, now: float) -> None:
        self.wait = FIRST_WAIT
        self.until = now + self.wait

    def try_later(self, now: float) -> None:
        self.wait = min(2 * self.wait, LONGEST_WAIT)
        self.until = now + random.uniform(self.wait / 2, self.wait)


class Queues:
    """Which queues a pump should receive from, and those of them that are in trouble.

    Arguments:
        names: of the first ones.
        secondary: where they are.
        options: of the pairing.
        teller: is told of one that fails, once.
        clock: monotonic seconds.
    """

    def __init__(
        self,
        names: Iterable[str],
        secondary: KeepsBacklog,
        options: PairedNamespaceOptions,
        teller: Teller,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        self._lock = threading.Lock()
        self._wanted = dict.fromkeys(names)
        self._served: list[str] = []
        self._troubles: dict[str, _Trouble] = {}
        self._secondary = secondary
        self._options = options
        self._teller = teller
        self._clock = clock

    @property
    def wanted(self) -> list[str]:
        """What is to be received from."""
        with self._lock:
            return list(self._wanted)

    def add(self, queue: str) -> None:
        """Receive from this one, too; from any thread, and at the next :meth:`tend`."""
        with self._lock:
            self._wanted[queue] = None

    def remove(self, queue: str) -> None:
        """Receive from this one no more."""
        with self._lock:
            self._wanted.pop(queue, None)

    def __str__(self) -> str:
        names = self.wanted
        return names[0] if len(names) == 1 else f"{len(names)} backlog queues"

    # -- for the pump's thread ----------------------------------------------------------------------------------

    def open_receiver(self, prefetch: int) -> Receiver:
        """A receiver of all that is wanted.

        Raises:
            NamespaceFailure: the secondary cannot be reached.
        """
        served = self.wanted
        receiver = self._secondary.receiver(served, prefetch, self._options.send_timeout)
        self._served = served
        return receiver

    def tend(self, receiver: Receiver) -> None:
        """Begin and end with queues as it is wanted, and try again those that are in trouble, if it is time.

        Raises:
            NamespaceFailure: the secondary failed.
        """
        self._follow(receiver)
        for queue in self._troubles.keys() - receiver.failed.keys():
            del self._troubles[queue]  # it has been tried again, and works
        for queue, failure in list(receiver.failed.items()):
            now = self._clock()
            trouble = self._troubles.get(queue)
            if trouble is None:
                self._troubles[queue] = _Trouble(now)
                self._teller.tries_again(f"cannot receive from {queue}", failure)
            elif now >= trouble.until:
                trouble.try_later(now)
                self._try_again(receiver, queue, failure)

    def _follow(self, receiver: Receiver) -> None:
        wanted = self.wanted
        for queue in [each for each in self._served if each not in wanted]:
            receiver.remove(queue)
        for queue in [each for each in wanted if each not in self._served]:
            receiver.add(queue)
        self._served = wanted

    def _try_again(self, receiver: Receiver, queue: str, failure: NamespaceFailure) -> None:
        if failure.kind is FailureKind.MISSING and self._options.create_backlog_queues:
            try:
                self._secondary.ensure_backlog_queues([queue], True, self._options.send_timeout)
            except NamespaceFailure as refusal:
                if refusal.whole_namespace:
                    raise
                return
        receiver.add(queue)

    @property
    def next_try(self) -> float:
        """Seconds until one that is in trouble is to be tried again; endless if none is."""
        now = self._clock()
        return max(min((each.until - now for each in self._troubles.values()), default=float("inf")), 0.0)

    def are_fine(self, receiver: Receiver) -> bool:
        """All that are wanted are received from."""
        return not receiver.failed and self.wanted == self._served
