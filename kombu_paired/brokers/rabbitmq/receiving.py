"""Receives backlog messages from RabbitMQ: over one connection, with a channel for each queue.

What goes back behind the others, and what is a dead letter, is published over a connection of its own, which is there
while it is needed: a broker in alarm stops reading from a connection that publishes, and would not hear from it any
more what it may forget (RabbitMQ's documentation of alarms).
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import replace
from typing import TYPE_CHECKING, Any

import amqp

from kombu_paired.brokers.forms import as_dead_letter
from kombu_paired.brokers.rabbitmq.compat import FurtherChannel
from kombu_paired.brokers.rabbitmq.links import AmqpLink
from kombu_paired.brokers.rabbitmq.sending import AmqpSender
from kombu_paired.brokers.receiving import LinkReceiver, concerns_link
from kombu_paired.brokers.roles import DEAD_LETTER_SUFFIX, DeadLetter, Received
from kombu_paired.deadline import Deadline
from kombu_paired.declarations import Declaration
from kombu_paired.errors import NamespaceFailure
from kombu_paired.failures import FailureKind
from kombu_paired.message import Message, marked_maybe_duplicate

if TYPE_CHECKING:
    from kombu_paired.brokers.kombu import KombuNamespace

__all__ = ("AmqpReceiver",)

#: Seconds after which a receiver that waits finds out that the broker is silent (twice this, as in AMQP).
HEARTBEAT = 15.0
#: Seconds for which it waits in one go, and looks then whether it is time for a heartbeat.
TICK = HEARTBEAT / 3


class _Consumed:
    """A queue that is consumed, over a channel of its own.

    Arguments:
        arrived: takes each message that comes.
        ended: is called with the reason when the broker ends it.
    """

    def __init__(
        self,
        connection: Any,
        queue: str,
        arrived: Callable[[_Consumed, Any], None],
        ended: Callable[[_Consumed, Exception], None],
    ) -> None:
        self.queue = queue
        self._arrived, self._ended = arrived, ended
        self._channel = FurtherChannel(connection, lambda reason: ended(self, reason))
        self._tag = ""
        self._unsettled: dict[int, None] = {}

    def begin(self, prefetch: int) -> None:
        self._channel.open()
        self._channel.basic_qos(0, prefetch, False)
        self._tag = self._channel.basic_consume(self.queue, callback=self._take, on_cancel=self._cancelled)

    def _take(self, raw: Any) -> None:
        self._arrived(self, raw)

    def _cancelled(self, consumer_tag: str) -> None:
        self._ended(self, amqp.NotFound(f"the queue {self.queue!r} was deleted", reply_code=404))

    def hold(self, delivery_tag: int) -> None:
        self._unsettled[delivery_tag] = None

    def acknowledge(self, tags: Sequence[int]) -> None:
        """One frame for all that are older than everything still held, one each for the rest."""
        done = set(tags)
        last = 0
        for tag in self._unsettled:  # in order of delivery
            if tag not in done:
                break
            last = tag
        if last:
            self._channel.basic_ack(last, multiple=True)
        for tag in sorted(done):
            if tag > last:
                self._channel.basic_ack(tag)
            self._unsettled.pop(tag, None)

    def cancel(self) -> None:
        """Let no more come, and all that is unsettled go back."""
        self._channel.basic_cancel(self._tag)
        self._channel.close()

    def end(self) -> None:
        """Let all that is unsettled go back, and wait for nothing."""
        self._channel.close_later()


class AmqpReceiver(LinkReceiver):
    """Consumes queues with a prefetch each, in batches."""

    link: AmqpLink

    def __init__(self, namespace: KombuNamespace, queues: Sequence[str], prefetch: int, timeout: float) -> None:
        super().__init__(namespace, AmqpLink(namespace, heartbeat=HEARTBEAT))
        self._prefetch = prefetch
        self._timeout = timeout
        self._consumed: dict[str, _Consumed] = {}
        self._buffer: deque[tuple[_Consumed, Any]] = deque()
        self._side: AmqpSender | None = None
        self.link.open(timeout)
        for queue in queues:
            self.add(queue)

    # -- its queues ---------------------------------------------------------------------------------------------

    def add(self, queue: str) -> None:
        self.failed.pop(queue, None)
        if queue in self._consumed:
            return
        with self._failing(), self.link.within(self._timeout):
            consumed = _Consumed(self.link.connection, queue, self._arrived, self._ended)
            self._consumed[queue] = consumed
            try:
                consumed.begin(self._prefetch)
            except amqp.RecoverableConnectionError:
                if queue not in self.failed:
                    raise

    def _arrived(self, consumed: _Consumed, raw: Any) -> None:
        self._buffer.append((consumed, raw))

    def _ended(self, consumed: _Consumed, reason: Exception) -> None:
        """The broker ends a consumer: its queue was deleted, or its channel closed."""
        if self._consumed.get(consumed.queue) is consumed:
            self._give_up(consumed, self.namespace.failure(reason))

    def _give_up(self, consumed: _Consumed, failure: NamespaceFailure) -> None:
        self.failed[consumed.queue] = failure
        self._forget(consumed)
        with self._failing():
            consumed.end()

    def _forget(self, consumed: _Consumed) -> None:
        self._consumed.pop(consumed.queue, None)
        self._buffer = deque(each for each in self._buffer if each[0] is not consumed)

    def remove(self, queue: str) -> None:
        self.failed.pop(queue, None)
        consumed = self._consumed.get(queue)
        if consumed is not None:
            with self._failing(), self.link.within(self._timeout):
                consumed.cancel()
            self._forget(consumed)
            self.failed.pop(queue, None)  # it may have been deleted just now

    @contextmanager
    def _alone(self, queue: str) -> Iterator[None]:
        """What fails in the block for want of this queue, or of rights to it, is no failure of the link."""
        try:
            yield
        except NamespaceFailure as failure:
            if concerns_link(failure):
                raise
            self._give_up(self._consumed[queue], failure)

    # -- receiving ----------------------------------------------------------------------------------------------

    def receive(self, limit: int, timeout: float) -> list[Received]:
        self._require_link()
        deadline = Deadline(timeout)
        known = len(self.failed)
        with self._failing():
            self._read_more(limit)
            while not self._buffer and len(self.failed) == known and not deadline.is_over:
                if self._was_interrupted():
                    return []
                self._wait(min(TICK, deadline.left))
                self._read_more(limit)
        return [self._received(*self._buffer.popleft()) for _ in range(min(limit, len(self._buffer)))]

    def _wait(self, seconds: float) -> None:
        connection = self.link.connection
        if not self._bell.wait(seconds, connection.transport.sock):
            self._close_side()
        connection.heartbeat_tick()

    def take_in(self, limit: int) -> None:
        self._read_more(limit)

    def _read_more(self, limit: int) -> None:
        """Handle what has come, a heartbeat too; what has come of a frame is kept."""
        try:
            while len(self._buffer) < limit:
                self.link.connection.drain_events(timeout=0)
        except TimeoutError:
            return

    def _received(self, consumed: _Consumed, raw: Any) -> Received:
        consumed.hold(raw.delivery_tag)
        properties = dict(raw.properties)
        message = Message(
            body=raw.body,
            priority=properties.pop("priority", None),
            content_type=properties.pop("content_type", None),
            content_encoding=properties.pop("content_encoding", None),
            headers=properties.pop("application_headers", None) or {},
            properties=properties,
        )
        again = bool(raw.delivery_info.get("redelivered"))
        return Received(message, consumed.queue, (consumed, raw.delivery_tag), again)

    # -- settling -----------------------------------------------------------------------------------------------

    def complete(self, received: Sequence[Received]) -> None:
        tags: dict[_Consumed, list[int]] = {}
        for each in received:
            consumed: _Consumed = each.token[0]
            if self._consumed.get(each.queue) is consumed:  # else that has ended, and gave back what it held
                tags.setdefault(consumed, []).append(each.token[1])
        with self._failing(), self.link.within(self._timeout):
            for consumed, done in tags.items():
                consumed.acknowledge(done)

    def abandon(self, received: Sequence[Received], *, maybe_duplicate: bool = False) -> None:
        def copy(each: Received) -> Message:
            message = marked_maybe_duplicate(each.message) if maybe_duplicate else each.message
            return replace(message, exchange="", routing_key=each.queue)

        self._move([(each, copy(each)) for each in received])

    def dead_letter(self, letters: Sequence[DeadLetter]) -> None:
        for queue in {letter.received.queue for letter in letters} & self._consumed.keys():
            with self._alone(queue):
                self._ensure_dead_letter_queue(queue)
        self._move([(letter.received, as_dead_letter(letter)) for letter in letters])

    def _ensure_dead_letter_queue(self, queue: str) -> None:
        """Create it if it is missing; asking for a missing queue closes the channel that asks."""
        arguments = {"queue": queue + DEAD_LETTER_SUFFIX, "durable": True, "auto_delete": False}
        try:
            self._side_sender().declare([Declaration("queue_declare", {**arguments, "passive": True})], self._timeout)
        except NamespaceFailure as failure:
            if failure.kind is not FailureKind.MISSING:
                raise
            self._side_sender().declare([Declaration("queue_declare", arguments)], self._timeout)

    def _move(self, copies: Sequence[tuple[Received, Message]]) -> None:
        """First the copy, confirmed, then the acknowledgement: a crash in between doubles and never loses."""
        held = [each for each in copies if each[0].queue in self._consumed]
        if not held:
            return
        outcomes = self._side_sender().send_batch([message for _, message in held], self._timeout)
        answers = list(zip((received for received, _ in held), outcomes, strict=True))
        self.complete([received for received, outcome in answers if outcome is None])
        for received, outcome in answers:
            if outcome is not None and received.queue in self._consumed:
                with self._alone(received.queue):
                    raise outcome

    def _side_sender(self) -> AmqpSender:
        if self._side is None:
            self._side = AmqpSender(self.namespace)
        return self._side

    def _close_side(self) -> None:
        side, self._side = self._side, None
        if side is not None:
            side.close()

    def close(self) -> None:
        self._close_side()
        super().close()
