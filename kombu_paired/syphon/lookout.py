"""Queues of somebody else's on which a pump keeps an eye: while they are empty he needs neither a thread nor a link."""

from __future__ import annotations

import threading
from collections.abc import Callable

from kombu_paired.brokers.roles import Received, Receiver
from kombu_paired.syphon.queues import Queues

__all__ = ("Lookout",)


class Lookout:
    """Looks after queues until something is in one: that goes back, the queue is left alone, and its owner is called.

    Arguments:
        queues: those of the pump, which receives from these besides.
    """

    def __init__(self, queues: Queues) -> None:
        self._queues = queues
        self._lock = threading.Lock()
        self._names: set[str] = set()  # of all that ever were somebody else's: what comes of one late is his, too
        self._owners: dict[str, Callable[[], None]] = {}

    def keep(self, queue: str, owner: Callable[[], None], while_: Callable[[], bool]) -> bool:
        """Look after a queue, from any thread, if there is somebody who looks.

        Arguments:
            owner: is called once, from the thread of the pump or of whoever ends the looking; it must not wait.
            while_: whether somebody looks.
        """
        with self._lock:
            if not while_():
                return False
            self._names.add(queue)
            self._owners[queue] = owner
            self._queues.add(queue)
            return True

    def end(self) -> None:
        """Nobody looks any more: the owners look for themselves."""
        with self._lock:
            owners, self._owners = self._owners, {}
            for queue in owners:
                self._queues.remove(queue)
        for call in owners.values():
            call()

    def sort_out(self, receiver: Receiver, batch: list[Received]) -> list[Received]:
        """What of a batch is the pump's own; the rest goes back.

        Raises:
            NamespaceFailure: the secondary failed, and all of it is back in its queues.
        """
        found = self._names.intersection(each.queue for each in batch)
        if not found:
            return batch
        with self._lock:
            owners = [self._owners.pop(queue) for queue in found if queue in self._owners]
            for queue in found:
                self._queues.remove(queue)
        try:
            self._queues.tend(receiver)
        finally:
            for call in owners:
                call()
        return [each for each in batch if each.queue not in found]
