"""What a channel has taken: delivered, noted, given back, or buried.

Notes are Kombu's own (``unacked``, ``unacked_index``): workers on the stock transport may share the queues.
"""

from __future__ import annotations

import logging
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import replace
from queue import Empty
from typing import Any

from kombu.transport import virtual
from kombu.utils.encoding import bytes_to_str
from kombu.utils.json import dumps, loads
from redis import Redis
from redis.exceptions import ResponseError

from kombu_paired.brokers.compat import deliver
from kombu_paired.brokers.forms import as_dead_letter
from kombu_paired.brokers.redis.connections import OneClient
from kombu_paired.brokers.redis.items import item_of_message, message_of_item
from kombu_paired.brokers.redis.scripts import RESOLVE, Script
from kombu_paired.brokers.redis.unacknowledged import Puts, QoS
from kombu_paired.brokers.roles import DeadLetter, Received
from kombu_paired.message import Message

__all__ = ("NotesInRedis",)

logger = logging.getLogger(__name__)


class NotesInRedis(OneClient, virtual.Channel):  # type: ignore[misc]
    """A channel that knows what it has taken, and has noted it where others find it.

    Attributes:
        on_stranded: called with a message that Redis could not note after ``BRPOP`` took it, and with the reason: this
            process alone knows of the message. Without it the message is lost, as on the stock transport.
        noted: tag of the message that is being delivered, until the QoS of its consumer has it.
    """

    QoS = QoS
    #: Seconds for which one who gives back what others held keeps everybody else from it. He may have died meanwhile,
    #: or Redis with the mutex on its disk; Kombu's own 300 would be a long time to wait for a task.
    unacked_mutex_expire = 10

    def __init__(self, *args: Any, **kwargs: Any) -> None:
        self.on_stranded: Callable[[Message, Exception], None] | None = None
        self.noted: str | None = None
        self._acknowledging: set[str] = set()  # queues whose messages are noted
        self._may_script = True
        self._troubles: set[str] = set()  # what Redis refused when it was last asked
        super().__init__(*args, **kwargs)

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

    def _key(self, name: str) -> str:
        return f"{self.global_keyprefix}{name}"

    def _run(self, script: Script, keys: Sequence[str], arguments: Sequence[Any] = ()) -> Any:
        """Run a script now, and wait for its answer; on a client without Kombu's key prefix."""
        return script.run(Redis(connection_pool=self.pool), keys, arguments)

    # -- delivering ---------------------------------------------------------------------------------------------------

    def _deliver_taken(self, queue: str, item: bytes, tag: str) -> None:
        if queue not in self._acknowledging:
            deliver(self.connection, loads(bytes_to_str(item)), queue)
            return
        self.noted = tag
        try:
            envelope = loads(bytes_to_str(item))
            envelope["properties"]["delivery_tag"] = tag
            deliver(self.connection, envelope, queue)
        except (KeyError, TypeError, ValueError, AttributeError) as exc:
            if self.noted is None:
                raise  # by the consumer, who has got a message
            self._dead_letter(queue, item, tag, exc)
            raise Empty from exc
        finally:
            self.noted = None

    def _note_late(self, queue: str, item: bytes, tag: str) -> None:
        """Note what ``BRPOP`` took; if that fails, hand it over."""
        if queue not in self._acknowledging:
            return
        note = f'[{bytes_to_str(item)},"",{dumps(queue)}]'
        try:
            with self.conn_or_acquire() as client, client.pipeline() as pipe:
                pipe.zadd(self.unacked_index_key, {tag: time.time()})
                pipe.hset(self.unacked_key, tag, note)
                pipe.execute()
        except Exception as exc:
            if self.on_stranded is None:
                raise
            self.on_stranded(replace(message_of_item(item), routing_key=queue), exc)
            if isinstance(exc, self.connection_errors):
                raise
            raise Empty from exc

    # -- giving back --------------------------------------------------------------------------------------------------

    def restore_note(self, tag: str, leftmost: bool) -> bool:
        """Put the message of a note back into its queue, in one step; False if that has to be done in Kombu's way.

        Raises:
            ValueError: the note holds no message.
        """
        if not self._may_script:
            return False
        with self.conn_or_acquire() as client:
            note = client.hget(self.unacked_key, tag)
        puts = Puts()
        if note is not None:
            message, exchange, routing_key = loads(bytes_to_str(note))
            if not isinstance(message, dict):
                raise ValueError(f"it is a {type(message).__name__}")
            self._do_restore_message(message, exchange, routing_key, puts, leftmost)
            if not puts.keys:
                self._warn_once(
                    "restore a message that no queue is bound for", LookupError(f"{exchange}, {routing_key}")
                )
                return True
        self._resolve(tag, puts.command, puts.keys, puts.items)
        return True

    def _resolve(self, tag: str, command: str = "", lists: Sequence[str] = (), items: Sequence[str] = ()) -> None:
        keys = [self._key(name) for name in (self.unacked_key, self.unacked_index_key, *lists)]
        self._run(RESOLVE, keys, [tag, command, *items])

    def overdue_notes(self, visibility_timeout: float, most: int) -> list[bytes]:
        """Tags of messages that somebody has held for longer than that."""
        client: Any = Redis(connection_pool=self.pool)
        tags: list[bytes] = client.zrangebyscore(
            self._key(self.unacked_index_key), 0, time.time() - visibility_timeout, start=0, num=most
        )
        return tags

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
            Received(message_of_item(item), queue, None), "MalformedMessage", f"{type(reason).__name__}: {reason}"
        )
        dead = as_dead_letter(letter)
        logger.error(
            "an item of the queue %r is no message (%s): it goes to %r", queue, letter.description, dead.routing_key
        )
        dead_item = item_of_message(self, dead)
        with self.upkeep("store a dead letter, so that it comes later"), self.conn_or_acquire() as client:
            if self._may_script:
                self._resolve(tag, "LPUSH", [dead.routing_key], [dead_item])
            else:
                client.lpush(dead.routing_key, dead_item)
                client.pipeline().zrem(self.unacked_index_key, tag).hdel(self.unacked_key, tag).execute()
