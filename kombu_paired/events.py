"""The facts that happen, as small immutable records, and who listens.

Whoever wants to know (signals, metrics, the journal) listens; nobody who acts knows who does. An event that nobody
listens to is never built, so the healthy path pays one look at a set.
"""

from __future__ import annotations

import enum
import logging
import threading
from collections.abc import Callable, Collection
from dataclasses import dataclass

__all__ = ("Event", "EventKind", "EventStream", "Listener", "everywhere")

logger = logging.getLogger(__name__)


class EventKind(enum.Enum):
    """What can happen to a message, an entity, a backlog queue, a syphon, a pairing or its journal."""

    SENT = "sent"
    DIVERTED = "diverted"
    SEND_FAILED = "send_failed"
    BACKLOG_UNAVAILABLE = "backlog_unavailable"
    SUSPECT = "suspect"
    FAILED_OVER = "failed_over"
    PING = "ping"
    RESTORED = "restored"
    BACKLOG_PULLED = "backlog_pulled"
    BACKLOG_READMITTED = "backlog_readmitted"
    POLLED = "polled"
    RECEIVED_FROM_BACKLOG = "received_from_backlog"
    SYPHONED = "syphoned"
    DEAD_LETTERED = "dead_lettered"
    ABANDONED = "abandoned"
    CONSUMED = "consumed"
    SYPHON_STARTED = "syphon_started"
    SYPHON_STOPPED = "syphon_stopped"
    CLOSED = "closed"
    FAULTED = "faulted"
    JOURNAL_TRIMMED = "journal_trimmed"

    __hash__ = object.__hash__  # an enum's own is a Python function, and every send looks for listeners


@dataclass(frozen=True)
class Event:
    """One fact.

    Attributes:
        kind: what happened.
        time: when (seconds since 1970, UTC).
        pairing: the primary's name.
        entity: the entity's path, or the backlog queue's name for events of the rotation and the syphon.
        message_id: of the message, where there is one.
        route: ``primary`` or ``backlog/<i>``.
        size: bytes of the message.
        failure: the :class:`~kombu_paired.failures.FailureKind`'s value.
        seconds: how long the step took.
        first_attempt: when the application sent the message (seconds since 1970, UTC).
        maybe_duplicate: the primary may have stored the message besides.
        detail: a sentence without secrets.
    """

    kind: EventKind
    time: float
    pairing: str
    entity: str = ""
    message_id: str | None = None
    route: str = ""
    size: int | None = None
    failure: str | None = None
    seconds: float | None = None
    first_attempt: float | None = None
    maybe_duplicate: bool = False
    detail: str = ""


Listener = Callable[[Event], None]


class EventStream:
    """Hands events to listeners, in the thread in which they happen."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._listeners: dict[EventKind, tuple[Listener, ...]] = {}

    def listen(self, listener: Listener, kinds: Collection[EventKind] = tuple(EventKind)) -> None:
        """Call ``listener`` with every event of these kinds; listening twice changes nothing."""
        with self._lock:
            for kind in kinds:
                present = self._listeners.get(kind, ())
                if listener not in present:
                    self._listeners[kind] = (*present, listener)

    def silence(self, listener: Listener) -> None:
        """Stop calling ``listener``."""
        with self._lock:
            for kind, present in list(self._listeners.items()):
                self._listeners[kind] = tuple(each for each in present if each != listener)

    def wants(self, kind: EventKind) -> bool:
        """Whether anybody listens, so that an event is worth building."""
        return bool(self._listeners.get(kind))

    def emit(self, event: Event) -> None:
        """Tell the listeners. A listener's error is logged and goes no further: no send may fail for it."""
        for listener in self._listeners.get(event.kind, ()):
            try:
                listener(event)
            except Exception:
                logger.exception("a listener of %s events failed: %r", event.kind.value, listener)


#: Listeners of every pairing of the process, present and to come.
everywhere = EventStream()
