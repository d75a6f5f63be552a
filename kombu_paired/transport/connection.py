"""A connection as Kombu holds it: the thread that consumes, and its end."""

from __future__ import annotations

import threading
import weakref
from collections import deque
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from functools import partial
from typing import TYPE_CHECKING, Any

from kombu_paired.brokers.bell import Bell
from kombu_paired.brokers.letting_go import letting_go
from kombu_paired.process import at_fork, inherit
from kombu_paired.stopping import worker_is_told_to_stop
from kombu_paired.transport.channel import Channel
from kombu_paired.transport.consumed import Consumed
from kombu_paired.transport.left_behind import LeftBehind

if TYPE_CHECKING:
    from kombu_paired.transport.primary_for_consuming import PrimaryForConsuming
    from kombu_paired.transport.sides import Sides
    from kombu_paired.transport.transport import Transport

__all__ = ("Connection",)

#: Seconds that closing the consumer's connection may take per answer of the broker.
GOODBYE = 1.0
#: Seconds per answer once it is known that none comes.
NO_PATIENCE = 0.05


class Connection:
    """A connection as Kombu holds it. It is always connected; what it needs it opens when it needs it.

    Attributes:
        client: the Kombu connection.
        consumed: what it consumes from, the primary unless it stands in; None while nobody has consumed.
        loop: the event loop that reads from it, if one does.
        sides: where it can be moved to, if it is a worker's that may stand in.
        left_behind: connections to the secondary that it has come home from, whose messages are not all settled.
    """

    def __init__(self, transport: Transport) -> None:
        self.transport = transport
        self.client = transport.client
        self.consumed: Consumed | None = None
        self.loop: Any = None
        self.sides: Sides | None = None
        self._bell: Bell | None = None
        self.left_behind: list[LeftBehind] = []
        self._channels: list[Channel] = []
        self._consumer = threading.get_ident()
        self._left_to_do: deque[Callable[[], None]] = deque()
        self._is_open = True
        _connections.add(self)

    @property
    def connected(self) -> bool:
        return self._is_open

    @property
    def primary(self) -> Any:
        """What it consumes from, as the transport of that namespace has it; None while nobody has consumed."""
        return None if self.consumed is None else self.consumed.connection

    @property
    def _transport(self) -> Any:
        """Where Celery looks for the socket of an AMQP connection, to bound it."""
        return getattr(self.primary, "_transport", None)

    def channel(self) -> Channel:
        channel = Channel(self)
        self._channels.append(channel)
        return channel

    def require_consumed(self, timeout: float | None = None) -> Consumed:
        """What it consumes from; a worker waits for the primary if it is away, or stands in."""
        if self.consumed is None:
            self.consumed = self.transport.consume(self, timeout)
            self._consumer = threading.get_ident()
        return self.consumed

    # -- the thread that consumes -------------------------------------------------------------------------------

    def do_where_it_consumes(self, step: Callable[[], None]) -> None:
        """Do something that reads an answer: now, or when the thread that consumes comes to it.

        Two threads that read from one connection take each other's frames.
        """
        if threading.get_ident() == self._consumer:
            step()
        elif self.loop is not None:
            self.loop.call_soon(step)
            if self._bell is not None:
                self._bell.ring()
        else:
            self._left_to_do.append(step)

    def read_in(self, loop: Any) -> None:
        """An event loop reads from it. One whose timers are far away sleeps for ten seconds, unless it is woken."""
        self.loop = loop
        if self.sides is not None and self._bell is None:
            self._bell = Bell()
            loop.add_reader(self._bell.fileno(), self._bell.hear)

    def do_what_was_left(self) -> None:
        while self._left_to_do:
            self._left_to_do.popleft()()

    def drain_events(self, **kwargs: Any) -> Any:
        return self.transport.drain_events(self, **kwargs)

    # -- staying alive ------------------------------------------------------------------------------------------

    @property
    def heartbeat(self) -> float:
        """Seconds, the shortest in which a broker wants to hear of it; 0 if none does."""
        consumed = self.consumed
        all_of_them = [each.consumed for each in tuple(self.left_behind)] + ([consumed] if consumed else [])
        return min(filter(None, (each.heartbeat for each in all_of_them)), default=0.0)

    def stay_alive(self) -> None:
        """Let its brokers hear of it, where they want to.

        Celery asks once, when its loop starts, whether to do this: of the side that the worker is at then.
        """
        if self.heartbeat:
            self.do_where_it_consumes(lambda: self.transport.heartbeat_check(self))

    # -- changing sides -----------------------------------------------------------------------------------------

    def lose(self, consumed: Consumed, reason: Exception) -> None:
        """What it consumes from is of no use any more, and did not say so: raise that where it consumes."""

        def raise_it() -> None:
            if self.consumed is consumed:
                raise reason

        if consumed.is_lost:
            return
        consumed.is_lost = True
        consumed.namespace.limit_answers(consumed.connection, NO_PATIENCE)
        consumed.namespace.sever(consumed.connection)  # who acknowledges waits for an answer, once for each message
        self.do_where_it_consumes(raise_it)

    def come_home(self, home: Consumed, primary: PrimaryForConsuming) -> None:
        """Consume from the primary from now on; what it holds of the secondary is settled there.

        Arguments:
            home: the new connection.
            primary: what made it.
        """

        def move() -> None:
            away = self.consumed
            if self.sides is not None:
                self.sides.moved(self)
            if away is None or not away.stands_in:  # lost meanwhile
                home.close(GOODBYE)
            else:
                self.transport.for_consuming = primary
                self._move(away, home)

        self.do_where_it_consumes(move)

    def _move(self, away: Consumed, home: Consumed) -> None:
        self.consumed = home
        left = LeftBehind(away, [channel.leave() for channel in self._channels])
        self.left_behind.append(left)
        if self.sides is not None:
            self.sides.came_home(self)
        left.when_settled(partial(self._settled, left))
        if self.loop is not None:
            home.driver.register_with_event_loop(home.connection, self.loop)
        for channel in self._channels:
            channel.go_on()

    def _settled(self, left: LeftBehind) -> None:
        if self._is_open:
            self.do_where_it_consumes(lambda: self._let_go_of(left))
        else:  # nobody reads from it any more
            self._let_go_of(left)

    def _let_go_of(self, left: LeftBehind) -> None:
        if left in self.left_behind:
            self.left_behind.remove(left)
            left.consumed.close(GOODBYE)

    def adopt(self, lost: Connection) -> None:
        """Keep alive what one that was lost had left behind, while tasks run that will settle it."""
        adopted, lost.left_behind = lost.left_behind, []
        self.left_behind += adopted
        for each in adopted:
            each.when_settled(partial(self._settled, each))

    def consumes_in(self, thread: int) -> bool:
        """Whether this is the thread that reads from it, and may write to it."""
        return self._consumer == thread

    def let_go(self) -> None:
        """What it consumes from is dead: the next call that needs it connects anew."""
        consumed, self.consumed = self.consumed, None
        for channel in self._channels:
            channel.let_go()
        if consumed is not None:
            consumed.collect(NO_PATIENCE)

    # -- its end ------------------------------------------------------------------------------------------------

    def discard(self, channel: Channel) -> None:
        if channel in self._channels:
            self._channels.remove(channel)

    def close(self) -> None:
        """Close; takes a moment at most, whatever the primary is doing, and raises nothing.

        What was left behind stays while tasks run that came over it, here and in :meth:`collect`.
        """
        try:
            for consumed in self._take_all(self._what_runs()):
                consumed.close(GOODBYE)
        finally:
            self._end()

    def collect(self, patience: float = GOODBYE) -> None:
        """Let go without a goodbye; raises nothing."""
        try:
            for consumed in self._take_all(self._what_runs()):
                consumed.collect(NO_PATIENCE if consumed.is_lost else patience)
        finally:
            self._end()

    def _what_runs(self) -> list[LeftBehind]:
        return [each for each in self.left_behind if each.keep_what_runs()]

    def _take_all(self, but: Sequence[LeftBehind] = ()) -> list[Consumed]:
        """All that it consumes or has consumed from; from now on it does not."""
        consumed, self.consumed = self.consumed, None
        left, self.left_behind = self.left_behind, list(but)
        return [each for each in (consumed, *(each.consumed for each in left if each not in but)) if each is not None]

    def leave_to_parent(self) -> None:
        """In a child process: touch nothing of what it inherited, and be closed."""
        self.sides = None
        inherit(self._take_all())
        self.transport.for_consuming.leave_to_parent()
        self._end()

    @contextmanager
    def saying_goodbye(self) -> Iterator[None]:
        """A step of a goodbye. When a worker was told to stop, a silent broker is waited for once, and a moment."""
        consumed = self.consumed
        if consumed is None or not worker_is_told_to_stop():
            yield
            return
        consumed.namespace.limit_answers(consumed.connection, GOODBYE)
        try:
            yield
        except Exception as exc:
            if consumed.namespace.kind_of(exc).counts:
                self.collect(NO_PATIENCE)
            raise

    def _end(self) -> None:
        self._is_open = False
        bell, self._bell = self._bell, None
        if bell is not None:
            with letting_go("what wakes an event loop"):
                self.loop.remove_reader(bell.fileno())
            bell.close()
        if self.sides is not None:
            self.sides.left(self)
        channels, self._channels = self._channels, []
        for channel in channels:
            channel.end()


#: Open connections, whose inherited sockets a child process must not close.
_connections: weakref.WeakSet[Connection] = weakref.WeakSet()


def _inherit_connections() -> None:
    for connection in list(_connections):
        connection.leave_to_parent()


at_fork(in_child=_inherit_connections)
