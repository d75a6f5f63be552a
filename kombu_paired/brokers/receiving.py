"""Receivers over one link, and the one for any transport of Kombu's."""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any

from kombu_paired.brokers.bell import Bell
from kombu_paired.brokers.forms import as_dead_letter, message_of, publish
from kombu_paired.brokers.roles import DeadLetter, Received, Receiver
from kombu_paired.deadline import Deadline
from kombu_paired.errors import NamespaceFailure
from kombu_paired.failures import FailureKind

if TYPE_CHECKING:
    from kombu_paired.brokers.kombu import KombuNamespace

__all__ = ("KombuReceiver", "LinkReceiver", "concerns_link")


def concerns_link(failure: NamespaceFailure) -> bool:
    """Whether a failure is that of a connection, or of the whole namespace, and not of one queue alone."""
    return failure.whole_namespace or failure.kind in (FailureKind.UNREACHABLE, FailureKind.TIMEOUT)


class LinkReceiver(Receiver):
    """A receiver over one link, which is let go when that fails: what it held is back in its queues then."""

    link: Any

    def __init__(self, namespace: KombuNamespace, link: Any) -> None:
        self.namespace = namespace
        self.link = link
        self.failed: dict[str, NamespaceFailure] = {}
        self._bell = Bell()
        self._interrupted = False
        self._fetched_in_vain: NamespaceFailure | None = None

    @contextmanager
    def _failing(self) -> Iterator[None]:
        try:
            with self.namespace.failing():
                yield
        except NamespaceFailure:
            self.link.drop()
            raise

    def fetch(self, limit: int) -> None:
        try:
            with self._failing():
                self.take_in(limit)
        except NamespaceFailure as failure:
            self._fetched_in_vain = failure

    def take_in(self, limit: int) -> None:
        """What :meth:`fetch` does here; it may raise."""

    def _require_link(self) -> None:
        """Raise what the link failed with when something was fetched."""
        if self._fetched_in_vain is not None:
            raise self._fetched_in_vain

    def interrupt(self) -> None:
        self._interrupted = True
        self._bell.ring()

    def _was_interrupted(self) -> bool:
        """Whether somebody has interrupted since this was asked last."""
        found, self._interrupted = self._interrupted, False
        return found

    def close(self) -> None:
        self.link.close()
        self._bell.close()


class KombuReceiver(LinkReceiver):
    """Receives with ``basic_get`` from any Kombu transport, one message at a time, from one queue after the other."""

    #: Seconds between two looks at empty queues.
    pause = 1.0

    def __init__(self, namespace: KombuNamespace, queues: Sequence[str], timeout: float) -> None:
        super().__init__(namespace, namespace.link())
        self._queues: list[str] = []
        self._held: dict[str, dict[int, Received]] = {}
        self._channel = self.link.open(timeout)
        for queue in queues:
            self.add(queue)

    def add(self, queue: str) -> None:
        self.failed.pop(queue, None)
        if queue not in self._queues:
            self._queues.append(queue)
        with self._alone(queue):
            self.look_at(queue)

    def look_at(self, queue: str) -> None:
        """Raise if this queue cannot be received from, where the transport can say so without taking a message."""

    def remove(self, queue: str) -> None:
        self.failed.pop(queue, None)
        if queue in self._queues:
            self._queues.remove(queue)
        self.abandon(list(self._held.pop(queue, {}).values()))

    @contextmanager
    def _alone(self, queue: str) -> Iterator[None]:
        """What fails in the block for want of this queue, or of rights to it, is no failure of the link."""
        try:
            with self.namespace.failing():
                yield
        except NamespaceFailure as failure:
            if failure.kind not in (FailureKind.MISSING, FailureKind.UNAUTHORIZED):
                self.link.drop()
                raise
            self.failed[queue] = failure
            self._held.pop(queue, None)
            if queue in self._queues:
                self._queues.remove(queue)

    def receive(self, limit: int, timeout: float) -> list[Received]:
        deadline = Deadline(timeout)
        known = len(self.failed)
        while not self._was_interrupted():
            batch = self._take(limit)
            if batch or len(self.failed) > known or deadline.is_over:
                return batch
            self._bell.wait(min(self.pause, deadline.left))
        return []

    def _take(self, limit: int) -> list[Received]:
        """What the queues have, one message of each in turn."""
        batch: list[Received] = []
        waiting = deque(self._queues)
        while waiting and len(batch) < limit:
            queue = waiting.popleft()
            with self._alone(queue):
                raw = self._channel.basic_get(queue)
                if raw is not None:
                    received = Received(message_of(raw), queue, raw)
                    self._held.setdefault(queue, {})[id(raw)] = received
                    batch.append(received)
                    waiting.append(queue)
        return batch

    def complete(self, received: Sequence[Received]) -> None:
        self._settle(received, lambda each: each.token.ack())

    def abandon(self, received: Sequence[Received], *, maybe_duplicate: bool = False) -> None:
        self._settle(received, lambda each: each.token.reject(requeue=True))

    def dead_letter(self, letters: Sequence[DeadLetter]) -> None:
        by_token = {id(letter.received.token): letter for letter in letters}

        def move(received: Received) -> None:
            dead = as_dead_letter(by_token[id(received.token)])
            self._channel.queue_declare(queue=dead.routing_key, durable=True, auto_delete=False)
            publish(self._channel, dead)
            received.token.ack()

        self._settle([letter.received for letter in letters], move)

    def _settle(self, received: Sequence[Received], how: Callable[[Received], object]) -> None:
        for each in received:
            if each.queue not in self.failed:
                with self._alone(each.queue):
                    how(each)
                    self._held.get(each.queue, {}).pop(id(each.token), None)
