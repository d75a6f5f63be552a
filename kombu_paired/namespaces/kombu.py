"""A namespace on any Kombu transport, and the table of what each transport can do.

RabbitMQ and Redis have links of their own (:mod:`.amqp`, :mod:`.redis`); every other transport gets the ones here,
which use nothing but Kombu's channel interface and promise what that can promise.
"""

from __future__ import annotations

import logging
import math
import socket
import struct
import threading
import time
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, replace
from importlib import import_module
from typing import Any

from kombu import Connection
from kombu.exceptions import EncodeError
from kombu.exceptions import OperationalError as KombuOperationalError
from kombu.utils.url import parse_url

from kombu_paired import fork_locks  # noqa: F401 - its hook
from kombu_paired.bounded import bounded
from kombu_paired.deadline import Deadline
from kombu_paired.declarations import Declaration, Entity
from kombu_paired.errors import ConfigurationError, NamespaceFailure
from kombu_paired.failures import FailureKind
from kombu_paired.message import DIVERTED_AT, PERSISTENT, Message
from kombu_paired.namespaces import tls
from kombu_paired.namespaces.base import (
    DEAD_LETTER_SUFFIX,
    BacklogDepth,
    DeadLetter,
    Namespace,
    Received,
    Receiver,
    Sender,
)
from kombu_paired.namespaces.letting_go import letting_go
from kombu_paired.namespaces.sockets import look_up
from kombu_paired.options import DEFAULT_PORTS, Classifier
from kombu_paired.secrets import Secrets, without_secrets

__all__ = (
    "PROFILES",
    "KombuNamespace",
    "KombuReceiver",
    "KombuSender",
    "Link",
    "Profile",
    "namespace_on",
    "new_connection",
    "profile_of",
)

logger = logging.getLogger(__name__)


@dataclass(frozen=True)
class Profile:
    """What a Kombu transport can do for a pairing.

    Attributes:
        confirmed: a send returns only when the broker has the message.
        routed: a message that no queue would get is noticed.
        keeps_unsettled: a message whose consumer is killed comes back; without it, no secondary.
        outlives_restart: a stored message survives that the broker is killed, as it is configured by default.
        names_with_slashes: a backlog queue's name can be one of its queues; without it, no secondary at all.
        tested: the conformance suite runs against it.
        rooms: import path of the module with its links, or None for the ones of this module.
        transport: import path of a transport of our own, used instead of Kombu's.
        consumer: import path of one that only consumers use.
        max_message_size: bytes a broker of this kind accepts; None if it depends.
    """

    confirmed: bool = True
    routed: bool = False
    keeps_unsettled: bool = False
    outlives_restart: bool = True
    names_with_slashes: bool = True
    tested: bool = False
    rooms: str | None = None
    transport: str | None = None
    consumer: str | None = None
    max_message_size: int | None = None


_RABBITMQ = Profile(routed=True, keeps_unsettled=True, tested=True, rooms="kombu_paired.namespaces.amqp")
_REDIS = Profile(
    routed=True,
    keeps_unsettled=True,
    outlives_restart=False,  # only with its append-only file turned on
    tested=True,
    rooms="kombu_paired.namespaces.redis",
    consumer="kombu_paired.namespaces.redis_transport:Transport",
)

_SERVICEBUS = Profile(
    routed=True,
    keeps_unsettled=True,
    tested=True,
    rooms="kombu_paired.namespaces.servicebus.links",
    transport="kombu_paired.namespaces.servicebus.transport:Transport",
    max_message_size=262_144,
)

#: URL scheme -> profile. ``docs/brokers.md`` shows this table to users; a test holds the two together.
PROFILES: dict[str, Profile] = {
    "amqp": _RABBITMQ,
    "amqps": replace(_RABBITMQ, tested=False),
    "pyamqp": _RABBITMQ,
    "redis": _REDIS,
    "rediss": replace(_REDIS, tested=False),
    "sentinel": replace(_REDIS, tested=False, consumer="kombu_paired.namespaces.redis_transport:SentinelTransport"),
    "azureservicebus": _SERVICEBUS,
    "sqs": Profile(keeps_unsettled=True, max_message_size=262_144),
    "filesystem": Profile(names_with_slashes=False, tested=True),
    "sqla": Profile(tested=True),
    "sqlalchemy": Profile(tested=True),
    "memory": Profile(outlives_restart=False, tested=True),
}

_UNKNOWN = Profile(confirmed=False, outlives_restart=False)


def profile_of(url: str) -> Profile:
    """The profile for a URL; of a transport that is not in the table nothing is promised."""
    scheme = url.split("://", 1)[0]
    return PROFILES.get(scheme) or PROFILES.get(scheme.split("+", 1)[0], _UNKNOWN)


def new_connection(url: str, **arguments: Any) -> Connection:
    """A Kombu connection, not connected, on the transport that is used for this URL here."""
    return Connection(url, transport=profile_of(url).transport, **arguments)


def namespace_on(side: str, urls: Sequence[str], *args: Any, **arguments: Any) -> KombuNamespace:
    """A namespace of the class that is made for its broker; arguments as for :class:`KombuNamespace`."""
    rooms = profile_of(urls[0]).rooms
    make: Callable[..., KombuNamespace] = KombuNamespace
    if rooms:
        make = getattr(import_module(rooms), "Namespace", KombuNamespace)
    return make(side, urls, *args, **arguments)


class KombuNamespace(Namespace):
    """One broker behind a Kombu URL.

    Arguments:
        side: ``primary`` or ``secondary``.
        urls: where it is; more than one for a cluster, tried in turn.
        transport_options: passed on to the transport untouched.
        send_timeout: seconds of one send; bounds every socket of a link.
        connect_arguments: further arguments of :class:`kombu.Connection` (``ssl``, ``userid``, ``login_method``, …).
        queue_type: ``classic`` or ``quorum`` for the backlog queues it creates on RabbitMQ.
        classify: the user's own ``exception -> FailureKind or None``.
    """

    def __init__(
        self,
        side: str,
        urls: Sequence[str],
        transport_options: Mapping[str, Any],
        *,
        send_timeout: float,
        connect_arguments: Mapping[str, Any] | None = None,
        queue_type: str | None = None,
        classify: Classifier | None = None,
    ) -> None:
        self.side = side
        self.uri = without_secrets(urls[0])
        self.profile = profile_of(urls[0])
        self.max_message_size = self.profile.max_message_size
        self.send_timeout = send_timeout
        self.queue_type = queue_type
        self.closed = False
        self.secrets = Secrets.of(urls, transport_options, connect_arguments or {})
        self._urls = tuple(urls)
        self._turning = threading.Lock()
        self._transport_options = dict(transport_options)
        self._connect_arguments = dict(connect_arguments or {})
        self._classify = classify
        self._rooms = import_module(self.profile.rooms) if self.profile.rooms else None

    @property
    def urls(self) -> tuple[str, ...]:
        """Its addresses, in the order in which they are to be tried."""
        return self._urls

    def new_client(self, url: str, **transport_options: Any) -> Connection:
        """A Kombu connection to it, not connected; ``transport_options`` win over the configured ones."""
        wanted = {**self._transport_options, **transport_options}
        return new_connection(url, transport_options=wanted, **self._connect_arguments)

    def consumer_client(self, heartbeat: float | None, connect_timeout: float | None) -> Connection:
        client = self.new_client(self._urls[0])
        client.made_for = self._urls[0]
        client.transport_cls = self.profile.consumer or client.transport_cls
        client.heartbeat = heartbeat or 0
        client.connect_timeout = connect_timeout or client.connect_timeout
        if self._rooms:
            for option, value in self._rooms.consumer_options(client.connect_timeout, self.send_timeout).items():
                client.transport_options.setdefault(option, value)
        return client

    def hurry(self, connection: Any, seconds: float) -> None:
        if self._rooms:
            with letting_go(f"a consumer's connection to {self.label}"):
                self._rooms.hurry(connection, seconds)

    def try_next_url(self, client: Connection) -> int:
        self.put_behind(client.made_for)
        return len(self._urls)

    def put_behind(self, url: str) -> None:
        """This address failed: others are tried before it. Another thread may have said so already."""
        with self._turning:
            if self._urls[0] == url:
                self._urls = self._urls[1:] + self._urls[:1]

    def failure(
        self,
        exc: BaseException,
        *,
        kind: FailureKind | None = None,
        maybe_stored: bool = False,
        whole_namespace: bool = False,
        url: str = "",
    ) -> NamespaceFailure:
        """The failure that an exception of the driver stands for, at one of the addresses if it is known which."""
        self.secrets.scrub(exc)
        chosen = self._classified(exc) or kind or self.kind_of(exc)
        return NamespaceFailure(
            chosen,
            f"{self.side} namespace {without_secrets(url)}" if url else self.label,
            exc,
            maybe_stored=maybe_stored and chosen.counts,
            whole_namespace=(whole_namespace or self._concerns_all(exc)) and chosen.counts,
            advice=tls.advice_on(exc) if chosen.counts else "",
        )

    def _concerns_all(self, exc: BaseException) -> bool:
        """Whether the broker as a whole is at fault: full, in alarm, loading, a replica."""
        return bool(self._rooms and self._rooms.concerns_all(exc))

    def kind_of(self, exc: BaseException) -> FailureKind:
        """The kind of an exception: the user's word, else that of TLS, else the driver's table, else its family."""
        table: Callable[[BaseException], FailureKind | None]
        table = self._rooms.kind_of if self._rooms else _kind_of_other_drivers
        return self._classified(exc) or tls.kind_of(exc) or table(exc) or _kind_of_family(exc)

    def _classified(self, exc: BaseException) -> FailureKind | None:
        return self._classify(exc) if self._classify and isinstance(exc, Exception) else None

    def sender(self) -> Sender:
        make: Callable[[KombuNamespace], Sender] = self._rooms.make_sender if self._rooms else KombuSender
        return make(self)

    def receiver(self, queue: str, prefetch: int, timeout: float) -> Receiver:
        make = self._rooms.make_receiver if self._rooms else KombuReceiver
        return make(self, queue, prefetch, timeout)

    def link(self) -> Link:
        make = self._rooms.make_link if self._rooms else Link
        return make(self)

    @contextmanager
    def _fresh_link(self, deadline: Deadline) -> Iterator[Link]:
        link = self.link()
        try:
            link.open(deadline.left)
            yield link
        except BaseException:
            link.drop()
            raise
        link.close()

    def probe(self, entity: Entity | None, timeout: float) -> None:
        deadline = Deadline(timeout)
        with self._fresh_link(deadline) as link, self.failing():
            link.probe(entity, deadline.left)

    def ensure_backlog_queues(self, names: Sequence[str], create: bool, timeout: float) -> list[str]:
        deadline = Deadline(timeout)
        usable, refusal = [], None
        with self._fresh_link(deadline) as link:
            for name in names:
                try:
                    link.open(deadline.left)
                    if link.has_queue(name, deadline.left) or (
                        create and link.create_backlog_queue(name, deadline.left)
                    ):
                        usable.append(name)
                except Exception as exc:
                    refusal = self.failure(exc)
                    link.drop()
                    if refusal.kind in (FailureKind.UNREACHABLE, FailureKind.TIMEOUT):
                        break
        if not usable and refusal is not None:
            raise refusal
        return usable

    def backlog_depths(self, names: Sequence[str], timeout: float) -> list[BacklogDepth]:
        deadline = Deadline(timeout)
        with self._fresh_link(deadline) as link, self.failing():
            return [self._depth(link, name, deadline) for name in names]

    def _depth(self, link: Link, name: str, deadline: Deadline) -> BacklogDepth:
        count = link.count(name, deadline.left)
        oldest = link.peek(name, deadline.left) if count else None
        dead = link.count(name + DEAD_LETTER_SUFFIX, deadline.left) or 0
        corpse = link.peek(name + DEAD_LETTER_SUFFIX, deadline.left) if dead else None
        return BacklogDepth(
            name,
            count,
            oldest_diverted_at=float_or_none(oldest.headers.get(DIVERTED_AT)) if oldest else None,
            dead_letters=dead,
            dead_letter_reason=str(corpse.headers.get("DeadLetterReason", "")) if corpse else None,
        )

    @contextmanager
    def failing(self) -> Iterator[None]:
        """Exceptions of the driver leave as :class:`NamespaceFailure`."""
        try:
            yield
        except NamespaceFailure:
            raise
        except Exception as exc:
            raise self.failure(exc) from exc

    def close(self) -> None:
        self.closed = True


class Link:
    """One connection with one channel, every step of it bounded in time.

    It goes below :class:`kombu.Connection`'s own retries, which sleep, straight to the transport.

    Attributes:
        url: the address that it is, or was last, connected to.
        until: when the call that is under way must have ended.
    """

    def __init__(self, namespace: KombuNamespace, heartbeat: float = 0) -> None:
        self.namespace = namespace
        self.heartbeat = heartbeat
        self.url = ""
        self.until = Deadline()
        self.client: Any = None
        self.connection: Any = None
        self.channel: Any = None

    @property
    def is_open(self) -> bool:
        return self.channel is not None

    def open(self, timeout: float) -> Any:
        """The channel; connects first if need be, to the first address that lets us in.

        One address gets at most half of the send timeout, one of two a third, and so on: what is left is for the send.

        Raises:
            NamespaceFailure: no address of the namespace can be reached, or one refuses the credentials.
        """
        if self.channel is not None:
            return self.channel
        deadline = Deadline(timeout)
        urls = self.namespace.urls
        share = self.namespace.send_timeout / (len(urls) + 1)
        for number, url in enumerate(urls, 1):
            try:
                self._connect(url, min(deadline.left, share))
                return self.channel
            except Exception as exc:
                failure = self._not_connected(exc, url)
                self.namespace.put_behind(url)
                if number == len(urls) or not failure.kind.counts or deadline.is_over:
                    raise failure from exc
                logger.debug("%s: %s does not let us in: %r", self.namespace.label, without_secrets(url), exc)
        raise AssertionError("a namespace has an address")

    def _not_connected(self, exc: Exception, url: str) -> NamespaceFailure:
        kind = self.namespace.kind_of(exc)
        if kind is FailureKind.TIMEOUT:  # silent at connect: nothing was sent
            kind = FailureKind.UNREACHABLE
        elif kind is FailureKind.REJECTED and isinstance(exc, UnicodeError | LookupError | struct.error):
            kind = FailureKind.UNREACHABLE  # no message was there to be at fault: a host name, or what the peer says
        return self.namespace.failure(exc, kind=kind, whole_namespace=True, url=url)

    def _connect(self, url: str, patience: float) -> None:
        until = Deadline(patience)
        host = _host_of(url)
        if host is None:  # nothing that could be slow
            made = self._make(url, patience, until)
        else:
            look_up(host, patience)
            made = bounded(
                lambda: self._make(url, until.left, until),
                until.left,
                f"connecting to {without_secrets(url)}",
                too_late=lambda late: self._throw_away(*late),
            )
        self.client, self.connection, self.channel = made
        self.url, self.until = url, until
        until.at = math.inf

    def _make(self, url: str, patience: float, until: Deadline) -> tuple[Any, Any, Any]:
        """Client, connection and channel; perhaps in another thread, and for nobody any more."""
        client = self.namespace.new_client(url, **self.connect_options(patience))
        client.connect_timeout = min(patience, client.connect_timeout or patience)
        client.heartbeat = self.heartbeat
        transport = client.transport
        self.make_timely(transport, until)
        connection = transport.establish_connection()
        try:
            channel = transport.create_channel(connection)
            self.connected(connection)
        except BaseException:
            self._throw_away(client, connection, None)
            raise
        return client, connection, channel

    def connect_options(self, patience: float) -> dict[str, Any]:
        """Transport options that bound the connecting."""
        return {}

    def make_timely(self, transport: Any, until: Deadline) -> None:
        """Let the sockets that this transport will open keep to a deadline, where the driver can be told."""

    def connected(self, connection: Any) -> None:
        """A new connection is there, with its channel."""

    def bound(self, timeout: float) -> None:
        """Let every reply take at most ``timeout`` seconds, where the driver can be told."""

    @contextmanager
    def within(self, timeout: float) -> Iterator[None]:
        """What is done in the block takes at most ``timeout`` seconds, where the driver can be told."""
        with self.until.within(timeout):
            self.bound(timeout)
            yield

    def blame(self, failure: NamespaceFailure) -> None:
        """Let others be tried before the address that failed."""
        if failure.kind in (FailureKind.UNREACHABLE, FailureKind.TIMEOUT):
            self.namespace.put_behind(self.url)

    def has_queue(self, name: str, timeout: float) -> bool:
        return True  # virtual transports make a queue when something is put into it

    def create_backlog_queue(self, name: str, timeout: float) -> bool:
        self.channel.queue_declare(queue=name, durable=True, auto_delete=False, exclusive=False)
        return True

    def count(self, name: str, timeout: float) -> int | None:
        """How many messages are in a queue, None if there is no such queue."""
        return int(self.channel._size(name))

    def peek(self, name: str, timeout: float) -> Message | None:
        """The oldest message, left where it is; None when the transport cannot tell."""
        return None

    def probe(self, entity: Entity | None, timeout: float) -> None:
        """Ask the broker something that stores nothing: how long the entity's queue is."""
        self.channel._size(entity.routing_key if entity and not entity.exchange else "kombu-paired.ping")

    def close(self) -> None:
        """Let go politely, but not longer than a moment."""
        self.drop()

    def drop(self) -> None:
        """Let go at once, whatever state it is in."""
        made = self.client, self.connection, self.channel
        self.client = self.connection = self.channel = None
        self._throw_away(*made)

    def _throw_away(self, client: Any, connection: Any, channel: Any) -> None:
        if connection is not None:
            with letting_go(f"a link to {self.namespace.label}"):
                self.close_at_once(client, connection, channel)

    def close_at_once(self, client: Any, connection: Any, channel: Any) -> None:
        """Close a connection without waiting for anything; it may be broken."""
        client.transport.close_connection(connection)


class KombuSender(Sender):
    """Sends through a channel of any Kombu transport."""

    keeps_exchanges = True

    def __init__(self, namespace: KombuNamespace) -> None:
        super().__init__()
        self.namespace = namespace
        self.link = namespace.link()

    @property
    def is_fresh(self) -> bool:
        return not self.link.is_open

    def send(self, message: Message, timeout: float) -> None:
        deadline = Deadline(timeout)
        channel = self.link.open(timeout)
        try:
            with self.link.within(deadline.left):
                publish(channel, message)
        except Exception as exc:
            raise self._failed(exc) from exc

    def send_batch(self, messages: Sequence[Message], timeout: float) -> list[NamespaceFailure | None]:
        deadline = Deadline(timeout)
        outcomes: list[NamespaceFailure | None] = []
        for message in messages:
            left = deadline.left
            try:
                self.link.open(left)
                self.require_route(message)
                self.send(message, left)
            except NamespaceFailure as failure:
                outcomes.append(failure)
                if failure.whole_namespace:
                    outcomes.extend([failure.of_nothing_stored()] * (len(messages) - len(outcomes)))
                    break
            else:
                outcomes.append(None)
        return outcomes

    def require_route(self, message: Message) -> None:
        """Raise MISSING if no queue is bound: a virtual transport would drop the message without a word."""
        if not message.exchange:
            return
        try:
            found = self.link.channel._lookup(message.exchange, message.routing_key)
        except Exception as exc:
            raise self._failed(exc).of_nothing_stored() from exc
        if not found and self.link.channel.typeof(message.exchange).type != "fanout":
            unrouted = LookupError(f"no queue is bound for {message.entity.path!r}")
            raise self.namespace.failure(unrouted, kind=FailureKind.MISSING)

    def declare(self, declarations: Iterable[Declaration], timeout: float) -> Any:
        answer = None
        deadline = Deadline(timeout)
        channel = self.link.open(timeout)
        try:
            with self.link.within(deadline.left):
                for declaration in declarations:
                    answer = getattr(channel, declaration.operation)(**declaration.arguments)
        except Exception as exc:
            raise self._failed(exc).of_nothing_stored() from exc
        return answer

    def _failed(self, exc: Exception) -> NamespaceFailure:
        failure = self.namespace.failure(exc, maybe_stored=True, url=self.link.url)
        if failure.kind.counts:
            self.link.blame(failure)
            self.drop()
        return failure

    def drop(self) -> None:
        self.link.drop()
        self._forget_all_declared()

    def close(self) -> None:
        self.link.close()
        self._forget_all_declared()


class KombuReceiver(Receiver):
    """Receives with ``basic_get`` from any Kombu transport, one message at a time."""

    #: Seconds between two looks at an empty queue.
    pause = 1.0

    def __init__(self, namespace: KombuNamespace, queue: str, prefetch: int, timeout: float) -> None:
        self.namespace = namespace
        self.queue = queue
        self.link = namespace.link()
        self._interrupted = threading.Event()
        self._channel = self.link.open(timeout)

    def receive(self, limit: int, timeout: float) -> list[Received]:
        deadline = time.monotonic() + timeout
        with self._failing():
            while not self._interrupted.is_set():
                batch = self._take(limit)
                left = deadline - time.monotonic()
                if batch or left <= 0:
                    return batch
                self._interrupted.wait(min(self.pause, left))
        return []

    def _take(self, limit: int) -> list[Received]:
        batch: list[Received] = []
        while len(batch) < limit:
            raw = self._channel.basic_get(self.queue)
            if raw is None:
                break
            batch.append(Received(message_of(raw), raw))
        return batch

    def complete(self, received: Sequence[Received]) -> None:
        with self._failing():
            for each in received:
                each.token.ack()

    def abandon(self, received: Sequence[Received], *, maybe_duplicate: bool = False) -> None:
        with self._failing():
            for each in received:
                each.token.reject(requeue=True)

    def dead_letter(self, letters: Sequence[DeadLetter]) -> None:
        with self._failing():
            for letter in letters:
                corpse = as_dead_letter(letter, self.queue)
                self._channel.queue_declare(queue=corpse.routing_key, durable=True, auto_delete=False)
                publish(self._channel, corpse)
                letter.received.token.ack()

    def interrupt(self) -> None:
        self._interrupted.set()

    def close(self) -> None:
        self.link.close()

    @contextmanager
    def _failing(self) -> Iterator[None]:
        try:
            with self.namespace.failing():
                yield
        except NamespaceFailure:
            self.link.drop()
            raise


def prepare(channel: Any, message: Message) -> Any:
    """The message in the form that a channel sends."""
    return channel.prepare_message(
        message.body,
        message.priority,
        message.content_type,
        message.content_encoding,
        message.headers,
        dict(message.properties),  # virtual channels write into it
    )


def publish(channel: Any, message: Message, **arguments: Any) -> None:
    """Send a message through a channel, the way Kombu's producer does."""
    channel.basic_publish(
        prepare(channel, message),
        exchange=message.exchange,
        routing_key=message.routing_key,
        **arguments,
    )


#: Properties that belong to one delivery and not to the message.
_OF_THE_DELIVERY = frozenset(
    {"delivery_info", "delivery_tag", "body_encoding", "content_type", "content_encoding", "application_headers"}
)


def message_of(raw: Any) -> Message:
    """The neutral form of a Kombu message that was received."""
    properties = {key: value for key, value in (raw.properties or {}).items() if key not in _OF_THE_DELIVERY}
    return Message(
        body=raw.body,
        priority=properties.pop("priority", None),
        content_type=raw.content_type,
        content_encoding=raw.content_encoding,
        headers=dict(raw.headers or {}),
        properties=properties,
    )


def as_dead_letter(letter: DeadLetter, queue: str) -> Message:
    """A message as it lies in the dead-letter queue of a backlog queue."""
    stored = letter.received.message
    reasons = {"DeadLetterReason": letter.reason, "DeadLetterErrorDescription": letter.description}
    return replace(
        stored,
        exchange="",
        routing_key=queue + DEAD_LETTER_SUFFIX,
        headers={**stored.headers, **reasons},
        properties={**stored.properties, "delivery_mode": PERSISTENT},
    )


def _host_of(url: str) -> str | None:
    """The host to connect to; None where there is none, or it is not known how the transport finds it."""
    if url.split("://", 1)[0] not in DEFAULT_PORTS.keys() | {"sentinel"}:
        return None
    return parse_url(url)["hostname"] or None


def _kind_of_family(exc: BaseException) -> FailureKind:
    if isinstance(exc, socket.timeout | TimeoutError):
        return FailureKind.TIMEOUT
    if isinstance(exc, ConfigurationError | EncodeError | TypeError | ValueError | LookupError | OverflowError):
        return FailureKind.REJECTED
    if isinstance(exc, struct.error):  # a number that does not fit its field
        return FailureKind.REJECTED
    if isinstance(exc, PermissionError):
        return FailureKind.UNAUTHORIZED
    if isinstance(exc, OSError | KombuOperationalError):
        return FailureKind.UNREACHABLE
    return FailureKind.FAULT


#: Error codes of AWS (``ClientError.response["Error"]["Code"]``), from the reference of the SQS API.
_AWS_CODES = {
    "AccessDenied": FailureKind.UNAUTHORIZED,
    "AccessDeniedException": FailureKind.UNAUTHORIZED,
    "ExpiredToken": FailureKind.UNAUTHORIZED,
    "InvalidClientTokenId": FailureKind.UNAUTHORIZED,
    "SignatureDoesNotMatch": FailureKind.UNAUTHORIZED,
    "UnrecognizedClientException": FailureKind.UNAUTHORIZED,
    "AWS.SimpleQueueService.NonExistentQueue": FailureKind.MISSING,
    "QueueDoesNotExist": FailureKind.MISSING,
    "RequestThrottled": FailureKind.THROTTLED,
    "Throttling": FailureKind.THROTTLED,
    "ThrottlingException": FailureKind.THROTTLED,
    "InvalidParameterValue": FailureKind.REJECTED,
    "InvalidMessageContents": FailureKind.REJECTED,
}


def _kind_of_other_drivers(exc: BaseException) -> FailureKind | None:
    response = getattr(exc, "response", None)
    if isinstance(response, dict):
        code = response.get("Error", {}).get("Code", "")
        return _AWS_CODES.get(code, FailureKind.FAULT)
    names = {each.__name__ for each in type(exc).__mro__}
    if "ReadTimeoutError" in names:
        return FailureKind.TIMEOUT
    if names & {"HTTPClientError", "ConnectionError", "InterfaceError"}:
        return FailureKind.UNREACHABLE
    if "NoCredentialsError" in names:
        return FailureKind.UNAUTHORIZED
    return None


def float_or_none(value: object) -> float | None:
    try:
        return float(value)  # type: ignore[arg-type]
    except (TypeError, ValueError):
        return None
