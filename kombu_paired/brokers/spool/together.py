"""Threads that come at once share one transaction.

A transaction costs a sync of the disk, and one sync does for many. So the first thread that comes writes what all have
brought that wait by then, in one transaction, and those that come meanwhile wait for the next one, which one of them
does for all.
"""

from __future__ import annotations

import sqlite3
import threading
from collections.abc import Callable
from typing import Any

from kombu_paired.brokers.spool.kinds import SpoolBusy, SpoolError
from kombu_paired.deadline import Deadline

__all__ = ("OWN_FAULTS", "Ticket", "Together")

Job = Callable[[sqlite3.Connection], Any]

#: What ends a transaction that then has written nothing: the file's, the system's, or a message's own fault.
OWN_FAULTS = (sqlite3.Error, OSError, ValueError, TypeError, OverflowError)


class Ticket:
    """What a thread has brought, and what became of it."""

    def __init__(self, job: Job, empties: bool) -> None:
        self.job = job
        self.empties = empties
        self.event = threading.Event()
        self.leads = False
        self.is_done = False
        self.answer: Any = None
        self.error: BaseException | None = None

    def do(self, connection: sqlite3.Connection) -> None:
        try:
            self.answer, self.error = self.job(connection), None
        except SpoolError as exc:  # it has written nothing, and is nobody else's trouble
            self.error = exc

    def done(self, error: BaseException | None = None) -> None:
        if not self.is_done:
            self.error = error or self.error
            self.is_done = True
            self.event.set()


class Together:
    """Who waits for a transaction, and who does it for them.

    Arguments:
        do: does what a batch has brought, in one transaction or in several, and says of each that it is done.
        place: what the transactions are of, for errors.

    Attributes:
        waiting: those that nobody has begun with.
    """

    def __init__(self, do: Callable[[list[Ticket], Deadline], None], place: str) -> None:
        self.waiting: list[Ticket] = []
        self._do = do
        self._place = place
        self._is_led = False
        self._lock = threading.Lock()

    def do(self, ticket: Ticket, deadline: Deadline) -> Ticket:
        """Have it done, by this thread or by another one.

        Raises:
            SpoolBusy: it was not, in time.
        """
        try:
            with self._lock:
                self.waiting.append(ticket)
                if not self._is_led:
                    self._is_led = ticket.leads = True
            if not ticket.leads:
                self._wait(ticket, deadline)
            if not ticket.is_done:
                self._lead(ticket, deadline)
        finally:
            self._leave(ticket)
        return ticket

    def _wait(self, ticket: Ticket, deadline: Deadline) -> None:
        """Until it is done by another thread, or this one is to do it."""
        if ticket.event.wait(deadline.left):
            return
        with self._lock:
            if ticket.leads or ticket.is_done:
                return
            is_under_way = ticket not in self.waiting
        raise SpoolBusy(f"no transaction of {self._place} ended in time", is_under_way=is_under_way)

    def _lead(self, mine: Ticket, deadline: Deadline) -> None:
        """Do what all have brought that wait, for them."""
        with self._lock:
            batch, self.waiting = self.waiting, []
        try:
            self._do(batch, deadline)
        except SpoolBusy as exc:  # this one's time is over, and not that of the others
            mine.done(exc)
            batch.remove(mine)
            with self._lock:
                self.waiting = batch + self.waiting
        except (SpoolError, *OWN_FAULTS) as exc:
            for ticket in batch:
                ticket.done(exc)
        except BaseException:  # a time limit of this one's task, a greenlet that is killed
            for ticket in batch:
                ticket.done(SpoolBusy("who wrote it for all was interrupted", is_under_way=True))
            raise

    def _leave(self, ticket: Ticket) -> None:
        """It is done, or its thread waits for it no more. Whoever is to lead does not go without another one."""
        with self._lock:
            if ticket in self.waiting:
                self.waiting.remove(ticket)
            if ticket.leads:
                ticket.leads = False
                self._is_led = bool(self.waiting)
                if self.waiting:
                    self.waiting[0].leads = True
                    self.waiting[0].event.set()
