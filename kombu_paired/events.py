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

__all__ = (
    "JOURNAL_FIELDS",
    "JOURNAL_VERSION",
    "ORPHANED",
    "Event",
    "EventKind",
    "EventStream",
    "JournalField",
    "Listener",
    "everywhere",
)

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


#: Version of the journal's lines; a reader refuses one that it does not know.
JOURNAL_VERSION = 1
#: Seconds after its hour in which a journal that is still open has lost its writer: a living one closes it at the hour.
ORPHANED = 7200.0


@dataclass(frozen=True)
class JournalField:
    """One field of a journal's line.

    Attributes:
        name: its key in the line's JSON object.
        type: ``integer`` (64 bits), ``number`` (double), ``text`` or ``boolean``.
        required: it is in every line; the others are left out where they say nothing.
        meaning: what it says, and in which unit.
    """

    name: str
    type: str
    required: bool
    meaning: str


#: The fields of a line, in their order. The journal writes them and the pipeline's schema is made from them.
JOURNAL_FIELDS: tuple[JournalField, ...] = (
    JournalField("v", "integer", True, "version of the line's format"),
    JournalField("time", "integer", True, "when it happened: microseconds since 1970, UTC"),
    JournalField(
        "first_attempt", "integer", False, "when the application sent the message: microseconds since 1970, UTC"
    ),
    JournalField("host", "text", True, "name of the host that wrote the line"),
    JournalField("pid", "integer", True, "its process"),
    JournalField("seq", "integer", True, "number of the line in that process, from 1, without holes"),
    JournalField("event", "text", True, "the value of an EventKind"),
    JournalField("pairing", "text", True, "the primary's name"),
    JournalField(
        "entity", "text", False, "the entity's path; the backlog queue for events of the rotation and the syphon"
    ),
    JournalField("message_id", "text", False, "of the message"),
    JournalField("route", "text", False, "primary, or backlog/<i>"),
    JournalField("bytes", "integer", False, "size of the message"),
    JournalField("failure", "text", False, "the value of a FailureKind"),
    JournalField("ms", "number", False, "milliseconds that the step took"),
    JournalField("maybe_duplicate", "boolean", False, "the primary may have stored the message besides"),
    JournalField("detail", "text", False, "a sentence, without secrets"),
)
