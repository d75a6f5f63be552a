"""The link that a pairing sends over: it connects, routes, pings, and looks after backlog queues."""

from __future__ import annotations

import uuid
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any

from azure.servicebus.amqp import AmqpAnnotatedMessage
from azure.servicebus.exceptions import ServiceBusError

from kombu_paired.brokers.forms import prepare
from kombu_paired.brokers.letting_go import letting_go
from kombu_paired.brokers.links import Link
from kombu_paired.brokers.roles import DEAD_LETTER_SUFFIX, BacklogDepth
from kombu_paired.brokers.servicebus.amqp_links import SenderLink
from kombu_paired.brokers.servicebus.backlog import attachable, create_missing, depths
from kombu_paired.brokers.servicebus.kinds import AWAY, Unrouted, wants_a_session
from kombu_paired.brokers.servicebus.names import entity_name, is_backlog
from kombu_paired.brokers.servicebus.settling import ABANDON, COMPLETE, settle
from kombu_paired.brokers.servicebus.transport import Channel, Transport
from kombu_paired.brokers.servicebus.wire import (
    Outgoing,
    body_of,
    encoded_size,
    new_ping,
    received_backlog_message,
    to_backlog_form,
)
from kombu_paired.deadline import Deadline
from kombu_paired.declarations import Entity
from kombu_paired.errors import NamespaceFailure
from kombu_paired.failures import FailureKind
from kombu_paired.isolation import as_notice, notice_in
from kombu_paired.message import Message

if TYPE_CHECKING:
    from kombu_paired.brokers.kombu import KombuNamespace

__all__ = ("ServiceBusLink", "encoded", "size_on", "unreached")

#: Bytes that the service may add to a message that it is given.
SLACK = 512
#: Names that are read from a register.
MOST_REGISTERED = 1000
#: Part of the send timeout that opening a link gets, so that something is left for the send.
CONNECT_SHARE = 0.5
#: The service was given time enough to answer, if it had so large a part of a send's.
ENOUGH = 0.5


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


def encoded(channel: Channel, message: Message) -> Outgoing:
    """A message as it is sent: to a backlog queue in the backlog's form, else in an envelope.

    It gets an id now, if it has none: what is diverted because its acknowledgement was lost has the same.
    """
    if not message.message_id:
        message.properties["message_id"] = str(uuid.uuid4())
    if not message.exchange and is_backlog(message.routing_key):
        return to_backlog_form(message)
    return channel.envelope(prepare(channel, message), message.exchange, message.routing_key)


def _notice(received: Any) -> tuple[str, float] | None:
    return notice_in(body_of(received).decode("utf-8", "replace"))


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
                self.connection.asking.ask(timeout)
        for target in targets:
            try:
                with self.namespace.failing():
                    self._ping(target, deadline)
            except NamespaceFailure as failure:
                if failure.kind is not FailureKind.MISSING:  # whoever sends to it declares it first
                    raise

    def ensure_backlog_queues(self, names: Sequence[str], create: bool, timeout: float) -> list[str]:
        with reaching(self.namespace):
            if not create:
                return attachable(self.connection, names, timeout, self.namespace.kind_of)
            create_missing(self.connection, names, timeout, CONNECT_SHARE)  # silence is found out as when connecting
        return list(names)

    def has_queue(self, name: str, timeout: float) -> bool:
        return self.connection.entities.has_queue(entity_name(name), timeout)

    def create_backlog_queue(self, name: str, timeout: float) -> bool:
        self.connection.entities.create_backlog_queue(entity_name(name), timeout)
        return True

    def registered(self, register: str, timeout: float) -> list[str]:
        deadline = Deadline(timeout)
        if not self.has_queue(register, deadline.left):
            return []
        link = self.connection.clients.receiver(register)
        link.open(deadline.left)
        try:
            found = link.peek(MOST_REGISTERED, deadline.left)
        finally:
            link.close()
        return sorted({body_of(each).decode() for each in found})

    def register(self, register: str, name: str, timeout: float) -> None:
        deadline = Deadline(timeout)
        if not self.has_queue(register, deadline.left):
            self.create_backlog_queue(register, deadline.left)
        elif name in self.registered(register, deadline.left):
            return
        self.to(register, deadline).send(AmqpAnnotatedMessage(data_body=name), deadline.left)

    def unregister(self, register: str, name: str, timeout: float) -> None:
        """It stays, as its queue does: between a look at what is in there and its end something may come."""

    def read_notices(self, place: str, create: bool, timeout: float) -> dict[str, float]:
        """A notice is a message in a queue, which is made with the first one: to attach in vain costs nothing."""
        return dict(filter(None, map(_notice, self._peeked(place, MOST_REGISTERED, timeout))))

    def put_notice(self, place: str, name: str, at: float, timeout: float) -> None:
        deadline = Deadline(timeout)
        if not self.has_queue(place, deadline.left):
            self.create_backlog_queue(place, deadline.left)
        self.to(entity_name(place), deadline).send(AmqpAnnotatedMessage(data_body=as_notice(name, at)), deadline.left)

    def take_notice(self, place: str, name: str, timeout: float) -> None:
        deadline = Deadline(timeout)
        if name not in self.read_notices(place, False, deadline.left):
            return
        link = self.connection.clients.receiver(entity_name(place))
        link.open(deadline.left)
        try:
            while name in dict(filter(None, map(_notice, link.peek(MOST_REGISTERED, deadline.left)))):
                for raw in link.receive(MOST_REGISTERED, min(1.0, deadline.left)):
                    is_wanted = (_notice(raw) or (name,))[0] != name
                    settle(link, raw, ABANDON if is_wanted else COMPLETE)
        finally:
            link.close()

    def look_into(self, name: str, limit: int, timeout: float) -> list[Message]:
        return [received_backlog_message(each) for each in self._peeked(name, limit, timeout)]

    def _peeked(self, name: str, limit: int, timeout: float) -> list[Any]:
        """The oldest ones in a queue, or in its dead-letter queue; none if it is missing."""
        deadline = Deadline(timeout)
        queue = name.removesuffix(DEAD_LETTER_SUFFIX)
        link = self.connection.clients.receiver(entity_name(queue), dead_letters=queue != name)
        try:
            link.open(deadline.left)
            return link.peek(limit, deadline.left)
        except Exception as exc:
            if self.namespace.kind_of(exc) is not FailureKind.MISSING:
                raise
            return []
        finally:
            link.close()

    def backlog_depths(self, names: Sequence[str], timeout: float) -> list[BacklogDepth]:
        with reaching(self.namespace):
            return depths(self.connection, names, timeout)

    def to(self, target: str, deadline: Deadline, *, is_for_events: bool = False) -> SenderLink:
        """An open link to an entity.

        Raises:
            NamespaceFailure: there is none. Whoever cannot connect for want of an answer reaches no other entity.
        """
        given = min(deadline.left, CONNECT_SHARE * self.namespace.send_timeout)
        try:
            link = self.connection.outgoing.link(target, given, is_for_events=is_for_events)
        except Exception as exc:
            if self.namespace.kind_of(exc) is FailureKind.MISSING:
                self.connection.entities.missing(target)
            is_outage = given >= ENOUGH * self.namespace.send_timeout and not self.connection.outgoing.was_let_in
            raise unreached(self.namespace, exc, whole_namespace=is_outage) from exc
        self.connection.asking.note_use(target)
        return link

    def _ping(self, target: str, deadline: Deadline) -> None:
        def send(ping: AmqpAnnotatedMessage) -> None:
            self.to(target, deadline).send(ping, deadline.left)

        try:
            send(new_ping())
        except ServiceBusError as exc:
            if not wants_a_session(exc):
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
