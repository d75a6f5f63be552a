"""RabbitMQ: links with publisher confirms, returns and alarms, through py-amqp.

Facts this room rests on (RabbitMQ's documentation of confirms, alarms and ``connection.blocked``; measured on 3.10):

* A confirm comes after the broker has taken responsibility for a message, a ``basic.return`` before its confirm.
* A broker in alarm says ``connection.blocked`` to the message that finds it out, and stops reading from the connection.
  What is written to it nevertheless waits in the socket, and is stored when the alarm is over, whatever has become of
  the connection.
* A message to the default exchange that no queue is named after is confirmed and dropped: a probe that stores nothing.
  So a link that was not in use just now knocks with one before it writes many messages.
"""

from __future__ import annotations

import math
import struct
import time
from collections import deque
from collections.abc import Iterable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import replace
from functools import partial
from typing import TYPE_CHECKING, Any

import amqp
from amqp.exceptions import MessageNacked
from kombu.transport import pyamqp

from kombu_paired.deadline import Deadline
from kombu_paired.declarations import Declaration, Entity
from kombu_paired.errors import NamespaceFailure
from kombu_paired.failures import FailureKind
from kombu_paired.message import Message, marked_maybe_duplicate
from kombu_paired.namespaces.base import DEAD_LETTER_SUFFIX, DeadLetter, Received, Receiver, Sender
from kombu_paired.namespaces.driver import Driver
from kombu_paired.namespaces.letting_go import letting_go
from kombu_paired.namespaces.links import Link, LinkReceiver, as_dead_letter, message_of, prepare
from kombu_paired.namespaces.sockets import TimelySocket

if TYPE_CHECKING:
    from kombu_paired.namespaces.kombu import KombuNamespace

__all__ = ("AmqpLink", "AmqpReceiver", "AmqpSender", "RabbitMQ", "RabbitMQOverTLS", "kind_of")

#: Seconds that the message which finds out about an alarm may take to be confirmed.
BLOCKED_GRACE = 1.0
#: Seconds after its last confirm for which a link is known to take messages.
IN_USE = 1.0
#: No queue has this name.
NOWHERE = "kombu-paired.ping"
#: Seconds after a probe's confirm in which ``connection.blocked`` would arrive.
ALARM_NOTICE = 0.1
#: Seconds after which a receiver that waits finds out that the broker is silent (twice this, as in AMQP).
HEARTBEAT = 15.0
#: Seconds that a polite goodbye may take.
GOODBYE = 0.5
#: The documents' MaxDeliveryCount: without it a quorum queue drops what came back often.
UNLIMITED_DELIVERIES = 2_147_483_647

#: Reply codes (AMQP 0-9-1 specification, section 1.2, and RabbitMQ's extensions).
_CODES = {
    311: FailureKind.REJECTED,  # content too large
    312: FailureKind.MISSING,  # no route
    313: FailureKind.MISSING,  # no consumers
    320: FailureKind.UNREACHABLE,  # connection closed by an operator, or the broker shuts down
    402: FailureKind.UNAUTHORIZED,  # no such virtual host
    403: FailureKind.UNAUTHORIZED,
    404: FailureKind.MISSING,
    405: FailureKind.REJECTED,  # somebody's exclusive queue
    406: FailureKind.REJECTED,  # declared differently, or too large
    501: FailureKind.UNREACHABLE,
    502: FailureKind.REJECTED,
    503: FailureKind.FAULT,
    504: FailureKind.UNREACHABLE,
    505: FailureKind.UNREACHABLE,
    506: FailureKind.FAULT,  # out of resources
    530: FailureKind.UNAUTHORIZED,  # virtual host not allowed
    540: FailureKind.REJECTED,
    541: FailureKind.FAULT,
}


class BrokerBlocked(Exception):
    """RabbitMQ is in alarm (memory or disk) and takes no messages."""


def kind_of(exc: BaseException) -> FailureKind | None:
    """The kind of an exception that py-amqp raises; None for others."""
    if isinstance(exc, BrokerBlocked | MessageNacked):
        return FailureKind.FAULT
    if isinstance(exc, amqp.AMQPError):
        code = exc.reply_code or exc.code  # py-amqp has no class for a returned message (312)
        if code == 404 and "down or inaccessible" in str(exc):
            return FailureKind.FAULT  # a cluster node that hosts the queue is away
        if "timed out" in str(exc):
            return FailureKind.TIMEOUT
        return _CODES.get(code, FailureKind.UNREACHABLE)
    if isinstance(exc, AttributeError):
        return FailureKind.UNREACHABLE  # py-amqp's answer when the connection vanished under a call
    return None


class _TimelyConnection(pyamqp.Connection):  # type: ignore[misc]
    """A connection whose socket keeps to a deadline, from the first frame on."""

    def __init__(self, *args: Any, until: Deadline, **kwargs: Any) -> None:
        self._until = until
        super().__init__(*args, **kwargs)

    def Transport(self, *args: Any, **kwargs: Any) -> Any:
        transport = super().Transport(*args, **kwargs)
        set_up = transport._setup_transport

        def set_up_timely() -> None:
            set_up()  # TLS, whose handshake has one time limit for all of it
            sock = transport.sock = TimelySocket(transport.sock, self._until)
            # Without waiting it would spin in the middle of a frame.
            transport._quick_recv, transport._write = sock.read, sock.sendall

        transport._setup_transport = set_up_timely
        return transport


class AmqpLink(Link):
    """A connection to RabbitMQ that knows whether the broker is in alarm."""

    blocked: str | None = None

    def connect_options(self, patience: float) -> dict[str, Any]:
        self.blocked = None
        return {"on_blocked": self._on_blocked, "on_unblocked": self._on_unblocked}

    def make_timely(self, transport: Any, until: Deadline) -> None:
        transport.Connection = partial(_TimelyConnection, until=until)

    def connected(self, connection: Any) -> None:
        # connect_timeout bounds the handshake, TLS too; from here on each call brings its own bound.
        connection.transport.sock.settimeout(None)
        # Told so, py-amqp looks for the notice before each publish, by a read that fails: we ask the socket instead.
        connection.client_properties.pop("capabilities", None)

    def _on_blocked(self, reason: str) -> None:
        self.blocked = reason

    def _on_unblocked(self) -> None:
        self.blocked = None

    @contextmanager
    def within(self, timeout: float) -> Iterator[None]:
        with super().within(timeout), self.connection.transport.having_timeout(self.until.left):
            yield

    def has_arrived(self) -> bool:
        """Whether there is something to read."""
        transport = self.connection.transport
        return bool(transport._read_buffer) or bool(transport.sock.has_arrived())

    def read_what_is_there(self) -> None:
        """Handle the frames that have arrived.

        For the rest of a frame the deadline is waited, and for the channel to open again if a frame has closed it:
        py-amqp keeps no word of what it could not finish.
        """
        while self.has_arrived():
            self.connection.blocking_read()

    def require_flow(self) -> None:
        """Raise BrokerBlocked if the broker has said that it takes nothing."""
        self.read_what_is_there()
        if self.blocked:
            raise BrokerBlocked(self.blocked)

    def read_for(self, seconds: float) -> None:
        """Handle frames for so long."""
        deadline = Deadline(seconds)
        with self.until.within(seconds):
            while True:
                try:
                    self.connection.drain_events(timeout=0 if deadline.is_over else deadline.left)
                except TimeoutError:
                    if not self.channel.is_open:
                        raise  # it was closed, and had no time to open again
                    return

    def has_queue(self, name: str, timeout: float) -> bool:
        return self.count(name, timeout) is not None

    def create_backlog_queue(self, name: str, timeout: float) -> bool:
        arguments: dict[str, Any] = {}
        if self.namespace.queue_type:
            arguments["x-queue-type"] = self.namespace.queue_type
        if self.namespace.queue_type == "quorum":
            arguments["x-delivery-limit"] = UNLIMITED_DELIVERIES
        with self.within(timeout):
            self.channel.queue_declare(queue=name, durable=True, auto_delete=False, arguments=arguments)
        return True

    def count(self, name: str, timeout: float) -> int | None:
        try:
            with self.within(timeout):
                return int(self.channel.queue_declare(queue=name, passive=True).message_count)
        except amqp.NotFound as exc:
            if kind_of(exc) is not FailureKind.MISSING:
                raise
            return None  # the channel reopened itself

    def peek(self, name: str, timeout: float) -> Message | None:
        with self.within(timeout):
            raw = self.channel.basic_get(name)
            if raw is None:
                return None
            self.channel.basic_reject(raw.delivery_tag, requeue=True)
            return message_of(self.channel.message_to_python(raw))

    def probe(self, entity: Entity | None, timeout: float) -> None:
        deadline = Deadline(timeout)
        try:
            with self.within(timeout):
                if entity and entity.exchange:
                    self.channel.exchange_declare(entity.exchange, "direct", passive=True)
                elif entity:
                    self.channel.queue_declare(queue=entity.routing_key, passive=True)
        except amqp.NotFound as exc:
            if kind_of(exc) is not FailureKind.MISSING:
                raise
            # The broker works; the next send declares what is missing.
        self._probe_alarm(deadline.left)

    def _probe_alarm(self, timeout: float) -> None:
        with self.within(timeout):
            self.channel.confirm_select()
            self.channel.basic_publish_confirm(
                amqp.Message(""), exchange="", routing_key=NOWHERE, timeout=timeout, confirm_timeout=timeout
            )
        self.read_for(ALARM_NOTICE)
        if self.blocked:
            raise BrokerBlocked(self.blocked)

    def close(self) -> None:
        if self.connection is not None and not self.blocked:
            with letting_go(f"a link to {self.namespace.label}"), self.within(GOODBYE):
                self.connection.close()
        self.drop()

    def close_at_once(self, client: Any, connection: Any, channel: Any) -> None:
        connection.collect()


class AmqpSender(Sender):
    """Publishes with confirms of its own counting, so that many messages can be under way at once."""

    def __init__(self, namespace: KombuNamespace) -> None:
        super().__init__()
        self.namespace = namespace
        self.link = AmqpLink(namespace)
        self._sequence = 0
        self._last_confirm = -math.inf
        #: Sequence number -> message that awaits its confirm, in the order of publishing.
        self._awaited: dict[int, Message] = {}
        self._outcomes: dict[int, NamespaceFailure] = {}

    @property
    def is_fresh(self) -> bool:
        return not self.link.is_open

    def send(self, message: Message, timeout: float) -> None:
        deadline = time.monotonic() + timeout
        channel = self._open(timeout)
        until = self.link.until
        number = None  # while it is None, the broker cannot have got the whole of the message
        try:
            until.at = deadline
            self.link.require_flow()
            number = self._begin(channel, message, message.mandatory)
            self._await_confirms()
        except Exception as exc:
            raise self._broken(exc, maybe_stored=number is not None, of_peer=number is not None) from exc
        finally:
            until.at = math.inf
        if self._outcomes:
            failure = self._outcomes.pop(number, None)
            if failure is not None:
                raise failure

    def send_batch(self, messages: Sequence[Message], timeout: float) -> list[NamespaceFailure | None]:
        deadline = Deadline(timeout)
        numbers: list[int] = []
        self.maybe_twice.clear()
        try:
            channel = self._open(timeout)
            with self.link.until.within(deadline.left):
                self._write(channel, messages, numbers)
                self._await_confirms()
            if len(numbers) < len(messages):
                raise BrokerBlocked(self.link.blocked or "was in alarm")
        except NamespaceFailure as failure:
            return [failure] * len(messages)
        except Exception as exc:
            return self._after_broken_batch(exc, messages, numbers, deadline)
        outcomes, self._outcomes = self._outcomes, {}
        return [outcomes.get(number) for number in numbers] if outcomes else [None] * len(numbers)

    def _write(self, channel: Any, messages: Sequence[Message], numbers: list[int]) -> None:
        """Write until the broker is in alarm, and note the numbers of what was written."""
        if time.monotonic() > self._last_confirm + IN_USE:
            self._knock(channel)
        for message in messages:
            self.link.read_what_is_there()
            if self.link.blocked:
                return
            numbers.append(self._begin(channel, message, True))

    def _knock(self, channel: Any) -> None:
        """Find out whether the broker takes messages, with one that nobody gets."""
        self.link.require_flow()
        number = self._begin(channel, Message(b"", routing_key=NOWHERE), False)
        while number in self._awaited:
            self.link.connection.drain_events()
            if self.link.blocked:
                raise BrokerBlocked(self.link.blocked)

    def _after_broken_batch(
        self, exc: Exception, messages: Sequence[Message], numbers: list[int], deadline: Deadline
    ) -> list[NamespaceFailure | None]:
        """Confirmed ones are done. If one message broke the channel, the others go singly, to find out which."""
        awaited, outcomes = set(self._awaited), dict(self._outcomes)
        failure = self._broken(exc, maybe_stored=True, of_peer=len(numbers) == len(messages))
        results: list[NamespaceFailure | None] = []
        for index, message in enumerate(messages):
            number = numbers[index] if index < len(numbers) else None
            if number is not None and number not in awaited:
                results.append(outcomes.get(number))
            elif failure.kind.counts:
                results.append(failure if number is not None else failure.of_nothing_stored())
            else:
                results.append(self._alone(message, deadline))
                if number is not None and results[-1] is None:
                    self.maybe_twice.add(message.message_id)
        return results

    def _alone(self, message: Message, deadline: Deadline) -> NamespaceFailure | None:
        try:
            self._require_exchange(message, deadline)
            [outcome] = self._batch_of_one(message, deadline)
            return outcome
        except NamespaceFailure as failure:
            return failure

    def _batch_of_one(self, message: Message, deadline: Deadline) -> list[NamespaceFailure | None]:
        number = None
        try:
            channel = self._open(deadline.left)
            with self.link.until.within(deadline.left):
                self.link.require_flow()
                number = self._begin(channel, message, True)
                self._await_confirms()
        except NamespaceFailure as failure:
            return [failure]
        except Exception as exc:
            return [self._broken(exc, maybe_stored=number is not None)]
        return [self._outcomes.pop(number, None)]

    def _require_exchange(self, message: Message, deadline: Deadline) -> None:
        if message.exchange:
            passive = Declaration("exchange_declare", {"exchange": message.exchange, "type": "direct", "passive": True})
            self.declare([passive], deadline.left)

    def declare(self, declarations: Iterable[Declaration], timeout: float) -> Any:
        answer = None
        deadline = Deadline(timeout)
        channel = self._open(timeout)
        try:
            with self.link.within(deadline.left):
                for declaration in declarations:
                    answer = getattr(channel, declaration.operation)(**declaration.arguments)
        except Exception as exc:
            raise self._broken(exc, maybe_stored=False) from exc
        return answer

    def close(self) -> None:
        self.link.close()
        self._forget()

    def _open(self, timeout: float) -> Any:
        link = self.link
        if link.channel is not None:
            return link.channel
        deadline = Deadline(timeout)
        channel = link.open(timeout)
        self._forget()
        try:
            with link.within(deadline.left):
                channel.confirm_select()
        except Exception as exc:
            raise self._broken(exc, maybe_stored=False) from exc
        channel.events["basic_ack"].add(self._on_ack)
        channel.events["basic_nack"].add(self._on_nack)
        channel.events["basic_return"].add(self._on_return)
        return channel

    def _begin(self, channel: Any, message: Message, mandatory: bool) -> int:
        """Write a message. The deadline is that of the link: a time limit of py-amqp's costs each frame anew."""
        channel._basic_publish(
            prepare(channel, message),
            exchange=message.exchange,
            routing_key=message.routing_key,
            mandatory=mandatory,
        )
        self._sequence += 1
        self._awaited[self._sequence] = message
        return self._sequence

    def _await_confirms(self) -> None:
        connection = self.link.connection
        while self._awaited:
            if self.link.blocked:
                self._await_confirms_while_blocked()
                return
            connection.drain_events()  # until the deadline of the link

    def _await_confirms_while_blocked(self) -> None:
        deadline = self.link.until.part(BLOCKED_GRACE)
        try:
            while self._awaited:
                self.link.connection.drain_events(timeout=deadline.left)
        except TimeoutError as exc:
            raise BrokerBlocked(self.link.blocked or "was in alarm") from exc

    def _on_ack(self, number: int, multiple: bool) -> None:
        self._confirmed(number, multiple, None)

    def _on_nack(self, number: int, multiple: bool) -> None:
        refused = MessageNacked("the broker refused the message (basic.nack), e.g. its queue is full")
        self._confirmed(number, multiple, self.namespace.failure(refused))

    def _confirmed(self, number: int, multiple: bool, outcome: NamespaceFailure | None) -> None:
        self._last_confirm = time.monotonic()
        awaited = self._awaited
        numbers = [number]
        if multiple:
            numbers = []
            for each in awaited:  # in order
                if each > number:
                    break
                numbers.append(each)
        for each in numbers:
            awaited.pop(each, None)
            if outcome is not None:
                self._outcomes.setdefault(each, outcome)

    def _on_return(self, exc: Exception, exchange: str, routing_key: str, returned: Any) -> None:
        message_id = returned.properties.get("message_id")
        failure = self.namespace.failure(exc)
        for number, message in self._awaited.items():
            same_place = message.exchange == exchange and message.routing_key == routing_key
            if same_place and message.properties.get("message_id") == message_id:
                self._outcomes[number] = failure

    def _broken(self, exc: Exception, *, maybe_stored: bool, of_peer: bool = False) -> NamespaceFailure:
        """Drop the link: after an error its confirms cannot be told apart any more.

        Arguments:
            of_peer: all was written, so that no message of ours is at fault.
        """
        failure = exc
        if not isinstance(failure, NamespaceFailure):
            is_garbage = of_peer and isinstance(exc, LookupError | TypeError | ValueError | struct.error)
            kind = FailureKind.UNREACHABLE if is_garbage else None
            failure = self.namespace.failure(exc, kind=kind, maybe_stored=maybe_stored, url=self.link.url)
        self.link.blame(failure)
        self.drop()
        return failure

    def drop(self) -> None:
        self.link.drop()
        self._forget()

    def _forget(self) -> None:
        self._forget_all_declared()
        self._awaited.clear()
        self._outcomes.clear()
        self._sequence = 0
        self._last_confirm = -math.inf


class AmqpReceiver(LinkReceiver):
    """Consumes one queue with a prefetch, in batches."""

    def __init__(self, namespace: KombuNamespace, queue: str, prefetch: int, timeout: float) -> None:
        self.namespace = namespace
        self.queue = queue
        self.link = AmqpLink(namespace, heartbeat=HEARTBEAT)
        self._buffer: deque[Any] = deque()
        self._unsettled: dict[int, None] = {}
        self._interrupted = False
        self._timeout = timeout
        self._letters: AmqpSender | None = None
        deadline = Deadline(timeout)
        channel = self.link.open(timeout)
        with self._failing(), self.link.within(deadline.left):
            channel.basic_qos(0, prefetch, False)
            channel.basic_consume(queue, callback=self._buffer.append, on_cancel=self._on_cancel)

    def _on_cancel(self, consumer_tag: str) -> None:
        raise amqp.NotFound(f"the queue {self.queue!r} was deleted", reply_code=404)

    def receive(self, limit: int, timeout: float) -> list[Received]:
        deadline = Deadline(timeout)
        with self._failing():
            while not self._buffer and not self._interrupted and not deadline.is_over:
                patience = min(1.0, deadline.left)
                try:
                    with self.link.until.within(patience):
                        self.link.connection.drain_events(timeout=patience)
                except TimeoutError:  # what has come of a frame is kept
                    self.link.connection.heartbeat_tick()
            self._read_more(limit)
        batch = [self._buffer.popleft() for _ in range(min(limit, len(self._buffer)))]
        return [self._received(raw) for raw in batch]

    def _read_more(self, limit: int) -> None:
        drain = self.link.connection.drain_events
        try:
            while len(self._buffer) < limit:
                drain(timeout=0)
        except TimeoutError:
            return

    def _received(self, raw: Any) -> Received:
        self._unsettled[raw.delivery_tag] = None
        properties = dict(raw.properties)
        message = Message(
            body=raw.body,
            priority=properties.pop("priority", None),
            content_type=properties.pop("content_type", None),
            content_encoding=properties.pop("content_encoding", None),
            headers=properties.pop("application_headers", None) or {},
            properties=properties,
        )
        return Received(message, raw.delivery_tag, again=bool(raw.delivery_info.get("redelivered")))

    def complete(self, received: Sequence[Received]) -> None:
        with self._failing(), self.link.within(self._timeout):
            self._acknowledge([each.token for each in received])

    def _acknowledge(self, tags: list[int]) -> None:
        """One frame for all that are older than everything still held, one each for the rest."""
        done = set(tags)
        last = 0
        for tag in self._unsettled:  # in order of delivery
            if tag not in done:
                break
            last = tag
        if last:
            self.link.channel.basic_ack(last, multiple=True)
        for tag in sorted(done):
            if tag > last:
                self.link.channel.basic_ack(tag)
            self._unsettled.pop(tag, None)

    def abandon(self, received: Sequence[Received], *, maybe_duplicate: bool = False) -> None:
        forms = (marked_maybe_duplicate(each.message) if maybe_duplicate else each.message for each in received)
        self._move([replace(form, exchange="", routing_key=self.queue) for form in forms], received)

    def dead_letter(self, letters: Sequence[DeadLetter]) -> None:
        corpses = [as_dead_letter(letter, self.queue) for letter in letters]
        self._ensure_dead_letter_queue()
        self._move(corpses, [letter.received for letter in letters])

    def _ensure_dead_letter_queue(self) -> None:
        """Create it if it is missing, on another channel: asking for a missing queue closes the one that asks."""
        arguments = {"queue": self.queue + DEAD_LETTER_SUFFIX, "durable": True, "auto_delete": False}
        try:
            self._side_sender().declare([Declaration("queue_declare", {**arguments, "passive": True})], self._timeout)
        except NamespaceFailure as failure:
            if failure.kind is not FailureKind.MISSING:
                raise
            self._side_sender().declare([Declaration("queue_declare", arguments)], self._timeout)

    def _side_sender(self) -> AmqpSender:
        if self._letters is None:
            self._letters = AmqpSender(self.namespace)
        return self._letters

    def _move(self, copies: list[Message], received: Sequence[Received]) -> None:
        """First the copy, confirmed, then the acknowledgement: a crash in between doubles and never loses."""
        outcomes = self._side_sender().send_batch(copies, self._timeout)
        self.complete([each for each, outcome in zip(received, outcomes, strict=True) if outcome is None])
        failures = [outcome for outcome in outcomes if outcome is not None]
        if failures:
            raise failures[0]

    def interrupt(self) -> None:
        self._interrupted = True

    def close(self) -> None:
        if self._letters is not None:
            self._letters.close()
        self.link.close()


class RabbitMQ(Driver):
    """RabbitMQ, by AMQP 0-9-1."""

    routed = True
    keeps_unsettled = True
    tested = True
    has_host = True
    port = 5672

    def link(self, namespace: KombuNamespace) -> Link:
        return AmqpLink(namespace)

    def sender(self, namespace: KombuNamespace) -> Sender:
        return AmqpSender(namespace)

    def receiver(self, namespace: KombuNamespace, queue: str, prefetch: int, timeout: float) -> Receiver:
        return AmqpReceiver(namespace, queue, prefetch, timeout)

    def kind_of(self, exc: BaseException) -> FailureKind | None:
        return kind_of(exc)

    def concerns_all(self, exc: BaseException) -> bool:
        return isinstance(exc, BrokerBlocked)

    def hurry(self, connection: Any, seconds: float) -> None:
        sock = getattr(connection._transport, "sock", None)
        if sock is not None:
            sock.settimeout(seconds)


class RabbitMQOverTLS(RabbitMQ):
    """The same, over TLS."""

    tested = False
    port = 5671
