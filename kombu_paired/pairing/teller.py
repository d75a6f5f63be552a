"""Says what happens in a pairing, to its log and to whoever listens to events: fed with values, it decides nothing.

Log lines are for operators and events for programs: both are promises, in ``docs/operations.md`` and in the journal.
"""

from __future__ import annotations

import logging
from collections.abc import Callable
from typing import Any

from kombu_paired import events
from kombu_paired.declarations import Entity
from kombu_paired.errors import NamespaceFailure
from kombu_paired.events import Event, EventKind, EventStream
from kombu_paired.isolation import BY_HAND
from kombu_paired.message import Message
from kombu_paired.options import PairedNamespaceOptions
from kombu_paired.pairing.backlog_route import Pulled, Stored
from kombu_paired.pairing.call import Call
from kombu_paired.pairing.circuit import CircuitState, Transition

__all__ = ("Teller",)

logger = logging.getLogger("kombu_paired.pairing")  # the name that settings of logs know


class Teller:
    """The voice of a pairing.

    Arguments:
        pairing: its name.
        options: its settings.
        secondary: address of its secondary, without secrets.
        stream: of its events; those of all pairings are in :data:`kombu_paired.events.everywhere`.
        wall_clock: seconds since 1970, UTC.
        concerns: the entity that events name for that of a message.
    """

    def __init__(
        self,
        pairing: str,
        options: PairedNamespaceOptions,
        secondary: str,
        stream: EventStream,
        wall_clock: Callable[[], float],
        concerns: Callable[[Entity], Entity],
    ) -> None:
        self._pairing = pairing
        self._options = options
        self._secondary = secondary
        self._stream = stream
        self._wall_clock = wall_clock
        self._concerns = concerns

    def wants(self, kind: EventKind) -> bool:
        """Whether an event of this kind is worth building."""
        return self._stream.wants(kind) or events.everywhere.wants(kind)

    @property
    def hears_of_sends(self) -> bool:
        """Whether anybody wants to know of a message that the primary took."""
        everywhere, sent = events.everywhere, EventKind.SENT  # asked for each message: no further call
        return bool(everywhere.meters) or sent in everywhere.wanted or sent in self._stream.wanted

    def emit(self, kind: EventKind, *, at: float | None = None, **facts: Any) -> None:
        """Tell listeners of this pairing, and of all.

        Arguments:
            at: when it happened (seconds since 1970, UTC); now by default.
            facts: further fields of the :class:`~kombu_paired.events.Event`.
        """
        if self.wants(kind):
            event = Event(kind, self._wall_clock() if at is None else at, self._pairing, **facts)
            self._stream.emit(event)
            events.everywhere.emit(event)

    # -- of the pairing -----------------------------------------------------------------------------------------

    def secondary_is_away(self, failure: NamespaceFailure) -> None:
        """Found when it opens."""
        logger.warning(
            "pairing %s: %s. Nothing is lost while the primary namespace works, and the secondary is tried "
            "again when it is needed",
            self._pairing,
            failure,
        )

    def found_backlog_queues(self, usable: int) -> None:
        wanted = self._options.backlog_queue_count
        if usable < wanted:
            logger.warning("pairing %s: %d of %d backlog queues are usable", self._pairing, usable, wanted)

    def waits(self, failure: NamespaceFailure, seconds: float) -> None:
        """For a primary that is busy."""
        logger.warning("%s; waiting %g s", failure, seconds)

    def closed(self) -> None:
        self.emit(EventKind.CLOSED)

    # -- of an entity -------------------------------------------------------------------------------------------

    def changed(
        self, entity: Entity, transition: Transition, failure: NamespaceFailure | None = None, detail: str = ""
    ) -> None:
        """An entity's state did."""
        path = entity.path
        why = str(failure) if failure else detail
        kind = failure.kind.value if failure else None
        if transition.after is CircuitState.ISOLATED:
            logger.warning("pairing %s: %s is isolated: what is sent goes to %s", self._pairing, path, self._secondary)
            if transition.before is not CircuitState.FAILED_OVER:
                self.emit(EventKind.FAILED_OVER, entity=path, detail=BY_HAND)
        elif transition.before is CircuitState.ISOLATED:
            logger.warning("pairing %s: %s is isolated no more, and is pinged", self._pairing, path)
        elif transition.enters(CircuitState.SUSPECT):
            logger.warning("pairing %s: %s is suspect: %s", self._pairing, path, why)
            self.emit(EventKind.SUSPECT, entity=path, failure=kind, detail=why)
        elif transition.enters(CircuitState.FAILED_OVER):
            logger.error(
                "pairing %s: %s is failed over to %s; pinged every %g s. %s",
                self._pairing,
                path,
                self._secondary,
                self._options.ping_interval,
                why,
            )
            self.emit(EventKind.FAILED_OVER, entity=path, failure=kind, detail=why)
        else:
            logger.warning("pairing %s: %s is restored %s", self._pairing, path, why)
            self.emit(EventKind.RESTORED, entity=path, detail=why)

    def pinged(self, entity: Entity, started: float, failure: NamespaceFailure | None) -> None:
        self.emit(
            EventKind.PING,
            entity=entity.path,
            failure=failure.kind.value if failure else None,
            seconds=self._wall_clock() - started,
            detail=str(failure) if failure else "",
        )
        if failure is not None:
            logger.info("pairing %s: ping of %s: %s", self._pairing, entity.path, failure)

    # -- of a message -------------------------------------------------------------------------------------------

    def sent(self, message: Message, started: float, doubt: bool) -> None:
        """The primary took it. Worth a call only if :attr:`hears_of_sends`: this is the healthy path."""
        if events.everywhere.meters:
            events.everywhere.measured(self._pairing, max(0.0, self._wall_clock() - started))
        self._emit_message(EventKind.SENT, message, started, route="primary", doubt=doubt)

    def send_failed(self, call: Call, failure: NamespaceFailure) -> None:
        """The primary did not take it."""
        self._emit_message(EventKind.SEND_FAILED, call.message, call.started, failure=failure, route="primary")

    def backlog_unavailable(self, call: Call, failure: NamespaceFailure) -> None:
        """No side took it. Its caller may well send it again, with the same id: hence the doubt."""
        doubt = call.maybe_stored
        self._emit_message(EventKind.BACKLOG_UNAVAILABLE, call.message, call.started, failure=failure, doubt=doubt)

    def was_just_being_taken(self, message: Message, failure: NamespaceFailure) -> None:
        """By a consumer, when its primary failed."""
        path = message.entity.path
        logger.warning("pairing %s: a message of %s was just being taken: %s", self._pairing, path, failure)

    def remote_control_is_dropped(self, message: Message, failure: NamespaceFailure) -> None:
        path = message.entity.path
        logger.info("pairing %s: remote control to %s is dropped: %s", self._pairing, path, failure)

    def _emit_message(
        self,
        kind: EventKind,
        message: Message,
        started: float,
        *,
        failure: NamespaceFailure | None = None,
        route: str = "",
        doubt: bool = False,
    ) -> None:
        if self.wants(kind):
            self.emit(
                kind,
                entity=self._concerns(message.entity).path,
                message_id=message.message_id,
                route=route,
                size=message.size,
                failure=failure.kind.value if failure else None,
                seconds=self._wall_clock() - started,
                first_attempt=started,
                maybe_duplicate=doubt,
                detail=str(failure) if failure else "",
            )

    # -- of the backlog -----------------------------------------------------------------------------------------

    def stored(self, call: Call, stored: Stored, why: NamespaceFailure | None) -> None:
        """A message was to go to the backlog: all that happened on the way.

        Arguments:
            why: the primary's failure; None if it was not asked.
        """
        if stored.usable is not None:
            self.found_backlog_queues(stored.usable)
        for each in stored.pulled:
            self._pulled(each)
        if stored.message is None:
            return
        if stored.is_readmitted:
            self._readmitted(stored.message.routing_key)
        self._diverted(call, stored, stored.message, why)

    def _pulled(self, pulled: Pulled) -> None:
        queue, failure, at = pulled
        logger.warning(
            "pairing %s: backlog queue %s failed and is left alone for %g s: %s",
            self._pairing,
            queue,
            self._options.backlog_retry_interval,
            failure,
        )
        kind = failure.kind.value
        self.emit(EventKind.BACKLOG_PULLED, at=at, entity=queue, failure=kind, detail=str(failure))

    def _readmitted(self, queue: str) -> None:
        logger.info("pairing %s: backlog queue %s works again", self._pairing, queue)
        self.emit(EventKind.BACKLOG_READMITTED, entity=queue)

    def _diverted(self, call: Call, stored: Stored, message: Message, why: NamespaceFailure | None) -> None:
        self.emit(
            EventKind.DIVERTED,
            entity=self._concerns(call.message.entity).path,
            message_id=message.message_id,
            route="backlog/" + message.routing_key.rsplit("/", 1)[-1],
            size=message.size if self.wants(EventKind.DIVERTED) else None,
            failure=why.kind.value if why else None,
            seconds=self._wall_clock() - call.started,
            first_attempt=call.started,
            maybe_duplicate=stored.maybe_duplicate,
        )
