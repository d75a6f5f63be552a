"""A channel of the secondary that takes itself for one of the primary: names are translated, and messages restored.

Plain queues and exchanges of the secondary may be somebody else's: whatever is declared, consumed or bound here has the
name of its stand-in (docs/architecture.md, rule 30).
"""

from __future__ import annotations

import logging
import time
from collections.abc import Callable, Mapping
from copy import copy
from typing import Any

from kombu.transport import base

from kombu_paired.brokers.forms import message_of
from kombu_paired.brokers.letting_go import letting_go
from kombu_paired.declarations import Declaration
from kombu_paired.errors import MalformedBacklogMessage
from kombu_paired.marks import marked
from kombu_paired.message import EXCHANGE, Message, diversion_of, from_backlog
from kombu_paired.stand_in import CAME_BY, STAND_IN_ROUTE, stand_in_exchange, stand_in_name

__all__ = ("StandInChannel", "restore")

logger = logging.getLogger("kombu_paired.transport")  # the name that settings of logs know


class StandInChannel:
    """A channel of the secondary's own transport, as a consumer of the primary sees it.

    Arguments:
        channel: of the secondary's own transport.
        primary: the primary's name.
        make: makes the stand-in of a queue that is consumed here, given its name at home and its arguments there.

    Attributes:
        unsettled: delivery tags of the messages that it has delivered and that are not settled.
        when_settled: is called whenever the last of them is.
    """

    def __init__(self, channel: Any, primary: str, make: Callable[[str, Mapping[str, Any]], None]) -> None:
        self.channel = channel
        self.unsettled: set[Any] = set()
        self.when_settled: Callable[[], None] | None = None
        self._primary = primary
        self._make = make
        self._exchanges: dict[str, dict[str, Any]] = {}
        self._queues: dict[str, dict[str, Any]] = {}
        self._set_aside: set[Any] = set()
        #: Declarations of queues that end with who declares them: remote control's, and events'.
        self._passing: dict[str, dict[str, Any]] = {}

    def __getattr__(self, name: str) -> Any:
        return getattr(self.channel, name)

    def __setattr__(self, name: str, value: Any) -> None:
        if name == "on_stranded":
            self.channel.on_stranded = lambda message, reason: value(_restored(message), reason)
        else:
            super().__setattr__(name, value)

    def _name(self, name: str) -> str:
        return stand_in_name(self._primary, name)

    def _exchange(self, name: str) -> str:
        return stand_in_exchange(self._primary, name)

    # -- declaring: what lasts is at home, and has a stand-in where it is consumed ------------------------------

    def exchange_declare(self, exchange: str = "", type: str = "direct", **arguments: Any) -> None:
        self._exchanges[exchange] = {"type": type, **arguments}

    def queue_declare(self, queue: str = "", **arguments: Any) -> Any:
        arguments = {"queue": queue, **arguments}
        if Declaration("queue_declare", arguments).is_lasting:
            self._queues[queue] = arguments
            return None
        self._passing[queue] = arguments
        return self.channel.queue_declare(**{**arguments, "queue": self._name(queue)})

    def queue_bind(self, queue: str, exchange: str = "", routing_key: str = "", **arguments: Any) -> None:
        if queue in self._passing and exchange:
            declared = self._exchanges.get(exchange, {"type": "direct"})
            self.channel.exchange_declare(exchange=self._exchange(exchange), **declared)
            self.channel.queue_bind(self._name(queue), self._exchange(exchange), routing_key, **arguments)

    def exchange_bind(self, destination: str, source: str = "", routing_key: str = "", **arguments: Any) -> None:
        """The syphon knows which queues a message goes to."""

    def queue_delete(self, queue: str = "", *args: Any, **arguments: Any) -> Any:
        return self.channel.queue_delete(self._name(queue), *args, **arguments)

    def exchange_delete(self, exchange: str, *args: Any, **arguments: Any) -> Any:
        return self.channel.exchange_delete(self._exchange(exchange), *args, **arguments)

    def queue_unbind(self, queue: str, exchange: str = "", routing_key: str = "", **arguments: Any) -> Any:
        if queue in self._passing:
            return self.channel.queue_unbind(self._name(queue), self._exchange(exchange), routing_key, **arguments)
        return None

    def queue_purge(self, queue: str, **arguments: Any) -> Any:
        return self.channel.queue_purge(self._name(queue), **arguments)

    def after_reply_message_received(self, queue: str) -> Any:
        return self.channel.after_reply_message_received(self._name(queue))

    # -- consuming ----------------------------------------------------------------------------------------------

    def basic_consume(self, queue: str, *args: Any, callback: Callable[[Any], Any], **arguments: Any) -> Any:
        self._ensure(queue)
        is_settled = not arguments.get("no_ack")

        def receive(raw: Any) -> Any:
            message = self._received(raw, is_settled)
            return None if message is None else callback(message)

        return self.channel.basic_consume(self._name(queue), *args, callback=receive, **arguments)

    def basic_get(self, queue: str, no_ack: bool = False, **arguments: Any) -> Any:
        self._ensure(queue)
        raw = self.channel.basic_get(self._name(queue), no_ack=no_ack, **arguments)
        return None if raw is None else self._received(raw, not no_ack)

    def _received(self, raw: Any, is_settled: bool) -> Any:
        """A received message as it was before it was diverted; None if that is not possible.

        It is a copy: where the driver puts back what is not settled, it has to be what it was.
        """
        message = copy(self.message_to_python(raw))
        message.channel = self
        is_restored = restore(message)
        if is_settled:
            (self.unsettled if is_restored else self._set_aside).add(message.delivery_tag)
        return message if is_restored else None

    def give_back_what_was_set_aside(self) -> None:
        """Nobody consumes here any more, and the syphon is to find out what becomes of what could not be restored."""
        while self._set_aside:
            with letting_go("a message that could not be restored"):
                self.channel.basic_reject(self._set_aside.pop(), requeue=True)

    def remove_what_passes(self) -> None:
        """Nobody consumes here any more: remove what other brokers than Redis remove by themselves.

        It would hear of events for ever. A durable one is an application's own, and may have other consumers.
        """
        removed_on_cancel = getattr(self.channel, "auto_delete_queues", ())
        for queue, declared in self._passing.items():
            if self._name(queue) in removed_on_cancel and not declared.get("durable"):
                with letting_go("a queue of remote control, or of events"):
                    self.channel.queue_delete(self._name(queue))

    def _ensure(self, queue: str) -> None:
        if queue not in self._passing:
            self._make(queue, self._queues.get(queue, {}).get("arguments") or {})

    def message_to_python(self, raw: Any) -> Any:
        return raw if isinstance(raw, base.Message) else self.channel.message_to_python(raw)

    def basic_ack(self, delivery_tag: Any, multiple: bool = False, **arguments: Any) -> None:
        self.channel.basic_ack(delivery_tag, multiple=multiple, **arguments)
        self._settled(delivery_tag, multiple)

    def basic_reject(self, delivery_tag: Any, *args: Any, **arguments: Any) -> None:
        self.channel.basic_reject(delivery_tag, *args, **arguments)
        self._settled(delivery_tag, multiple=False)

    def _settled(self, delivery_tag: Any, multiple: bool) -> None:
        if multiple:
            self.unsettled -= {each for each in self.unsettled if each <= delivery_tag}
        self.unsettled.discard(delivery_tag)
        if not self.unsettled and self.when_settled is not None:
            self.when_settled()


def restore(message: Any) -> bool:
    """Make a received message what it was before it was diverted, but for how it came; False if that is not possible.

    Then it is set aside until nobody consumes here any more, and the syphon finds out what becomes of it. What was
    never diverted, remote control for one, is as it was sent.
    """
    if EXCHANGE not in (message.headers or {}):
        return True
    try:
        stored = message_of(message)
        plain, diversion = from_backlog(stored, time.time()), diversion_of(stored)
    except MalformedBacklogMessage as exc:
        logger.warning("a message in a stand-in queue stays there: %s: %s", exc.reason, exc.description)
        return False
    message.body = plain.body
    message.headers = marked(plain, diversion.at, diversion.maybe_duplicate).headers
    message.properties = {**message.properties, **plain.properties, CAME_BY: STAND_IN_ROUTE}
    message.delivery_info = {
        **message.delivery_info,
        "exchange": plain.entity.exchange,
        "routing_key": plain.entity.routing_key,
    }
    return True


def _restored(stored: Message) -> Message:
    return from_backlog(stored, time.time()) if EXCHANGE in stored.headers else stored
