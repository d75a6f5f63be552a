"""What the demo's processes wrote down, read as it grows: the fate of each message, the chronicle, the balance.

Two sources are kept apart. The balance believes the producer's notes (what each call returned) and the ledger (what
each task wrote) alone. Events, which come from the transport itself, colour the live view and nothing else.
"""

from __future__ import annotations

import enum
import json
import threading
import time
from collections import Counter
from collections.abc import Iterator
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

from kombu_paired.demo.app import EVENTS, LEDGER, PUBLISHED

__all__ = ("Balance", "Chapter", "Fate", "Story", "Times")

#: What happens to one message after the other.
FLOWING = frozenset({"diverted", "syphoned", "handed_out", "dead_lettered", "error"})


class Fate(enum.IntEnum):
    """Where a message is; the less is done, the smaller."""

    ERROR = 0
    PLANNED = 1
    IN_BACKLOG = 2
    CAME_HOME = 3
    WAITING = 4
    RAN_FROM_BACKLOG = 5
    RAN_MEANWHILE = 6
    RAN_DIRECT = 7


@dataclass
class Chapter:
    """One line of the chronicle: something that happened, or the same thing many times over.

    Attributes:
        at: when it began (seconds since 1970, UTC).
        kind: an event's kind, or ``stage`` for what the demo itself does.
    """

    at: float
    kind: str
    text: str
    count: int = 1


@dataclass
class Times:
    """When the demo did what (seconds since 1970, UTC); 0 while it has not."""

    killed: float = 0.0
    restored: float = 0.0


@dataclass(frozen=True)
class Balance:
    """What is printed at the end, and nothing but.

    Attributes:
        published: calls that returned.
        publish_errors: calls that raised.
        executed: different numbers in the ledger.
        lost: published, and never executed.
        duplicates: executions beyond the first of each number.
        stranded: messages still in a backlog queue.
        longest_publish_s: the slowest call.
        failover_s: from the SIGKILL until the first call that began after it had returned.
        drain_s: from the primary's being ready again until all that had been published by then had run.
        ran_during_outage: sent after the kill, and run before the primary was ready; None if no worker was to stand in.
    """

    published: int
    publish_errors: int
    executed: int
    lost: int
    duplicates: int
    stranded: int
    longest_publish_s: float
    failover_s: float | None
    drain_s: float | None
    ran_during_outage: int | None = None

    @property
    def is_even(self) -> bool:
        return not (self.lost or self.publish_errors or self.stranded)

    def as_json(self) -> dict[str, Any]:
        return asdict(self)


class _Lines:
    """The lines of a file that grows; each is given once, and only when it is whole."""

    def __init__(self, path: Path) -> None:
        self._path = path
        self._read = 0

    def new(self) -> Iterator[str]:
        if not self._path.exists():
            return
        with self._path.open("rb") as file:
            file.seek(self._read)
            data = file.read()
        whole = data[: data.rfind(b"\n") + 1]
        self._read += len(whole)
        yield from whole.decode().splitlines()


@dataclass(frozen=True)
class _Call:
    """One publish: when it began (seconds since 1970, UTC), how many seconds it took, what it raised."""

    number: int
    started: float
    took: float
    error: str | None

    @property
    def returned(self) -> float:
        return self.started + self.took


class Story:
    """All that is known so far. One thread reads on, others look.

    Arguments:
        messages: how many are published.
        stand_in: the worker is to stand in.
    """

    def __init__(self, folder: Path, messages: int, stand_in: bool = False) -> None:
        self.messages = messages
        self._stand_in = stand_in
        self.times = Times()
        self.chapters: list[Chapter] = []
        self.ready_workers = 0
        self.last_change = time.monotonic()
        self.calls: dict[int, _Call] = {}
        self._runs: Counter[int] = Counter()
        self._first_run: dict[int, float] = {}
        self._diverted: set[int] = set()
        self._syphoned: set[int] = set()
        self._published_lines = _Lines(folder / PUBLISHED)
        self._ledger_lines = _Lines(folder / LEDGER)
        self._event_lines = _Lines(folder / EVENTS)
        self._lock = threading.RLock()

    # -- reading on ---------------------------------------------------------------------------------------------

    def read_on(self) -> None:
        with self._lock:
            for line in self._event_lines.new():
                self._note_event(json.loads(line))
            for line in self._published_lines.new():
                call = _Call(**json.loads(line))
                self.calls[call.number] = call
                if call.error:
                    self.tell("error", f"publish failed: {call.error}", call.returned)
            for line in self._ledger_lines.new():
                number, at = line.split()
                self._runs[int(number)] += 1
                self._first_run.setdefault(int(number), float(at))
                self.last_change = time.monotonic()

    def tell(self, kind: str, text: str, at: float | None = None) -> None:
        """Add to the chronicle; what happens to many messages makes one line, until something else happens."""
        with self._lock:
            for chapter in self.chapters[self.settled_chapters :]:
                if chapter.kind == kind:
                    chapter.count += 1
                    return
            latest = self.chapters[-1].at if self.chapters else 0.0
            self.chapters.append(Chapter(max(at or time.time(), latest), kind, text))

    @property
    def settled_chapters(self) -> int:
        """How many chapters, from the first one, will not change any more."""
        with self._lock:
            count = len(self.chapters)
            while count and self.chapters[count - 1].kind in FLOWING:
                count -= 1
            return count

    def _note_event(self, event: dict[str, Any]) -> None:
        kind = event["kind"]
        if kind == "worker_ready":
            self.ready_workers += 1
            return
        number = _number_of(event.get("id"))
        if number is not None and kind in ("diverted", "syphoned"):
            (self._diverted if kind == "diverted" else self._syphoned).add(number)
        self.tell(kind, event.get("failure") or "", event["time"])

    # -- looking ------------------------------------------------------------------------------------------------

    @property
    def returned(self) -> int:
        """Calls that are over, one way or the other."""
        return len(self.calls)

    @property
    def missing(self) -> int:
        """Published without an error, and not in the ledger yet."""
        with self._lock:
            return sum(not call.error and number not in self._runs for number, call in self.calls.items())

    def fates(self) -> list[Fate]:
        with self._lock:
            return [self._fate(number) for number in range(self.messages)]

    def _fate(self, number: int) -> Fate:
        if number in self._runs:
            if number not in self._diverted:
                return Fate.RAN_DIRECT
            return Fate.RAN_MEANWHILE if self._ran_meanwhile(number) else Fate.RAN_FROM_BACKLOG
        if number in self._syphoned:
            return Fate.CAME_HOME
        if number in self._diverted:
            return Fate.IN_BACKLOG
        call = self.calls.get(number)
        if call is None:
            return Fate.PLANNED
        return Fate.ERROR if call.error else Fate.WAITING

    def _ran_meanwhile(self, number: int) -> bool:
        """It ran while the primary was dead."""
        killed, back = self.times.killed, self.times.restored
        return bool(killed) and killed <= self._first_run[number] and (not back or self._first_run[number] < back)

    # -- the balance --------------------------------------------------------------------------------------------

    def balance(self, stranded: int) -> Balance:
        """Arguments: stranded: messages that the broker says are left in backlog queues."""
        published = [call for call in self.calls.values() if not call.error]
        return Balance(
            published=len(published),
            publish_errors=len(self.calls) - len(published),
            executed=len(self._runs),
            lost=sum(call.number not in self._runs for call in published),
            duplicates=self._runs.total() - len(self._runs),
            stranded=stranded,
            longest_publish_s=round(max((call.took for call in self.calls.values()), default=0.0), 3),
            failover_s=self._failover(published),
            drain_s=self._drain(published),
            ran_during_outage=self._during_outage(published) if self._stand_in else None,
        )

    def _during_outage(self, published: list[_Call]) -> int:
        """What the worker had fetched before the kill, and ran after it, says nothing of standing in."""
        after = [call.number for call in published if call.started >= self.times.killed]
        return sum(number in self._first_run and self._ran_meanwhile(number) for number in after)

    def _failover(self, published: list[_Call]) -> float | None:
        killed = self.times.killed
        after = [call.returned for call in published if call.started >= killed]
        return round(min(after) - killed, 3) if killed and after else None

    def _drain(self, published: list[_Call]) -> float | None:
        back = self.times.restored
        by_then = [call.number for call in published if call.returned <= back]
        runs = [self._first_run[number] for number in by_then if number in self._first_run]
        return round(max(max(runs) - back, 0.0), 3) if back and runs else None


def _number_of(task_id: str | None) -> int | None:
    head, _, number = (task_id or "").rpartition("-")
    return int(number) if head == "demo" and number.isdigit() else None
