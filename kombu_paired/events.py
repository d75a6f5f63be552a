"""The facts that happen, as small immutable records, and who listens.

Whoever wants to know (signals, metrics, the journal) listens; nobody who acts knows who does. An event that nobody
listens to is never built, so the healthy path pays one look at a set.
"""

from __future__ import annotations

import enum
import logging
import threading
from collections.abc import Callable, Collection, Mapping
from dataclasses import dataclass, field
from typing import Any

__all__ = ("Event", "EventKind", "EventStream", "Listener", "Meter", "everywhere")

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
    STANDING_IN = "standing_in"
    CAME_HOME = "came_home"
    HANDED_OUT = "handed_out"
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
        route: ``primary``, ``backlog/<i>``, or ``stand-in``: from a stand-in queue.
        size: bytes of the message.
        failure: the :class:`~kombu_paired.failures.FailureKind`'s value.
        seconds: how long the step took.
        first_attempt: when the application sent the message (seconds since 1970, UTC).
        maybe_duplicate: the primary may have stored the message besides.
        detail: a sentence without secrets.
        began: when the syphon began to send it (seconds since 1970, UTC); of ``syphoned`` alone.
        headers: the application's, of what left the backlog; not to be changed, nor to be shown.
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
    began: float | None = field(default=None, compare=False)
    headers: Mapping[str, Any] | None = field(default=None, repr=False, compare=False)


Listener = Callable[[Event], None]
#: Is told the name of a pairing, and how many seconds a send took.
Meter = Callable[[str, float], None]


class EventStream:
    """Hands events to listeners, in the thread in which they happen.

    Attributes:
        meters: see :meth:`measure`.
        wanted: kinds of events to which anybody listens, so that they are worth building.
    """

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._listeners: dict[EventKind, tuple[Listener, ...]] = {}
        self.meters: tuple[Meter, ...] = ()
        self.wanted: frozenset[EventKind] = frozenset()

    def listen(self, listener: Listener, kinds: Collection[EventKind] = tuple(EventKind)) -> None:
        """Call ``listener`` with every event of these kinds; listening twice changes nothing."""
        with self._lock:
            for kind in kinds:
                present = self._listeners.get(kind, ())
                if listener not in present:
                    self._listeners[kind] = (*present, listener)
            self._note_what_is_wanted()

    def _note_what_is_wanted(self) -> None:
        self.wanted = frozenset(kind for kind, present in self._listeners.items() if present)

    def measure(self, meter: Meter) -> None:
        """Call ``meter`` with each message that a primary took, for which no event need be built: that is the healthy
        path, and an event costs more than to count one. Measuring twice changes nothing.
        """
        with self._lock:
            if meter not in self.meters:
                self.meters = (*self.meters, meter)

    def end_measuring(self, meter: Meter) -> None:
        """Stop calling ``meter``."""
        with self._lock:
            self.meters = tuple(each for each in self.meters if each != meter)

    def measured(self, pairing: str, seconds: float) -> None:
        """Tell the meters. An error of one is logged and goes no further, as a listener's."""
        for meter in self.meters:
            try:
                meter(pairing, seconds)
            except Exception:
                logger.exception("a meter of sends failed: %r", meter)

    def silence(self, listener: Listener) -> None:
        """Stop calling ``listener``."""
        with self._lock:
            for kind, present in list(self._listeners.items()):
                self._listeners[kind] = tuple(each for each in present if each != listener)
            self._note_what_is_wanted()

    def wants(self, kind: EventKind) -> bool:
        """Whether anybody listens, so that an event is worth building."""
        return kind in self.wanted

    def emit(self, event: Event) -> None:
        """Tell the listeners. A listener's error is logged and goes no further: no send may fail for it."""
        for listener in self._listeners.get(event.kind, ()):
            try:
                listener(event)
            except Exception:
                logger.exception("a listener of %s events failed: %r", event.kind.value, listener)


#: Listeners of every pairing of the process, present and to come.
everywhere = EventStream()
