"""Says what happens in a syphon, to its log and to whoever listens to events: fed with values, it decides nothing.

Log lines are for operators and events for programs: both are promises, in ``docs/operations.md`` and in the journal.
"""

from __future__ import annotations

import logging
import time
from collections import Counter
from collections.abc import Iterable, Sequence
from typing import Any

from kombu_paired.brokers.roles import DeadLetter, Received
from kombu_paired.declarations import Entity
from kombu_paired.errors import NamespaceFailure
from kombu_paired.events import EventKind
from kombu_paired.pairing import Pairing
from kombu_paired.stand_in import STAND_IN_MARK, STAND_IN_ROUTE
from kombu_paired.syphon.parcel import Parcel

__all__ = ("Teller",)

logger = logging.getLogger("kombu_paired.syphon")  # the name that settings of logs know


class Teller:
    """The voice of a syphon, which speaks through its pairing."""

    def __init__(self, pairing: Pairing) -> None:
        self._pairing = pairing

    # -- of the syphon ------------------------------------------------------------------------------------------

    def started(self, pumps: int) -> None:
        logger.info("syphon of pairing %s started: %d backlog queues", self._pairing.name, pumps)
        self._pairing.emit(EventKind.SYPHON_STARTED)

    def stands_by(self) -> None:
        logger.info(
            "syphon of pairing %s stands by: another process of this machine moves it",
            self._pairing.name,
        )

    def stopped(self) -> None:
        self._pairing.emit(EventKind.SYPHON_STOPPED)

    def primary_failed(self, failure: NamespaceFailure) -> None:
        """As a whole: a pump found it out."""
        logger.warning("syphon of pairing %s waits: %s. The backlog stays where it is", self._pairing.name, failure)

    def isolated(self) -> None:
        """Every entity is: a pump has something to move, and may not."""
        logger.warning(
            "syphon of pairing %s waits: every entity is isolated. The backlog stays where it is", self._pairing.name
        )

    def tries_again(self, what: str, failure: BaseException | None) -> None:
        """It failed for the first time, and is tried again and again."""
        logger.warning("syphon of pairing %s %s: %s", self._pairing.name, what, failure)

    def faulted(self, survivor: str) -> None:
        """One namespace, since the other was closed."""
        waited = self._pairing.options.close_timeout
        text = f"{survivor} is faulted, since its partner was closed {waited:g} s ago"
        logger.error("pairing %s: %s", self._pairing.name, text)
        self._pairing.emit(EventKind.FAULTED, detail=text)

    # -- of a pump ----------------------------------------------------------------------------------------------

    def interrupted(self, queue: str, failure: NamespaceFailure) -> None:
        """The secondary failed, or one queue of it; the pump begins anew with that."""
        logger.info("syphon of pairing %s, %s: %s", self._pairing.name, queue, failure)

    def unexpected(self, queue: str) -> None:
        """Called where it is caught."""
        logger.exception("syphon of pairing %s, %s: unexpected; it goes on", self._pairing.name, queue)

    def polled(self, queues: Iterable[str], batch: Sequence[Received]) -> None:
        """What a poll of these queues brought, one event for each."""
        found = Counter(received.queue for received in batch)
        for queue in queues:
            self._pairing.emit(EventKind.POLLED, entity=queue, detail=f"{found[queue]} messages")
        if batch and self._pairing.anyone_wants(EventKind.RECEIVED_FROM_BACKLOG):
            for received in batch:
                self._emit(EventKind.RECEIVED_FROM_BACKLOG, received)

    def rests(self, entity: Entity, failure: NamespaceFailure) -> None:
        """An entity is left alone for a while."""
        logger.warning("syphon of pairing %s leaves %s alone for a while: %s", self._pairing.name, entity.path, failure)

    def declarations_refused(self, entity: Entity, failure: NamespaceFailure) -> None:
        logger.info("syphon: the declarations of %s were refused: %s", entity.path, failure)

    # -- of messages --------------------------------------------------------------------------------------------

    def delivered(self, parcels: Sequence[Parcel]) -> None:
        """The primary has them."""
        self._arrived(EventKind.SYPHONED, parcels)

    def handed_out(self, parcels: Sequence[Parcel]) -> None:
        """Workers that stand in have them."""
        self._arrived(EventKind.HANDED_OUT, parcels)

    def _arrived(self, kind: EventKind, parcels: Sequence[Parcel]) -> None:
        if not parcels or not self._pairing.anyone_wants(kind):
            return
        now = time.time()
        for parcel in parcels:
            self._pairing.emit(
                kind,
                entity=self._pairing.concerns(parcel.entity).path,
                message_id=parcel.message.message_id,
                route=_route(parcel.received.queue),
                size=parcel.received.message.size,
                seconds=now - parcel.diversion.at,
                first_attempt=parcel.diversion.first_attempt,
                maybe_duplicate=parcel.maybe_duplicate,
                began=parcel.began,
                headers=parcel.message.headers,
            )

    def abandoned(self, parcels: Sequence[Parcel]) -> None:
        for parcel in parcels:
            self._emit(EventKind.ABANDONED, parcel.received)

    def dead_lettered(self, letters: Sequence[DeadLetter]) -> None:
        for letter in letters:
            message, queue = letter.received.message, letter.received.queue
            logger.error(
                "syphon of pairing %s: message %s of %s is a dead letter: %s: %s",
                self._pairing.name,
                message.message_id,
                queue,
                letter.reason,
                letter.description,
            )
            self._emit(EventKind.DEAD_LETTERED, letter.received, detail=letter.reason)

    def _emit(self, kind: EventKind, received: Received, **facts: Any) -> None:
        queue, message_id = received.queue, received.message.message_id
        self._pairing.emit(kind, entity=queue, message_id=message_id, route=_route(queue), **facts)


def _route(queue: str) -> str:
    return STAND_IN_ROUTE if STAND_IN_MARK in queue else "backlog/" + queue.rsplit("/", 1)[-1]
