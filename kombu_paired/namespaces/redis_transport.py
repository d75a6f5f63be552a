"""Kombu's Redis transport, with a consumer that takes no message out of Redis without a trace.

Kombu takes a message out of its list with ``BRPOP`` and notes it as unacknowledged in a second step. A Redis that is
killed in between, or a worker, loses it: measured, one task in every sixth kill under a busy worker. Here one script
takes and notes. Scripts cannot wait, so where nothing lies in the queues ``BRPOP`` still waits for the next message.
One that cannot be noted afterwards is handed to ``on_stranded``, and the pairing sends it anew.

A Redis that refuses (full, a replica, unable to save) does not end a consumer either, as it does on Kombu's transport:
a full one is emptied, and the others are asked again.

Notes are Kombu's own (``unacked``, ``unacked_index``), and its ``visibility_timeout`` stands: workers on the stock
transport may share the queues. Features, connection string and transport options are those of
:mod:`kombu.transport.redis`.
"""

from __future__ import annotations

import hashlib
import logging
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import replace
from functools import partial
from queue import Empty
from typing import Any

from kombu.transport import redis, virtual
from kombu.utils.encoding import bytes_to_str
from kombu.utils.json import dumps, loads
from kombu.utils.uuid import uuid
from redis import Redis
from redis.exceptions import NoScriptError, ResponseError

from kombu_paired.failures import FailureKind
from kombu_paired.message import Message
from kombu_paired.namespaces.base import DeadLetter, Received
from kombu_paired.namespaces.kombu import as_dead_letter
from kombu_paired.namespaces.redis import item_of_message, kind_of, message_of_item

__all__ = ("Channel", "QoS", "SentinelChannel", "SentinelTransport", "Transport")

logger = logging.getLogger(__name__)

#: Takes one message from the first of the lists KEYS[3..] that has one; answers with the place of that list among
#: them. Notes it in the hash KEYS[1] and the sorted set KEYS[2] under the tag ARGV[1], with the time ARGV[2], if there
#: is a queue (as JSON) in ARGV[2 + place].
_TAKE = """
for place = 1, #KEYS - 2 do
    local item = redis.call('RPOP', KEYS[2 + place])
    if item then
        local queue = ARGV[2 + place]
        if queue ~= '' then
            redis.call('HSET', KEYS[1], ARGV[1], '[' .. item .. ',"",' .. queue .. ']')
            redis.call('ZADD', KEYS[2], ARGV[2], ARGV[1])
        end
        return {place, item}
    end
end
return false
"""
_TAKE_SHA = hashlib.sha1(_TAKE.encode()).hexdigest()

#: Milliseconds between two questions to a Redis that refuses them.
PAUSE_MS = 1000
#: What it refuses then.
TAKING = "let a message be taken"


class QoS(redis.QoS):  # type: ignore[misc]
    """Unacknowledged messages; what its channel has taken is noted in Redis already."""

    def append(self, message: Any, delivery_tag: str) -> None:
        if self.channel.noted == delivery_tag:
            self.channel.noted = None
            virtual.QoS.append(self, message, delivery_tag)
        else:
            super().append(message, delivery_tag)

    def ack(self, delivery_tag: str) -> None:
        with self.channel.upkeep("take an acknowledgement, so that its message will come again"):
            self._remove_from_indices(delivery_tag).execute()
        virtual.QoS.ack(self, delivery_tag)

    def reject(self, delivery_tag: str, requeue: bool = False) -> None:
        with self.channel.upkeep("take a message back, so that it will come later"):
            if requeue:
                self.restore_by_tag(delivery_tag, leftmost=True)
            else:
                self._remove_from_indices(delivery_tag).execute()
        virtual.QoS.ack(self, delivery_tag)

    def restore_unacked(self, client: Any = None) -> None:
        with self.channel.upkeep("take messages back, so that they will come later"):
            super().restore_unacked(client)

    def restore_by_tag(self, tag: str | bytes, client: Any = None, leftmost: bool = False) -> None:
        try:
            super().restore_by_tag(tag, client, leftmost)
        except ValueError as exc:  # noted as it lay in the queue: no JSON, and its consumer died before it saw that
            self.channel.bury_note(bytes_to_str(tag), exc)

    def restore_visible(self, *args: Any, **kwargs: Any) -> None:
        with self.channel.upkeep("give back what vanished consumers held"):
            super().restore_visible(*args, **kwargs)


class Client(Redis):  # type: ignore[misc]
    """A client whose pipelines are no transactions unless somebody asks.

    A Redis whose memory is full refuses transactions, whatever is in them, and an acknowledgement that fails ends a
    worker. Where Kombu needs one, to give back a message, it asks.
    """

    def pipeline(self, transaction: bool = False, shard_hint: Any = None) -> Any:
        return super().pipeline(transaction, shard_hint)


class PrefixedClient(Client, redis.PrefixedStrictRedis):  # type: ignore[misc]
    """The same with Kombu's ``global_keyprefix``."""


class _TakesByScript(virtual.Channel):  # type: ignore[misc]
    """What is different in a channel, with or without Sentinel.

    Attributes:
        on_stranded: called with a message that Redis could not note after it was taken, and with the reason: this
            process alone knows of the message. Without it the message is lost, as on the stock transport.
        noted: tag of the message that is being delivered, until the QoS of its consumer has it.
    """

    QoS = QoS

    def __init__(self, *args: Any, **kwargs: Any) -> None:
        self.on_stranded: Callable[[Message, Exception], None] | None = None
        self.noted: str | None = None
        self._acknowledging: set[str] = set()  # queues whose messages are noted
        self._asked: list[str] = []  # the queue of each list that the script in flight looks at
        self._command = "EVAL"  # in flight, or the next; with the script itself first
        self._may_script = True
        self._troubles: set[str] = set()  # what Redis refused when it was last asked
        super().__init__(*args, **kwargs)

    def _get_client(self) -> Callable[..., Any]:
        super()._get_client()  # it wants redis-py to be new enough
        if self.global_keyprefix:
            return partial(PrefixedClient, global_keyprefix=self.global_keyprefix)
        return Client

    @contextmanager
    def upkeep(self, what: str) -> Iterator[None]:
        """What a full Redis refuses, or a replica, and what must not end a consumer."""
        try:
            yield
        except ResponseError as exc:
            self._warn_once(what, exc)
        else:
            self._troubles.discard(what)

    def _warn_once(self, what: str, refusal: Exception) -> None:
        if what not in self._troubles:
            logger.warning("Redis refuses to %s, and is asked again: %s", what, refusal)
        self._troubles.add(what)

    def maybe_refresh_binding_expiry(self) -> None:
        with self.upkeep("keep the bindings of this consumer's queues"):
            super().maybe_refresh_binding_expiry()

    def basic_consume(self, queue: str, no_ack: bool = False, *args: Any, **kwargs: Any) -> Any:
        if no_ack or not self.ack_emulation:
            self._acknowledging.discard(queue)
        else:
            self._acknowledging.add(queue)
        return super().basic_consume(queue, no_ack, *args, **kwargs)

    # -- asking -------------------------------------------------------------------------------------------------

    def _brpop_start(self, timeout: float | None = None) -> None:
        self._tag = uuid()
        if self._command == "BRPOP":
            super()._brpop_start(timeout)
        elif self._command == "XREAD":  # the one command that waits and writes nothing
            self._send("XREAD", "BLOCK", PAUSE_MS, "STREAMS", f"{self.global_keyprefix}kombu-paired.pause", "$")
        else:
            self._send_script()

    def _send_script(self) -> None:
        queues = self._queue_cycle.consume(len(self.active_queues))
        if not queues:
            return
        self._asked = [queue for _ in self.priority_steps for queue in queues]
        lists = [self._q_for_pri(queue, step) for step in self.priority_steps for queue in queues]
        keys = [f"{self.global_keyprefix}{name}" for name in (self.unacked_key, self.unacked_index_key, *lists)]
        names = [dumps(queue) if queue in self._acknowledging else "" for queue in self._asked]
        script = _TAKE if self._command == "EVAL" else _TAKE_SHA
        self._send(self._command, script, len(keys), *keys, self._tag, time.time(), *names)

    def _send(self, *command: Any) -> None:
        self._in_poll = self.client.connection
        self._brpop_sent_at = time.monotonic()
        self._in_poll.send_command(*command)

    # -- being answered -----------------------------------------------------------------------------------------

    def _brpop_read(self, **options: Any) -> bool:
        try:
            queue, item = self._taken(**options)
            self._queue_cycle.rotate(queue)
            self._deliver_taken(queue, item)
        finally:
            self._in_poll = None
            self._flush_brpop_reauth()
        return True

    def _taken(self, **options: Any) -> tuple[str, bytes]:
        """The queue and the list item that Redis answers with.

        Raises:
            Empty: there is none.
        """
        command = self._command
        try:
            reply = self.client.parse_response(self.client.connection, command, **options)
        except self.connection_errors:
            self.client.connection.disconnect()
            raise
        except ResponseError as exc:
            self._command = self._after_refusal(command, exc)
            raise Empty from exc
        self._command = self._after(command, reply)
        if not reply or command == "XREAD":
            raise Empty
        if command != "BRPOP":
            return self._asked[reply[0] - 1], reply[1]
        queue = bytes_to_str(reply[0]).rsplit(self.sep, 1)[0]
        self._note_late(queue, reply[1])
        return queue, reply[1]

    def _after(self, command: str, reply: Any) -> str:
        """What to ask next: the script while it finds messages, and again after each wait."""
        if command != "XREAD":
            self._troubles.discard(TAKING)
        found_nothing = command.startswith("EVAL") and not reply
        return "BRPOP" if found_nothing or not self._may_script else "EVALSHA"

    def _after_refusal(self, command: str, refusal: ResponseError) -> str:
        if isinstance(refusal, NoScriptError):
            return "EVAL"
        if kind_of(refusal) is FailureKind.FAULT:  # a replica, loading, or unable to save: ask again after a pause
            self._warn_once(TAKING, refusal)
            return "XREAD"
        if not command.startswith("EVAL"):
            raise refusal
        logger.warning(
            "Redis refuses the script that takes a message and notes it in one step (%s): until the next connection "
            "a message is lost if Redis or this worker is killed in between. Allow EVAL and EVALSHA",
            refusal,
        )
        self._may_script = False
        return "BRPOP"

    def _note_late(self, queue: str, item: bytes) -> None:
        """Note what ``BRPOP`` took; if that fails, hand it over."""
        if queue not in self._acknowledging:
            return
        note = f'[{bytes_to_str(item)},"",{dumps(queue)}]'
        try:
            with self.conn_or_acquire() as client, client.pipeline() as pipe:
                pipe.zadd(self.unacked_index_key, {self._tag: time.time()})
                pipe.hset(self.unacked_key, self._tag, note)
                pipe.execute()
        except Exception as exc:
            if self.on_stranded is None:
                raise
            self.on_stranded(replace(message_of_item(item), routing_key=queue), exc)
            if isinstance(exc, self.connection_errors):
                raise
            raise Empty from exc

    def _deliver_taken(self, queue: str, item: bytes) -> None:
        if queue not in self._acknowledging:
            self.connection._deliver(loads(bytes_to_str(item)), queue)
            return
        self.noted = self._tag
        try:
            envelope = loads(bytes_to_str(item))
            envelope["properties"]["delivery_tag"] = self._tag
            self.connection._deliver(envelope, queue)
        except (KeyError, TypeError, ValueError, AttributeError) as exc:
            if self.noted is None:
                raise  # by the consumer, who has got a message
            self._dead_letter(queue, item, self._tag, exc)
            raise Empty from exc
        finally:
            self.noted = None

    def bury_note(self, tag: str, reason: Exception) -> None:
        """Make a dead letter of a note that cannot be read."""
        with self.conn_or_acquire() as client:
            note: bytes | None = client.hget(self.unacked_key, tag)
        if note is None:
            return  # somebody else has done it
        item, _, queue = note.rpartition(b',"",')
        self._dead_letter(loads(bytes_to_str(queue[:-1])), item[1:], tag, reason)

    def _dead_letter(self, queue: str, item: bytes, tag: str, reason: Exception) -> None:
        letter = DeadLetter(
            Received(message_of_item(item), None), "MalformedMessage", f"{type(reason).__name__}: {reason}"
        )
        corpse = as_dead_letter(letter, queue)
        logger.error(
            "an item of the queue %r is no message (%s): it goes to %r", queue, letter.description, corpse.routing_key
        )
        with self.upkeep("store a dead letter, so that it comes later"), self.conn_or_acquire() as client:
            client.lpush(corpse.routing_key, item_of_message(self, corpse))
            client.pipeline().zrem(self.unacked_index_key, tag).hdel(self.unacked_key, tag).execute()


class Channel(_TakesByScript, redis.Channel):  # type: ignore[misc]
    """A channel to one Redis server."""


class SentinelChannel(_TakesByScript, redis.SentinelChannel):  # type: ignore[misc]
    """A channel to the master that Sentinel names."""


class Transport(redis.Transport):  # type: ignore[misc]
    """Redis, for consumers."""

    Channel = Channel


class SentinelTransport(redis.SentinelTransport):  # type: ignore[misc]
    """Redis behind Sentinel, for consumers."""

    Channel = SentinelChannel
