"""Moves the workers of a process between the two sides of their pairing (docs/architecture.md, rules 30 and 31)."""

from __future__ import annotations

import logging
import math
import random
import threading
import time
from functools import partial
from typing import TYPE_CHECKING
from weakref import WeakKeyDictionary, WeakSet

from kombu import Connection as KombuConnection

from kombu_paired.brokers.roles import Consumes
from kombu_paired.errors import NamespaceFailure, PrimaryUnavailable
from kombu_paired.events import EventKind
from kombu_paired.failures import FailureKind
from kombu_paired.pairing import Pairing
from kombu_paired.process import at_fork
from kombu_paired.stand_in import StandIn, stand_in_name
from kombu_paired.transport.consumed import Consumed
from kombu_paired.transport.primary_for_consuming import PATIENCE, PrimaryForConsuming

if TYPE_CHECKING:
    from kombu_paired.transport.connection import Connection
    from kombu_paired.transport.transport import Transport

__all__ = ("SecondaryForConsuming", "Sides", "sides_of")

logger = logging.getLogger("kombu_paired.transport")  # the name that settings of logs know

#: Seconds between two looks at a primary that a worker consumes from: at least, and at most; while it is away at most.
OFTEN, SELDOM, AWAY = 0.5, 15.0, 2.0


class SecondaryForConsuming(PrimaryForConsuming):
    """The secondary's own transport, for one connection of a worker that stands in."""

    stands_in = True

    def _new_client(self) -> KombuConnection:
        client = super()._new_client()
        pairing = self._transport.pairing
        client.transport_options.update(pairing.secondary.stand_in_options(stand_in_name(pairing.name, "")))
        return client

    @property
    def _namespace(self) -> Consumes:
        return self._transport.pairing.secondary

    def _was_reached(self) -> None:
        """It says nothing of the primary."""


class Sides:
    """The workers' connections of one pairing, and a watch that knows from which side they are to consume.

    Arguments:
        pairing: whose.
        rule: when they change sides.
    """

    def __init__(self, pairing: Pairing, rule: StandIn) -> None:
        self._pairing = pairing
        self._rule = rule
        self._lock = threading.Lock()
        self._connections: WeakSet[Connection] = WeakSet()
        self._watching: threading.Thread | None = None
        self._stopping = threading.Event()
        self._moving: WeakSet[Connection] = WeakSet()
        self._secondary_is_away = False
        pairing.when_closing(self._stopping.set)

    # -- for connections ----------------------------------------------------------------------------------------

    def consume(self, connection: Connection) -> Consumed:
        """Connect a worker, to the primary if that can be reached, to the secondary if not for so long.

        Raises:
            Exception: what the plain transport raises when neither can be reached.
        """
        self._watch(connection)
        found = connection.transport.for_consuming.wait(partial(self._try_either, connection), self._longest_pause)
        if found.stands_in:
            self._began(connection)
        else:
            self._came_home()
        self._adopt_what_was_left(connection)
        return found

    def _adopt_what_was_left(self, connection: Connection) -> None:
        """A connection that was lost keeps nothing alive; the one in its place does, in the same thread."""
        for each in list(self._connections):
            if each.left_behind and not each.connected and each.consumes_in(threading.get_ident()):
                connection.adopt(each)

    def consume_at_once(self, connection: Connection, timeout: float | None) -> Consumed:
        """Connect somebody who is no worker, and wants an answer: inspect, a monitor.

        Raises:
            PrimaryUnavailable: neither can be reached.
            Exception: what the plain transport raises when it cannot connect.
        """
        self._watch(connection)
        patience = min(timeout or math.inf, connection.transport.client.connect_timeout or PATIENCE)
        try:
            return connection.transport.for_consuming.consume_at_once(time.monotonic() + patience)
        except Exception as exc:
            if not self._pairing.primary.kind_of(exc).counts:
                raise
            found = self._try_secondary(connection.transport)
            if found is None:
                raise PrimaryUnavailable(
                    f"{self._pairing.primary.label} is away: {exc!r}; so is the other one"
                ) from exc
            return found

    def left(self, connection: Connection) -> None:
        """A connection does not consume from the secondary any more: it came home, or was lost."""
        self._rule.ended(connection)

    def came_home(self, connection: Connection) -> None:
        """A connection has moved to the primary."""
        self._rule.ended(connection)
        self._came_home()

    def moved(self, connection: Connection) -> None:
        """A connection has heard that it is to come home."""
        self._moving.discard(connection)

    def _came_home(self) -> None:
        if self._rule.came_home():
            logger.warning("pairing %s: the primary is back, and this worker consumes from it", self._pairing.name)
            self._pairing.emit(EventKind.CAME_HOME, entity=self._pairing.name)

    def _began(self, connection: Connection) -> None:
        if self._rule.began(connection):
            logger.warning(
                "pairing %s: the primary has not been reached for %g s: this worker stands in, and consumes from %s",
                self._pairing.name,
                self._rule.after,
                self._pairing.secondary.uri,
            )
            self._pairing.emit(EventKind.STANDING_IN, entity=self._pairing.name)

    def _longest_pause(self) -> float:
        """Nobody sleeps past the moment at which he may stand in."""
        return self._rule.wait or AWAY

    def _try_either(self, connection: Connection) -> Consumed:
        if self._rule.is_due:
            stood_in = self._try_secondary(connection.transport)
            if stood_in is not None:
                return stood_in
        try:
            found = connection.transport.for_consuming.consume_at_once()
        except Exception as exc:
            if self._pairing.primary.kind_of(exc).counts:
                self._rule.failed()
            raise
        self._rule.reached()
        return found

    def _try_secondary(self, transport: Transport) -> Consumed | None:
        secondary = self._pairing.secondary
        try:
            found = SecondaryForConsuming(transport).consume_at_once()
        except Exception as exc:
            if not self._secondary_is_away:
                logger.warning("nobody can stand in at %s: %s: %s", secondary.label, type(exc).__name__, exc)
            self._secondary_is_away = True
            return None
        self._secondary_is_away = False
        return found

    # -- the watch ----------------------------------------------------------------------------------------------

    def _watch(self, connection: Connection) -> None:
        with self._lock:
            self._connections.add(connection)
            if self._watching is None:
                name = f"kombu-paired-sides-{self._pairing.name}"
                self._watching = threading.Thread(target=self._run, name=name, daemon=True)
                self._watching.start()

    def _run(self) -> None:
        while not self._stopping.wait(self._pause()):
            try:
                self._look()
            except Exception:
                logger.exception("pairing %s: unexpected; the watch over its sides goes on", self._pairing.name)

    def _pause(self) -> float:
        most = AWAY if self._rule.is_away or self._rule.is_active else SELDOM
        heartbeats = [each.heartbeat / 4 for each in list(self._connections)]
        return min(max(self._rule.after / 2, OFTEN), most, *filter(None, heartbeats)) * random.uniform(0.75, 1.25)

    def _look(self) -> None:
        consuming = [each for each in list(self._connections) if each.consumed is not None]
        if not consuming:
            return
        for connection in consuming:
            connection.stay_alive()
        failure = self._probe()
        for connection in consuming:
            consumed = connection.consumed
            if consumed is None:
                continue
            if not consumed.stands_in and self._rule.is_due:
                label = self._pairing.primary.label
                connection.lose(consumed, PrimaryUnavailable(f"{label} has not been reached for long: {failure}"))
            elif consumed.stands_in and self._rule.may_come_home and connection not in self._moving:
                self._bring_home(connection)

    def _probe(self) -> NamespaceFailure | None:
        """Ask the primary whether it is there. One that is there and refuses is consumed from, to empty it."""
        patience = min(self._pairing.options.send_timeout, max(self._rule.after, OFTEN))
        try:
            self._pairing.primary.probe(None, patience)
        except NamespaceFailure as failure:
            if failure.kind in (FailureKind.UNREACHABLE, FailureKind.TIMEOUT):
                self._rule.failed()
                return failure
        self._rule.reached()
        return None

    def _bring_home(self, connection: Connection) -> None:
        primary = PrimaryForConsuming(connection.transport)
        try:
            home = primary.consume_at_once(time.monotonic() + self._pairing.options.send_timeout)
        except Exception as exc:
            logger.info("pairing %s cannot come home yet: %s: %s", self._pairing.name, type(exc).__name__, exc)
            if self._pairing.primary.kind_of(exc).counts:
                self._rule.failed()
            return
        self._moving.add(connection)
        connection.come_home(home, primary)


_lock = threading.Lock()
_sides: WeakKeyDictionary[Pairing, Sides] = WeakKeyDictionary()


def sides_of(pairing: Pairing) -> Sides | None:
    """The sides of a pairing whose workers may stand in; None where they may not."""
    if pairing.stand_in is None:
        return None
    with _lock:
        if pairing not in _sides:
            _sides[pairing] = Sides(pairing, pairing.stand_in)
        return _sides[pairing]


def _start_clean_after_fork() -> None:
    global _lock
    _lock = threading.Lock()


at_fork(in_child=_start_clean_after_fork)
