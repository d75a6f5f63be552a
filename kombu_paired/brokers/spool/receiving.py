"""Receives from a spool: what a receiver has is marked as its own, for as long as its process lives."""

from __future__ import annotations

import logging
import sqlite3
from collections.abc import Callable, Iterable, Sequence
from functools import partial
from time import monotonic
from typing import TYPE_CHECKING

from kombu_paired.brokers.letting_go import letting_go
from kombu_paired.brokers.receiving import LinkReceiver
from kombu_paired.brokers.roles import DeadLetter, Received
from kombu_paired.brokers.spool import rows
from kombu_paired.brokers.spool.kinds import SetAside, SpoolError
from kombu_paired.brokers.spool.links import SpoolLink
from kombu_paired.brokers.spool.store import Seen
from kombu_paired.deadline import Deadline

if TYPE_CHECKING:
    from kombu_paired.brokers.kombu import KombuNamespace

__all__ = ("SpoolReceiver",)

logger = logging.getLogger(__name__)

#: Seconds between two looks at whether another process has changed anything; this one rings a bell.
PAUSE = 0.2
#: Seconds between two looks at whether readers that hold messages are alive.
ROUNDS = 1.0
#: And while there is something to be done in the house.
SHORT_ROUND = 0.05
#: And when that has failed.
LONG_ROUND = 60.0


class SpoolReceiver(LinkReceiver):
    """A receiver of backlog queues of a spool."""

    link: SpoolLink

    def __init__(self, namespace: KombuNamespace, queues: Sequence[str], timeout: float) -> None:
        super().__init__(namespace, SpoolLink(namespace))
        self._queues: list[str] = []
        self._held: dict[str, dict[int, rows.Taken]] = {}
        self._timeout = timeout
        self._next_round = 0.0
        self._seen: Seen | None = None
        self.link.open(timeout)
        self.store = self.link.store
        with self._failing():
            self._reader = self.store.new_reader(self._bell, Deadline(timeout))
        for queue in queues:
            self.add(queue)

    def add(self, queue: str) -> None:
        if queue not in self._queues:
            self._queues.append(queue)
            self._seen = None

    def remove(self, queue: str) -> None:
        if queue in self._queues:
            self._queues.remove(queue)
        held = self._held.pop(queue, {})
        with self._failing():
            self._give_back(held.values(), Deadline(self._timeout))

    # -- receiving ----------------------------------------------------------------------------------------------

    def receive(self, limit: int, timeout: float) -> list[Received]:
        deadline = Deadline(timeout)
        while not self._was_interrupted():
            with self._failing():
                self._look_for_the_dead()
                batch = self._take(limit)
            if batch or deadline.is_over:
                return batch
            self._bell.wait(min(PAUSE, deadline.left))
        return []

    def _take(self, limit: int) -> list[Received]:
        deadline = Deadline(self._timeout)
        seen = self.store.seen(deadline)
        if seen == self._seen or not self._queues:
            return []
        if not self.store.read(partial(rows.is_waiting, queues=self._queues), deadline):
            self._seen = seen
            return []
        queues, reader = list(self._queues), self._reader
        self._queues.append(self._queues.pop(0))  # another one has the first place the next time
        taken = self.store.write(
            lambda connection: rows.take(connection, queues, limit, reader, self.store.file), deadline, empties=True
        )
        if any(not each.is_whole for each in taken):
            logger.error(
                "%s: %d messages are not what was stored, and are dead letters now: look at the disk of this machine",
                *(self.namespace.label, sum(not each.is_whole for each in taken)),
            )
            taken = [each for each in taken if each.is_whole]
        for each in taken:
            self._held.setdefault(each.queue, {})[each.id] = each
        return [Received(rows.message_in(each.head, each.body), each.queue, each, each.again) for each in taken]

    def _look_for_the_dead(self) -> None:
        """What readers held that are gone may be had again, and what a damaged file has of messages."""
        now = monotonic()
        if now < self._next_round:
            return
        self._next_round = now + ROUNDS
        deadline = Deadline(self._timeout)
        dead = self.store.dead(self.store.read(rows.holders, deadline), deadline)
        if dead:
            self.store.write(partial(rows.release, readers=dead), deadline, empties=True)
            self._seen = None
        self._keep_house(deadline)

    def _keep_house(self, deadline: Deadline) -> None:
        """What cannot be done now keeps nobody from receiving."""
        try:
            if self.store.keep_house(deadline):
                self._next_round = monotonic() + SHORT_ROUND
        except (SpoolError, sqlite3.Error, OSError) as exc:
            logger.warning("%s is not being tidied up, and it is tried again later: %r", self.namespace.label, exc)
            self._next_round = monotonic() + LONG_ROUND

    # -- settling -----------------------------------------------------------------------------------------------

    def complete(self, received: Sequence[Received]) -> None:
        ids = [each.token.id for each in received]
        self._settle(received, lambda connection: rows.complete(connection, ids, self._reader))

    def abandon(self, received: Sequence[Received], *, maybe_duplicate: bool = False) -> None:
        taken = [each.token for each in received]
        self._settle(received, lambda connection: rows.abandon(connection, taken, self._reader, maybe_duplicate))

    def dead_letter(self, letters: Sequence[DeadLetter]) -> None:
        received = [each.received for each in letters]
        self._settle(received, lambda connection: rows.dead_letter(connection, letters, self._reader))

    def _settle(self, received: Sequence[Received], how: Callable[[sqlite3.Connection], None]) -> None:
        files = {each.token.file for each in received}

        def settle(connection: sqlite3.Connection) -> None:
            if files - {self.store.file}:
                raise SetAside(f"{', '.join(files)} was damaged and set aside while messages of it were held")
            how(connection)

        with self._failing():
            self.store.write(settle, Deadline(self._timeout), empties=True)
        self._forget(received)

    def _forget(self, received: Iterable[Received]) -> None:
        for each in received:
            self._held.get(each.queue, {}).pop(each.token.id, None)

    def _give_back(self, held: Iterable[rows.Taken], deadline: Deadline) -> None:
        held, reader = list(held), self._reader

        def give_back(connection: sqlite3.Connection) -> None:
            rows.give_back(connection, [each.id for each in held if each.file == self.store.file], reader)

        if held:
            self.store.write(give_back, deadline, rings=True, empties=True)

    def close(self) -> None:
        """What cannot be given back now comes again by itself, since this reader is gone then."""
        if self.link.is_open:
            held = [each for taken in self._held.values() for each in taken.values()]
            with letting_go(f"a receiver of {self.namespace.label}"):
                self._give_back(held, Deadline(min(self._timeout, 1.0)))
            self.store.forget_reader(self._reader, self._bell)
        super().close()
