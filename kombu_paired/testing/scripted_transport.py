"""The Kombu transport to the scripted broker that a URL names."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import replace
from queue import Empty
from typing import Any

from kombu import Connection
from kombu.transport import virtual

from kombu_paired.brokers.forms import message_of, prepare
from kombu_paired.errors import NamespaceFailure
from kombu_paired.message import Message
from kombu_paired.testing.scripted import SCHEME, ScriptedBroker, ScriptedError, ScriptedRefusal, broker_at

__all__ = ("Channel", "Transport")


@contextmanager
def _as_driver() -> Iterator[None]:
    """Kombu gets the driver's exceptions."""
    try:
        yield
    except NamespaceFailure as failure:
        raise failure.cause from None


class Channel(virtual.Channel):  # type: ignore[misc]
    """Kombu's channel to a scripted broker."""

    do_restore = False
    supports_fanout = True

    @property
    def broker(self) -> ScriptedBroker:
        return self.connection.broker  # type: ignore[no-any-return]

    def _ask(self, what: str, about: str = "") -> None:
        with _as_driver():
            self.broker.answer(what, about)

    def exchange_declare(self, exchange: Any = None, *args: Any, **kwargs: Any) -> Any:
        self._ask("declare", exchange)
        return super().exchange_declare(exchange, *args, **kwargs)

    def queue_declare(self, queue: Any = None, *args: Any, **kwargs: Any) -> Any:
        self._ask("declare", queue)
        return super().queue_declare(queue, *args, **kwargs)

    def queue_bind(self, queue: str, *args: Any, **kwargs: Any) -> Any:
        self._ask("bind", queue)
        return super().queue_bind(queue, *args, **kwargs)

    def basic_consume(self, queue: str, *args: Any, **kwargs: Any) -> Any:
        self._ask("consume", queue)
        return super().basic_consume(queue, *args, **kwargs)

    def basic_cancel(self, consumer_tag: str) -> Any:
        self._ask("cancel", consumer_tag)
        return super().basic_cancel(consumer_tag)

    def basic_qos(self, prefetch_size: int = 0, prefetch_count: int = 0, apply_global: bool = False) -> None:
        self._ask("qos", str(prefetch_count))
        super().basic_qos(prefetch_size, prefetch_count, apply_global)

    def basic_ack(self, delivery_tag: str, multiple: bool = False) -> None:
        self._ask("acknowledge")
        super().basic_ack(delivery_tag, multiple)

    def close(self) -> None:
        """Close; what is not acknowledged goes back."""
        if not self.closed:
            self.broker.note("close channel")
            self.qos.restore_unacked()
        super().close()

    def _has_queue(self, queue: str, **kwargs: Any) -> bool:
        return queue in self.broker.queues

    def _new_queue(self, queue: str, **kwargs: Any) -> None:
        self.broker.queues[queue]  # it is there now

    def _size(self, queue: str) -> int:
        self._ask("size", queue)
        return len(self.broker.queues[queue])

    def _get(self, queue: str, timeout: float | None = None) -> Any:
        self._ask("get", queue)
        try:
            message = self.broker.queues[queue].pop(0)
        except IndexError:
            raise Empty from None
        raw = prepare(self, message)
        self._inplace_augment_message(raw, message.exchange, message.routing_key)
        return raw

    def basic_publish(self, message: Any, exchange: str = "", routing_key: str = "", **kwargs: Any) -> None:
        self._inplace_augment_message(message, exchange, routing_key)
        with _as_driver():
            self.broker.take(self._neutral(message), self._lookup(exchange, routing_key))

    def _neutral(self, raw: Any) -> Message:
        place = raw["properties"]["delivery_info"]
        message = message_of(self.Message(raw, channel=self))
        return replace(message, exchange=place["exchange"], routing_key=place["routing_key"])

    def _queue_bind(self, *args: Any) -> None:
        """The broker's state has it."""

    def _restore(self, message: Any) -> None:
        place = message.delivery_info
        for queue in self._lookup(place["exchange"], place["routing_key"]):
            self.broker.put(queue, self._neutral(message.serializable()))

    def _purge(self, queue: str) -> int:
        self._ask("purge", queue)
        waiting = self.broker.queues.pop(queue, [])
        return len(waiting)

    def _delete(self, queue: str, *args: Any, **kwargs: Any) -> None:
        self._ask("delete", queue)
        self.broker.queues.pop(queue, None)


class Transport(virtual.Transport):  # type: ignore[misc]
    """Kombu's transport to the scripted broker that the URL names."""

    Channel = Channel
    driver_type = driver_name = SCHEME
    polling_interval = 0.01
    connection_errors = (*virtual.Transport.connection_errors, ScriptedError)
    channel_errors = (*virtual.Transport.channel_errors, ScriptedRefusal)
    implements = virtual.Transport.implements.extend(exchange_type=frozenset(["direct", "topic", "fanout"]))

    def __init__(self, client: Connection, **kwargs: Any) -> None:
        super().__init__(client, **kwargs)
        self.broker = broker_at(client.hostname)
        self.state = self.broker.routing

    def establish_connection(self) -> Any:
        with _as_driver():
            self.broker.let_in()
        return super().establish_connection()

    def close_connection(self, connection: Any) -> None:
        self.broker.note("close connection")
        super().close_connection(connection)

    def driver_version(self) -> str:
        return "0"
