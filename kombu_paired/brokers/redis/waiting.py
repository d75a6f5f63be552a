"""How a channel waits for a message, where none lies in its queues: Redis says when one comes.

Each list is waited on over a connection of its own, by a move into the consumer's own list (:mod:`.taking`). What needs
no note, or cannot be moved, is waited on by ``BRPOP``, all of it over one.
"""

from __future__ import annotations

import logging
import time
from collections.abc import Sequence
from contextlib import suppress
from queue import Empty
from typing import Any

from kombu.utils.encoding import bytes_to_str
from kombu.utils.uuid import uuid
from redis.exceptions import OutOfMemoryError, ResponseError

from kombu_paired.brokers.redis.compat import is_readable, socket_of
from kombu_paired.brokers.redis.kinds import kind_of
from kombu_paired.brokers.redis.noting import NotesInRedis
from kombu_paired.brokers.redis.scripts import GIVE_BACK
from kombu_paired.brokers.redis.taking import MOST_LISTS, Wait, own_list
from kombu_paired.failures import FailureKind

__all__ = ("CONNECTING", "TAKING", "WaitsForMoves")

logger = logging.getLogger(__name__)

#: Seconds that Redis lets a consumer wait, unless Kombu's ``polling_interval`` says otherwise.
PATIENCE = 1
#: Seconds before a further connection is tried again.
RETRY_CONNECTION = 10.0
#: What it refuses then.
TAKING = "let a message be taken"
CONNECTING = "give a consumer a further connection"

#: Commands that move the next message of a list into another; the second is as old as Redis.
_MOVES: tuple[tuple[str, tuple[str, ...]], ...] = (("BLMOVE", ("RIGHT", "LEFT")), ("BRPOPLPUSH", ()))


class WaitsForMoves(NotesInRedis):
    """A channel that waits on the lists of its queues."""

    def __init__(self, *args: Any, **kwargs: Any) -> None:
        self._urgent: dict[str, str] = {}  # lists of other priorities that were seen in use -> their queues
        self._moved: dict[str, str] = {}  # lists that are waited on by moves -> their queues
        self._pops = False  # whether there are others, which are waited on by BRPOP
        self._waits: dict[str | None, Wait] = {}
        self._moves = list(_MOVES)  # those that Redis may know and allow; the first is used
        self._refused = False  # so that nothing is asked for a moment
        self._look_again = True  # for something may be there
        super().__init__(*args, **kwargs)

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

    def _own(self, name: str) -> str:
        return self._key(own_list(self.unacked_key, name))

    @property
    def _patience(self) -> float:
        patience: float = self.brpop_timeout or PATIENCE
        return patience

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

    def check_waits(self) -> None:
        """Let go of connections that should have answered long ago."""
        overdue = time.monotonic() - self._patience - (self.health_check_interval or float("inf"))
        for wait in self._waits.values():
            sock = socket_of(wait.connection) if wait.since is not None and wait.since < overdue else None
            if sock is not None and not is_readable(sock):
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

    def _work_in_two_steps(self, refusal: ResponseError) -> None:
        logger.warning(
            "Redis refuses to hand over a message and to note it in one step (%s): until the next connection a message "
            "is lost if Redis, this worker or the network fails in between. Allow EVAL, EVALSHA and BLMOVE, and the "
            "keys %s*",
            refusal,
            self._key(self.unacked_key),
        )
        self._choose_lists()

    def close(self) -> None:
        self._stop_waiting(list(self._waits.values()))
        super().close()
