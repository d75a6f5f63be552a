"""The namespace on Azure Service Bus: senders, receivers, pings."""

from __future__ import annotations

import logging
import time
import uuid
from collections import deque
from collections.abc import Iterable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from itertools import groupby
from typing import TYPE_CHECKING, Any

from azure.servicebus.amqp import AmqpAnnotatedMessage
from azure.servicebus.exceptions import ServiceBusError

from kombu_paired.deadline import Deadline
from kombu_paired.declarations import Declaration, Entity
from kombu_paired.errors import MessageTooLarge, NamespaceFailure
from kombu_paired.failures import FailureKind
from kombu_paired.message import DIVERTED_AT, Message
from kombu_paired.namespaces.base import (
    DEAD_LETTER_SUFFIX,
    BacklogDepth,
    DeadLetter,
    Received,
)
from kombu_paired.namespaces.letting_go import letting_go
from kombu_paired.namespaces.links import KombuSender, Link, LinkReceiver, float_or_none, prepare
from kombu_paired.namespaces.servicebus import kinds
from kombu_paired.namespaces.servicebus.names import is_backlog
from kombu_paired.namespaces.servicebus.sdk import (
    ReceiverLink,
    SenderLink,
    body_length,
    encoded_size,
)
from kombu_paired.namespaces.servicebus.transport import Channel, Transport, Unrouted
from kombu_paired.namespaces.servicebus.wire import is_ping, new_ping, received_backlog_message, to_backlog_form

if TYPE_CHECKING:
    from kombu_paired.namespaces.kombu import KombuNamespace

__all__ = ("ServiceBusLink", "ServiceBusReceiver", "ServiceBusSender", "kind_of", "size_on")

logger = logging.getLogger(__name__)

#: Messages of one receive (the documents of paired namespaces).
BATCH = 100
#: Seconds before its end at which a long poll is over: to ask once more for so little would be another receive.
NEARLY = 0.2
#: Seconds for which messages that were put back are kept from coming again, as long as others come; well below a lock.
LONGEST_HOLD = 30.0
#: Seconds to wait for others before they come again.
OTHERS_WAIT = 0.5
#: Seconds that a receiver may take to give back what it holds when it closes.
GOODBYE = 1.0
#: Bytes that the properties of a message of ours take at most: ids, subject and content type, aliases.
PROPERTIES = 4096
#: Bytes that the service may add to a message that it is given.
SLACK = 512
#: Kinds of failure of who cannot connect: what is unanswered there was not sent.
AWAY = frozenset({FailureKind.UNREACHABLE, FailureKind.TIMEOUT})
#: Part of the send timeout that opening a link gets, so that something is left for the send.
CONNECT_SHARE = 0.5
#: The service was given time enough to answer, if it had so large a part of a send's.
ENOUGH = 0.5
#: Queues that are looked into side by side.
LOOKS_AT_ONCE = 10


def kind_of(exc: BaseException) -> FailureKind | None:
    """The kind of an exception that the SDK, or the transport on it, raises; None for others."""
    if isinstance(exc, Unrouted):
        return FailureKind.MISSING
    if _wants_a_session(exc):
        return FailureKind.REJECTED
    return kinds.kind_of(exc)


def _wants_a_session(exc: BaseException) -> bool:
    """A queue with sessions refuses a message without a session id."""
    text = str(exc).lower()
    return isinstance(exc, ServiceBusError) and "not-allowed" in text and "session" in text


def unreached(namespace: KombuNamespace, exc: BaseException, *, whole_namespace: bool = True) -> NamespaceFailure:
    """The failure of what did not come as far as sending.

    Arguments:
        whole_namespace: whoever gets no answer here gets none anywhere else.
    """
    if namespace.kind_of(exc) not in AWAY:
        return namespace.failure(exc)
    return namespace.failure(exc, kind=FailureKind.UNREACHABLE, whole_namespace=whole_namespace)


@contextmanager
def reaching(namespace: KombuNamespace) -> Iterator[None]:
    """Exceptions leave as failures of what did not come as far as sending."""
    try:
        yield
    except NamespaceFailure:
        raise
    except Exception as exc:
        raise unreached(namespace, exc) from exc


def size_on(namespace: KombuNamespace, message: Message) -> int:
    """Bytes that a message takes in the service."""
    link = ServiceBusLink(namespace)
    try:
        return encoded_size(encoded(link.open(namespace.send_timeout), message)) + SLACK
    finally:
        link.drop()


def _depth(transport: Transport, name: str, deadline: Deadline) -> BacklogDepth:
    counts = transport.entities.counts(name, deadline.left)
    if counts is None:
        return BacklogDepth(name, None)
    waiting, dead = counts
    oldest = _peek(transport, name, deadline) if waiting else None
    corpse = _peek(transport, name, deadline, dead_letters=True) if dead else None
    return BacklogDepth(
        name,
        waiting,
        oldest_diverted_at=float_or_none(oldest.headers.get(DIVERTED_AT)) if oldest else None,
        dead_letters=dead,
        dead_letter_reason=str(corpse.headers.get("DeadLetterReason", "")) if corpse else None,
    )


def _peek(transport: Transport, name: str, deadline: Deadline, *, dead_letters: bool = False) -> Message | None:
    link = transport.clients.receiver(name, dead_letters=dead_letters)
    link.open(deadline.left)
    try:
        found = link.peek(1, deadline.left)
    finally:
        link.close()
    return received_backlog_message(found[0]) if found else None


def encoded(channel: Channel, message: Message) -> AmqpAnnotatedMessage:
    """A message as it is sent: to a backlog queue in the backlog's form, else in an envelope.

    It gets an id now, if it has none: what is diverted because its acknowledgement was lost has the same.
    """
    if not message.message_id:
        message.properties["message_id"] = str(uuid.uuid4())
    if not message.exchange and is_backlog(message.routing_key):
        return to_backlog_form(message)
    return channel.envelope(prepare(channel, message), message.exchange, message.routing_key)


class ServiceBusLink(Link):
    """A channel that routes, and the links that it sends over. It connects when the first of them is opened."""

    channel: Channel
    connection: Transport

    def _connect(self, url: str, patience: float) -> None:
        self.url = url
        self.client = self.namespace.new_client(url)
        self.connection = self.client.transport
        self.channel = self.connection.create_channel(self.connection)

    def bound(self, timeout: float) -> None:
        self.connection.timeout = timeout

    def probe(self, entity: Entity | None, timeout: float) -> None:
        """Ping what a message to the entity would go to; for no entity, ask whether the service answers."""
        deadline = Deadline(timeout)
        try:
            targets = self.channel.route(entity.exchange, entity.routing_key, {}) if entity else []
        except Unrouted:
            targets = []
        if not targets:
            with reaching(self.namespace):
                self.connection.ask(timeout)
        for target in targets:
            try:
                with self.namespace.failing():
                    self._ping(target, deadline)
            except NamespaceFailure as failure:
                if failure.kind is not FailureKind.MISSING:  # whoever sends to it declares it first
                    raise

    def ensure_backlog_queues(self, names: Sequence[str], create: bool, timeout: float) -> list[str]:
        deadline = Deadline(timeout)
        with reaching(self.namespace):
            if not create:
                return self._attachable(names, timeout)
            entities = self.connection.entities
            there = entities.existing(names, timeout * CONNECT_SHARE)  # silence is found out as when connecting
            for name in names:
                if name not in there:
                    entities.create_backlog_queue(name, deadline.left)
        return list(names)

    def _attachable(self, names: Sequence[str], timeout: float) -> list[str]:
        """Those that one can send to: to know more takes the right to manage."""

        def attach(name: str) -> BaseException | None:
            link = self.connection.clients.sender(name)
            try:
                link.open(timeout)
            except Exception as exc:
                return exc
            finally:
                link.close()
            return None

        with ThreadPoolExecutor(len(names)) as pool:
            outcomes = list(pool.map(attach, names))
        usable = [name for name, outcome in zip(names, outcomes, strict=True) if outcome is None]
        kind_of = self.namespace.kind_of
        others = [exc for exc in outcomes if exc is not None and kind_of(exc) is not FailureKind.MISSING]
        if not usable and others:
            raise others[0]
        return usable

    def backlog_depths(self, names: Sequence[str], timeout: float) -> list[BacklogDepth]:
        deadline = Deadline(timeout)
        with reaching(self.namespace), ThreadPoolExecutor(LOOKS_AT_ONCE) as pool:
            return list(pool.map(lambda name: _depth(self.connection, name, deadline), names))

    def to(self, target: str, deadline: Deadline) -> SenderLink:
        """An open link to an entity.

        Raises:
            NamespaceFailure: there is none. Whoever cannot connect for want of an answer reaches no other entity.
        """
        given = min(deadline.left, CONNECT_SHARE * self.namespace.send_timeout)
        try:
            return self.connection.outgoing.link(target, given)
        except Exception as exc:
            if self.namespace.kind_of(exc) is FailureKind.MISSING:
                self.connection.entities.missing(target)
            is_outage = given >= ENOUGH * self.namespace.send_timeout and not self.connection.outgoing.was_let_in
            raise unreached(self.namespace, exc, whole_namespace=is_outage) from exc

    def _ping(self, target: str, deadline: Deadline) -> None:
        def send(ping: AmqpAnnotatedMessage) -> None:
            self.to(target, deadline).send(ping, deadline.left)

        try:
            send(new_ping())
        except ServiceBusError as exc:
            if not _wants_a_session(exc):
                raise
            self.connection.outgoing.drop(target)
            send(new_ping(in_session=True))

    def close(self) -> None:
        if self.connection is not None:
            with letting_go(f"a link to {self.namespace.label}"):
                self.connection.outgoing.close()
        self.drop()

    def close_at_once(self, client: Any, connection: Any, channel: Any) -> None:
        connection.outgoing.drop_all()


class ServiceBusSender(KombuSender):
    """Sends over a link per queue or topic."""

    link: ServiceBusLink

    def __init__(self, namespace: KombuNamespace) -> None:
        super().__init__(namespace)
        self._silent: set[str] = set()

    @property
    def is_fresh(self) -> bool:
        return not self.link.is_open or self.link.connection.outgoing.is_fresh

    def send(self, message: Message, timeout: float) -> None:
        deadline = Deadline(timeout)
        channel = self.link.open(timeout)
        try:
            targets = channel.route(message.exchange, message.routing_key, message.properties)
            outgoing = encoded(channel, message)
        except Exception as exc:
            raise self.namespace.failure(exc) from exc
        for target in targets:
            self._send_to(target, message, outgoing, deadline)

    def _send_to(self, target: str, message: Message, outgoing: AmqpAnnotatedMessage, deadline: Deadline) -> None:
        link = self.link.to(target, deadline)
        self._require_fit(message, outgoing, link)
        try:
            link.send(outgoing, deadline.left)
        except Exception as exc:
            raise self._failed_at(target, exc) from exc

    def declare(self, declarations: Iterable[Declaration], timeout: float) -> Any:
        """Every declaration is a call of the management, which may be away alone."""
        deadline, answer = Deadline(timeout), None
        channel = self.link.open(timeout)
        try:
            for declaration in declarations:
                self.link.bound(deadline.left)
                answer = getattr(channel, declaration.operation)(**declaration.arguments)
        except Exception as exc:
            raise unreached(self.namespace, exc, whole_namespace=not self.link.connection.entities.was_let_in) from exc
        return answer

    def _require_fit(self, message: Message, outgoing: AmqpAnnotatedMessage, link: SenderLink) -> None:
        """Raise before anything is sent: what the service says is learned from the link."""
        limit = self.namespace.max_message_size = link.max_message_size
        if body_length(outgoing) + PROPERTIES < limit:
            return
        size = encoded_size(outgoing)
        if size > limit:
            too_large = MessageTooLarge(
                f"message {message.message_id} to {message.entity.path!r} takes {size} bytes, and "
                f"{self.namespace.label} accepts {limit}"
            )
            raise self.namespace.failure(too_large, kind=FailureKind.REJECTED)

    def _failed_at(self, target: str, exc: Exception) -> NamespaceFailure:
        failure = self.namespace.failure(exc, maybe_stored=not kinds.is_refusal(exc))
        if failure.kind.counts:
            self.link.connection.outgoing.drop(target)
        elif failure.kind is FailureKind.MISSING:
            self.link.connection.outgoing.drop(target)
            self.link.connection.entities.missing(target)
        return failure

    # -- batches ------------------------------------------------------------------------------------------------

    def send_batch(self, messages: Sequence[Message], timeout: float) -> list[NamespaceFailure | None]:
        deadline = Deadline(timeout)
        outcomes: list[NamespaceFailure | None] = [None] * len(messages)
        try:
            channel = self.link.open(timeout)
        except NamespaceFailure as failure:
            return [failure] * len(messages)
        ready: list[tuple[str, str, int, AmqpAnnotatedMessage]] = []
        for index, message in enumerate(messages):
            try:
                outgoing = encoded(channel, message)
                for target in channel.route(message.exchange, message.routing_key, message.properties):
                    ready.append((target, _session_of(outgoing), index, outgoing))
            except Exception as exc:
                outcomes[index] = self.namespace.failure(exc)
        # Whoever was silent the last time comes last: it must not take the time of the others again and again.
        ready.sort(key=lambda each: (each[0] in self._silent, *each[:3]))
        for (target, _), group in groupby(ready, key=lambda each: each[:2]):
            parts = [(index, outgoing) for _, _, index, outgoing in group]
            for index, outcome in self._send_parts(target, messages, parts, deadline):
                outcomes[index] = outcomes[index] or outcome
        return outcomes

    def _send_parts(
        self,
        target: str,
        messages: Sequence[Message],
        parts: list[tuple[int, AmqpAnnotatedMessage]],
        deadline: Deadline,
    ) -> Iterator[tuple[int, NamespaceFailure | None]]:
        """Send to one entity, in as few batches as fit."""
        while parts:
            try:
                link = self.link.to(target, deadline)
                batch, count = self._filled(link, parts)
            except NamespaceFailure as refusal:
                for index, _ in parts:
                    yield index, refusal
                return
            chosen, parts = parts[: max(count, 1)], parts[max(count, 1) :]
            answers = self._send_together(target, messages, chosen, link, batch, deadline)
            yield from zip((index for index, _ in chosen), answers, strict=True)
            away = next((each for each in answers if each is not None and each.kind in AWAY), None)
            if away is None:
                self._silent.discard(target)
            else:
                self._silent.add(target)
                unsent = unreached(self.namespace, away.cause, whole_namespace=away.whole_namespace)
                yield from ((index, unsent) for index, _ in parts)
                return

    def _send_together(
        self,
        target: str,
        messages: Sequence[Message],
        chosen: Sequence[tuple[int, AmqpAnnotatedMessage]],
        link: SenderLink,
        batch: Any,
        deadline: Deadline,
    ) -> list[NamespaceFailure | None]:
        """Send as one batch; alone, one that fills a batch, and those of whom one is refused: which?"""
        if len(chosen) > 1:
            try:
                link.send(batch, min(deadline.left, self.namespace.send_timeout))
            except Exception as exc:
                refused = self._failed_at(target, exc)
                if refused.kind is not FailureKind.REJECTED:
                    return [refused] * len(chosen)
            else:
                return [None] * len(chosen)
        return [self._outcome_alone(target, messages[index], outgoing, deadline) for index, outgoing in chosen]

    def _filled(self, link: SenderLink, parts: Sequence[tuple[int, AmqpAnnotatedMessage]]) -> tuple[Any, int]:
        batch, count = link.new_batch(), 0
        for _, outgoing in parts:
            try:
                batch.add_message(outgoing)
            except Exception as exc:  # it is full; or whatever is wrong with this one shows when it goes alone
                logger.debug("a batch of %d to %s: %r", count, link.path, exc)
                break
            count += 1
        return batch, count

    def _outcome_alone(
        self, target: str, message: Message, outgoing: AmqpAnnotatedMessage, deadline: Deadline
    ) -> NamespaceFailure | None:
        try:
            self._send_to(target, message, outgoing, deadline.part(self.namespace.send_timeout))
        except NamespaceFailure as failure:
            return failure
        return None


def _session_of(outgoing: AmqpAnnotatedMessage) -> str:
    properties = outgoing.properties
    return str(properties.group_id or "") if properties else ""


class ServiceBusReceiver(LinkReceiver):
    """Receives from a backlog queue under lock, up to a hundred at a time."""

    link: ReceiverLink

    def __init__(self, namespace: KombuNamespace, queue: str, timeout: float) -> None:
        self.namespace = namespace
        self.queue = queue
        self._interrupted = False
        self._unsettled: dict[int, Received] = {}
        self._put_back: deque[Received] = deque()
        self._put_back_since = 0.0
        name = queue.removesuffix(DEAD_LETTER_SUFFIX)
        with namespace.failing():
            clients = namespace.new_client(namespace.urls[0]).transport.clients
            self.link = clients.receiver(name, dead_letters=name != queue, tick=0.2)
        try:
            self.link.open(timeout)
        except Exception as exc:
            raise unreached(namespace, exc, whole_namespace=not self.link.was_let_in) from exc

    def receive(self, limit: int, timeout: float) -> list[Received]:
        """One receive of the SDK, so one grant of credit, however long it waits."""
        try:
            return self._receive(limit, timeout)
        except NamespaceFailure:
            if not self._interrupted:
                raise
            return []

    def _receive(self, limit: int, timeout: float) -> list[Received]:
        deadline = Deadline(timeout)
        with self._failing():
            while not self._interrupted:
                wait = min(deadline.left, OTHERS_WAIT) if self._put_back else deadline.left
                batch = self._take(min(limit, BATCH), wait)
                if self._interrupted:
                    break  # what came goes back when this is closed
                if batch:
                    return batch
                if self._put_back:
                    self._let_come_again()
                elif deadline.left < NEARLY:
                    return []
        return []

    def _take(self, limit: int, wait: float) -> list[Received]:
        if self._put_back and time.monotonic() - self._put_back_since > LONGEST_HOLD:
            self._let_come_again()
        batch = []
        for raw in self.link.receive(limit, wait):
            if is_ping(raw):
                self.link.settle("complete", raw)
                continue
            received = Received(received_backlog_message(raw), raw)
            self._unsettled[id(raw)] = received
            batch.append(received)
        return batch

    def complete(self, received: Sequence[Received]) -> None:
        self._settle([("complete", each, {}) for each in received])

    def abandon(self, received: Sequence[Received], *, maybe_duplicate: bool = False) -> None:
        """Kept under lock until no other comes: the service would give them back to us at once, before the others."""
        if received and not self._put_back:
            self._put_back_since = time.monotonic()
        self._put_back.extend(received)

    def _let_come_again(self) -> None:
        again, self._put_back = list(self._put_back), deque()
        self._settle([("abandon", each, {}) for each in again])

    def dead_letter(self, letters: Sequence[DeadLetter]) -> None:
        self._settle(
            [
                (
                    "dead_letter",
                    letter.received,
                    {"reason": letter.reason[:1024], "error_description": letter.description[:4096]},
                )
                for letter in letters
            ]
        )

    def _settle(
        self, settlements: Sequence[tuple[str, Received, dict[str, Any]]], timeout: float | None = None
    ) -> None:
        """What is not locked any more comes again, and goes home twice with one message id."""
        with self._failing():
            self.link.settle_all(
                [(operation, received.token, arguments) for operation, received, arguments in settlements],
                self.namespace.send_timeout if timeout is None else timeout,
            )
        for _, received, _ in settlements:
            self._unsettled.pop(id(received.token), None)

    def interrupt(self) -> None:
        self._interrupted = True
        self.link.wake()

    def close(self) -> None:
        try:
            if self.link.is_open:
                self._settle([("abandon", each, {}) for each in self._unsettled.values()], GOODBYE)
        except NamespaceFailure:
            pass  # the service gives them back when their locks end
        self.link.close()  # gives back, too, what arrived since: there was credit left
