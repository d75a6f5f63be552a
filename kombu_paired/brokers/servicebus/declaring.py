"""What a channel declares, and what the service makes of it.

A queue that lasts is a queue. One that does not is a subscription once it is bound to a topic, else a queue that the
service deletes when nobody uses it; so it is made no sooner than that is known.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any

from kombu_paired.brokers.servicebus.amqp_links import ReceiverLink
from kombu_paired.brokers.servicebus.entities import is_away
from kombu_paired.brokers.servicebus.names import subscription_name
from kombu_paired.deadline import Deadline

if TYPE_CHECKING:
    from kombu_paired.brokers.servicebus.transport import Transport

__all__ = ("Declaring",)

logger = logging.getLogger(__name__)


class Declaring:
    """Makes and deletes the entities behind the queues and exchanges of one channel.

    Arguments:
        entity: the service's name of a queue or exchange.
    """

    def __init__(self, transport: Transport, entity: Callable[[str], str]) -> None:
        self._transport = transport
        self._entity = entity
        self._told: set[str] = set()
        self._short_lived: dict[str, float] = {}
        self._exclusive: set[str] = set()
        self._consumed_short_lived: set[str] = set()

    # -- making -------------------------------------------------------------------------------------------------

    def make_topic(self, exchange: str) -> None:
        """An exchange that sends to many is a topic."""
        with self._later_if_away(f"the topic of {exchange}"):
            self._transport.entities.ensure_topic(self._entity(exchange), self._transport.timeout)

    def declare(self, queue: str, arguments: Mapping[str, Any]) -> None:
        """Make a queue that lasts; of another one it is not known yet what it is."""
        idle = _idle_of(arguments)
        if idle is None:
            entity, deadline = self._entity(queue), Deadline(self._transport.timeout)
            self._transport.asking.be_sure_of(entity, deadline.left)
            self._transport.entities.ensure_queue(entity, deadline.left)
            return
        if arguments.get("exclusive"):
            self._exclusive.add(queue)
        self._short_lived[queue] = idle

    def bind(self, queue: str, exchange: str, kind: str) -> None:
        """Make the subscription that a queue needs to get what is sent to an exchange of that kind."""
        idle = self._short_lived.get(queue)
        if kind == "direct" or (kind == "topic" and idle is None):
            self.make_short_lived(queue)
            return
        topic, name, timeout = self._entity(exchange), subscription_name(queue), self._transport.timeout
        if idle is None:
            target = self._entity(queue)
            self._transport.entities.ensure_subscription(topic, name, timeout, forward_to=target)
            return
        self._transport.subscriptions[queue] = (topic, name)
        with self._later_if_away(f"the subscription of {queue}"):
            self._transport.entities.ensure_subscription(topic, name, timeout, idle=idle)

    def consume(self, queue: str) -> None:
        """There is a consumer: make the queue, if it does not last and is no subscription."""
        self.make_short_lived(queue)
        if queue in self._short_lived:
            self._consumed_short_lived.add(queue)

    def make_short_lived(self, queue: str) -> None:
        """Make a queue that does not last, and is no subscription; of others nothing is to be done."""
        idle = self._short_lived.get(queue)
        if idle is not None and queue not in self._transport.subscriptions:
            with self._later_if_away(f"the queue {queue}"):
                self._transport.entities.ensure_queue(self._entity(queue), self._transport.timeout, idle=idle)

    def make_again(self, queue: str) -> None:
        """A consumed queue is gone: somebody deleted it, or the service did while nobody listened."""
        transport, idle = self._transport, self._short_lived.get(queue)
        subscription = transport.subscriptions.get(queue)
        if subscription is not None:
            topic, name = subscription
            transport.entities.forget(topic, f"{topic}/Subscriptions/{name}")
            transport.entities.ensure_subscription(topic, name, transport.timeout, idle=idle)
        else:
            transport.entities.forget(self._entity(queue))
            transport.entities.ensure_queue(self._entity(queue), transport.timeout, idle=idle)

    @contextmanager
    def _later_if_away(self, what: str) -> Iterator[None]:
        """Remote control and events can wait for a management that is away alone; tasks must not wait for them."""
        try:
            yield
        except Exception as exc:
            if not is_away(exc) or not self._transport.entities.was_let_in:
                raise
            log = logger.debug if what in self._told else logger.warning
            self._told.add(what)
            log("%s cannot be made at the moment (%s); it is tried again when it is missing", what, exc)

    # -- what is there ------------------------------------------------------------------------------------------

    def receiver(self, queue: str, *, delete: bool = False, session: Any = None) -> ReceiverLink:
        """A link that receives what is sent to a queue; not open."""
        topic, name = self._transport.subscriptions.get(queue, (self._entity(queue), None))
        return self._transport.clients.receiver(topic, name, delete=delete, session=session)

    def receiver_of_made(self, queue: str) -> ReceiverLink:
        """The same; what does not last is made."""
        self.make_short_lived(queue)
        return self.receiver(queue)

    def count(self, queue: str) -> int | None:
        """How many messages wait in a queue; None if there is no such queue."""
        counts = self._transport.entities.counts(self._entity(queue), self._transport.timeout)
        return None if counts is None else counts[0]

    # -- deleting -----------------------------------------------------------------------------------------------

    def delete(self, queue: str) -> None:
        """Delete a queue, or its subscription, and the topic that nobody else has a use for."""
        transport = self._transport
        subscription = transport.subscriptions.pop(queue, None)
        if subscription is None:
            transport.entities.delete_queue(self._entity(queue), transport.timeout)
        else:
            topic, name = subscription
            transport.entities.delete_subscription(topic, name, transport.timeout)
            if not self._is_durable(topic):
                transport.entities.delete_topic_if_unused(topic, transport.timeout)
        self._short_lived.pop(queue, None)

    def _is_durable(self, topic: str) -> bool:
        """Whether it is the topic of an exchange that is to last."""
        exchanges = self._transport.state.exchanges.items()
        return any(self._entity(name) == topic and declared.get("durable") for name, declared in exchanges)

    def own(self) -> set[str]:
        """What only the consumers of this channel had: their subscriptions and exclusive queues.

        An auto-delete queue may have other consumers. The service deletes it when it has been idle for long enough.
        """
        return self._consumed_short_lived & (self._exclusive | self._transport.subscriptions.keys())


def _idle_of(arguments: Mapping[str, Any]) -> float | None:
    """For how many seconds a queue may be idle before it goes; None if it is to last."""
    expires = (arguments.get("arguments") or {}).get("x-expires")
    if expires is not None:
        return float(expires) / 1000
    return 0.0 if arguments.get("auto_delete") or arguments.get("exclusive") else None
