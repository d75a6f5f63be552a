"""One AMQP connection for many links, each of which has a session of its own on it and believes that it is alone.

The SDK opens a connection for each sender and each receiver, and one of its connections is not for two threads. So what
is shared here lies below it: frames. A link's connection has a :class:`Station` in the place of a socket, and all
stations of a :class:`Trunk` share the socket. A session per link is what the service expects, which ends the whole
session of a link that was idle.

Nobody reads for all in a thread of its own. Whoever waits reads, one at a time, and lays what is for others into their
stations: a link that is alone, or alone in being busy, reads as directly as with a connection of its own.
"""

from __future__ import annotations

import itertools
import logging
import os
import ssl
import threading
from collections import deque
from collections.abc import Callable, Sequence
from time import monotonic
from typing import Any, Protocol

from kombu_paired.brokers.bell import Bell, is_readable
from kombu_paired.brokers.servicebus.frames import (
    BEGIN,
    CLOSE,
    END,
    GREETING,
    OPEN,
    available,
    code_of,
    empty,
    first_number,
    split,
)
from kombu_paired.brokers.servicebus.waiter import Waiter

__all__ = ("DEPUTY", "Station", "Trunk", "Wire")

logger = logging.getLogger(__name__)

#: Links on one connection, at most: fewer than the channels of any service.
MOST_STATIONS = 100
#: Seconds that the service may take nothing from a connection that has something to say, before that is broken.
WRITE_PATIENCE = 1.0
#: Seconds to wait for another thread's writing, before a connection counts as stuck.
STUCK = 0.1
#: Seconds after which one who waits while another thread reads looks whether it does.
DEPUTY = 0.05
#: Seconds without a word after which a connection whose link failed is not given to further links.
SILENCE = 1.0
#: Seconds without a word after which it is not in any case: what became of it meanwhile is not known.
FRESH = 30.0


class Wire(Protocol):
    """What connects to the service.

    Attributes:
        sock: the socket, once there is one.
    """

    sock: Any

    def connect(self) -> None:
        """Connect, with TLS and all that comes before the first frame."""


class Station:
    """A link's end of a trunk, in the place of its socket. For one thread, but for :meth:`shutdown`.

    Attributes:
        trunk: the connection that it is on.
        number: the channel of its session.
        is_patient: it waits for what may come some day, and not for an answer.
    """

    def __init__(self, trunk: Trunk, number: int) -> None:
        self.number = number
        self.is_patient = False
        self.inbox: deque[bytes] = deque()
        self.arrived = threading.Condition(trunk.lock)
        self.bell: Bell | None = None
        self.expects: set[int] = set()
        self.has_begun = self.has_ended = self.was_ended = self.is_cut = False
        self.trunk = trunk
        self._timeout = 0.0

    def settimeout(self, seconds: float) -> None:
        """How long a read waits."""
        self._timeout = seconds

    def gettimeout(self) -> float:
        return self._timeout

    def connect(self) -> None:
        """See that the trunk is connected.

        Raises:
            Exception: it cannot be.
        """
        self.trunk.connect(self)

    def read(self) -> bytes:
        """The next frame for this link.

        Raises:
            TimeoutError: none has come in time.
            OSError: the connection is gone.
        """
        if not self.inbox and not self.trunk.wait_for([self], self._timeout):
            raise TimeoutError("no frame has come")
        if not self.inbox:
            raise self.trunk.loss()
        return self.inbox.popleft()

    def write(self, frame: bytes) -> None:
        """Send a frame.

        Raises:
            OSError: the connection is gone.
        """
        self.trunk.write(self, frame)

    def has_input(self, wait: float = 0.0) -> bool:
        """Whether reading would not wait; waits so many seconds for that."""
        return bool(self.inbox) or self.trunk.wait_for([self], wait)

    def wake(self) -> None:
        """Let who waits here look again. With the trunk's lock."""
        self.arrived.notify_all()
        if self.bell is not None:
            self.bell.ring()

    def shutdown(self, how: int = 0) -> None:
        """Let go at once, from any thread; whoever waits here wakes up. The other links go on."""
        self.trunk.cut(self)

    def leave(self) -> None:
        """The link has said goodbye. The last one to leave closes the connection."""
        self.trunk.leave(self)


class Trunk:
    """A connection, and the links that share it. For any thread.

    Arguments:
        wire: connects it.

    Attributes:
        lock: of all that is not input or output.
    """

    def __init__(self, wire: Wire) -> None:
        self.lock = threading.Lock()
        self._wire = wire
        self._using_socket = threading.Lock()
        self._stations: dict[int, Station] = {}
        self._routes: dict[int, int] = {}  # the service's channels -> ours
        self._ending: set[int] = set()  # ours whose end the service has not heard, or not confirmed
        self._greeting: dict[int, bytes] = {}
        self._rest = b""
        self._is_read = False
        self._waiting: list[Waiter[Station]] = []  # while another reads
        self._heir: Waiter[Station] | None = None  # who is to read next, and will
        self._latest: Station | None = None  # who was read for
        self._greeter: Station | None = None
        self._is_open = self._is_retired = False
        self._loss: BaseException | None = None
        self._heard = monotonic()
        self._pid = os.getpid()

    # -- who shares it ------------------------------------------------------------------------------------------

    def board(self) -> Station | None:
        """A place for a link; None if it had better have another connection."""
        with self.lock:
            is_stale = self._is_open and monotonic() - self._heard > FRESH
            if self._loss or self._is_retired or is_stale or len(self._stations) >= MOST_STATIONS:
                return None
            taken = self._stations.keys() | self._ending
            number = next(each for each in itertools.count(1) if each not in taken)
            return self._stations.setdefault(number, Station(self, number))

    @property
    def is_over(self) -> bool:
        """No link is on it any more."""
        return self._loss is not None or (self._is_retired and not self._stations)

    def leave(self, station: Station) -> None:
        if os.getpid() != self._pid:
            return
        with self.lock:
            if self._stations.get(station.number) is not station:
                return
            del self._stations[station.number]
            self._ending.add(station.number)
            is_last = not self._stations
            self._is_retired = self._is_retired or is_last
        self._say(empty(station.number, END), lambda: station.has_begun and not station.has_ended)
        with self.lock:
            if station.was_ended or not station.has_begun:
                self._ending.discard(station.number)
        if is_last:
            self._say(empty(0, CLOSE))
        if is_last or self._greeter is station:
            self._break(ConnectionError("the link that opened it has left"))

    def cut(self, station: Station) -> None:
        if os.getpid() != self._pid:
            return
        with self.lock:
            station.is_cut = True
            station.wake()
            self._is_retired = self._is_retired or monotonic() - self._heard > SILENCE
        self.leave(station)

    def abandon(self) -> None:
        """This process has inherited it, and must not touch it."""
        self._loss = self._loss or ConnectionError("the connection is the parent process's")

    # -- connecting ---------------------------------------------------------------------------------------------

    def connect(self, station: Station) -> None:
        """The first link connects, and greets the service; the others wait until it has."""
        with self.lock:
            while self._greeter is not None and self._is_at_work(station):
                station.arrived.wait()
            if not self._is_at_work(station):
                raise self.loss()
            if self._is_open:
                return
            self._greeter = station
        try:
            self._wire.connect()
            self._wire.sock.settimeout(WRITE_PATIENCE)
        except BaseException as exc:
            self._break(exc)
            raise

    def _is_at_work(self, station: Station) -> bool:
        return self._loss is None and not station.is_cut

    def loss(self) -> BaseException:
        """What to raise where there is nothing more to be had."""
        if isinstance(self._loss, ssl.SSLError):  # who connects is told of a certificate
            return self._loss
        return ConnectionError(f"the connection is gone: {self._loss or 'its link was given up'}")

    # -- reading ------------------------------------------------------------------------------------------------

    def wait_for(self, stations: Sequence[Station], wait: float, bell: Bell | None = None) -> bool:
        """Wait until there is something for one of these links, or nothing more to come; False if time is over, or a
        bell rings. Without a bell for one link alone.
        """
        if self._loss is not None:  # in a child process, whoever held the lock is gone
            return True
        until = monotonic() + wait
        waiter = Waiter(stations, bell)
        with self.lock:
            try:
                while not (is_served := self._is_served(waiter)):
                    left = max(until - monotonic(), 0.0)
                    if not self._is_read and self._heir in (None, waiter):
                        self._read_for(waiter, left)
                    elif left:
                        self._follow(waiter, left)
                    if not left or waiter.was_called:
                        return self._is_served(waiter)
                return is_served
            finally:
                self._dismiss(waiter)

    def _is_served(self, waiter: Waiter[Station]) -> bool:
        return any(each.inbox or not self._is_at_work(each) for each in waiter.stations)

    def _read_for(self, waiter: Waiter[Station], wait: float) -> None:
        """Read in this thread, for all. With the lock, but not while it waits."""
        self._is_read, self._heir = True, None
        self.lock.release()
        try:
            self._read(wait, waiter.bell)
        finally:
            self.lock.acquire()
            self._is_read = False
            self._hand_over(waiter)

    def _follow(self, waiter: Waiter[Station], wait: float) -> None:
        """Let another thread read. The first who waits looks now and then whether one does."""
        if waiter not in self._waiting:
            self._waiting.append(waiter)
        waiter.wait(self.lock, min(wait, DEPUTY) if self._waiting[0] is waiter else wait)

    def _dismiss(self, waiter: Waiter[Station]) -> None:
        """It waits no longer: who waits for an answer reads now, if nobody does, and another one is the first."""
        if self._heir is waiter:
            self._heir = None
        was_first = bool(self._waiting) and self._waiting[0] is waiter
        if waiter in self._waiting:
            self._waiting.remove(waiter)
        if not self._is_read and self._heir is None:
            self._leave_to(lambda other: not other.is_patient)
        if was_first and self._waiting:
            self._waiting[0].wake()

    def _hand_over(self, reader: Waiter[Station]) -> None:
        """Who waits for an answer reads until that has come. Who waits for nothing special leaves it to such a one, or
        to who was read for: that is most often the same again, and nobody need be woken then.
        """
        if not reader.is_patient or self._is_served(reader):
            return
        if not self._leave_to(lambda other: not other.is_patient):
            self._leave_to(lambda other: self._latest in other.stations)

    def _leave_to(self, is_heir: Callable[[Waiter[Station]], bool]) -> bool:
        heir = next((each for each in self._waiting if is_heir(each) and not self._is_served(each)), None)
        if heir is not None:
            self._heir = heir
            heir.wake()
        return heir is not None

    def _read(self, wait: float, bell: Bell | None) -> None:
        sock = self._wire.sock
        try:
            if not (is_readable(sock, wait) if bell is None else bell.wait(wait, sock)):
                return
            with self._using_socket:
                found = available(sock)
            if found is None:
                return
            if not found:
                raise ConnectionError("the service closed the connection")
            frames, self._rest = split(self._rest + found)
        except (OSError, ValueError) as exc:  # ValueError: closed by another thread, so without a descriptor
            self._break(exc)
            return
        with self.lock:
            self._heard = monotonic()
            for frame in frames:
                self._hand_out(frame)
        if self._is_open and any(code_of(frame) == CLOSE for frame in frames):
            self._say(empty(0, CLOSE))
            self._is_open = False

    def _hand_out(self, frame: bytes) -> None:
        code, channel = code_of(frame), int.from_bytes(frame[6:8], "big")
        if code in (GREETING, OPEN):
            self._greeting[code] = frame
            for station in self._stations.values():
                self._greet(station)
        elif code == CLOSE:
            self._is_retired = True
            for station in self._stations.values():
                self._deliver(station, frame)
        elif code is not None:
            self._route(code, channel, frame)

    def _route(self, code: int, channel: int, frame: bytes) -> None:
        if code == BEGIN:
            self._routes[channel] = first_number(frame)
        number = self._routes.get(channel, 0)
        if code == END:
            self._routes.pop(channel, None)
            self._ending.discard(number)
        station = self._stations.get(number)
        if station is not None:  # else the link is gone, and its session's end is on the way
            if code == END:
                station.was_ended = True
            self._deliver(station, frame)

    def _deliver(self, station: Station, frame: bytes) -> None:
        station.inbox.append(frame)
        station.wake()
        self._latest = station

    def _greet(self, station: Station) -> None:
        for code in sorted(station.expects & self._greeting.keys()):
            station.expects.discard(code)
            self._deliver(station, self._greeting[code])

    # -- writing ------------------------------------------------------------------------------------------------

    def write(self, station: Station, frame: bytes) -> None:
        code = code_of(frame)
        if code in (GREETING, OPEN):
            self._greet_with(station, code, frame)
            return
        if code == CLOSE:  # of the link's alone: the service has heard of the end of its session
            return
        self._send(station, frame, code)

    def _greet_with(self, station: Station, code: int, frame: bytes) -> None:
        """One link greets the service, and each is told what that answered."""
        if self._greeter is station:
            self._send(station, frame, code)
        with self.lock:
            if self._greeter is station and code == OPEN:
                self._greeter, self._is_open, self._heard = None, True, monotonic()
                self._wake_all()
            station.expects.add(code)
            self._greet(station)

    def _send(self, station: Station, frame: bytes, code: int | None) -> None:
        with self._using_socket:
            if self._is_at_work(station):
                station.has_begun = station.has_begun or code == BEGIN
                station.has_ended = station.has_ended or code == END
                try:
                    self._wire.sock.sendall(frame)
                    return
                except (OSError, AttributeError) as exc:  # a part of it may have gone
                    self._break(exc)
        raise self.loss()

    def _say(self, frame: bytes, is_due: Callable[[], bool] = lambda: True) -> None:
        """Send something on a link's behalf, for who cannot wait: where that is stuck, everything is."""
        if self._loss is not None or not self._is_open:
            return
        if not self._using_socket.acquire(timeout=STUCK):
            self._break(ConnectionError("the service takes nothing any more"))
            return
        try:
            if is_due():
                self._wire.sock.sendall(frame)
        except (OSError, AttributeError) as exc:
            logger.debug("saying goodbye: %r", exc)
        finally:
            self._using_socket.release()

    # -- the end ------------------------------------------------------------------------------------------------

    def _break(self, exc: BaseException) -> None:
        """It is of no use any more: every link on it finds that out."""
        with self.lock:
            self._loss = self._loss or exc
            self._wake_all()
        sock = self._wire.sock
        if sock is None:
            return
        try:
            sock.shutdown(2)
        except OSError as failed:
            logger.debug("shutting a socket: %r", failed)
        sock.close()

    def _wake_all(self) -> None:
        for station in self._stations.values():
            station.wake()
