"""What a channel does for a consumer: through a channel of the primary's own transport, opened when it is needed."""

from __future__ import annotations

import logging
from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

from kombu.transport import base

from kombu_paired.brokers.letting_go import letting_go
from kombu_paired.declarations import Declaration, DeclarationKey
from kombu_paired.errors import NamespaceFailure
from kombu_paired.failures import FailureKind
from kombu_paired.message import Message
from kombu_paired.pairing.raising import as_raised
from kombu_paired.stopping import is_worker_itself
from kombu_paired.transport.stand_in_channel import StandInChannel

if TYPE_CHECKING:
    from kombu_paired.transport.connection import Connection

__all__ = ("ConsumingChannel",)

logger = logging.getLogger("kombu_paired.transport")  # the name that settings of logs know


class ConsumingChannel(base.StdChannel):  # type: ignore[misc]
    """A channel that consumes through one of the primary's own transport.

    Attributes:
        connection: the connection that it is of; None once it is closed.
    """

    def __init__(self, connection: Connection) -> None:
        self.connection: Connection | None = connection
        self._transport = connection.transport
        self._primary: Any = None
        self._declared: dict[DeclarationKey, Declaration] = {}
        self._consumers: dict[str, tuple[tuple[Any, ...], dict[str, Any]]] = {}
        self._qos: tuple[tuple[Any, ...], dict[str, Any]] | None = None

    @property
    def is_open(self) -> bool:
        return self.connection is not None

    # -- the primary's own channel ------------------------------------------------------------------------------

    def primary_channel(self) -> Any:
        """The channel of the primary's own transport; a worker waits for the primary if it is away, or stands in."""
        if self._primary is None:
            if self.connection is None:
                raise ConnectionError("the channel is closed")  # Celery ignores connection errors while it cleans up
            consumed = self.connection.require_consumed()
            channel = consumed.new_channel(self._transport.connection_errors)
            if consumed.stands_in:
                pairing = self._transport.pairing
                channel = StandInChannel(channel, pairing.name, self._make_stand_in)
            channel.on_stranded = self._divert_stranded
            for each in self._declared.values():
                self._housekeep(channel, each.operation, **each.arguments)  # a virtual one routes by what it knows
            self._primary = channel
        return self._primary

    def _make_stand_in(self, queue: str, arguments: Mapping[str, Any]) -> None:
        try:
            self._transport.pairing.stand_in_queues.ensure(queue, arguments)
        except NamespaceFailure as failure:
            raise as_raised(failure) from failure.cause

    def leave(self) -> StandInChannel | None:
        """Consume no more from the secondary; what was consumed there is settled over the channel returned."""
        left, self._primary = self._primary, None
        if left is not None:
            for tag in self._consumers:
                with letting_go("a consumer of a stand-in queue"):
                    left.basic_cancel(tag)
            left.give_back_what_was_set_aside()
            left.remove_what_passes()
        return left  # type: ignore[no-any-return]

    def go_on(self) -> None:
        """Consume from the primary what was consumed from the secondary."""
        if self._qos is not None and self._consumers:
            arguments, more = self._qos
            self.primary_channel().basic_qos(*arguments, **more)
        for arguments, more in self._consumers.values():
            self.primary_channel().basic_consume(*arguments, **more)

    def _housekeep(self, primary: Any, operation: str, *args: Any, **kwargs: Any) -> Any:
        """Declare or delete on a channel of the primary, unless that refuses as a whole.

        A full broker is there to be emptied, and a replica may become a master again: neither is to end a worker.
        """
        try:
            return getattr(primary, operation)(*args, **kwargs)
        except Exception as exc:
            consumed = self.connection and self.connection.consumed
            namespace = consumed.namespace if consumed else self._transport.pairing.primary
            if primary is self._primary and self._turns_elsewhere(namespace.kind_of(exc)):
                return self.primary_channel() and None  # which declares it
            if namespace.kind_of(exc) is not FailureKind.FAULT or not _is_usable(primary):
                self._transport.for_consuming.note(exc)
                raise
            logger.warning("%s refuses %s (%s), and is consumed from without", namespace.label, operation, exc)
            return None

    def _turns_elsewhere(self, kind: FailureKind) -> bool:
        """Whether somebody who is no worker goes on at the other side: he only asks, and is to have an answer."""
        connection = self.connection
        if connection is None or connection.sides is None or is_worker_itself():
            return False
        if kind not in (FailureKind.UNREACHABLE, FailureKind.TIMEOUT):
            return False
        connection.let_go()
        return True

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

    # -- what a consumer, or an operator, calls; a worker waits for the primary if it is away -------------------

    def basic_consume(self, *args: Any, **kwargs: Any) -> Any:
        tag = self.primary_channel().basic_consume(*args, **kwargs)
        self._consumers[kwargs.get("consumer_tag") or tag] = args, kwargs
        return tag

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
        self._consumers.pop(consumer_tag, None)
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
                self._qos = args, kwargs

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

    def let_go(self) -> None:
        """What it consumed from is dead; the next call that needs one opens another."""
        self._primary = None
        self._consumers.clear()

    def end(self) -> None:
        """The connection is gone."""
        self.connection = self._primary = None


def _is_usable(channel: Any) -> bool:
    """Whether a channel of the primary survived an error: those of AMQP are closed by most."""
    return bool(getattr(channel, "is_open", not getattr(channel, "closed", False)))
