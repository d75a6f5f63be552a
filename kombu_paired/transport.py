"""Paired transport: what Kombu sees. No rule of the pairing lives here.

Features
========
* Type: that of the primary namespace
* Supports Direct, Topic, Fanout, Priority, TTL: as the primary namespace does

Connection String
=================
``paired+`` and the primary's own Kombu URL:

.. code-block::

    paired+amqp://[USER:PASSWORD@]PRIMARY[:PORT][/VIRTUALHOST]
    paired+redis://[USER:PASSWORD@]PRIMARY[:PORT][/DB]

Without ``import kombu_paired``, and with a plain URL, give ``kombu_paired.transport:Transport`` as the transport.

Transport Options
=================
* ``secondary``: Kombu URL of the broker that stores what the primary cannot take. Required.
* ``primary_options``, ``secondary_options``: transport options of each side.
* All others: see :class:`kombu_paired.options.PairedNamespaceOptions`.

Sending and consuming are apart. Messages and declarations go to the pairing, which has connections of its own and
works while the primary is away. Consuming goes through the primary's own transport (Kombu's, or the one that
:data:`kombu_paired.namespaces.drivers.DRIVERS` names), over a connection that is opened by the first call that only a
consumer makes; while the primary is away that call of a worker waits for it.
"""

from __future__ import annotations

import itertools
import logging
import math
import threading
import time
import weakref
from collections import defaultdict, deque
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from typing import Any, Generic, TypeVar

from kombu import Connection as KombuConnection
from kombu.transport import base
from kombu.transport.virtual.base import queue_declare_ok_t
from tenacity import RetryCallState, Retrying, retry_if_exception, stop_after_delay, stop_any, wait_random_exponential
from tenacity.stop import stop_base

from kombu_paired.assembling import address, as_message
from kombu_paired.bounded import bounded
from kombu_paired.connection_settings import connect_arguments, given_options, pairing_key, primary_urls
from kombu_paired.driver_errors import DriverErrors, note_driver
from kombu_paired.errors import BacklogUnavailable, ConfigurationError, NamespaceFailure, PrimaryUnavailable
from kombu_paired.failures import FailureKind
from kombu_paired.message import Message
from kombu_paired.namespaces.kombu import KombuNamespace
from kombu_paired.namespaces.letting_go import letting_go
from kombu_paired.namespaces.urls import check_sides, default_primary_name, transport_class
from kombu_paired.options import PairedNamespaceOptions
from kombu_paired.pairing import Pairing
from kombu_paired.process import at_fork, inherit, shared
from kombu_paired.publish_batch import PublishBatch
from kombu_paired.secrets import shown_url, split_urls
from kombu_paired.showing import PREFIX, teach_celery
from kombu_paired.stopping import is_worker_itself, sleep_unless_worker_stops, worker_is_told_to_stop
from kombu_paired.syphon import Syphon

__all__ = ("Channel", "Connection", "PublishBatch", "Transport", "pairing_of")

logger = logging.getLogger(__name__)

#: Seconds a worker waits for the primary before it raises: one line a minute in its log.
WORKER_PATIENCE = 60.0
#: Seconds that all others spend on connecting, if the connection has no ``connect_timeout``, and their pause within
#: those: Kombu's own figures.
PATIENCE, PAUSE = 5.0, 2.0
#: Seconds that closing the consumer's connection may take per answer of the broker.
GOODBYE = 1.0
#: Seconds per answer once it is known that none comes.
NO_PATIENCE = 0.05

Answer = TypeVar("Answer")

#: Whether this thread connects to try a send again. Kombu throws the connection of a failed try away before the next,
#: and pauses then; when it connects for a first try, a pause would only be late.
_trying_again = threading.local()


def pairing_of(connection: KombuConnection) -> Pairing:
    """The pairing behind a Kombu connection.

    Raises:
        ConfigurationError: the connection is not a paired one.
    """
    transport = connection.transport
    if not isinstance(transport, Transport):
        raise ConfigurationError(
            f"{connection.as_uri()} is not a paired connection: write 'paired+' before the primary's URL"
        )
    return transport.pairing


class _found_once(Generic[Answer]):
    """A ``cached_property`` without the lock that it has before Python 3.12, one for all transports of a process: a
    thread that holds it while the process forks never lets go of it in the child.
    """

    def __init__(self, find: Callable[[Any], Answer]) -> None:
        self._find = find
        self.__doc__ = find.__doc__

    def __get__(self, transport: Transport, owner: object = None) -> Answer:
        answer = transport.__dict__[self._find.__name__] = self._find(transport)
        return answer


class Transport(base.Transport):  # type: ignore[misc]
    """Joins the primary's own transport, for consuming, to a pairing, for sending."""

    can_parse_url = True

    # A worker connects again after either error of ours; Kombu retries the first alone: the other is not worth waiting.
    connection_errors = DriverErrors(BacklogUnavailable, PrimaryUnavailable)
    recoverable_connection_errors = DriverErrors(BacklogUnavailable, instead="connection_errors")
    channel_errors = DriverErrors()
    recoverable_channel_errors = DriverErrors()

    def __init__(self, client: KombuConnection, **kwargs: Any) -> None:
        self.client = client
        client.cycle = None  # Kombu would switch to the next URL itself, and forget the prefix; the namespace does it
        self._urls = primary_urls(client)
        self._consumer_client: KombuConnection | None = None
        teach_celery()
        with suppress(ConfigurationError):  # whoever only shows a connection gets to see it
            note_driver(self._driver)

    @_found_once
    def _driver(self) -> type[base.Transport]:
        """The class of the primary's own transport."""
        return transport_class("primary", self._urls[0])

    @_found_once
    def _options(self) -> PairedNamespaceOptions:
        """The settings, found to make sense.

        Raises:
            ConfigurationError: they do not.
        """
        options = PairedNamespaceOptions.parse(self._given)
        check_sides(self._urls, options)
        return options

    @_found_once
    def _given(self) -> Mapping[str, Any]:
        return given_options(self.client, self._urls)

    @_found_once
    def _key(self) -> tuple[Any, ...]:
        return pairing_key(self.client, self._urls, self._given)

    # -- it looks like the primary's own transport; a worker and a producer ask for these before anything else --------

    @property
    def implements(self) -> Any:
        return self._options and self._driver.implements

    @property
    def driver_type(self) -> str:
        return str(self._options and self._driver.driver_type)

    @property
    def driver_name(self) -> str:
        return str(self._driver.driver_name)

    @property
    def pairing(self) -> Pairing:
        """The pairing of this process; another one after a fork."""
        options = self._options
        return shared(self._key, lambda: self._make_pairing(options))

    def _make_pairing(self, options: PairedNamespaceOptions) -> Pairing:
        common: dict[str, Any] = {"send_timeout": options.send_timeout, "classify": options.classify_failure}
        primary = KombuNamespace(
            "primary",
            self._urls,
            options.primary_options,
            connect_arguments=connect_arguments(self.client),
            **common,
        )
        secondary = KombuNamespace(
            "secondary",
            split_urls(options.secondary),
            options.secondary_options,
            queue_type=options.backlog_queue_type,
            **common,
        )
        name = options.primary_name or default_primary_name(self._urls[0])
        pairing = Pairing(name, options, primary, secondary)
        if options.enable_syphon:
            Syphon(pairing).start()
        return pairing

    # -- what a consumer uses: the primary's own transport ------------------------------------------------------

    @property
    def primary_transport(self) -> base.Transport:
        """The primary's own transport; not connected until a consumer needs it."""
        if self._consumer_client is None:
            self._consumer_client = self.pairing.primary.consumer_client(
                heartbeat=self.client.heartbeat, connect_timeout=self.client.connect_timeout
            )
        return self._consumer_client.transport

    def connect_to_primary(self, timeout: float | None = None) -> Any:
        """A connection of the primary's own transport.

        A Celery worker waits, with growing pauses, while the primary is away: at most WORKER_PATIENCE, or until it is
        told to stop. All others get the patience of a plain connection, which tries again after a pause for as long
        as ``connect_timeout`` says; the caller's ``timeout`` may make it shorter.

        Raises:
            PrimaryUnavailable: somebody else than a worker waited in vain.
            Exception: what the plain transport raises when it cannot connect.
        """
        if is_worker_itself():
            return self._wait_for_primary()
        deadline = time.monotonic() + min(timeout or math.inf, self.client.connect_timeout or PATIENCE)
        while True:
            try:
                return self._connect_to_primary_once(deadline)
            except Exception as exc:
                if not self._is_away(exc):
                    raise
                if time.monotonic() + PAUSE > deadline:
                    label = self.pairing.primary.label
                    raise PrimaryUnavailable(f"{label} is away: {type(exc).__name__}: {exc}") from exc
            time.sleep(PAUSE)

    def _wait_for_primary(self) -> Any:
        waiting = Retrying(
            retry=retry_if_exception(self._is_away),
            wait=wait_random_exponential(multiplier=0.5, max=5.0),
            stop=stop_any(stop_after_delay(WORKER_PATIENCE), _StopIfWorkerStops()),
            sleep=sleep_unless_worker_stops,
            before_sleep=self._say_once_that_it_waits,
            reraise=True,
        )
        return waiting(self._connect_to_primary_once)

    def _is_away(self, exc: BaseException) -> bool:
        return self.pairing.primary.kind_of(exc).counts

    def _connect_to_primary_once(self, deadline: float | None = None) -> Any:
        """Try each address of the primary once, and until the deadline if there is one."""
        for tried in itertools.count(1):
            driver = self.primary_transport
            try:
                if deadline is None:
                    connection = driver.establish_connection()
                else:
                    left = max(deadline - time.monotonic(), 0.05)
                    connection = bounded(
                        driver.establish_connection, left, "connecting to the primary", too_late=driver.close_connection
                    )
                break
            except Exception as exc:
                self.pairing.primary.secrets.scrub(exc)
                self._consumer_client = None  # a transport that failed to connect keeps half-made channels
                primary = self.pairing.primary
                addresses = primary.try_next_url(driver.client)
                if tried >= addresses or not primary.kind_of(exc).counts:
                    raise
        self.pairing.primary_was_reached()
        return connection

    def channel_of_primary(self, connection: Any) -> Any:
        """A channel on the primary's own connection.

        Raises:
            PrimaryUnavailable: the primary refuses everything for now, as a Redis whose disk is full does. A worker
                connects again then, and waits.
        """
        try:
            return self.primary_transport.create_channel(connection)
        except self.connection_errors:
            raise
        except Exception as exc:
            if not self._is_away(exc):
                raise
            label = self.pairing.primary.label
            raise PrimaryUnavailable(f"{label} opens no channel: {type(exc).__name__}: {exc}") from exc

    def _say_once_that_it_waits(self, state: RetryCallState) -> None:
        if state.attempt_number == 1 and state.outcome is not None:
            logger.warning(
                "the primary namespace %s is away (%s: %s): consuming waits for it, and what is sent meanwhile goes to "
                "the backlog",
                self.pairing.primary.uri,
                type(state.outcome.exception()).__name__,
                state.outcome.exception(),
            )

    # -- Kombu's transport interface ----------------------------------------------------------------------------

    def establish_connection(self) -> Connection:
        pairing = self.pairing
        pairing.open()
        if getattr(_trying_again, "is_due", False):
            _trying_again.is_due = False
            pairing.require_sendable(may_wait=not is_worker_itself())
        return Connection(self)

    def create_channel(self, connection: Connection) -> Channel:
        return connection.channel()

    def close_connection(self, connection: Connection) -> None:
        connection.close()

    def _collect(self, connection: Connection | None) -> None:
        _trying_again.is_due = True
        if connection is not None:
            connection.collect()

    def verify_connection(self, connection: Connection) -> bool:
        return connection.connected

    def drain_events(self, connection: Connection, **kwargs: Any) -> Any:
        primary = connection.require_primary(kwargs.get("timeout"))  # first: waiting may exchange the transport
        connection.do_what_was_left()
        return self.primary_transport.drain_events(primary, **kwargs)

    def register_with_event_loop(self, connection: Connection, loop: Any) -> None:
        primary = connection.require_primary()
        connection.loop = loop
        self.primary_transport.register_with_event_loop(primary, loop)

    def unregister_from_event_loop(self, connection: Connection, loop: Any) -> None:
        connection.loop = None
        if connection.primary is not None:
            self.primary_transport.unregister_from_event_loop(connection.primary, loop)

    def heartbeat_check(self, connection: Connection, rate: int = 2) -> Any:
        if connection.primary is not None:
            return self.primary_transport.heartbeat_check(connection.primary, rate=rate)
        return None

    def get_heartbeat_interval(self, connection: Connection) -> Any:
        if connection.primary is not None:
            return self.primary_transport.get_heartbeat_interval(connection.primary)
        return 0

    def qos_semantics_matches_spec(self, connection: Connection) -> bool:
        primary = connection.require_primary()
        return bool(self.primary_transport.qos_semantics_matches_spec(primary))

    def driver_version(self) -> str:
        return str(self.primary_transport.driver_version())

    def get_manager(self, *args: Any, **kwargs: Any) -> Any:
        manager = self.primary_transport.get_manager(*args, **kwargs)
        channel = getattr(manager, "channel", None)
        if channel is not None:  # of a virtual transport, which lists what was declared through itself
            for declaration in self.pairing.book.lasting():
                getattr(channel, declaration.operation)(**declaration.arguments)
        return manager

    def as_uri(self, uri: str, include_password: bool = False, mask: str = "**") -> str:
        plain = uri.removeprefix(PREFIX)
        return PREFIX + (plain if include_password else shown_url(plain, self.client.alt, mask))

    @property
    def supports_batch_publish(self) -> bool:
        if not self.implements.batch_publish:
            return False
        return bool(getattr(self.primary_transport, "supports_batch_publish", True))

    @property
    def channels(self) -> Sequence[Any]:
        """Channels of the primary's own transport, where it keeps a list: Celery bounds their sockets at a loss."""
        if self._consumer_client is None:
            return ()
        return getattr(self._consumer_client.transport, "channels", None) or ()

    @property
    def default_connection_params(self) -> dict[str, Any]:
        return {}


class Connection:
    """A connection as Kombu holds it. It is always connected; what it needs it opens when it needs it.

    Attributes:
        client: the Kombu connection.
        primary: the primary's own connection, for consuming; None while nobody has consumed.
        loop: the event loop that reads from it, if one does.
    """

    def __init__(self, transport: Transport) -> None:
        self.transport = transport
        self.client = transport.client
        self.primary: Any = None
        self.loop: Any = None
        self._channels: list[Channel] = []
        self._consumer = threading.get_ident()
        self._left_to_do: deque[Callable[[], None]] = deque()
        self._is_open = True
        _connections.add(self)

    @property
    def connected(self) -> bool:
        return self._is_open

    @property
    def _transport(self) -> Any:
        """Where Celery looks for the socket of an AMQP connection, to bound it."""
        return getattr(self.primary, "_transport", None)

    def channel(self) -> Channel:
        channel = Channel(self)
        self._channels.append(channel)
        return channel

    def require_primary(self, timeout: float | None = None) -> Any:
        """The primary's own connection; a worker waits for the primary if it is away."""
        if self.primary is None:
            self.primary = self.transport.connect_to_primary(timeout)
            self._consumer = threading.get_ident()
        return self.primary

    def do_where_it_consumes(self, step: Callable[[], None]) -> None:
        """Do something that reads an answer: now, or when the thread that consumes comes to it.

        Two threads that read from one connection take each other's frames.
        """
        if threading.get_ident() == self._consumer:
            step()
        elif self.loop is not None:
            self.loop.call_soon(step)
        else:
            self._left_to_do.append(step)

    def do_what_was_left(self) -> None:
        while self._left_to_do:
            self._left_to_do.popleft()()

    def drain_events(self, **kwargs: Any) -> Any:
        return self.transport.drain_events(self, **kwargs)

    def discard(self, channel: Channel) -> None:
        if channel in self._channels:
            self._channels.remove(channel)

    def close(self) -> None:
        """Close; takes a moment at most, whatever the primary is doing, and raises nothing."""
        primary, self.primary = self.primary, None
        try:
            if primary is not None:
                with letting_go("a consumer's connection"):
                    self.transport.pairing.primary.hurry(primary, GOODBYE)
                    self.transport.primary_transport.close_connection(primary)
        finally:
            self._end()

    def collect(self, patience: float = GOODBYE) -> None:
        """Let go without a goodbye; raises nothing."""
        primary, self.primary = self.primary, None
        try:
            if primary is not None:
                with letting_go("a consumer's connection"):
                    self.transport.pairing.primary.hurry(primary, patience)
                    driver = self.transport.primary_transport
                    getattr(driver, "_collect", driver.close_connection)(primary)
        finally:
            self._end()

    @contextmanager
    def saying_goodbye(self) -> Iterator[None]:
        """A step of a goodbye. When a worker was told to stop, a silent primary is waited for once, and a moment."""
        if not worker_is_told_to_stop():
            yield
            return
        namespace = self.transport.pairing.primary
        namespace.hurry(self.primary, GOODBYE)
        try:
            yield
        except Exception as exc:
            if namespace.kind_of(exc).counts:
                self.collect(NO_PATIENCE)
            raise

    def _end(self) -> None:
        self._is_open = False
        channels, self._channels = self._channels, []
        for channel in channels:
            channel.end()


class Channel(base.StdChannel):  # type: ignore[misc]
    """A channel that sends through the pairing, and consumes through a channel of the primary's own transport."""

    _ids = itertools.count(1)

    def __init__(self, connection: Connection) -> None:
        self.connection: Connection | None = connection
        self.channel_id = next(self._ids)
        self.events: dict[str, set[Any]] = defaultdict(set)
        self._transport = connection.transport
        self._primary: Any = None
        self._declared_before: list[tuple[str, dict[str, Any]]] = []

    @property
    def is_open(self) -> bool:
        return self.connection is not None

    # -- sending ------------------------------------------------------------------------------------------------

    def prepare_message(
        self,
        body: Any,
        priority: int | None = None,
        content_type: str | None = None,
        content_encoding: str | None = None,
        headers: dict[str, Any] | None = None,
        properties: dict[str, Any] | None = None,
    ) -> Message:
        return Message(
            body=body,
            priority=priority,
            content_type=content_type,
            content_encoding=content_encoding,
            headers=headers if headers is not None else {},
            properties=properties if properties is not None else {},
        )

    def basic_publish(
        self,
        message: Message,
        exchange: str = "",
        routing_key: str = "",
        mandatory: bool = False,
        immediate: bool = False,
        timeout: float | None = None,
        confirm_timeout: float | None = None,
        **kwargs: Any,
    ) -> None:
        """Send a message. Its time limit is the pairing's ``send_timeout``."""
        if not isinstance(message, Message):
            message = as_message(message)
        address(message, exchange, routing_key, mandatory)
        try:
            self._transport.pairing.send(message)
        except self._transport.channel_errors as exc:
            returned = self.events.get("basic_return")
            if not mandatory or not returned:
                raise
            for callback in returned:
                callback(exc, exchange, routing_key, message)

    @property
    def supports_batch_publish(self) -> bool:
        return self._transport.supports_batch_publish

    def create_publish_batch(self, max_size: int) -> PublishBatch:
        return PublishBatch(self, max_size)

    def send_together(self, messages: Sequence[Message]) -> None:
        """Send the messages of a publish batch."""
        self._transport.pairing.send_batch(messages)

    # -- declaring ----------------------------------------------------------------------------------------------

    def prepare_queue_arguments(self, arguments: Any, **kwargs: Any) -> Any:
        return _channel_class(self._transport.primary_transport).prepare_queue_arguments(self, arguments, **kwargs)

    def queue_declare(self, queue: str = "", **arguments: Any) -> Any:
        arguments["queue"] = queue
        if not queue or arguments.get("exclusive"):
            return self.primary_channel().queue_declare(**arguments)  # it will belong to this very connection
        answer = self._declare("queue_declare", arguments)
        if answer is not None:
            return answer
        if arguments.get("passive"):
            raise PrimaryUnavailable(f"the primary is away, so it cannot be asked for the queue {queue!r}")
        return queue_declare_ok_t(queue, 0, 0)

    def exchange_declare(self, exchange: str = "", type: str = "direct", **arguments: Any) -> Any:
        return self._declare("exchange_declare", {"exchange": exchange, "type": type, **arguments})

    def queue_bind(self, queue: str, exchange: str = "", routing_key: str = "", **arguments: Any) -> Any:
        return self._declare(
            "queue_bind", {"queue": queue, "exchange": exchange, "routing_key": routing_key, **arguments}
        )

    def exchange_bind(self, destination: str, source: str = "", routing_key: str = "", **arguments: Any) -> Any:
        return self._declare(
            "exchange_bind", {"destination": destination, "source": source, "routing_key": routing_key, **arguments}
        )

    def queue_delete(self, queue: str = "", *args: Any, **kwargs: Any) -> Any:
        self._transport.pairing.book.forget_queue(queue)
        return self.primary_channel().queue_delete(queue, *args, **kwargs)

    def exchange_delete(self, exchange: str, *args: Any, **kwargs: Any) -> Any:
        self._transport.pairing.book.forget_exchange(exchange)
        return self.primary_channel().exchange_delete(exchange, *args, **kwargs)

    def queue_unbind(self, queue: str, exchange: str = "", routing_key: str = "", **kwargs: Any) -> Any:
        self._transport.pairing.book.forget_binding(queue, exchange, routing_key)
        return self.primary_channel().queue_unbind(queue, exchange, routing_key, **kwargs)

    def _declare(self, operation: str, arguments: dict[str, Any]) -> Any:
        if self._primary is not None:
            self._transport.pairing.book.note(operation, arguments)
            return self._housekeep(self._primary, operation, **arguments)
        self._declared_before.append((operation, arguments))
        return self._transport.pairing.declare(operation, arguments)

    def _housekeep(self, primary: Any, operation: str, *args: Any, **kwargs: Any) -> Any:
        """Declare or delete on a channel of the primary, unless that refuses as a whole.

        A full broker is there to be emptied, and a replica may become a master again: neither is to end a worker.
        """
        try:
            return getattr(primary, operation)(*args, **kwargs)
        except Exception as exc:
            namespace = self._transport.pairing.primary
            if namespace.kind_of(exc) is not FailureKind.FAULT or not _is_usable(primary):
                raise
            logger.warning("%s refuses %s (%s), and is consumed from without", namespace.label, operation, exc)
            return None

    # -- consuming ----------------------------------------------------------------------------------------------

    def primary_channel(self) -> Any:
        """The channel of the primary's own transport; a worker waits for the primary if it is away."""
        if self._primary is None:
            if self.connection is None:
                raise ConnectionError("the channel is closed")  # Celery ignores connection errors while it cleans up
            primary = self.connection.require_primary()
            channel = self._transport.channel_of_primary(primary)
            channel.on_stranded = self._divert_stranded
            for operation, arguments in self._declared_before:
                if not arguments.get("passive"):
                    self._housekeep(channel, operation, **arguments)  # a virtual channel routes by what it knows itself
            self._declared_before.clear()
            self._primary = channel
        return self._primary

    def _divert_stranded(self, message: Message, reason: Exception) -> None:
        pairing = self._transport.pairing
        kind = pairing.primary.kind_of(reason)
        pairing.divert_stranded(
            message, NamespaceFailure(kind, pairing.primary.label, reason, maybe_stored=kind.counts)
        )

    def message_to_python(self, raw_message: Any) -> Any:
        if isinstance(raw_message, base.Message):
            return raw_message
        return self.primary_channel().message_to_python(raw_message)

    # What only a consumer, or an operator, calls; a worker waits here for the primary if it is away.

    def basic_consume(self, *args: Any, **kwargs: Any) -> Any:
        return self.primary_channel().basic_consume(*args, **kwargs)

    def basic_get(self, *args: Any, **kwargs: Any) -> Any:
        return self.primary_channel().basic_get(*args, **kwargs)

    def basic_ack(self, *args: Any, **kwargs: Any) -> Any:
        return self.primary_channel().basic_ack(*args, **kwargs)

    def basic_reject(self, *args: Any, **kwargs: Any) -> Any:
        return self.primary_channel().basic_reject(*args, **kwargs)

    def basic_recover(self, *args: Any, **kwargs: Any) -> Any:
        return self.primary_channel().basic_recover(*args, **kwargs)

    def flow(self, *args: Any, **kwargs: Any) -> Any:
        return self.primary_channel().flow(*args, **kwargs)

    def queue_purge(self, *args: Any, **kwargs: Any) -> Any:
        return self.primary_channel().queue_purge(*args, **kwargs)

    def exchange_unbind(self, *args: Any, **kwargs: Any) -> Any:
        return self.primary_channel().exchange_unbind(*args, **kwargs)

    def get_bindings(self, *args: Any, **kwargs: Any) -> Any:
        return self.primary_channel().get_bindings(*args, **kwargs)

    def basic_cancel(self, consumer_tag: str, **kwargs: Any) -> Any:
        """Cancel a consumer. On a closed channel there is none: Celery cancels again while it cleans up."""
        connection, primary = self.connection, self._primary
        if connection is None or primary is None:
            return None
        with connection.saying_goodbye():
            return primary.basic_cancel(consumer_tag, **kwargs)

    def basic_qos(self, *args: Any, **kwargs: Any) -> None:
        """Set how many messages may be unacknowledged, in the thread that consumes.

        After a reconnect Celery raises it in the threads of a pool, whenever a task ends.
        """
        connection = self.connection
        if connection is None:
            raise ConnectionError("the channel is closed")

        def set_it() -> None:
            if self.connection is connection:  # it may have ended meanwhile
                self.primary_channel().basic_qos(*args, **kwargs)

        connection.do_where_it_consumes(set_it)

    def after_reply_message_received(self, queue: str) -> None:
        if self._primary is not None:
            self._housekeep(self._primary, "after_reply_message_received", queue)

    def __getattr__(self, name: str) -> Any:
        """Anything else is the primary's own channel's, once there is one: an attribute never connects."""
        primary = self.__dict__.get("_primary")
        if primary is None:
            raise AttributeError(f"{type(self).__name__!r} object has no attribute {name!r} before it consumes")
        return getattr(primary, name)

    def close(self) -> None:
        connection, primary = self.connection, self._primary
        self.end()
        if connection is not None:
            connection.discard(self)
            if primary is not None and connection.primary is not None:
                with letting_go("a consumer's channel"), connection.saying_goodbye():
                    primary.close()

    def end(self) -> None:
        """The connection is gone."""
        self.connection = self._primary = None


def _channel_class(transport: base.Transport) -> Any:
    return getattr(transport, "Channel", None) or getattr(transport, "Connection", base).Channel


def _is_usable(channel: Any) -> bool:
    """Whether a channel of the primary survived an error: those of AMQP are closed by most."""
    return bool(getattr(channel, "is_open", not getattr(channel, "closed", False)))


class _StopIfWorkerStops(stop_base):
    def __call__(self, retry_state: RetryCallState) -> bool:
        return worker_is_told_to_stop()


#: Open connections, whose inherited sockets a child process must not close.
_connections: weakref.WeakSet[Connection] = weakref.WeakSet()


def _inherit_connections() -> None:
    for connection in list(_connections):
        inherit((connection.primary, connection.transport._consumer_client))
        connection.primary = connection.transport._consumer_client = None
        connection._end()


at_fork(in_child=_inherit_connections)
