"""A channel as Kombu holds it: it sends and declares through the pairing."""

from __future__ import annotations

import itertools
from collections import defaultdict
from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

from kombu.transport import base
from kombu.transport.virtual.base import queue_declare_ok_t

from kombu_paired.assembling import address, as_message
from kombu_paired.declarations import Declaration
from kombu_paired.errors import PrimaryUnavailable
from kombu_paired.message import Message
from kombu_paired.publish_batch import PublishBatch
from kombu_paired.transport.consuming_channel import ConsumingChannel

if TYPE_CHECKING:
    from kombu_paired.transport.connection import Connection

__all__ = ("Channel",)


class Channel(ConsumingChannel):
    """A channel that sends through the pairing, and consumes through a channel of the primary's own transport."""

    _ids = itertools.count(1)

    def __init__(self, connection: Connection) -> None:
        super().__init__(connection)
        self.channel_id = next(self._ids)
        self.events: dict[str, set[Any]] = defaultdict(set)

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
            channel = self.primary_channel()  # it will belong to this very connection
            if queue:
                self._remember(Declaration("queue_declare", arguments))
            return self._housekeep(channel, "queue_declare", **arguments) or queue_declare_ok_t(queue, 0, 0)
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

    def _remember(self, declaration: Declaration) -> None:
        if not declaration.is_question:
            self._declared[declaration.key] = declaration

    def _declare(self, operation: str, arguments: dict[str, Any]) -> Any:
        declaration = Declaration(operation, arguments)
        self._remember(declaration)
        if self._primary is not None:
            self._transport.pairing.book.note(operation, arguments)
            return self._housekeep(self._primary, operation, **arguments)
        pairing = self._transport.pairing
        answer = pairing.declare(operation, arguments)
        if answer is None and pairing.stand_in is not None and not (declaration.is_lasting or declaration.is_question):
            self.primary_channel()  # where the answers to remote control come while the primary is away
        return answer


def _channel_class(transport: base.Transport) -> Any:
    return getattr(transport, "Channel", None) or getattr(transport, "Connection", base).Channel
