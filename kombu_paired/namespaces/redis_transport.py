"""Kombu's Redis transport, with a consumer that takes no message out of Redis without a trace.

Kombu takes a message out of its list with ``BRPOP`` and notes it as unacknowledged in a second step. A Redis that is
killed in between, or a worker, or a network, loses it: measured, one task in every fifth kill of an idle worker. Here
one script takes and notes, and where nothing lies in the queues the next message is moved to where others find it
(:mod:`.redis_taking`).

Where that is forbidden, by an access list or by a server that knows no such commands, ``BRPOP`` still waits for the
next message, and one that cannot be noted afterwards is handed to ``on_stranded``: the pairing sends it anew.

A Redis that refuses (full, a replica, unable to save) does not end a consumer either, as it does on Kombu's transport:
a full one is emptied, and the others are asked again.

Notes are Kombu's own (``unacked``, ``unacked_index``), and its ``visibility_timeout`` stands: workers on the stock
transport may share the queues. Features, connection string and transport options are those of
:mod:`kombu.transport.redis`.
"""

from __future__ import annotations

import logging
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager, suppress
from dataclasses import replace
from functools import partial
from queue import Empty
from typing import Any

from kombu.transport import redis, virtual
from kombu.utils.encoding import bytes_to_str
from kombu.utils.json import dumps, loads
from kombu.utils.uuid import uuid
from redis import Redis
from redis.exceptions import NoScriptError, OutOfMemoryError, ResponseError

from kombu_paired.failures import FailureKind
from kombu_paired.message import Message
from kombu_paired.namespaces.base import DeadLetter, Received
from kombu_paired.namespaces.links import as_dead_letter
from kombu_paired.namespaces.redis import OneClient, item_of_message, kind_of, message_of_item
from kombu_paired.namespaces.redis_taking import (
    GIVE_BACK,
    LEASE,
    MOST_LISTS,
    RESOLVE,
    TAKE,
    UPKEEP,
    Script,
    Wait,
    own_list,
    taken_prefix,
)

__all__ = ("Channel", "QoS", "SentinelChannel", "SentinelTransport", "Transport")

logger = logging.getLogger(__name__)

#: Seconds that Redis lets a consumer wait, unless Kombu's ``polling_interval`` says otherwise.
PATIENCE = 1
#: Milliseconds between two questions to a Redis that refuses them.
PAUSE_MS = 1000
#: Seconds before a further connection is tried again.
RETRY_CONNECTION = 10.0
#: What it refuses then.
TAKING = "let a message be taken"
CONNECTING = "give a consumer a further connection"

#: Commands that move the next message of a list into another; the second is as old as Redis.
_MOVES: tuple[tuple[str, tuple[str, ...]], ...] = (("BLMOVE", ("RIGHT", "LEFT")), ("BRPOPLPUSH", ()))


class _Puts:
    """Stands in for a pipeline, to find out where Kombu would put a message that it restores, and how."""

    def __init__(self) -> None:
        self.command = ""
        self.keys: list[str] = []
        self.items: list[str] = []

    def lpush(self, key: str, item: str) -> None:
        self._add("LPUSH", key, item)

    def rpush(self, key: str, item: str) -> None:
        self._add("RPUSH", key, item)

    def _add(self, command: str, key: str, item: str) -> None:
        self.command = command
        self.keys.append(key)
        self.items.append(item)


class QoS(redis.QoS):  # type: ignore[misc]
    """Unacknowledged messages; what its channel has taken is noted in Redis already.

    What removes a note does so in no transaction and first of all: a Redis whose memory is full lets it pass.
    """

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
        tag = bytes_to_str(tag)
        try:
            if not self.channel.restore_note(tag, leftmost):
                super().restore_by_tag(tag, client, leftmost)
        except ValueError as exc:  # noted as it lay in the queue: no JSON, and its consumer died before it saw that
            self.channel.bury_note(tag, exc)

    def restore_visible(self, start: int = 0, num: int | None = 10, interval: int = 10) -> None:
        with self.channel.upkeep("give back what vanished consumers held"):
            try:
                super().restore_visible(start, num, interval)
            except OutOfMemoryError:  # of the mutex, whose only use is that one consumer does this and not all
                for tag in self.channel.overdue_notes(self.visibility_timeout, num or 1000):
                    self.restore_by_tag(tag)


class Client(Redis):  # type: ignore[misc]
    """A client whose pipelines are no transactions unless somebody asks.

    A Redis whose memory is full refuses transactions, whatever is in them, and an acknowledgement that fails ends a
    worker. Where Kombu needs one, to give back a message, it asks.
    """

    def pipeline(self, transaction: bool = False, shard_hint: Any = None) -> Any:
        return super().pipeline(transaction, shard_hint)


class PrefixedClient(Client, redis.PrefixedStrictRedis):  # type: ignore[misc]
    """The same with Kombu's ``global_keyprefix``."""


class Poller(redis.MultiChannelPoller):  # type: ignore[misc]
    """Kombu's poller, which also looks after the connections on which channels wait."""

    _restored_at = float("-inf")

    def watch(self, channel: Any, wait: Wait) -> None:
        """Tell the channel when this connection has an answer; connects first if need be."""
        if wait.connection._sock is None or self._chan_to_sock.get((channel, wait, wait)) is not wait.connection._sock:
            self._register(channel, wait, wait)

    def forget(self, channel: Any, wait: Wait) -> None:
        sock = self._chan_to_sock.pop((channel, wait, wait), None)
        for fd, watched in list(self._fd_to_chan.items()):
            if watched == (channel, wait):
                self._unregister_from_poll(fd)
                del self._fd_to_chan[fd]
        if sock is not None:
            self.poller.unregister(sock)

    def on_readable(self, fileno: int) -> Any:
        channel, wait = self._fd_to_chan.get(fileno, (None, None))
        if isinstance(wait, Wait):
            return channel.answered(wait)  # even if it may not consume: what comes now is given back
        return super().on_readable(fileno)

    def get(self, callback: Any, timeout: float | None = None) -> Any:
        self._restore_now_and_then()
        # A channel that may not consume has nothing under way, so nothing would tell of its new credit.
        return super().get(callback, 1.0 if timeout is None else timeout)

    def _restore_now_and_then(self) -> None:
        """Give back what vanished consumers held, as the timer of an event loop does.

        Without one, Kombu does so when a poll ends without an answer. Whoever waits is answered once a second.
        """
        consuming = next((channel for channel in self._channels if channel.active_queues), None)
        if consuming is not None and time.monotonic() - self._restored_at >= consuming.unacked_restore_interval:
            self._restored_at = time.monotonic()
            self.maybe_restore_messages()

    def maybe_check_brpop_health(self) -> None:
        super().maybe_check_brpop_health()
        for channel in list(self._channels):
            channel.check_waits()


class _TakesByScript(OneClient, virtual.Channel):  # type: ignore[misc]
    """What is different in a channel, with or without Sentinel.

    It *looks* with a script, on Kombu's own connection, while that finds messages and at least once a second. Then it
    *waits*, on a connection for each list, until one of them has an answer.

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
        self._urgent: dict[str, str] = {}  # lists of other priorities that were seen in use -> their queues
        self._moved: dict[str, str] = {}  # lists that are waited on by moves -> their queues
        self._pops = False  # whether there are others, which are waited on by BRPOP
        self._waits: dict[str | None, Wait] = {}
        self._asked: list[tuple[str, str]] = []  # queue and list of each key that the script in flight looks at
        self._in_flight = ""  # on Kombu's connection
        self._knows_script = False
        self._refused = False  # so that nothing is asked for a moment
        self._moves = list(_MOVES)  # those that Redis may know and allow; the first is used
        self._may_script = True
        self._look_again = True  # for something may be there
        self._looked_at = self._kept_up_at = 0.0
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

    def _update_queue_cycle(self) -> None:
        super()._update_queue_cycle()
        self._choose_lists()

    def _choose_lists(self) -> None:
        """Which lists to wait on by moves, one connection each; what is not among them any more is let go of."""
        lists: dict[str, str] = {}
        if self._may_script and self._moves:
            queues = [queue for queue in self.active_queues if queue in self._acknowledging]
            lists = {self._q_for_pri(queue, self.default_priority): queue for queue in queues}
            lists.update((name, queue) for name, queue in self._urgent.items() if queue in queues)
        self._moved = dict(list(lists.items())[:MOST_LISTS])
        self._pops = bool(self._unmoved())
        self._look_again = True  # which registers what is new
        self._stop_waiting([wait for name, wait in self._waits.items() if name is not None and name not in self._moved])

    def _key(self, name: str) -> str:
        return f"{self.global_keyprefix}{name}"

    def _own(self, name: str) -> str:
        return self._key(own_list(self.unacked_key, name))

    def _run(self, script: Script, keys: Sequence[str], arguments: Sequence[Any] = ()) -> Any:
        """Run a script now, and wait for its answer; on a client without Kombu's key prefix."""
        return script.run(Redis(connection_pool=self.pool), keys, arguments)

    # -- looking ------------------------------------------------------------------------------------------------

    @property
    def _patience(self) -> float:
        patience: float = self.brpop_timeout or PATIENCE
        return patience

    def _brpop_start(self, timeout: float | None = None) -> None:
        """Ask for the next message; Kombu calls this whenever its connection has nothing to answer."""
        if self._refused:  # by the one command that waits and writes nothing
            self._refused = False
            self._send("XREAD", "BLOCK", PAUSE_MS, "STREAMS", self._key("kombu-paired.pause"), "$")
        elif self._may_script and (self._look_again or time.monotonic() - self._looked_at >= self._patience):
            self._look()
        else:
            self._wait()

    def _look(self) -> None:
        queues = self._queue_cycle.consume(len(self.active_queues))
        if not queues:
            return
        self._tag = uuid()
        self._looked_at = time.monotonic()
        self._look_again = False
        own = list(self._moved.items())
        lists = [(self._q_for_pri(queue, step), queue) for step in self.priority_steps for queue in queues]
        self._asked = [(queue, name) for name, queue in own + lists]
        keys = [self._own(name) for name, _ in own] + [self._key(name) for name, _ in lists]
        keys, arguments = self._taking(self._tag, keys, [queue for queue, _ in self._asked], len(own))
        script = ("EVALSHA", TAKE.sha) if self._knows_script else ("EVAL", TAKE.text)
        self._send(*script, len(keys), *keys, *arguments)

    def _taking(self, tag: str, lists: list[str], queues: list[str], own: int = 0) -> tuple[list[str], list[Any]]:
        """Keys and arguments of the script that takes."""
        keys = [self._key(name) for name in (self.unacked_key, self.unacked_index_key, f"{self.unacked_key}_takers")]
        lease = round(1000 * (2 * self._patience + LEASE))  # a move is asked for, and ends, within this patience each
        start = 0
        if self._moved and time.monotonic() - self._kept_up_at >= UPKEEP:
            self._kept_up_at = time.monotonic()
            start = len(self._key(taken_prefix(self.unacked_key)).encode()) + 32 + len(":") + 1
        names = [dumps(queue) if queue in self._acknowledging else "" for queue in queues]
        return keys + lists, [tag, time.time(), own, lease, start, self.global_keyprefix, *names]

    def _send(self, *command: Any) -> None:
        self._in_flight = command[0]
        self._in_poll = self.client.connection
        self._brpop_sent_at = time.monotonic()
        self._in_poll.send_command(*command)

    def _brpop_read(self, **options: Any) -> bool:
        if not self._in_poll:  # nothing was asked: Redis hung up, and connecting will tell why
            self.client.connection.disconnect()
            raise Empty
        try:
            queue, item = self._found(**options)
            self._deliver_taken(queue, item, self._tag)
        finally:
            self._in_poll = None
            self._flush_brpop_reauth()
        return True

    def _found(self, **options: Any) -> tuple[str, bytes]:
        """The queue and the list item that the script in flight answers with.

        Raises:
            Empty: there is none.
        """
        try:
            reply = self.client.parse_response(self.client.connection, self._in_flight, **options)
        except self.connection_errors:
            self.client.connection.disconnect()
            raise
        except ResponseError as exc:
            self._script_refused(exc)
            raise Empty from exc
        if self._in_flight == "XREAD":
            self._look_again = True
            raise Empty
        self._knows_script = True
        self._troubles.discard(TAKING)
        if not reply:
            raise Empty
        self._look_again = True
        queue, name = self._asked[reply[0] - 1]
        self._queue_cycle.rotate(queue)
        if queue in self._acknowledging and name not in self._moved and name not in self._urgent:
            self._urgent[name] = queue
            self._choose_lists()
        return queue, reply[1]

    def _script_refused(self, refusal: ResponseError) -> None:
        self._look_again = True
        if isinstance(refusal, NoScriptError):
            self._knows_script = False
        elif kind_of(refusal) is FailureKind.FAULT:  # a replica, loading, or unable to save
            self._warn_once(TAKING, refusal)
            self._refused = True
        elif self._in_flight == "XREAD":
            raise refusal
        else:
            self._may_script = False
            self._work_in_two_steps(refusal)

    def _work_in_two_steps(self, refusal: ResponseError) -> None:
        logger.warning(
            "Redis refuses to hand over a message and to note it in one step (%s): until the next connection a message "
            "is lost if Redis, this worker or the network fails in between. Allow EVAL, EVALSHA and BLMOVE, and the "
            "keys %s*",
            refusal,
            self._key(self.unacked_key),
        )
        self._choose_lists()

    # -- waiting ------------------------------------------------------------------------------------------------

    def _wait(self) -> None:
        """Have Redis say when something comes, wherever it is not asked already."""
        for name in self._moved:
            self._wait_for(name)
        if self._pops:
            self._wait_for(None)

    def _wait_for(self, name: str | None) -> None:
        wait = self._waits.get(name)
        if wait is None:
            wait = self._waits[name] = Wait(name)
        if wait.since is not None or time.monotonic() < wait.not_before:
            return
        try:
            if wait.connection is None:
                wait.connection = self.async_pool.get_connection()
            self.connection.cycle.watch(self, wait)
            wait.since = time.monotonic()
            wait.connection.send_command(*self._waiting(wait))
            self._troubles.discard(CONNECTING)
        except self.connection_errors as exc:  # of this one alone, or Kombu's connection will soon tell
            self._warn_once(CONNECTING, exc)
            self._stop_waiting([wait])
            self._waits[name] = Wait(name)
            self._waits[name].not_before = time.monotonic() + RETRY_CONNECTION

    def _waiting(self, wait: Wait) -> list[Any]:
        """The command that waits."""
        if wait.name is None:
            return ["BRPOP", *(self._key(name) for name in self._unmoved()), self._patience]
        command, ends = self._moves[0]
        return [command, self._key(wait.name), self._own(wait.name), *ends, self._patience]

    def _unmoved(self) -> list[str]:
        """Lists of the queues whose messages need no note, or cannot be moved."""
        queues = self._queue_cycle.consume(len(self.active_queues))
        if self._moves and self._may_script:
            queues = [queue for queue in queues if queue not in self._acknowledging]
        return [self._q_for_pri(queue, step) for step in self.priority_steps for queue in queues]

    def answered(self, wait: Wait) -> bool:
        """Read what Redis answers on a connection that waits.

        Raises:
            Empty: no message is delivered now.
        """
        command = "BRPOP" if wait.name is None else self._moves[0][0]
        try:
            reply = self.client.parse_response(wait.connection, command)
        except self.connection_errors:
            wait.connection.disconnect()
            raise
        except ResponseError as exc:
            self._wait_refused(wait, exc)
            raise Empty from exc
        finally:
            wait.since = None
        if self._pending_reauth_token(wait.connection) is not None:
            self._stop_waiting([wait])  # the next connection has the new credentials
        if not reply:
            raise Empty
        if wait.name is None:
            return self._popped(reply)
        self._look_again = True
        if not self.qos.can_consume():
            self._give_back([wait.name])
        raise Empty

    def _wait_refused(self, wait: Wait, refusal: ResponseError) -> None:
        kind = kind_of(refusal)
        if kind is FailureKind.FAULT:
            if not isinstance(refusal, OutOfMemoryError):  # a full one can be looked at
                self._warn_once(TAKING, refusal)
            self._refused = True
        elif wait.name is None:
            raise refusal
        else:
            del self._moves[0]
            if not self._moves:
                self._work_in_two_steps(refusal)

    def _popped(self, reply: tuple[bytes, bytes]) -> bool:
        """Deliver what ``BRPOP`` took; note it before, if its queue needs that."""
        queue, item = bytes_to_str(reply[0]).rsplit(self.sep, 1)[0], reply[1]
        self._queue_cycle.rotate(queue)
        self._look_again = True
        tag = uuid()
        self._note_late(queue, item, tag)
        if queue in self._acknowledging and not self.qos.can_consume():
            self.qos.restore_by_tag(tag)
            raise Empty
        self._deliver_taken(queue, item, tag)
        return True

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

    def check_waits(self) -> None:
        """Let go of connections that should have answered long ago."""
        overdue = time.monotonic() - self._patience - (self.health_check_interval or float("inf"))
        for wait in self._waits.values():
            sock = wait.connection._sock if wait.since is not None and wait.since < overdue else None
            if sock is not None and not redis._socket_readable(sock):
                logger.warning("Redis does not answer a consumer that waits: it connects anew")
                wait.connection.disconnect()

    def _on_connection_disconnect(self, connection: Any) -> None:
        for wait in self._waits.values():
            if wait.connection is connection:
                wait.since = None
        super()._on_connection_disconnect(connection)

    def _stop_waiting(self, waits: Sequence[Wait]) -> None:
        """Let go of connections that wait, and give back what was moved for them.

        What is moved in this very moment is given back by others, when the lease has run out.
        """
        moved = []
        for wait in waits:
            del self._waits[wait.name]
            if wait.connection is None:
                continue
            if wait.name is None and wait.since is not None:
                self._hear_out(wait)
            if wait.name is not None:
                moved.append(wait.name)
            self.connection.cycle.forget(self, wait)
            wait.connection.disconnect()
            self.async_pool.release(wait.connection)
        self._give_back(moved)

    def _hear_out(self, wait: Wait) -> None:
        """``BRPOP`` may be about to answer with a message: the only one who knows of it is this."""
        limit = self.client.connection.socket_timeout if self.client.connection else None
        with suppress(Empty, ResponseError, *self.connection_errors):
            if wait.connection.can_read(timeout=min(2 * self._patience, limit or PATIENCE)):
                self.answered(wait)

    def _give_back(self, names: Sequence[str]) -> None:
        if not names:
            return
        try:
            self._run(GIVE_BACK, [key for name in names for key in (self._own(name), self._key(name))])
        except (ResponseError, *self.connection_errors) as exc:
            logger.debug("others give back what was moved, when its lease has run out: %r", exc)

    # -- delivering ---------------------------------------------------------------------------------------------

    def _deliver_taken(self, queue: str, item: bytes, tag: str) -> None:
        if queue not in self._acknowledging:
            self.connection._deliver(loads(bytes_to_str(item)), queue)
            return
        self.noted = tag
        try:
            envelope = loads(bytes_to_str(item))
            envelope["properties"]["delivery_tag"] = tag
            self.connection._deliver(envelope, queue)
        except (KeyError, TypeError, ValueError, AttributeError) as exc:
            if self.noted is None:
                raise  # by the consumer, who has got a message
            self._dead_letter(queue, item, tag, exc)
            raise Empty from exc
        finally:
            self.noted = None

    def basic_get(self, queue: str, no_ack: bool = False, **kwargs: Any) -> Any:
        """One message, or None. One that is to be acknowledged is taken and noted in one step, too."""
        if no_ack or not self.ack_emulation or not self._may_script:
            return super().basic_get(queue, no_ack, **kwargs)
        was_consumed = queue in self._acknowledging
        self._acknowledging.add(queue)
        try:
            return self._get_noted(queue)
        except ResponseError as exc:
            if kind_of(exc) is FailureKind.FAULT:
                raise
            return super().basic_get(queue, no_ack, **kwargs)  # scripts are forbidden
        finally:
            if not was_consumed:
                self._acknowledging.discard(queue)

    def _get_noted(self, queue: str) -> Any:
        lists = [self._key(self._q_for_pri(queue, step)) for step in self.priority_steps]
        while True:
            tag = uuid()
            reply = self._run(TAKE, *self._taking(tag, lists, [queue] * len(lists)))
            with self.conn_or_acquire() as client:
                self._maybe_update_queues_expire(client, queue)
            if not reply:
                return None
            try:
                envelope = loads(bytes_to_str(reply[1]))
                envelope["properties"]["delivery_tag"] = tag
                message = self.Message(envelope, channel=self)
            except (KeyError, TypeError, ValueError, AttributeError) as exc:
                self._dead_letter(queue, reply[1], tag, exc)
                continue
            virtual.QoS.append(self.qos, message, tag)
            return message

    # -- giving back --------------------------------------------------------------------------------------------

    def restore_note(self, tag: str, leftmost: bool) -> bool:
        """Put the message of a note back into its queue, in one step; False if that has to be done in Kombu's way.

        Raises:
            ValueError: the note holds no message.
        """
        if not self._may_script:
            return False
        with self.conn_or_acquire() as client:
            note = client.hget(self.unacked_key, tag)
        puts = _Puts()
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

    def close(self) -> None:
        self._stop_waiting(list(self._waits.values()))
        super().close()

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
        corpse_item = item_of_message(self, corpse)
        with self.upkeep("store a dead letter, so that it comes later"), self.conn_or_acquire() as client:
            if self._may_script:
                self._resolve(tag, "LPUSH", [corpse.routing_key], [corpse_item])
            else:
                client.lpush(corpse.routing_key, corpse_item)
                client.pipeline().zrem(self.unacked_index_key, tag).hdel(self.unacked_key, tag).execute()


class Channel(_TakesByScript, redis.Channel):  # type: ignore[misc]
    """A channel to one Redis server."""


class SentinelChannel(_TakesByScript, redis.SentinelChannel):  # type: ignore[misc]
    """A channel to the master that Sentinel names."""


class Transport(redis.Transport):  # type: ignore[misc]
    """Redis, for consumers."""

    Channel = Channel

    def __init__(self, *args: Any, **kwargs: Any) -> None:
        super().__init__(*args, **kwargs)
        self.cycle = Poller()


class SentinelTransport(redis.SentinelTransport):  # type: ignore[misc]
    """Redis behind Sentinel, for consumers."""

    Channel = SentinelChannel

    def __init__(self, *args: Any, **kwargs: Any) -> None:
        super().__init__(*args, **kwargs)
        self.cycle = Poller()
