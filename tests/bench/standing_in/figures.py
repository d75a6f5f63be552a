"""What came of a row: figures, and what was expected and is not so. Pure."""

from __future__ import annotations

import math
import statistics
from collections import Counter
from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass, field

#: Seconds around a harm: what ran in them may have been held, unacknowledged, by a worker when it happened.
BEFORE, AFTER = 1.5, 1.5

#: A run as the ledger has it: number, time, task id.
Run = tuple[int, float, str]


@dataclass(frozen=True)
class Sent:
    """A task that was sent.

    Attributes:
        number: what it writes into the ledger.
        at: when it was called (seconds since 1970).
        runs: how often it is to write that.
    """

    number: int
    at: float
    runs: int = 1


@dataclass(frozen=True)
class Harm:
    """Something was hit.

    Attributes:
        at: when (seconds since 1970).
        side: ``primary`` or ``secondary``, whose messages it concerns.
    """

    at: float
    side: str

    def explains(self, at: float, side: str | None) -> bool:
        """Whether a worker may have held what it ran then, from that side; None: it is not known from which."""
        return self.at - BEFORE <= at <= self.at + AFTER and side in (self.side, None)


@dataclass
class Finding:
    """Figures by name, in the order in which they are printed, and what is wrong."""

    figures: dict[str, object] = field(default_factory=dict)
    wrong: list[str] = field(default_factory=list)

    def require(self, condition: bool, otherwise: str) -> None:
        if not condition:
            self.wrong.append(otherwise)

    @property
    def passed(self) -> bool:
        return not self.wrong

    def __str__(self) -> str:
        return ", ".join(f"{name} {_shown(value)}" for name, value in self.figures.items())


def _shown(value: object) -> str:
    return f"{value:.2f}" if isinstance(value, float) else str(value)


def delays(sent: Mapping[str, Sent], runs: Sequence[Run], since: float, until: float) -> list[float]:
    """Seconds from the call to the first run, of each task that was called in this time and ran; sorted."""
    first: dict[str, float] = {}
    for _, at, task_id in runs:
        first.setdefault(task_id, at)
    return sorted(first[id] - each.at for id, each in sent.items() if since <= each.at < until and id in first)


def quantile(values: Sequence[float], part: float) -> float:
    """Of sorted values; infinite if there are none."""
    return values[min(int(part * len(values)), len(values) - 1)] if values else math.inf


def median(values: Sequence[float]) -> float:
    return statistics.median(values) if values else math.inf


@dataclass(frozen=True)
class Duplicates:
    """Runs beyond those that were to be.

    Attributes:
        marked: the journal says of the message that it may be a duplicate.
        held: a worker may have held it when it, or its broker, was hit: that broker delivers it once more.
        unexplained: the numbers of all others.
    """

    marked: int
    held: int
    unexplained: list[int]


def duplicates(
    sent: Mapping[str, Sent],
    runs: Sequence[Run],
    sides: Mapping[str, Sequence[str]],
    marks: Collection[str],
    harms: Sequence[Harm],
) -> Duplicates:
    """Tell the runs that are too many from each other.

    Arguments:
        sides: from where each run of a task came, by its id, in their order; what a killed process ran last is missing.
        marks: ids of tasks that the journal calls possible duplicates.
    """
    times: dict[str, list[float]] = {}
    for _, at, task_id in runs:
        times.setdefault(task_id, []).append(at)
    found: Counter[str] = Counter()
    unexplained = []
    for task_id, each in sent.items():
        of_it = times.get(task_id, [])
        extra = len(of_it) - each.runs
        if extra <= 0:
            continue
        known = sides.get(task_id, ())
        came_from = known if len(known) == len(of_it) else [None] * len(of_it)
        held = [(at, side) for at, side in zip(of_it, came_from, strict=True)][:-1]
        if task_id in marks:
            found["marked"] += extra
        elif any(harm.explains(at, side) for harm in harms for at, side in held):
            found["held"] += extra
        else:
            unexplained += [each.number] * extra
    return Duplicates(found["marked"], found["held"], unexplained)


def lost(sent: Mapping[str, Sent], runs: Sequence[Run]) -> list[int]:
    """The numbers of tasks that never ran, or not as often as they should."""
    times = Counter(task_id for _, _, task_id in runs)
    return sorted(each.number for task_id, each in sent.items() if times[task_id] < each.runs)
