"""A namespace on any transport of Kombu's, with what the driver of its broker can do."""

from __future__ import annotations

import socket
import struct
import threading
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from typing import Any

from kombu import Connection
from kombu.exceptions import EncodeError
from kombu.exceptions import OperationalError as KombuOperationalError

from kombu_paired.brokers import tls
from kombu_paired.brokers.drivers import driver_of
from kombu_paired.brokers.letting_go import letting_go
from kombu_paired.brokers.links import KombuSender, Link
from kombu_paired.brokers.notices import LinkNotices
from kombu_paired.brokers.operating import Notices
from kombu_paired.brokers.receiving import KombuReceiver
from kombu_paired.brokers.roles import BacklogDepth, Namespace, Receiver, Sender
from kombu_paired.brokers.turn import Turn
from kombu_paired.deadline import Deadline
from kombu_paired.declarations import Entity
from kombu_paired.errors import ConfigurationError, NamespaceFailure
from kombu_paired.failures import FailureKind
from kombu_paired.forks import importing
from kombu_paired.message import Message
from kombu_paired.options import Classifier
from kombu_paired.secrets import Secrets, without_secrets
from kombu_paired.stand_in import stand_in_register

__all__ = ("KombuNamespace", "KombuReceiver", "KombuSender", "Link", "new_connection")


def new_connection(url: str, **arguments: Any) -> Connection:
    """A Kombu connection, not connected, on the transport that is used for this URL here."""
    with importing:
        return Connection(url, transport=driver_of(url).transport, **arguments)


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
        self.driver = driver_of(urls[0])
        self.uri = self.driver.shown(urls[0])
        with importing:
            self.driver.load()
        self.max_message_size = self.driver.max_message_size
        self.fails_by_queue = self.driver.fails_by_queue
        self.syphons_by_itself = self.driver.syphons_by_itself
        self.bills_calls = self.driver.bills_calls
        self.keeps_notices = self.driver.keeps_notices
        self.send_timeout = send_timeout
        self.queue_type = queue_type
        self.closed = False
        self.secrets = Secrets.of(urls, transport_options, connect_arguments or {})
        self._urls = tuple(urls)
        self._turning = threading.Lock()
        self._transport_options = dict(transport_options)
        self._connect_arguments = dict(connect_arguments or {})
        self._classify = classify

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
        client.transport_cls = self.driver.consumer or client.transport_cls
        client.heartbeat = heartbeat or 0
        client.connect_timeout = connect_timeout or client.connect_timeout
        for option, value in self.driver.consumer_options(client.connect_timeout, self.send_timeout).items():
            client.transport_options.setdefault(option, value)
        return client

    def stand_in_options(self, prefix: str) -> dict[str, Any]:
        return self.driver.stand_in_options(prefix)

    def limit_answers(self, connection: Any, seconds: float) -> None:
        with letting_go(f"a consumer's connection to {self.label}"):
            self.driver.limit_answers(connection, seconds)

    def sever(self, connection: Any) -> None:
        with letting_go(f"a consumer's connection to {self.label}"):
            self.driver.sever(connection)

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
            whole_namespace=(whole_namespace or self.driver.concerns_all(exc)) and chosen.counts,
            advice=tls.advice_on(exc) if chosen.counts else "",
            wait=self.driver.wait_of(exc) if chosen is FailureKind.THROTTLED else None,
        )

    def kind_of(self, exc: BaseException) -> FailureKind:
        """The kind of an exception: the user's word, else that of TLS, else the driver's table, else its family."""
        return self._classified(exc) or tls.kind_of(exc) or self.driver.kind_of(exc) or _kind_of_family(exc)

    def _classified(self, exc: BaseException) -> FailureKind | None:
        return self._classify(exc) if self._classify and isinstance(exc, Exception) else None

    def encoded_size(self, message: Message) -> int:
        return self.driver.encoded_size(self, message)

    def sender(self) -> Sender:
        return self.driver.sender(self)

    def receiver(self, queues: Sequence[str], prefetch: int, timeout: float) -> Receiver:
        return self.driver.receiver(self, queues, prefetch, timeout)

    def link(self) -> Link:
        return self.driver.link(self)

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
        with self._fresh_link(deadline) as link:
            return link.ensure_backlog_queues(names, create, deadline.left)

    def backlog_depths(self, names: Sequence[str], timeout: float) -> list[BacklogDepth]:
        deadline = Deadline(timeout)
        with self._fresh_link(deadline) as link:
            return link.backlog_depths(names, deadline.left)

    def turn(self, primary: str) -> Turn | None:
        return self.driver.turn(self._urls[0], primary)

    def stand_in_queues(self, primary: str, timeout: float, *, give_back: bool = False) -> list[str]:
        deadline, register = Deadline(timeout), stand_in_register(primary)
        with self._fresh_link(deadline) as link, self.failing():
            names = link.registered(register, deadline.left)
            if names and give_back:
                link.give_back_abandoned(register, deadline.left)
            return names

    def ensure_stand_in_queue(self, primary: str, name: str, arguments: Mapping[str, Any], timeout: float) -> None:
        deadline = Deadline(timeout)
        with self._fresh_link(deadline) as link, self.failing():
            # The name first: a queue that nobody knows of would strand what is in it.
            link.register(stand_in_register(primary), name, deadline.left)
            if not link.has_queue(name, deadline.left):
                link.create_stand_in_queue(name, arguments, deadline.left)

    def forget_stand_in_queue(self, primary: str, name: str, timeout: float) -> bool:
        deadline = Deadline(timeout)
        with self._fresh_link(deadline) as link, self.failing():
            if not link.remove_if_unused(name, deadline.left):
                return False
            link.unregister(stand_in_register(primary), name, deadline.left)
            return True

    def notices(self, primary: str) -> Notices:
        return LinkNotices(self, primary) if self.keeps_notices else super().notices(primary)

    def look_into(self, queues: Sequence[str], limit: int, timeout: float) -> dict[str, list[Message]]:
        if not self.keeps_notices:
            return super().look_into(queues, limit, timeout)
        deadline = Deadline(timeout)
        with self._fresh_link(deadline) as link, self.failing():
            return {queue: link.look_into(queue, limit, deadline.left) for queue in queues}

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
