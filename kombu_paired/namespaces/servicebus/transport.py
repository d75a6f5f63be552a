"""Azure Service Bus transport: what Kombu sees.

Features
========
* Type: Virtual
* Supports Direct: Yes
* Supports Topic: Yes; what nobody bound in this process goes to the Service Bus topic of the exchange's name if it is
  transient (Celery's events)
* Supports Fanout: Yes, a Service Bus topic with a subscription per bound queue
* Supports Priority: No
* Supports TTL: Yes

Connection String
=================

.. code-block::

    azureservicebus://POLICY:KEY@NAMESPACE
    azureservicebus://DefaultAzureCredential@NAMESPACE
    azureservicebus://ManagedIdentityCredential@NAMESPACE
    azureservicebus://POLICY:KEY@localhost:5672

The last one is a local server, an emulator; elsewhere than on this machine append ``?UseDevelopmentEmulator=true``.

Transport Options
=================

* ``queue_name_prefix`` - String prefix to prepend to queue names.
* ``peek_lock_seconds`` - Lock of the queues that are created, at most 300. Default ``60``. Locks are renewed while a
  task runs.
* ``send_timeout`` - Seconds that a send may take. Default ``10``.
* ``schedule_eta`` - The service holds a task back until its ``eta``, instead of the worker. Default ``False``.
* ``management_port`` - Port of a local server's management, if it is another one.
* ``client_options`` - Further arguments of the SDK's ``ServiceBusClient`` (proxy, web sockets, CA bundle).

The stock transport's other options (``wait_time_seconds``, ``uamqp_keep_alive_interval``, ``retry_*``,
``use_lock_renewal``, ``max_lock_renewal_duration``) are accepted and have no effect: nothing here waits for them.
"""

from __future__ import annotations

import itertools
import logging
import os
import queue as queues
import re
import time
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from queue import Empty
from typing import Any

from azure.servicebus.exceptions import ServiceBusError
from kombu.transport import virtual
from kombu.transport.virtual.base import BrokerState, queue_declare_ok_t

from kombu_paired.failures import FailureKind
from kombu_paired.namespaces.servicebus.address import Address
from kombu_paired.namespaces.servicebus.entities import Entities, is_away
from kombu_paired.namespaces.servicebus.fetching import Fetcher
from kombu_paired.namespaces.servicebus.kinds import CHANNEL_ERRORS, CONNECTION_ERRORS, kind_of
from kombu_paired.namespaces.servicebus.names import entity_name, subscription_name
from kombu_paired.namespaces.servicebus.sdk import Clients, ReceiverLink, SenderLink
from kombu_paired.namespaces.servicebus.wire import from_envelope, is_ping, to_envelope
from kombu_paired.secrets import without_secrets
from kombu_paired.stopping import STOP_CHECK, worker_is_told_to_stop

__all__ = ("Channel", "Outgoing", "Transport", "Unrouted")

logger = logging.getLogger(__name__)

SEND_TIMEOUT = 10.0
#: Messages a consumer without a prefetch count, or without acknowledgements, fetches ahead.
FETCH_AHEAD = 100
#: Seconds that all fetchers together may take to settle and end, and a deletion after them.
GOODBYE = 1.5
#: Seconds ``basic_get`` waits for a message.
GET_WAIT = 1.0
#: An entity that nobody has: a service that answers "not found" works.
NOBODY = "kombu-paired.ping"
#: Kombu's remote control answers to an exchange of this kind, bound in the asking process alone, and to a queue that it
#: names after its routing key.
_REPLIES = re.compile(r"reply\..+\.pidbox")

_tag_numbers = itertools.count(1)

#: What was declared in this process, by namespace: virtual channels route by what they know.
_states: dict[str, BrokerState] = {}
_subscriptions: dict[str, dict[str, tuple[str, str]]] = {}
_known: dict[str, set[str]] = {}


class Unrouted(LookupError):
    """No queue is bound for the message."""


class Outgoing:
    """Open links that send, one per entity. For one thread at a time.

    Attributes:
        was_let_in: the last one that could not be opened was not, although the service let us in.
    """

    def __init__(self, clients: Clients) -> None:
        self.was_let_in = False
        self._clients = clients
        self._links: dict[str, SenderLink] = {}

    @property
    def is_fresh(self) -> bool:
        """Nothing is open: a failure cannot be blamed on an old connection."""
        return not self._links

    def link(self, entity: str, timeout: float) -> SenderLink:
        """An open link that is alive as far as is known."""
        link = self._links.get(entity)
        if link is not None and link.is_usable:
            return link
        if link is not None:
            self.drop(entity)
        self.was_let_in = False
        link = self._clients.sender(entity)
        try:
            link.open(timeout)
        except BaseException:
            self.was_let_in = link.was_let_in
            raise
        self._links[entity] = link
        return link

    def drop(self, entity: str) -> None:
        """Let go of the link to an entity."""
        link = self._links.pop(entity, None)
        if link is not None:
            link.drop()

    def drop_all(self) -> None:
        """Let go of all."""
        for entity in list(self._links):
            self.drop(entity)

    def close(self) -> None:
        """Say goodbye to all."""
        links, self._links = list(self._links.values()), {}
        for link in links:
            link.close()


class Channel(virtual.Channel):  # type: ignore[misc]
    """A virtual channel on Service Bus."""

    supports_fanout = True
    do_restore = False  # the service gives back what is not settled

    def __init__(self, connection: Transport, **kwargs: Any) -> None:
        super().__init__(connection, **kwargs)
        self.qos.restore_at_shutdown = False
        self._fetchers: dict[str, Fetcher] = {}
        self._no_ack: set[str] = set()
        self._told: set[str] = set()
        self._get_links: dict[str, ReceiverLink] = {}
        self._got: dict[str, tuple[ReceiverLink, Any]] = {}
        self._short_lived: dict[str, float] = {}
        self._exclusive: set[str] = set()
        self._consumed_short_lived: set[str] = set()

    # -- names and routes ---------------------------------------------------------------------------------------

    @property
    def transport(self) -> Transport:
        return self.connection  # type: ignore[no-any-return]

    def entity(self, name: str) -> str:
        """The service's name of a queue or exchange."""
        return entity_name(name, self.transport.prefix)

    def route(self, exchange: str, routing_key: str, properties: Mapping[str, Any]) -> list[str]:
        """The entities that a message goes to.

        Raises:
            Unrouted: none, and the message is not one that may get lost.
        """
        if not exchange:
            return [self.entity(routing_key)]
        declared = self.state.exchanges.get(exchange)
        kind = declared["type"] if declared else "direct"
        if kind == "fanout":
            return [self.entity(exchange)]
        found = self.typeof(exchange).lookup(declared["table"], exchange, routing_key, None) if declared else ()
        if found:
            return [self.entity(each) for each in sorted(found)]
        if _REPLIES.fullmatch(exchange):
            return [self.entity(f"{routing_key}.{exchange}")]
        if properties.get("delivery_mode") == 1:
            return [self.entity(exchange)] if kind == "topic" else []
        raise Unrouted(f"no queue is bound for {exchange}/{routing_key}")

    def _next_delivery_tag(self) -> str:
        return f"{self.transport.tag_prefix}-{os.getpid()}-{next(_tag_numbers)}"

    def envelope(self, message: Any, exchange: str, routing_key: str) -> Any:
        """A prepared message as it is sent."""
        self._inplace_augment_message(message, exchange, routing_key)
        return to_envelope(message, schedule_eta=self.transport.schedule_eta)

    # -- sending ------------------------------------------------------------------------------------------------

    def basic_publish(self, message: Any, exchange: str = "", routing_key: str = "", **kwargs: Any) -> None:
        outgoing = self.envelope(message, exchange, routing_key)
        for entity in self.route(exchange, routing_key, message["properties"]):
            self._send(entity, outgoing)

    def _put(self, queue: str, message: Any, **kwargs: Any) -> None:
        self._send(self.entity(queue), to_envelope(message, schedule_eta=self.transport.schedule_eta))

    def _send(self, entity: str, message: Any) -> None:
        transport = self.transport
        deadline = time.monotonic() + transport.timeout
        link = transport.outgoing.link(entity, transport.timeout)
        try:
            link.send(message, deadline - time.monotonic())
        except Exception:
            transport.outgoing.drop(entity)
            raise

    # -- declaring ----------------------------------------------------------------------------------------------

    def exchange_declare(self, exchange: str = "", type: str = "direct", **arguments: Any) -> None:
        super().exchange_declare(exchange, type, **arguments)
        if type in ("fanout", "topic") and not arguments.get("passive"):
            with self._later_if_away(f"the topic of {exchange}"):
                self.transport.entities.ensure_topic(self.entity(exchange), self.transport.timeout)

    @contextmanager
    def _later_if_away(self, what: str) -> Iterator[None]:
        """Remote control and events can wait for a management that is away alone; tasks must not wait for them."""
        try:
            yield
        except Exception as exc:
            if not is_away(exc) or not self.transport.entities.was_let_in:
                raise
            log = logger.debug if what in self._told else logger.warning
            self._told.add(what)
            log("%s cannot be made at the moment (%s); it is tried again when it is missing", what, exc)

    def queue_declare(self, queue: str = "", passive: bool = False, **arguments: Any) -> Any:
        transport = self.transport
        if passive:
            counts = transport.entities.counts(self.entity(queue), transport.timeout)
            if counts is None:
                raise virtual.base.ChannelError(f"NOT_FOUND - no queue {queue!r}", (50, 10), "Queue.declare", "404")
            return queue_declare_ok_t(queue, counts[0], 0)
        queue = queue or f"amq.gen-{virtual.base.uuid()}"
        idle = _idle_of(arguments)
        if idle is None:
            transport.entities.ensure_queue(self.entity(queue), transport.timeout)
        else:
            if arguments.get("exclusive"):
                self._exclusive.add(queue)
            self._short_lived[queue] = idle  # bound to a topic it is a subscription, and no queue
        return queue_declare_ok_t(queue, 0, 0)

    def queue_bind(
        self, queue: str, exchange: str | None = None, routing_key: str = "", arguments: Any = None, **kwargs: Any
    ) -> None:
        exchange = exchange or "amq.direct"
        was_bound = self.state.has_binding(queue, exchange, routing_key)
        super().queue_bind(queue, exchange, routing_key, arguments, **kwargs)
        if was_bound:  # as this process knows; the service may not have it (any more)
            self._queue_bind(exchange, routing_key, "", queue)

    def _queue_bind(self, exchange: str, routing_key: str, pattern: str, queue: str) -> None:
        kind = self.state.exchanges[exchange]["type"]
        idle = self._short_lived.get(queue)
        if kind == "direct" or (kind == "topic" and idle is None):
            if idle is not None:
                self._ensure_short_lived(queue)
            return
        topic, name, timeout = self.entity(exchange), subscription_name(queue), self.transport.timeout
        if idle is None:
            target = self.entity(queue)
            self.transport.entities.ensure_subscription(topic, name, timeout, forward_to=target)
            return
        self.transport.subscriptions[queue] = (topic, name)
        with self._later_if_away(f"the subscription of {queue}"):
            self.transport.entities.ensure_subscription(topic, name, timeout, idle=idle)

    def _ensure_short_lived(self, queue: str) -> None:
        idle = self._short_lived.get(queue)
        if idle is not None and queue not in self.transport.subscriptions:
            with self._later_if_away(f"the queue {queue}"):
                self.transport.entities.ensure_queue(self.entity(queue), self.transport.timeout, idle=idle)

    def queue_delete(self, queue: str, if_unused: bool = False, if_empty: bool = False, **kwargs: Any) -> None:
        if if_empty and self._size(queue):
            return
        for channel in self.transport.channels:
            channel.end_fetching(queue)
        self._delete(queue)
        for exchange in self.state.exchanges.values():
            exchange["table"][:] = [meta for meta in exchange["table"] if meta[2] != queue]
        self.state.queue_bindings_delete(queue)
        self._short_lived.pop(queue, None)

    def _delete(self, queue: str, *args: Any, **kwargs: Any) -> None:
        transport = self.transport
        subscription = transport.subscriptions.pop(queue, None)
        if subscription is None:
            transport.entities.delete_queue(self.entity(queue), transport.timeout)
            return
        topic, name = subscription
        transport.entities.delete_subscription(topic, name, transport.timeout)
        if not any(
            self.entity(exchange) == topic and declared.get("durable")
            for exchange, declared in self.state.exchanges.items()
        ):
            transport.entities.delete_topic_if_unused(topic, transport.timeout)

    def _make_again(self, queue: str) -> None:
        """A consumed queue is gone: somebody deleted it, or the service did while nobody listened."""
        transport, idle = self.transport, self._short_lived.get(queue)
        subscription = transport.subscriptions.get(queue)
        if subscription is not None:
            topic, name = subscription
            transport.entities.forget(topic, f"{topic}/Subscriptions/{name}")
            transport.entities.ensure_subscription(topic, name, transport.timeout, idle=idle)
        else:
            transport.entities.forget(self.entity(queue))
            transport.entities.ensure_queue(self.entity(queue), transport.timeout, idle=idle)

    def _has_queue(self, queue: str, **kwargs: Any) -> bool:
        return self.transport.entities.has_queue(self.entity(queue), self.transport.timeout)

    def _size(self, queue: str) -> int:
        counts = self.transport.entities.counts(self.entity(queue), self.transport.timeout)
        return counts[0] if counts else 0

    def _purge(self, queue: str) -> int:
        count = 0
        link = self._receiver_link(queue, delete=True)
        link.open(self.transport.timeout)
        try:
            while batch := link.receive(FETCH_AHEAD, 0.2):
                count += len(batch)
        finally:
            link.close()
        return count

    # -- consuming ----------------------------------------------------------------------------------------------

    def _receiver_link(self, queue: str, *, delete: bool = False, session: Any = None) -> ReceiverLink:
        topic, name = self.transport.subscriptions.get(queue, (self.entity(queue), None))
        return self.transport.clients.receiver(topic, name, delete=delete, session=session)

    def basic_consume(self, queue: str, no_ack: bool, callback: Any, consumer_tag: str, **kwargs: Any) -> None:
        super().basic_consume(queue, no_ack, callback, consumer_tag, **kwargs)
        self._ensure_short_lived(queue)
        if queue in self._short_lived:
            self._consumed_short_lived.add(queue)
        fetcher = self._fetchers[queue] = Fetcher(
            queue,
            lambda session: self._receiver_link(queue, delete=no_ack, session=session),
            room=self._room,
            deliver=lambda queue, raw, tag: self.transport.mailbox.put((self, fetcher, queue, raw, tag)),
            fail=self.transport.mailbox.put,
            missing=self._make_again,
            no_ack=no_ack,
        )
        if no_ack:
            self._no_ack.add(queue)
        fetcher.start()

    def basic_cancel(self, consumer_tag: str) -> None:
        queue = self._tag_to_queue.get(consumer_tag)
        super().basic_cancel(consumer_tag)
        fetcher = self._fetchers.get(queue) if queue else None
        if fetcher is not None:
            fetcher.cancel()

    def end_fetching(self, queue: str) -> None:
        """The queue is about to be deleted: nothing in it counts any more."""
        fetcher = self._fetchers.pop(queue, None)
        if fetcher is not None:
            fetcher.drop()

    def basic_qos(self, prefetch_size: int = 0, prefetch_count: int = 0, apply_global: bool = False) -> None:
        super().basic_qos(prefetch_size, prefetch_count, apply_global)
        for fetcher in list(self._fetchers.values()):
            fetcher.wake()

    def _room(self, fetcher: Fetcher) -> int:
        prefetch = self.qos.prefetch_count
        if fetcher.queue in self._no_ack or not prefetch:
            return FETCH_AHEAD - fetcher.buffered
        return int(prefetch) - sum(len(each.held) for each in list(self._fetchers.values()))

    def accept(self, fetcher: Fetcher, tag: str | None) -> bool:
        """Whether a fetched message is still to be delivered."""
        fetcher.taken()
        if tag is None:
            return not self.closed
        held = fetcher.held.get(tag)
        if held is None:
            return False
        held.is_delivered = True
        return True

    def basic_ack(self, delivery_tag: str, multiple: bool = False) -> None:
        self._settle(delivery_tag, "complete")
        super().basic_ack(delivery_tag, multiple)

    def basic_reject(self, delivery_tag: str, requeue: bool = False) -> None:
        if requeue:
            self._settle(delivery_tag, "abandon")
        else:
            self._settle(
                delivery_tag, "dead_letter", reason="Rejected", error_description="the consumer rejected the message"
            )
        self.qos.ack(delivery_tag)

    def _settle(self, tag: str, operation: str, **arguments: Any) -> None:
        got = self._got.pop(tag, None)
        if got is not None:
            link, received = got
            link.settle(operation, received, **arguments)
        elif not any(each.settle(tag, operation, **arguments) for each in list(self._fetchers.values())):
            logger.debug("a message is not held any more: its connection was lost, and it comes again")

    def basic_recover(self, requeue: bool = False) -> None:
        for fetcher in list(self._fetchers.values()):
            for tag in list(fetcher.held):
                fetcher.settle(tag, "abandon")

    def basic_get(self, queue: str, no_ack: bool = False, **kwargs: Any) -> Any:
        link, received = self._receive_one(queue)
        if received is None:
            return None
        raw = from_envelope(received)
        tag = raw["properties"]["delivery_tag"] = virtual.base.uuid()
        message = self.Message(raw, channel=self)
        if no_ack:
            link.settle("complete", received)
        else:
            self._got[tag] = (link, received)
            self.qos.append(message, tag)
        return message

    def _receive_one(self, queue: str) -> tuple[ReceiverLink, Any]:
        link = self._get_links.get(queue)
        if link is None or not link.is_alive():
            self._ensure_short_lived(queue)
            link = self._receiver_link(queue)
            link.open(self.transport.timeout)
            self._get_links[queue] = link
        for received in link.receive(1, GET_WAIT):
            if not is_ping(received):
                return link, received
            link.settle("complete", received)
        return link, None

    # -- the end ------------------------------------------------------------------------------------------------

    def close(self) -> None:
        if self.closed:
            return
        transport = self.transport
        for fetcher in self._fetchers.values():
            fetcher.stop()
        deadline = time.monotonic() + transport.goodbye
        for fetcher in self._fetchers.values():
            fetcher.join(deadline - time.monotonic())
        for link in self._get_links.values():
            link.drop()
        if not transport.is_broken:
            self._delete_short_lived(transport.goodbye)
        super().close()

    def _delete_short_lived(self, timeout: float) -> None:
        """What only this consumer had: its subscriptions and exclusive queues.

        An auto-delete queue may have other consumers. The service deletes it when it has been idle for long enough.
        """
        mine = self._consumed_short_lived & (self._exclusive | self.transport.subscriptions.keys())
        before, self.transport.timeout = self.transport.timeout, timeout
        try:
            for queue in mine:
                self.queue_delete(queue)
        except Exception as exc:
            logger.debug("deleting what only this consumer had: %r", exc)
        finally:
            self.transport.timeout = before

    def drop(self) -> None:
        """End without a word."""
        for fetcher in self._fetchers.values():
            fetcher.drop()
        self.closed = True


class Transport(virtual.Transport):  # type: ignore[misc]
    """Azure Service Bus transport."""

    Channel = Channel

    can_parse_url = True
    default_port = None
    polling_interval = None
    driver_type = "azureservicebus"
    driver_name = "azure-servicebus"
    connection_errors = (*virtual.Transport.connection_errors, *CONNECTION_ERRORS)
    channel_errors = (*virtual.Transport.channel_errors, *CHANNEL_ERRORS)
    recoverable_connection_errors = connection_errors
    recoverable_channel_errors = ()

    implements = virtual.Transport.implements.extend(exchange_type=frozenset(["direct", "topic", "fanout"]))

    def __init__(self, client: Any, **kwargs: Any) -> None:
        super().__init__(client, **kwargs)
        options = client.transport_options or {}
        self.address = Address.parse(client.hostname)
        place = self.address.place
        self.clients = Clients(self.address, options)
        self.entities = Entities(
            self.clients, options.get("peek_lock_seconds", 60), known=_known.setdefault(place, set())
        )
        self.outgoing = Outgoing(self.clients)
        self.state = _states.setdefault(place, BrokerState())
        self.subscriptions = _subscriptions.setdefault(place, {})
        self.mailbox: queues.SimpleQueue[Any] = queues.SimpleQueue()
        self.prefix: str = options.get("queue_name_prefix", "")
        self.schedule_eta: bool = options.get("schedule_eta", False)
        self.timeout: float = options.get("send_timeout", SEND_TIMEOUT)
        self.tag_prefix = virtual.base.uuid()
        self.goodbye = GOODBYE
        self.is_broken = False

    def establish_connection(self) -> Transport:
        """Make sure that the service answers.

        Raises:
            Exception: it does not, or it refuses the credentials.
        """
        self.is_broken = False
        self.ask(self.timeout)
        return super().establish_connection()  # type: ignore[no-any-return]

    def ask(self, timeout: float) -> None:
        """Find out whether the service answers, and lets us in; stores nothing."""
        link = self.clients.sender(NOBODY)
        try:
            link.open(timeout)
        except ServiceBusError as exc:  # no such entity; or the right to listen alone, which is enough for a worker
            if kind_of(exc) is FailureKind.TIMEOUT or not link.was_let_in:
                raise
        finally:
            link.drop()

    def drain_events(self, connection: Any, timeout: float | None = None) -> None:
        deadline = None if timeout is None else time.monotonic() + timeout
        while True:
            left = STOP_CHECK if deadline is None else min(deadline - time.monotonic(), STOP_CHECK)
            try:
                item = self.mailbox.get(timeout=max(left, 0))
            except Empty:
                if worker_is_told_to_stop() or (deadline is not None and time.monotonic() >= deadline):
                    raise TimeoutError from None  # what Kombu knows as socket.timeout
                continue
            if isinstance(item, BaseException):
                self.is_broken = True
                raise item
            channel, fetcher, queue, raw, tag = item
            if channel.accept(fetcher, tag) and queue in self._callbacks:
                self._callbacks[queue](raw)
                return
            if tag is not None:
                fetcher.settle(tag, "abandon")

    def close_connection(self, connection: Any) -> None:
        super().close_connection(connection)
        self.outgoing.close()

    def _collect(self, connection: Any) -> None:
        """Let go without a goodbye: the connection is dead."""
        for channel in list(self.channels):
            channel.drop()
        self.channels.clear()
        self.outgoing.drop_all()

    def verify_connection(self, connection: Any) -> bool:
        return not self.is_broken

    @classmethod
    def as_uri(cls, uri: str, include_password: bool = False, mask: str = "**") -> str:
        return uri if include_password else without_secrets(uri)


def _idle_of(arguments: Mapping[str, Any]) -> float | None:
    """For how many seconds a queue may be idle before it goes; None if it is to last."""
    expires = (arguments.get("arguments") or {}).get("x-expires")
    if expires is not None:
        return float(expires) / 1000
    return 0.0 if arguments.get("auto_delete") or arguments.get("exclusive") else None
