"""What is counted and timed, whoever shows it: the events of all pairings of a process, as numbers.

A name here is without the prefix and the suffixes that Prometheus and OpenTelemetry put around it, so that both show
the same.
"""

from __future__ import annotations

import logging
import threading
import time
from collections import defaultdict, deque
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Protocol

from kombu_paired import events
from kombu_paired.events import Event, EventKind

__all__ = ("COUNTERS", "GAUGES", "STATES", "TIMERS", "Measure", "Measuring", "Meters")

logger = logging.getLogger(__name__)

#: Seconds after which sends that succeeded are handed on, and how many are kept where nobody hands them on.
HAND_ON_AFTER, MOST_NOTED = 1.0, 10_000
#: Names of entities that are shown at most. An application with a queue for each client has no end of them.
MOST_ENTITIES = 1_000
#: What an entity's state is as a number.
STATES = {EventKind.RESTORED: 0, EventKind.SUSPECT: 1, EventKind.FAILED_OVER: 2}


@dataclass(frozen=True)
class Measure:
    """A number that is kept.

    Attributes:
        name: of it.
        what: it is, in words.
        labels: what it is kept apart by.
        buckets: upper bounds of a timer's histogram (seconds).
    """

    name: str
    what: str
    labels: tuple[str, ...] = ("pairing",)
    buckets: tuple[float, ...] = ()


COUNTERS = (
    Measure("messages_sent", "Messages that the primary took from a sender"),
    Measure("messages_diverted", "Messages that went to a backlog queue"),
    Measure("messages_refused", "Messages that neither namespace took: their callers got an error"),
    Measure("messages_syphoned", "Messages that came home from the backlog"),
    Measure("messages_handed_out", "Messages of the backlog that went to workers which stand in"),
    Measure("messages_dead_lettered", "Messages of the backlog that can never be delivered", ("pairing", "reason")),
    Measure("send_failures", "Sends that the primary did not take", ("pairing", "kind")),
    Measure("failovers", "Entities that were failed over"),
    Measure("pings", "Pings of entities that are failed over", ("pairing", "result")),
)
TIMERS = (
    Measure(
        "send",
        "Time that a message took to be sent, to either side",
        ("pairing", "route"),
        (0.001, 0.0025, 0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1.0, 2.5, 5.0, 10.0, 20.0),
    ),
    Measure(
        "backlog_wait",
        "Time that a message was in the backlog before it came home",
        buckets=(1.0, 5.0, 15.0, 60.0, 300.0, 900.0, 3_600.0, 14_400.0, 86_400.0),
    ),
)
GAUGES = (
    Measure(
        "entity_state", "0 healthy, 1 suspect, 2 failed over; the worst that a process knows", ("pairing", "entity")
    ),
    Measure("syphons", "Processes that run a syphon"),
    Measure("standing_in", "Processes whose workers stand in"),
)


class Meters(Protocol):
    """Where the numbers are kept. Labels are given in the order of :attr:`Measure.labels`."""

    def count(self, name: str, *labels: str, times: int = 1) -> None: ...

    def time(self, name: str, seconds: Sequence[float], *labels: str) -> None: ...

    def set(self, name: str, value: int, *labels: str) -> None: ...


class Measuring:
    """Turns what happens in this process into numbers.

    A send that succeeds must cost next to nothing: it is noted, and many are handed on together, by :meth:`hand_on`.

    Arguments:
        meters: keeps them.
        hands_on: by itself, within a second, in a thread of its own, which starts with the first send; else whoever
            shows the numbers calls :meth:`hand_on` before.
    """

    def __init__(self, meters: Meters, *, hands_on: bool) -> None:
        self._meters = meters
        self._lock = threading.Lock()
        self._entities: dict[str, set[str]] = {}  # pairing -> those that were not healthy
        self._sends: defaultdict[str, deque[float]] = defaultdict(deque)  # pairing -> seconds of each
        self._hands_on = hands_on
        self._is_noted = threading.Event()
        self._thread: threading.Thread | None = None
        self._on: dict[EventKind, Callable[[Event], None]] = {
            EventKind.DIVERTED: self._diverted,
            EventKind.SYPHONED: self._syphoned,
            EventKind.HANDED_OUT: lambda event: meters.count("messages_handed_out", event.pairing),
            EventKind.BACKLOG_UNAVAILABLE: lambda event: meters.count("messages_refused", event.pairing),
            EventKind.DEAD_LETTERED: lambda event: meters.count("messages_dead_lettered", event.pairing, event.detail),
            EventKind.SEND_FAILED: lambda event: meters.count("send_failures", event.pairing, event.failure or ""),
            EventKind.PING: lambda event: meters.count("pings", event.pairing, event.failure or "ok"),
            EventKind.SUSPECT: self._changed,
            EventKind.FAILED_OVER: self._failed_over,
            EventKind.RESTORED: self._changed,
            EventKind.SYPHON_STARTED: lambda event: meters.set("syphons", 1, event.pairing),
            EventKind.SYPHON_STOPPED: lambda event: meters.set("syphons", 0, event.pairing),
            EventKind.STANDING_IN: lambda event: meters.set("standing_in", 1, event.pairing),
            EventKind.CAME_HOME: lambda event: meters.set("standing_in", 0, event.pairing),
            EventKind.CLOSED: self._closed,
        }

    def start(self) -> None:
        """From now on; twice changes nothing."""
        events.everywhere.measure(self.sent)
        events.everywhere.listen(self.happened, self._on)

    def stop(self) -> None:
        events.everywhere.end_measuring(self.sent)
        events.everywhere.silence(self.happened)

    def start_clean(self) -> None:
        """In a child process, whose entities are all healthy, and which has sent nothing."""
        self._lock = threading.Lock()
        self._entities.clear()
        self._sends.clear()
        self._is_noted = threading.Event()
        self._thread = None

    # -- sends that succeed -------------------------------------------------------------------------------------

    def sent(self, pairing: str, seconds: float) -> None:
        """The primary took a message: the healthy path."""
        noted = self._sends[pairing]
        noted.append(seconds)
        if self._hands_on:
            if not self._is_noted.is_set():
                self._is_noted.set()
                self._start_handing_on()
        elif len(noted) >= MOST_NOTED:
            self.hand_on()

    def hand_on(self) -> None:
        """Let the meters have what was noted."""
        for pairing, noted in list(self._sends.items()):
            with self._lock:  # two may hand on at once
                taken = [noted.popleft() for _ in range(len(noted))]
            if taken:
                self._meters.count("messages_sent", pairing, times=len(taken))
                self._meters.time("send", taken, pairing, "primary")

    def _start_handing_on(self) -> None:
        with self._lock:
            if self._thread is None:
                self._thread = threading.Thread(target=self._keep_handing_on, name="kombu-paired-metrics", daemon=True)
                self._thread.start()

    def _keep_handing_on(self) -> None:
        while self._is_noted.wait():
            time.sleep(HAND_ON_AFTER)
            self._is_noted.clear()
            try:
                self.hand_on()
            except Exception:
                logger.exception("numbers of sends are lost")

    # -- events -------------------------------------------------------------------------------------------------

    def happened(self, event: Event) -> None:
        self._on[event.kind](event)

    def _diverted(self, event: Event) -> None:
        self._meters.count("messages_diverted", event.pairing)
        self._meters.time("send", _seconds(event), event.pairing, "backlog")

    def _syphoned(self, event: Event) -> None:
        self._meters.count("messages_syphoned", event.pairing)
        self._meters.time("backlog_wait", _seconds(event), event.pairing)

    def _failed_over(self, event: Event) -> None:
        self._meters.count("failovers", event.pairing)
        self._changed(event)

    def _changed(self, event: Event) -> None:
        with self._lock:
            known = self._entities.setdefault(event.pairing, set())
            if event.entity not in known and len(known) >= MOST_ENTITIES:
                return
            known.add(event.entity)
        self._meters.set("entity_state", STATES[event.kind], event.pairing, event.entity)

    def _closed(self, event: Event) -> None:
        """What this process knew of its entities, it knows no longer."""
        with self._lock:
            known = self._entities.pop(event.pairing, set())
        for entity in known:
            self._meters.set("entity_state", 0, event.pairing, entity)


def _seconds(event: Event) -> tuple[float, ...]:
    return (max(0.0, event.seconds or 0.0),)
