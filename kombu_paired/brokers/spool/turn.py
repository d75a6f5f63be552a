"""Whose turn it is to bring a spool home."""

from __future__ import annotations

import hashlib
import time
from collections.abc import Callable
from contextlib import suppress

from kombu_paired.brokers.spool import rows
from kombu_paired.brokers.spool.kinds import SpoolBusy
from kombu_paired.brokers.spool.sharing import borrow, give_back
from kombu_paired.brokers.spool.store import Store
from kombu_paired.brokers.turn import Turn
from kombu_paired.deadline import Deadline

__all__ = ("Silence", "SpoolTurn")

#: Seconds that a look may take.
PATIENCE = 1.0
#: Seconds between two signs of life, and those without one after which the turn is anybody's.
SIGN_INTERVAL = 5.0
LONGEST_SILENCE = 30.0


class Silence:
    """How long one sign has been the last, by our own clock: that of the file is of the day, and may be set back.

    Arguments:
        clock: monotonic seconds.
    """

    def __init__(self, clock: Callable[[], float] = time.monotonic) -> None:
        self._clock = clock
        self._last: tuple[int | None, float] | None = None

    def lasts(self, sign: int | None) -> bool:
        """Whether this sign has been seen, and nothing else, for too long."""
        now = self._clock()
        if self._last is None or self._last[0] != sign:
            self._last = (sign, now)
        return now - self._last[1] > LONGEST_SILENCE

    def is_over(self) -> None:
        """Nobody has to give a sign just now."""
        self._last = None


class SpoolTurn(Turn):
    """The turn of one primary's backlog in a folder.

    It is a lock that ends with the process that has it. A process that is stopped keeps it, so while there are
    messages who has it renews the time of a file; nothing touches the disk while there are none.

    Arguments:
        folder: of the spool.
        primary: the primary's name.
    """

    def __init__(self, folder: str, primary: str) -> None:
        self._folder = folder
        self._name = hashlib.sha256(primary.encode()).hexdigest()[:16]
        self._number = int(self._name, 16)
        self._store: Store | None = None
        self._presence: int | None = None
        self._has_it = False
        self._silence = Silence()
        self._next_sign = 0.0

    def arrive(self) -> None:
        if self._presence is None:
            self._presence = self._borrowed().arrive(Deadline(PATIENCE))

    def take(self) -> bool:
        self.arrive()
        store = self._borrowed()
        if store.take_turn(self._number, Deadline(PATIENCE)):
            self._has_it = True
            return True
        if store.read(rows.is_empty, Deadline(PATIENCE)):
            self._silence.is_over()
            return False
        return self._silence.lasts(store.folder.last_sign(self._name))

    def show_life(self) -> None:
        now = time.monotonic()
        if now < self._next_sign:
            return
        self._next_sign = now + SIGN_INTERVAL
        store = self._borrowed()
        with suppress(SpoolBusy):  # somebody is at work
            if not store.read(rows.is_empty, Deadline(PATIENCE)):
                store.folder.give_sign(self._name)

    def leave(self) -> None:
        store, self._store = self._store, None
        if store is None:
            return
        if self._has_it:
            store.give_up_turn(self._number)
        if self._presence is not None:
            store.depart(self._presence)
        self._has_it, self._presence = False, None
        give_back(store)

    def anybody(self) -> bool:
        return self._presence is not None or self._borrowed().anybody(Deadline(PATIENCE))

    def _borrowed(self) -> Store:
        """The process has it open for as long as this syphon is there: to close it would be to let go of the lock."""
        if self._store is None:
            self._store = borrow(self._folder)
        return self._store
