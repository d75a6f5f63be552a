"""Links to RabbitMQ, through py-amqp.

A broker in alarm says ``connection.blocked`` to the message that finds it out, and stops reading from the connection.
What is written to it nevertheless waits in the socket, and is stored when the alarm is over, whatever has become of the
connection. A message to the default exchange that no queue is named after is confirmed and dropped: a probe that stores
nothing. (RabbitMQ's documentation of alarms and ``connection.blocked``; measured on 3.10.)
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any

import amqp
from kombu.utils.encoding import bytes_to_str

from kombu_paired.brokers.forms import message_of
from kombu_paired.brokers.letting_go import letting_go
from kombu_paired.brokers.links import Link
from kombu_paired.brokers.rabbitmq.compat import has_read, timely_connections
from kombu_paired.brokers.rabbitmq.kinds import BrokerBlocked, kind_of
from kombu_paired.deadline import Deadline
from kombu_paired.declarations import Entity
from kombu_paired.failures import FailureKind
from kombu_paired.isolation import as_notice, notice_in
from kombu_paired.message import Message

if TYPE_CHECKING:
    from kombu_paired.brokers.kombu import KombuNamespace

__all__ = ("NOWHERE", "AmqpLink")

#: No queue has this name.
NOWHERE = "kombu-paired.ping"
#: Seconds after a probe's confirm in which ``connection.blocked`` would arrive.
ALARM_NOTICE = 0.1
#: Seconds that a polite goodbye may take.
GOODBYE = 0.5
#: The documents' MaxDeliveryCount: without it a quorum queue drops what came back often.
UNLIMITED_DELIVERIES = 2_147_483_647
#: Arguments of a queue that its stand-in has, too: they decide in which order it delivers.
PRIORITIES = ("x-max-priority",)


class AmqpLink(Link):
    """A connection to RabbitMQ that knows whether the broker is in alarm."""

    blocked: str | None = None

    def __init__(self, namespace: KombuNamespace, heartbeat: float = 0) -> None:
        super().__init__(namespace, heartbeat)
        self._noticed: dict[str, float] = {}

    def connect_options(self, patience: float) -> dict[str, Any]:
        self.blocked = None
        return {"on_blocked": self._on_blocked, "on_unblocked": self._on_unblocked}

    def make_timely(self, transport: Any, until: Deadline) -> None:
        transport.Connection = timely_connections(until)

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
        return has_read(transport) or bool(transport.sock.has_arrived())

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

    def create_stand_in_queue(self, name: str, arguments: Mapping[str, Any], timeout: float) -> None:
        kept = {each: arguments[each] for each in PRIORITIES if each in arguments}
        if not kept:  # a quorum queue knows priorities of its own
            self.create_backlog_queue(name, timeout)
            return
        with self.within(timeout):
            self.channel.queue_declare(queue=name, durable=True, auto_delete=False, arguments=kept)

    def remove_if_unused(self, name: str, timeout: float) -> bool:
        try:
            with self.within(timeout):
                self.channel.queue_delete(name, if_unused=True, if_empty=True)
        except amqp.PreconditionFailed:
            return False  # the channel reopened itself
        except amqp.AMQPNotImplementedError:
            self.drop()
            return False  # a quorum queue cannot be asked whether somebody consumes it
        return True

    def registered(self, register: str, timeout: float) -> list[str]:
        with self._entries(register, timeout) as entries:
            return sorted(entries)

    def register(self, register: str, name: str, timeout: float) -> None:
        deadline = Deadline(timeout)
        if not self.has_queue(register, deadline.left):
            self._create_register(register, deadline.left)
        with self._entries(register, deadline.left) as entries:
            if name in entries:
                return
        with self.within(deadline.left):
            self.channel.confirm_select()
            entry = amqp.Message(name, delivery_mode=2)
            self.channel.basic_publish_confirm(entry, exchange="", routing_key=register, mandatory=True)

    def _create_register(self, register: str, timeout: float) -> None:
        """A quorum queue of a user's own default might drop what was looked at too often."""
        if self.namespace.queue_type == "quorum":
            self.create_backlog_queue(register, timeout)
            return
        with self.within(timeout):
            self.channel.queue_declare(register, durable=True, auto_delete=False, arguments={"x-queue-type": "classic"})

    def unregister(self, register: str, name: str, timeout: float) -> None:
        with self._entries(register, timeout) as entries:
            for tag in entries.pop(name, ()):
                self.channel.basic_ack(tag)

    @contextmanager
    def _entries(self, register: str, timeout: float) -> Iterator[dict[str, list[int]]]:
        """What is in a register, held for a moment: name -> delivery tags. What is not settled goes back."""
        if not self.has_queue(register, timeout):
            yield {}
            return
        with self.within(timeout):
            entries: dict[str, list[int]] = {}
            while (raw := self.channel.basic_get(register)) is not None:
                entries.setdefault(bytes_to_str(raw.body), []).append(raw.delivery_tag)
            yield entries
            for tags in entries.values():
                for tag in tags:
                    self.channel.basic_reject(tag, requeue=True)

    # -- notices of what is isolated ------------------------------------------------------------------------------

    def read_notices(self, place: str, create: bool, timeout: float) -> dict[str, float]:
        """A notice is a queue: whether one exists is known at once and to all. The place, a queue, too, lists them.

        Who reads that list holds it for a moment, in which another one sees a part of it. So what was listed once is
        remembered, and what stands there without its queue is what somebody could not cross off.
        """
        deadline = Deadline(timeout)
        listed = self._listed(place, create, deadline)
        self._noticed.update(listed)
        found = {name: at for name, at in self._noticed.items() if self.has_queue(f"{place}/{name}", deadline.left)}
        for name in self._noticed.keys() - found.keys():
            del self._noticed[name]
            if name in listed:
                self._cross_off(place, name, deadline.left)
        return found

    def _listed(self, place: str, create: bool, deadline: Deadline) -> dict[str, float]:
        if create and not self.has_queue(place, deadline.left):
            self._create_register(place, deadline.left)
            return {}
        with self._entries(place, deadline.left) as entries:
            return dict(filter(None, map(notice_in, entries)))

    def put_notice(self, place: str, name: str, at: float, timeout: float) -> None:
        deadline = Deadline(timeout)
        with self.within(deadline.left):
            self.channel.queue_declare(f"{place}/{name}", durable=True, auto_delete=False)
        self.register(place, as_notice(name, at), deadline.left)

    def take_notice(self, place: str, name: str, timeout: float) -> None:
        deadline = Deadline(timeout)
        with self.within(deadline.left):
            self.channel.queue_delete(f"{place}/{name}")
        self._cross_off(place, name, deadline.left)

    def _cross_off(self, place: str, name: str, timeout: float) -> None:
        with self._entries(place, timeout) as entries:
            for entry in [each for each in entries if (notice_in(each) or (each,))[0] == name]:
                for tag in entries.pop(entry):
                    self.channel.basic_ack(tag)

    # -- what is in a queue -------------------------------------------------------------------------------------

    def count(self, name: str, timeout: float) -> int | None:
        try:
            with self.within(timeout):
                return int(self.channel.queue_declare(queue=name, passive=True).message_count)
        except amqp.NotFound as exc:
            if kind_of(exc) is not FailureKind.MISSING:
                raise
            return None  # the channel reopened itself

    def peek(self, name: str, timeout: float) -> Message | None:
        found = self.look_into(name, 1, timeout)
        return found[0] if found else None

    def look_into(self, name: str, limit: int, timeout: float) -> list[Message]:
        """They go back to where they were, marked as delivered before."""
        deadline = Deadline(timeout)
        if not self.has_queue(name, deadline.left):
            return []
        found: list[Any] = []
        with self.within(deadline.left):
            while len(found) < limit and (raw := self.channel.basic_get(name)) is not None:
                found.append(raw)
            for raw in found:
                self.channel.basic_reject(raw.delivery_tag, requeue=True)
        return [message_of(self.channel.message_to_python(raw)) for raw in found]

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
