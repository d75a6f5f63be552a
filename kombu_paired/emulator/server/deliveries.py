"""Who receives from which queue, and when it gets what is there."""

from __future__ import annotations

from collections.abc import Callable

from kombu_paired.emulator.broker.queues import Queue
from kombu_paired.emulator.server.links import Receiver
from kombu_paired.emulator.server.timers import Timers

__all__ = ("Deliveries",)


class Deliveries:
    """Receivers by queue. Many messages of one round of the event loop are delivered in one go.

    Arguments:
        timers: of the emulator.
        offer_session: told of a queue with sessions that one of them may be free.

    Attributes:
        frozen: nothing is delivered.
    """

    def __init__(self, timers: Timers, offer_session: Callable[[Queue], None]) -> None:
        self.frozen = False
        self._timers = timers
        self._offer_session = offer_session
        self._receivers: dict[int, list[Receiver]] = {}
        self._dirty: dict[int, Queue] = {}

    def add(self, link: Receiver) -> None:
        """A receiver is there."""
        self._receivers.setdefault(id(link.queue), []).append(link)

    def forget(self, link: Receiver) -> None:
        """A receiver is gone."""
        receivers = self._receivers.get(id(link.queue), [])
        if link in receivers:
            receivers.remove(link)

    def ready(self, queue: Queue) -> None:
        """A queue has something to receive."""
        if not self._dirty:
            self._timers.soon(self._deliver)
        self._dirty[id(queue)] = queue

    def _deliver(self) -> None:
        dirty, self._dirty = self._dirty, {}
        if self.frozen:
            return
        for queue in dirty.values():
            receivers = self._receivers.get(id(queue), [])
            for link in list(receivers):
                link.pump()
            if len(receivers) > 1:
                receivers.append(receivers.pop(0))  # the next one comes first next time
            if queue.options.requires_session:
                self._offer_session(queue)
