"""Links to any transport of Kombu's: they use nothing but Kombu's channel interface, and promise what that can promise.

RabbitMQ, Redis and Service Bus have links of their own, made of these.
"""

from __future__ import annotations

import logging
import math
import struct
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any

from kombu_paired.bounded import bounded
from kombu_paired.brokers.compat import queue_size, queues_of
from kombu_paired.brokers.forms import float_or_none, publish
from kombu_paired.brokers.letting_go import letting_go
from kombu_paired.brokers.roles import DEAD_LETTER_SUFFIX, BacklogDepth, Sender
from kombu_paired.brokers.sockets import look_up
from kombu_paired.deadline import Deadline
from kombu_paired.declarations import Declaration, Entity
from kombu_paired.errors import ConfigurationError, NamespaceFailure
from kombu_paired.failures import FailureKind
from kombu_paired.message import DIVERTED_AT, Message
from kombu_paired.secrets import without_secrets

if TYPE_CHECKING:
    from kombu_paired.brokers.kombu import KombuNamespace

__all__ = ("KombuSender", "Link")

logger = logging.getLogger(__name__)


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
        host = self.namespace.driver.host_of(url)
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

    def ensure_backlog_queues(self, names: Sequence[str], create: bool, timeout: float) -> list[str]:
        """The usable ones of these queues; missing ones are created if ``create``.

        Raises:
            NamespaceFailure: none is, because of a failure.
        """
        deadline = Deadline(timeout)
        usable, refusal = [], None
        for name in names:
            try:
                self.open(deadline.left)
                if self.has_queue(name, deadline.left) or (create and self.create_backlog_queue(name, deadline.left)):
                    usable.append(name)
            except Exception as exc:
                refusal = self.namespace.failure(exc)
                self.drop()
                if refusal.kind in (FailureKind.UNREACHABLE, FailureKind.TIMEOUT):
                    break
        if not usable and refusal is not None:
            self.close()
            raise refusal
        return usable

    def backlog_depths(self, names: Sequence[str], timeout: float) -> list[BacklogDepth]:
        """What waits in these queues.

        Raises:
            NamespaceFailure: the namespace failed.
        """
        deadline = Deadline(timeout)
        with self.namespace.failing():
            return [self._depth(name, deadline) for name in names]

    def _depth(self, name: str, deadline: Deadline) -> BacklogDepth:
        count = self.count(name, deadline.left)
        oldest = self.peek(name, deadline.left) if count else None
        dead = self.count(name + DEAD_LETTER_SUFFIX, deadline.left) or 0
        letter = self.peek(name + DEAD_LETTER_SUFFIX, deadline.left) if dead else None
        return BacklogDepth(
            name,
            count,
            oldest_diverted_at=float_or_none(oldest.headers.get(DIVERTED_AT)) if oldest else None,
            dead_letters=dead,
            dead_letter_reason=str(letter.headers.get("DeadLetterReason", "")) if letter else None,
        )

    def has_queue(self, name: str, timeout: float) -> bool:
        return True  # virtual transports make a queue when something is put into it

    def create_backlog_queue(self, name: str, timeout: float) -> bool:
        self.channel.queue_declare(queue=name, durable=True, auto_delete=False, exclusive=False)
        return True

    # -- stand-in queues ----------------------------------------------------------------------------------------

    def registered(self, register: str, timeout: float) -> list[str]:
        """The names in a register of stand-in queues.

        Raises:
            ConfigurationError: on this broker none is kept.
        """
        raise ConfigurationError(
            f"{self.namespace.label} cannot be stood in at: workers stand in on RabbitMQ, Redis and Azure Service Bus. "
            "Leave 'stand_in_after' out, or choose such a secondary"
        )

    def register(self, register: str, name: str, timeout: float) -> None:
        """Write a name into a register, once."""
        self.registered(register, timeout)

    def unregister(self, register: str, name: str, timeout: float) -> None:
        """Take a name out of a register."""
        self.registered(register, timeout)

    def give_back_abandoned(self, register: str, timeout: float) -> None:
        """Put back what killed workers held of the stand-in queues in a register; most brokers do that themselves."""

    def create_stand_in_queue(self, name: str, arguments: Mapping[str, Any], timeout: float) -> None:
        """Make a stand-in queue for one that was declared with these arguments."""
        self.create_backlog_queue(name, timeout)

    def remove_if_unused(self, name: str, timeout: float) -> bool:
        """Delete a queue that is empty and has no consumer; whether it is gone."""
        return False

    # -- what is in a queue -------------------------------------------------------------------------------------

    def count(self, name: str, timeout: float) -> int | None:
        """How many messages are in a queue, None if there is no such queue."""
        return queue_size(self.channel, name)

    def peek(self, name: str, timeout: float) -> Message | None:
        """The oldest message, left where it is; None when the transport cannot tell."""
        return None

    def look_into(self, name: str, limit: int, timeout: float) -> list[Message]:
        """So many of the oldest messages at most, left where they are; none of a queue that is missing."""
        raise NotImplementedError

    # -- notices of what is isolated ------------------------------------------------------------------------------

    def read_notices(self, place: str, create: bool, timeout: float) -> dict[str, float]:
        """Name -> since when, for a namespace that keeps notices.

        Arguments:
            create: make the place, if it is missing.
        """
        raise NotImplementedError

    def put_notice(self, place: str, name: str, at: float, timeout: float) -> None:
        """Write one down that is not there."""
        raise NotImplementedError

    def take_notice(self, place: str, name: str, timeout: float) -> None:
        """Remove one, if it is there."""
        raise NotImplementedError

    def probe(self, entity: Entity | None, timeout: float) -> None:
        """Ask the broker something that stores nothing: how long the entity's queue is."""
        queue_size(self.channel, entity.routing_key if entity and not entity.exchange else "kombu-paired.ping")

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
            found = queues_of(self.link.channel, message.exchange, message.routing_key)
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
