"""Kombu's Redis transport, with a consumer that takes no message out of Redis without a trace.

Kombu takes a message out of its list with ``BRPOP`` and notes it as unacknowledged in a second step. A Redis that is
killed in between, or a worker, or a network, loses it: measured, one task in every fifth kill of an idle worker. Here
one script takes and notes, and where nothing lies in the queues the next message is moved to where others find it
(:mod:`.taking`).

Where that is forbidden, by an access list or by a server that knows no such commands, ``BRPOP`` still waits for the
next message, and one that cannot be noted afterwards is handed to ``on_stranded``: the pairing sends it anew.

A Redis that refuses (full, a replica, unable to save) does not end a consumer either, as it does on Kombu's transport:
a full one is emptied, and the others are asked again.

Notes are Kombu's own (``unacked``, ``unacked_index``), and its ``visibility_timeout`` stands: workers on the stock
transport may share the queues. Features, connection string and transport options are those of
:mod:`kombu.transport.redis`.
"""

from __future__ import annotations

import time
from collections.abc import Callable
from functools import partial
from queue import Empty
from typing import Any

from kombu.transport import redis, virtual
from kombu.utils.encoding import bytes_to_str
from kombu.utils.json import dumps, loads
from kombu.utils.uuid import uuid
from redis import Redis
from redis.exceptions import NoScriptError, ResponseError

from kombu_paired.brokers.redis.kinds import kind_of
from kombu_paired.brokers.redis.poller import Poller
from kombu_paired.brokers.redis.scripts import TAKE
from kombu_paired.brokers.redis.taking import LEASE, UPKEEP, taken_prefix
from kombu_paired.brokers.redis.unacknowledged import QoS
from kombu_paired.brokers.redis.waiting import TAKING, WaitsForMoves
from kombu_paired.failures import FailureKind

__all__ = ("Channel", "QoS", "SentinelChannel", "SentinelTransport", "Transport")

#: Milliseconds between two questions to a Redis that refuses them.
PAUSE_MS = 1000
#: Messages that are put back at a time for consumers that are gone.
MOST_ABANDONED = 10_000
#: The argument of the script that says where names begin in those of own lists; 0: none is looked at.
START = 4


class Client(Redis):  # type: ignore[misc]
    """A client whose pipelines are no transactions unless somebody asks.

    A Redis whose memory is full refuses transactions, whatever is in them, and an acknowledgement that fails ends a
    worker. Where Kombu needs one, to give back a message, it asks.
    """

    def pipeline(self, transaction: bool = False, shard_hint: Any = None) -> Any:
        return super().pipeline(transaction, shard_hint)


class PrefixedClient(Client, redis.PrefixedStrictRedis):  # type: ignore[misc]
    """The same with Kombu's ``global_keyprefix``."""


class _TakesByScript(WaitsForMoves):
    """What is different in a channel, with or without Sentinel.

    It *looks* with a script, on Kombu's own connection, while that finds messages and at least once a second. Then it
    *waits*, on a connection for each list, until one of them has an answer.
    """

    def __init__(self, *args: Any, **kwargs: Any) -> None:
        self._asked: list[tuple[str, str]] = []  # queue and list of each key that the script in flight looks at
        self._in_flight = ""  # on Kombu's connection
        self._knows_script = False
        self._looked_at = self._kept_up_at = 0.0
        super().__init__(*args, **kwargs)

    def _get_client(self) -> Callable[..., Any]:
        super()._get_client()  # it wants redis-py to be new enough
        if self.global_keyprefix:
            return partial(PrefixedClient, global_keyprefix=self.global_keyprefix)
        return Client

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
            start = self._names_in_own_lists
        names = [dumps(queue) if queue in self._acknowledging else "" for queue in queues]
        return keys + lists, [tag, time.time(), own, lease, start, self.global_keyprefix, *names]

    @property
    def _names_in_own_lists(self) -> int:
        """From which byte on an own list's name holds that of the list it is for, counted from 1."""
        return len(self._key(taken_prefix(self.unacked_key)).encode()) + 32 + len(":") + 1

    def give_back_abandoned(self) -> None:
        """Put back what consumers held that are gone for long enough: whoever consumes does so by the way."""
        self.qos.restore_visible(num=MOST_ABANDONED)
        keys, arguments = self._taking(uuid(), [], [])
        arguments[START] = self._names_in_own_lists
        self._run(TAKE, keys, arguments)

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
