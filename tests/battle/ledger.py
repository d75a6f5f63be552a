"""The facts: what producers, workers and the harness wrote down, each by itself, and nothing that the product says.

Times are :func:`time.monotonic`, which all processes of a machine share and no clock step changes. A line is one
append, so that a process that is killed leaves a whole line or none. The product's own journal is read for its marks
alone; its wall clock is turned into ours.
"""

from __future__ import annotations

import gzip
import json
import os
import time
from collections import defaultdict
from collections.abc import Iterable, Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any


@dataclass(frozen=True)
class Call:
    """A call of ``delay()``. ``seconds`` is None: it never returned; ``noise``: seconds the machine took for others."""

    id: str
    actor: str
    at: float
    seconds: float | None = None
    noise: float = 0.0
    error: str | None = None

    @property
    def returned(self) -> bool:
        return self.seconds is not None and self.error is None


@dataclass(frozen=True)
class Run:
    """One run of a task. ``received`` is when its worker got the message; ``ended`` is None: it never came so far."""

    id: str
    actor: str
    pid: int
    received: float
    began: float
    ended: float | None


@dataclass(frozen=True)
class Harm:
    """A fault, from its first moment to the one in which all was well again.

    ``target`` is a side (``primary``, ``secondary``), a node of it (``primary/2``), a way (``producer>primary``), an
    actor (``worker1``), or the whole ``machine``, which stood still by itself. ``amount``: by how much the clock was
    set, where that is what was done.
    """

    kind: str
    target: str
    begun: float
    healed: float
    amount: float = 0.0

    def hits(self, side: str, who: str) -> bool:
        """Whether it hit this side, or the way of a producer or a worker (or of one by that name) to it."""
        somebody, is_way, where = self.target.rpartition(">")
        if is_way and not who.startswith(somebody):
            return False
        return where.partition("/")[0] == side or self.target == "machine"

    def overlaps(self, since: float, until: float, grace: float = 0.0) -> bool:
        return self.begun <= until and since <= self.healed + grace


@dataclass(frozen=True)
class Life:
    """A process of an actor. ``how`` it ended: killed, stopped (asked to), itself, hung (it was asked, in vain)."""

    actor: str
    pid: int
    begun: float
    ended: float
    how: str
    code: int | None = None
    seconds: float = 0.0
    last_words: str = ""


@dataclass(frozen=True)
class Entry:
    """A line of the product's journal that is about one message."""

    pid: int
    at: float
    event: str
    id: str
    maybe_duplicate: bool = False


@dataclass
class Record:
    """All that is known of an episode."""

    send_timeout: float
    lock_seconds: float = 60.0
    visibility_timeout: float | None = None
    #: How often Celery sends a message at most, when neither side takes it.
    tries: int = 1
    calls: list[Call] = field(default_factory=list)
    runs: list[Run] = field(default_factory=list)
    harms: list[Harm] = field(default_factory=list)
    lives: list[Life] = field(default_factory=list)
    journal: list[Entry] = field(default_factory=list)
    #: What is in the queues at the end.
    left: dict[str, int] = field(default_factory=dict)
    #: Workers that consumed nothing after all was healed.
    idle: list[str] = field(default_factory=list)

    def runs_by_id(self) -> dict[str, list[Run]]:
        found: dict[str, list[Run]] = defaultdict(list)
        for run in sorted(self.runs, key=lambda run: run.began):
            found[run.id].append(run)
        return found

    def entries_of(self, id: str) -> list[Entry]:
        if not hasattr(self, "_entries"):
            self._entries: dict[str, list[Entry]] = defaultdict(list)
            for entry in sorted(self.journal, key=lambda entry: entry.at):
                self._entries[entry.id].append(entry)
        return self._entries.get(id, [])


class Pen:
    """Writes the facts of one process."""

    def __init__(self, folder: str | os.PathLike[str], actor: str) -> None:
        self._folder = Path(folder)
        self.actor = actor

    def write(self, fact: str, **values: Any) -> None:
        line = {"fact": fact, "at": time.monotonic(), "actor": self.actor, "pid": os.getpid(), **values}
        path = self._folder / f"{self.actor}-{os.getpid()}.facts"
        file = os.open(path, os.O_WRONLY | os.O_APPEND | os.O_CREAT, 0o644)
        try:
            os.write(file, json.dumps(line).encode() + b"\n")
        finally:
            os.close(file)


class Facts:
    """Reads what was written in a folder so far; asked again, it reads only what is new."""

    def __init__(self, folder: str | os.PathLike[str]) -> None:
        self.folder = Path(folder)
        self._read: dict[str, int] = {}
        self._lines: list[dict[str, Any]] = []

    def lines(self) -> list[dict[str, Any]]:
        """In the order of their times."""
        for path in self.folder.glob("*.facts"):
            with path.open("rb") as file:
                file.seek(self._read.get(path.name, 0))
                data = file.read()
            whole = data[: data.rfind(b"\n") + 1]
            self._read[path.name] = self._read.get(path.name, 0) + len(whole)
            self._lines += map(json.loads, whole.splitlines())
        self._lines.sort(key=lambda line: line["at"])
        return self._lines

    def of(self, *facts: str) -> list[dict[str, Any]]:
        return [line for line in self.lines() if line["fact"] in facts]

    def returned(self) -> set[str]:
        return {line["id"] for line in self.of("returned")}

    def ran(self) -> set[str]:
        return {line["id"] for line in self.of("began")}


def calls_of(facts: Facts) -> list[Call]:
    found = {}
    for line in facts.of("called", "returned", "raised"):
        if line["fact"] == "called":
            found[line["id"]] = Call(line["id"], line["actor"], line["at"])
        else:
            begun = found[line["id"]]
            found[line["id"]] = Call(begun.id, begun.actor, begun.at, line["seconds"], line["noise"], line.get("error"))
    return list(found.values())


def runs_of(facts: Facts) -> list[Run]:
    """Each run with the receipt that it came from: a worker's runs of an id, and its receipts, in their order."""
    receipts: dict[tuple[str, str], list[float]] = defaultdict(list)
    open_runs: dict[tuple[str, int], Run] = {}
    done: list[Run] = []
    for line in facts.of("received", "began", "ended"):
        id, actor, pid, at = line["id"], line["actor"], line["pid"], line["at"]
        if line["fact"] == "received":
            receipts[id, actor].append(at)
        elif line["fact"] == "began":
            waiting = receipts[id, actor]
            if (id, pid) in open_runs:
                done.append(open_runs.pop((id, pid)))
            open_runs[id, pid] = Run(id, actor, pid, waiting.pop(0) if waiting else at, at, None)
        elif (run := open_runs.pop((id, pid), None)) is not None:
            done.append(Run(run.id, run.actor, run.pid, run.received, run.began, at))
    return done + list(open_runs.values())


def entries_of(folder: Path, *, clock: float, begun: float, ended: float, steps: Iterable[float]) -> list[Entry]:
    """What the journals in a folder say of single messages.

    Arguments:
        clock: what to take off a right wall clock to get ours.
        begun, ended: of the episode, on our clock.
        steps: by how much clocks were wrong in it. Each is far longer than the episode, so it shows which one it was.
    """
    offsets = (0.0, *steps)

    def on_our_clock(wall: float) -> float:
        candidates = [wall - clock - offset for offset in offsets]
        return next((at for at in candidates if begun - 5 <= at <= ended + 5), candidates[0])

    return [
        Entry(
            line["pid"],
            on_our_clock(line["time"] / 1e6),
            line["event"],
            line["message_id"],
            line.get("maybe_duplicate", False),
        )
        for line in _journal_lines(folder)
        if "message_id" in line
    ]


def _journal_lines(folder: Path) -> Iterator[dict[str, Any]]:
    for path in sorted(folder.glob("*.jsonl*")):
        opened = gzip.open if path.suffix == ".gz" else open
        try:
            with opened(path, "rb") as file:
                for line in file:
                    if line.endswith(b"\n"):
                        yield json.loads(line)
        except (EOFError, gzip.BadGzipFile):
            continue  # its writer was killed while it compressed; the lines are in the .part as well
