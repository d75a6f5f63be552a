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
    azureservicebus://ManagedIdentityCredential:CLIENT_ID@NAMESPACE
    azureservicebus://POLICY:KEY@localhost:5672

The last one is a local server, an emulator; elsewhere than on this machine append ``?UseDevelopmentEmulator=true``.
Others are those of :mod:`kombu_paired.brokers.servicebus.address`.

Transport Options
=================

Those of :class:`.ServiceBusSettings`. The stock transport's others (``wait_time_seconds``,
``uamqp_keep_alive_interval``, ``retry_*``, ``use_lock_renewal``, ``max_lock_renewal_duration``) are accepted and have
no effect: nothing here waits for them.
"""

from __future__ import annotations

import itertools
import logging
import os
import queue as queues
import re
import time
from collections.abc import Mapping
from queue import Empty
from typing import Any

from kombu.transport import virtual
from kombu.transport.virtual.base import BrokerState, queue_declare_ok_t

from kombu_paired.brokers.compat import make_envelope
from kombu_paired.brokers.servicebus.address import Address
from kombu_paired.brokers.servicebus.asking import Asking
from kombu_paired.brokers.servicebus.clients import Clients
from kombu_paired.brokers.servicebus.declaring import Declaring
from kombu_paired.brokers.servicebus.entities import Entities
from kombu_paired.brokers.servicebus.fetchers import FETCH_AHEAD, Fetchers
from kombu_paired.brokers.servicebus.fetching import Fetcher
from kombu_paired.brokers.servicebus.getting import Getting
from kombu_paired.brokers.servicebus.ids import has_id
from kombu_paired.brokers.servicebus.kinds import CHANNEL_ERRORS, CONNECTION_ERRORS, Unrouted
from kombu_paired.brokers.servicebus.names import entity_name
from kombu_paired.brokers.servicebus.outgoing import Outgoing
from kombu_paired.brokers.servicebus.settings import ServiceBusSettings
from kombu_paired.brokers.servicebus.settling import ABANDON, COMPLETE, RELEASE, Outcome, dead_letter
from kombu_paired.brokers.servicebus.wire import from_envelope, to_envelope
from kombu_paired.secrets import without_secrets
from kombu_paired.stand_in import stand_in_exchange, stand_in_name
from kombu_paired.stopping import STOP_CHECK, worker_is_told_to_stop

__all__ = ("Channel", "Outgoing", "Transport", "Unrouted")

logger = logging.getLogger(__name__)

#: Seconds that all fetchers together may take to settle and end, and a deletion after them.
GOODBYE = 1.5
#: Seconds to wait for further messages of a queue that is purged.
PURGE_WAIT = 0.2
#: Kombu's remote control answers to an exchange of this kind, bound in the asking process alone, and to a queue that it
#: names after its routing key.
_REPLIES = re.compile(rf"((?P<primary>.+){re.escape(stand_in_exchange('', ''))})?(?P<replies>reply\..+\.pidbox)")

_tag_numbers = itertools.count(1)

#: What was declared in this process, by namespace: virtual channels route by what they know.
_states: dict[str, BrokerState] = {}
_subscriptions: dict[str, dict[str, tuple[str, str]]] = {}
_known: dict[str, set[str]] = {}


class Channel(virtual.Channel):  # type: ignore[misc]
    """A virtual channel on Service Bus."""

    supports_fanout = True
    do_restore = False  # the service gives back what is not settled

    def __init__(self, connection: Transport, **kwargs: Any) -> None:
        super().__init__(connection, **kwargs)
        self.qos.restore_at_shutdown = False
        self._declaring = Declaring(connection, self.entity)
        self.fetchers = Fetchers(lambda: int(self.qos.prefetch_count or 0))
        self._getting = Getting(self._declaring.receiver_of_made)

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
        answers = _REPLIES.fullmatch(exchange)
        if answers:
            queue = f"{routing_key}.{answers['replies']}"
            return [self.entity(stand_in_name(answers["primary"], queue) if answers["primary"] else queue)]
        if properties.get("delivery_mode") == 1:
            return [self.entity(exchange)] if kind == "topic" else []
        raise Unrouted(f"no queue is bound for {exchange}/{routing_key}")

    def is_topic_of_events(self, entity: str, exchange: str, is_transient: bool) -> bool:
        """Whether a message goes to the topic of its exchange alone, for whoever looks on: Celery's events do."""
        declared = self.state.exchanges.get(exchange) if is_transient and exchange else None
        return declared is not None and declared["type"] == "topic" and entity == self.entity(exchange)

    # -- sending ------------------------------------------------------------------------------------------------

    def _next_delivery_tag(self) -> str:
        return f"{self.transport.tag_prefix}-{os.getpid()}-{next(_tag_numbers)}"

    def envelope(self, message: Any, exchange: str, routing_key: str) -> Any:
        """A prepared message as it is sent."""
        make_envelope(self, message, exchange, routing_key)
        return to_envelope(message, schedule_eta=self.transport.schedule_eta)

    def basic_publish(self, message: Any, exchange: str = "", routing_key: str = "", **kwargs: Any) -> None:
        if not has_id(message["headers"], message["properties"]):
            message["properties"]["message_id"] = virtual.base.uuid()  # Kombu tries again with the same properties
        outgoing = self.envelope(message, exchange, routing_key)
        for entity in self.route(exchange, routing_key, message["properties"]):
            self.transport.outgoing.send(entity, outgoing, self.transport.timeout)

    def _put(self, queue: str, message: Any, **kwargs: Any) -> None:
        outgoing = to_envelope(message, schedule_eta=self.transport.schedule_eta)
        self.transport.outgoing.send(self.entity(queue), outgoing, self.transport.timeout)

    # -- declaring ----------------------------------------------------------------------------------------------

    def exchange_declare(self, exchange: str = "", type: str = "direct", **arguments: Any) -> None:
        super().exchange_declare(exchange, type, **arguments)
        if type in ("fanout", "topic") and not arguments.get("passive"):
            self._declaring.make_topic(exchange)

    def queue_declare(self, queue: str = "", passive: bool = False, **arguments: Any) -> Any:
        if passive:
            count = self._declaring.count(queue)
            if count is None:
                raise virtual.base.ChannelError(f"NOT_FOUND - no queue {queue!r}", (50, 10), "Queue.declare", "404")
            return queue_declare_ok_t(queue, count, 0)
        queue = queue or f"amq.gen-{virtual.base.uuid()}"
        self._declaring.declare(queue, arguments)
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
        self._declaring.bind(queue, exchange, self.state.exchanges[exchange]["type"])

    def queue_delete(self, queue: str, if_unused: bool = False, if_empty: bool = False, **kwargs: Any) -> None:
        if if_empty and self._size(queue):
            return
        for channel in self.transport.channels:
            channel.fetchers.end(queue)
        self._declaring.delete(queue)
        for exchange in self.state.exchanges.values():
            exchange["table"][:] = [meta for meta in exchange["table"] if meta[2] != queue]
        self.state.queue_bindings_delete(queue)

    def _size(self, queue: str) -> int:
        return self._declaring.count(queue) or 0

    def _purge(self, queue: str) -> int:
        count = 0
        link = self._declaring.receiver(queue, delete=True)
        link.open(self.transport.timeout)
        try:
            while batch := link.receive(FETCH_AHEAD, PURGE_WAIT):
                count += len(batch)
        finally:
            link.close()
        return count

    # -- consuming ----------------------------------------------------------------------------------------------

    def basic_consume(self, queue: str, no_ack: bool, callback: Any, consumer_tag: str, **kwargs: Any) -> None:
        super().basic_consume(queue, no_ack, callback, consumer_tag, **kwargs)
        self._declaring.consume(queue)
        mailbox = self.transport.mailbox
        fetcher = Fetcher(
            queue,
            lambda session: self._declaring.receiver(queue, delete=no_ack, session=session),
            room=self.fetchers.room,
            hand_out=self.fetchers.hand_out,
            deliver=lambda fetcher, raw, tag: mailbox.put((self, fetcher, raw, tag)),
            fail=mailbox.put,
            missing=self._declaring.make_again,
            no_ack=no_ack,
        )
        self.fetchers.start(fetcher)

    def basic_cancel(self, consumer_tag: str) -> None:
        queue = self._tag_to_queue.get(consumer_tag)
        super().basic_cancel(consumer_tag)
        if queue:
            self.fetchers.cancel(queue)

    def basic_qos(self, prefetch_size: int = 0, prefetch_count: int = 0, apply_global: bool = False) -> None:
        super().basic_qos(prefetch_size, prefetch_count, apply_global)
        self.fetchers.wake()

    def basic_ack(self, delivery_tag: str, multiple: bool = False) -> None:
        self._settle(delivery_tag, COMPLETE)
        super().basic_ack(delivery_tag, multiple)

    def basic_reject(self, delivery_tag: str, requeue: bool = False) -> None:
        rejected = dead_letter("Rejected", "the consumer rejected the message")
        self._settle(delivery_tag, ABANDON if requeue else rejected)
        self.qos.ack(delivery_tag)

    def _settle(self, tag: str, outcome: Outcome) -> None:
        if not self._getting.settle(tag, outcome) and not self.fetchers.settle(tag, outcome):
            logger.debug("a message is not held any more: its connection was lost, and it comes again")

    def basic_recover(self, requeue: bool = False) -> None:
        self.fetchers.give_back()

    def basic_get(self, queue: str, no_ack: bool = False, **kwargs: Any) -> Any:
        received = self._getting.receive(queue, self.transport.timeout)
        if received is None:
            return None
        raw = from_envelope(received)
        tag = raw["properties"]["delivery_tag"] = virtual.base.uuid()
        message = self.Message(raw, channel=self)
        self._getting.hold(tag, queue, received)
        if no_ack:
            self._getting.settle(tag, COMPLETE)
        else:
            self.qos.append(message, tag)
        return message

    # -- the end ------------------------------------------------------------------------------------------------

    def close(self) -> None:
        if self.closed:
            return
        self.fetchers.stop(self.transport.goodbye)
        self._getting.drop()
        if not self.transport.is_broken:
            self._delete_short_lived(self.transport.goodbye)
        super().close()

    def _delete_short_lived(self, timeout: float) -> None:
        """What only this consumer had: its subscriptions and exclusive queues."""
        before, self.transport.timeout = self.transport.timeout, timeout
        try:
            for queue in self._declaring.own():
                self.queue_delete(queue)
        except Exception as exc:
            logger.debug("deleting what only this consumer had: %r", exc)
        finally:
            self.transport.timeout = before

    def drop(self) -> None:
        """End without a word."""
        self.fetchers.drop()
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
        settings = ServiceBusSettings.parse(client.transport_options or {})
        self.address = Address.parse(client.hostname)
        place = self.address.place
        self.clients = Clients(self.address, settings)
        self.entities = Entities(self.clients, settings, known=_known.setdefault(place, set()))
        self.asking = Asking(self.clients)
        self.outgoing = Outgoing(self.clients)
        self.state = _states.setdefault(place, BrokerState())
        self.subscriptions = _subscriptions.setdefault(place, {})
        self.mailbox: queues.SimpleQueue[Any] = queues.SimpleQueue()
        self.prefix = settings.queue_name_prefix
        self.schedule_eta = settings.schedule_eta
        self.timeout = settings.send_timeout
        self.tag_prefix = virtual.base.uuid()
        self.goodbye = GOODBYE
        self.is_broken = False

    def establish_connection(self) -> Transport:
        """Make sure that the service answers.

        Raises:
            Exception: it does not, or it refuses the credentials.
        """
        self.is_broken = False
        self.asking.ask_for_any(self.timeout)
        return super().establish_connection()  # type: ignore[no-any-return]

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
            channel, fetcher, raw, tag = item
            is_held = fetcher.take_over(tag) and not (tag is None and channel.closed)
            if is_held and fetcher.queue in self._callbacks:
                self._callbacks[fetcher.queue](raw)
                return
            if tag is not None:
                fetcher.holding.settle(tag, RELEASE)

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
