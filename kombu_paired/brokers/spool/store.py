"""One spool as one process has it: a connection, and transactions that all threads share."""

from __future__ import annotations

import logging
import os
import sqlite3
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from functools import partial
from typing import Any, TypeVar

from kombu_paired.brokers.bell import Bell
from kombu_paired.brokers.letting_go import letting_go
from kombu_paired.brokers.spool import rows
from kombu_paired.brokers.spool.database import Database
from kombu_paired.brokers.spool.disk import TO_OPEN, Reserve, free_bytes, require_trust
from kombu_paired.brokers.spool.folder import Folder
from kombu_paired.brokers.spool.kinds import SpoolBusy, is_broken, is_full
from kombu_paired.brokers.spool.locks import OPENING, SAVING, WRITING, Locks
from kombu_paired.brokers.spool.saving import read_piece, save
from kombu_paired.brokers.spool.together import OWN_FAULTS, Ticket, Together
from kombu_paired.deadline import Deadline

__all__ = ("Seen", "Store")

logger = logging.getLogger(__name__)

Answer = TypeVar("Answer")
Job = Callable[[sqlite3.Connection], Any]
#: What tells whether anything has changed since: which file it was, what we had done in it, and what others had.
Seen = tuple[int, int, int]

#: Seconds that closing waits for a thread that uses the file.
CLOSING = 1.0

#: Folders that this process has had open.
_found: set[str] = set()


class Store:
    """A spool. For any thread.

    Arguments:
        path: of its folder.

    Attributes:
        folder: its folder.
        file: the path of the file in use; a name never comes again.
        reserve: what it keeps for a full disk.
    """

    def __init__(self, path: str) -> None:
        self.folder = Folder(path)
        self.file = ""
        self.reserve = Reserve(self.folder)
        self.users = 0
        self._pid = os.getpid()
        self._together = Together(self._do, path)
        #: Held by who uses the file, or the locks.
        self.using = threading.Lock()
        self._database: Database | None = None
        self._locks: Locks | None = None
        self._opened_times = 0
        self._changes = 0
        self._bells: set[Bell] = set()

    # -- for all ------------------------------------------------------------------------------------------------

    def open(self, deadline: Deadline) -> None:
        """Open the file, if it is not, and make it if it is not there; the folder has to be.

        Raises:
            SpoolError, sqlite3.Error, OSError: it cannot be opened.
        """
        with self._in_use(deadline):
            self._mending(lambda: self._opened(deadline), deadline)

    def write(
        self,
        job: Callable[[sqlite3.Connection], Answer],
        deadline: Deadline,
        *,
        rings: bool = False,
        empties: bool = False,
    ) -> Answer:
        """Do something in a transaction, and return when the disk has it.

        Arguments:
            job: what; it may be done more than once, if what was done before came to nothing.
            rings: receivers of this process that wait are to look.
            empties: it is done to remove messages, and gets what is in reserve on a full disk.

        Raises:
            SpoolError, sqlite3.Error, OSError: it could not be done.
        """
        ticket = self._together.do(Ticket(job, empties), deadline)
        if ticket.error is not None:
            raise ticket.error
        if rings:
            self._ring()
        answer: Answer = ticket.answer
        return answer

    def read(self, job: Callable[[sqlite3.Connection], Answer], deadline: Deadline) -> Answer:
        """Do something that changes nothing.

        Raises:
            SpoolError, sqlite3.Error, OSError: it could not be done.
        """

        def read() -> Answer:
            found: list[Answer] = []
            with self._gate(deadline) as database:
                database.read(lambda connection: found.append(job(connection)), deadline)
            return found[-1]

        with self._in_use(deadline):
            return self._mending(read, deadline)

    def seen(self, deadline: Deadline) -> Seen:
        """Something that differs as soon as anything has changed; costs next to nothing.

        Raises:
            SpoolError, sqlite3.Error, OSError: it could not be looked at.
        """

        def look() -> Seen:
            with self._gate(deadline) as database:
                return self._opened_times, self._changes, database.version

        with self._in_use(deadline):
            return self._mending(look, deadline)

    # -- for receivers ------------------------------------------------------------------------------------------

    def new_reader(self, bell: Bell, deadline: Deadline) -> int:
        """A number for a receiver, under which it holds messages, and the bell that it waits for."""
        with self._in_use(deadline):
            reader = self._with_locks().new_reader()
            self._bells.add(bell)
            return reader

    def forget_reader(self, reader: int, bell: Bell) -> None:
        """It holds nothing more; what it does hold others will have."""
        self._bells.discard(bell)
        if self._locks is not None and not self._is_inherited:
            self._locks.forget(reader)

    def dead(self, readers: list[int], deadline: Deadline) -> list[int]:
        """Those of these readers whose process is gone, or that were forgotten."""
        with self._in_use(deadline):
            locks = self._with_locks()
            return [each for each in readers if locks.is_dead(each)]

    # -- for syphons --------------------------------------------------------------------------------------------

    def arrive(self, deadline: Deadline) -> int:
        """A number for a syphon, under which it is there."""
        with self._in_use(deadline):
            return self._with_locks().new_syphon()

    def depart(self, syphon: int) -> None:
        """It is there no more."""
        if not self._is_inherited:
            with self.using:
                if self._locks is not None:
                    self._locks.forget(syphon)

    def take_turn(self, number: int, deadline: Deadline) -> bool:
        """Have a turn; False if another syphon has it."""
        with self._in_use(deadline):
            return self._with_locks().take_turn(number)

    def give_up_turn(self, number: int) -> None:
        """Another syphon may have it."""
        if not self._is_inherited:
            with self.using:
                if self._locks is not None:
                    self._locks.give_up_turn(number)

    def anybody(self, deadline: Deadline) -> bool:
        """Whether any process of the machine has a syphon."""
        with self._in_use(deadline):
            return self._with_locks().has_syphons()

    def _ring(self) -> None:
        for bell in list(self._bells):
            bell.ring()

    # -- a transaction ------------------------------------------------------------------------------------------

    def _do(self, batch: list[Ticket], deadline: Deadline) -> None:
        with self._in_use(deadline):
            self._mending(lambda: self._together_or_not(batch, deadline), deadline)
        for ticket in batch:
            ticket.done()

    def _together_or_not(self, batch: list[Ticket], deadline: Deadline) -> None:
        try:
            self._transact(batch, deadline)
        except OWN_FAULTS as exc:
            if is_broken(exc):
                raise
            has_room = is_full(exc) and any(each.empties for each in batch) and self._make_room()
            if len(batch) == 1 and not has_room:
                raise
            # What removes makes room for what adds, and one that is at fault fails alone.
            for ticket in sorted(batch, key=lambda each: not each.empties):
                self._alone(ticket, exc if has_room and not ticket.empties else None, deadline)

    def _alone(self, ticket: Ticket, error: BaseException | None, deadline: Deadline) -> None:
        """Do one of a batch again, unless it is to fail: the reserve is for others."""
        ticket.error = error
        if error is None:
            try:
                self._transact([ticket], deadline)
            except OWN_FAULTS as own:
                ticket.error = own

    def _make_room(self) -> bool:
        """The disk is full, and to remove messages takes some of it: the log has to be copied and begun anew."""
        with letting_go(f"the log of {self.folder.path}"):
            if self.reserve.spend() and self._database is not None:
                self._database.checkpoint()
                return True
        return False

    def _transact(self, batch: list[Ticket], deadline: Deadline) -> None:
        with self._gate(deadline) as database:
            database.begin(deadline)
            try:
                before = database.connection.total_changes
                for ticket in batch:
                    ticket.do(database.connection)
                if database.connection.total_changes != before:
                    self._changes += 1
                    database.commit()
            finally:
                database.rollback()

    @property
    def _is_inherited(self) -> bool:
        """This is a child of the process that it belongs to; nothing of it is to be touched, and no lock waited for."""
        return self._pid != os.getpid()

    # -- keeping house ------------------------------------------------------------------------------------------

    def keep_house(self, deadline: Deadline) -> bool:
        """A little of what has to be done now and then; whether there is more of it.

        Raises:
            SpoolError, sqlite3.Error, OSError: it could not be done.
        """
        with self._in_use(deadline):
            self._mending(lambda: self.reserve.keep(), deadline)
        return self._save_some(deadline) or self._shrink(deadline)

    def _shrink(self, deadline: Deadline) -> bool:
        if not self.read(rows.is_too_large, deadline):
            return False
        with self._in_use(deadline), self._gate(deadline) as database:
            database.shrink(deadline)
        return True

    def _save_some(self, deadline: Deadline) -> bool:
        """Bring a piece of a damaged file into the one in use; whether there may be more."""
        name = next(iter(self.folder.damaged()), None)
        if name is None:
            return False
        upto = self.read(partial(rows.saved_upto, name=name), deadline)
        with self._in_use(deadline), self._with_locks().maybe(SAVING) as is_ours:
            if not is_ours:
                return False
            with self._with_locks().alone(WRITING, deadline):
                pass  # nobody is still writing into it
            piece = read_piece(os.path.join(self.folder.path, name), upto)
        is_saved = self.write(partial(save, name=name, after=upto, piece=piece), deadline, rings=True)
        if is_saved and piece.is_last:
            self.folder.saved(name)
            logger.warning("what can be read of %s in the spool %s is saved", name, self.folder.path)
        return True

    # -- the file -----------------------------------------------------------------------------------------------

    @contextmanager
    def _in_use(self, deadline: Deadline) -> Iterator[None]:
        """This thread has the file for itself, in this process."""
        if self._is_inherited:
            raise RuntimeError("a spool of the parent process is used in its child: make a new link")
        if not self.using.acquire(timeout=deadline.left):
            raise SpoolBusy(f"another thread had {self.folder.path} for all of the time that this call had")
        try:
            yield
        finally:
            self.using.release()

    @contextmanager
    def _gate(self, deadline: Deadline) -> Iterator[Database]:
        """The file that is in use, and stays it meanwhile: it was not set aside before, and is not until the end."""
        while True:
            database = self._opened(deadline)
            with self._with_locks().together(WRITING, deadline):
                if database.is_current and not self._with_locks().is_gone:
                    yield database
                    return
            self._close_file()
            if deadline.is_over:
                raise SpoolBusy(f"{self.folder.path} changes faster than it can be opened")

    def _opened(self, deadline: Deadline) -> Database:
        if self._database is None:
            self._find_folder()
            locks = self._with_locks()
            if not locks.is_at(self.folder.locks):
                locks.move_to(self.folder.open_locks())
            with locks.alone(OPENING, deadline):
                self.folder.finish()
                self.file = self.folder.current() or self.folder.make_file()
                self._database = self._open_file(deadline)
            self._opened_times += 1
        return self._database

    def _open_file(self, deadline: Deadline) -> Database:
        try:
            return Database(self.file, deadline, time.sleep, self.folder.sync)
        except (sqlite3.Error, OSError):
            if free_bytes(self.folder.path) > TO_OPEN or not self.reserve.spend(TO_OPEN):
                raise
            return Database(self.file, deadline, time.sleep, self.folder.sync)

    def _mending(self, step: Callable[[], Answer], deadline: Deadline) -> Answer:
        """Do something; if the file is damaged, with another one. :attr:`using` is held."""
        try:
            return step()
        except sqlite3.Error as exc:
            if not is_broken(exc):
                raise
            self._set_aside(exc, deadline)
            return step()

    def _set_aside(self, why: Exception, deadline: Deadline) -> None:
        """Let the file be in use no more. Others that have it open notice that before their next transaction."""
        with letting_go(self.file):
            self._close_file()
        locks = self._with_locks()
        with locks.alone(OPENING, deadline):
            if self.folder.current() != self.file:
                return  # another process has done it
            aside = self.folder.set_aside(self.file)
            with locks.alone(WRITING, deadline):  # whoever had begun to write into it before has ended
                self.folder.finish()
        logger.critical(
            "the file of the spool %s is damaged (%s) and set aside as %s: sends go on in a new one, and a syphon "
            "saves what can be read of it. Look at the disk of this machine",
            *(self.folder.path, why, aside),
        )

    def _find_folder(self) -> None:
        """Make the folder, but not once more: one that is gone may come back, with what is in it."""
        is_new = self.folder.path not in _found
        if is_new:
            self.folder.make()
        self.folder.require()
        if is_new:
            require_trust(self.folder.path)
        _found.add(self.folder.path)

    def _with_locks(self) -> Locks:
        if self._locks is None:
            self._find_folder()
            self._locks = Locks(self.folder.open_locks(), time.sleep)
            with letting_go(self.reserve.path):
                self.reserve.keep()
        return self._locks

    def _close_file(self) -> None:
        database, self._database = self._database, None
        if database is not None:
            database.close()

    def close(self) -> bool:
        """Let go of the file, and of the locks, unless a disk that hangs keeps a thread at them; whether it is done."""
        if self._is_inherited or not self.using.acquire(timeout=CLOSING):
            return False
        try:
            self._close_file()
            locks, self._locks = self._locks, None
            if locks is not None:
                locks.close()
        finally:
            self.using.release()
        return True
