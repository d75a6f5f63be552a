"""The replay of :mod:`kombu_paired.pipeline.tables.replay` in memory, for the few spans that a fleet has as a rule.

Spark plans and compiles for seconds what is worked out here in a tenth of one. It is the same to the last bit: what
Spark has as bigint is an integer here, what it has as double is made by the same operations in the same order, and sums
are of integers, of which the order makes no difference.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, TypeAlias

import numpy as np
import numpy.typing as npt

from kombu_paired.pipeline.tables.choice import Replay
from kombu_paired.pipeline.tables.replay import RECOVERIES, SECOND

__all__ = ("ARRIVALS_NEEDED", "MOST_ARRIVALS", "MOST_SPANS", "SPANS_NEEDED", "WHOLE_NEEDED", "replayed_in_memory")

#: Of which a replay takes some 100 MB.
MOST_SPANS, MOST_ARRIVALS = 200_000, 2_000_000
#: Columns of the tables; the last are of the outages of namespaces, in microseconds.
SPANS_NEEDED = (
    "number",
    "together",
    "pairing",
    "start",
    "failed_over",
    "until",
    *RECOVERIES,
    "trapped",
    "trapped_ms",
    "wait_ms",
    "ping_ms",
    "charged",
)
ARRIVALS_NEEDED = ("number", "at")
WHOLE_NEEDED = ("pairing", "outage", "ended")

#: Later than anything.
NEVER = np.iinfo(np.int64).max

Integers: TypeAlias = npt.NDArray[np.int64]
Floats: TypeAlias = npt.NDArray[np.float64]
Booleans: TypeAlias = npt.NDArray[np.bool_]


def replayed_in_memory(
    spans: Any, arrivals: Any, whole: Any, failover_intervals: Sequence[float], ping_intervals: Sequence[float]
) -> list[Replay]:
    """All spans under each pair of settings, summed up.

    Arguments:
        spans, arrivals, whole: tables of Arrow, of :data:`SPANS_NEEDED`, :data:`ARRIVALS_NEEDED` and
            :data:`WHOLE_NEEDED`.
        failover_intervals, ping_intervals: seconds.

    Returns:
        One for each pair; none where no span is in an outage of a namespace.
    """
    known = _Spans.of(spans, whole)
    if not known.is_placed.any():
        return []
    came = _Arrivals.of(arrivals, known.number)
    return [
        _summed(known, failover, ping, {name: _pinged(known, came, each, ping) for name, each in circuits.items()})
        for failover in failover_intervals
        for circuits in [{name: _circuit(known, came, known.recovery[name], failover) for name in RECOVERIES}]
        for ping in ping_intervals
    ]


# -- what was recorded ------------------------------------------------------------------------------------------------


@dataclass(frozen=True)
class _Spans:
    """The columns of spans, in the order of their numbers.

    Attributes:
        together: which are of a process and pairing and overlap, numbered from 0.
        until: without end where none follows.
        outage: the place of the namespace's outage that it is in, where it ``is_placed``.
    """

    number: Integers
    together: Integers
    start: Integers
    was_failed_over: Booleans
    until: Floats
    recovery: Mapping[str, Integers]
    trapped: Integers
    trapped_ms: Floats
    wait_ms: Floats
    ping_ms: Floats
    charged: Floats
    outage: Integers
    is_placed: Booleans

    @classmethod
    def of(cls, spans: Any, whole: Any) -> _Spans:
        spans = spans.sort_by("number")

        def column(name: str) -> npt.NDArray[Any]:
            return np.asarray(spans[name].to_numpy())

        start = column("start")
        outage, is_placed = _placed(spans["pairing"].to_pylist(), start, whole)
        plain = ("number", "trapped", "trapped_ms", "wait_ms", "ping_ms", "charged")
        return cls(
            together=np.unique(column("together"), return_inverse=True)[1],
            start=start,
            was_failed_over=np.asarray(spans["failed_over"].is_valid().to_numpy()),
            until=np.where(spans["until"].is_valid().to_numpy(), spans["until"].fill_null(0).to_numpy(), np.inf),
            recovery={name: column(name) for name in RECOVERIES},
            outage=outage,
            is_placed=is_placed,
            **{name: column(name) for name in plain},
        )


def _placed(pairings: Sequence[str], start: Integers, whole: Any) -> tuple[Integers, Booleans]:
    """In which outage of its namespace each span begins. Those of one namespace do not overlap."""
    whole = whole.sort_by([("pairing", "ascending"), ("outage", "ascending")])
    first, ended = (np.asarray(whole[name].to_numpy()) for name in ("outage", "ended"))
    of_pairing, named = np.asarray(whole["pairing"].to_pylist(), object), np.asarray(pairings, object)
    outage, is_placed = np.zeros(len(start), np.int64), np.zeros(len(start), np.bool_)
    for pairing in set(pairings) & set(of_pairing):
        mine, theirs = np.flatnonzero(named == pairing), np.flatnonzero(of_pairing == pairing)
        last = np.searchsorted(first[theirs], start[mine], "right") - 1
        outage[mine] = theirs[last]
        is_placed[mine] = (last >= 0) & (start[mine] <= ended[theirs[last]])
    return outage, is_placed


@dataclass(frozen=True)
class _Arrivals:
    """The times of arrivals, by span and in order; those of a span are from ``first`` to before ``last``."""

    at: Integers
    first: Integers
    last: Integers

    @classmethod
    def of(cls, arrivals: Any, numbers: Integers) -> _Arrivals:
        number, at = (np.asarray(arrivals[name].to_numpy()) for name in ARRIVALS_NEEDED)
        order = np.lexsort((at, number))
        bounds = (np.searchsorted(number[order], numbers, side) for side in ("left", "right"))
        # One more, which is no arrival, so that there is one to look at behind the last.
        return cls(np.append(at[order], 0), *bounds)

    def before(self, time: Integers) -> Integers:
        """How many of each span's came before its time."""
        low, high = self.first, self.last
        while (is_open := low < high).any():
            middle = (low + high) // 2
            is_before = self.at[middle] < time
            low, high = np.where(is_open & is_before, middle + 1, low), np.where(is_open & ~is_before, middle, high)
        return low - self.first

    def after(self, count: Integers) -> tuple[Integers, Booleans]:
        """The first of each span's after so many; and whether there is one."""
        place = self.first + count
        return self.at[place], place < self.last


# -- what would have been ---------------------------------------------------------------------------------------------


@dataclass(frozen=True)
class _Circuit:
    recovery_at: Integers
    failed_over_at: Integers
    is_failed_over: Booleans
    waiting: Integers
    waited_us: Integers


def _circuit(spans: _Spans, arrivals: _Arrivals, recovery_at: Integers, failover_interval: float) -> _Circuit:
    """As :func:`kombu_paired.pipeline.tables.replay._circuits`."""
    over_at = spans.start + int(failover_interval * SECOND)
    before_recovery, before_over = arrivals.before(recovery_at), arrivals.before(over_at)
    works_again = (recovery_at < over_at) & (before_over > before_recovery)
    is_dark = spans.was_failed_over & (recovery_at > over_at) & (before_recovery == 0)
    next_at, has_next = arrivals.after(before_over)
    at_once = failover_interval == 0
    waiting = np.minimum(before_recovery, before_over)
    waited_s = (spans.trapped_ms + waiting * spans.wait_ms) / 1000
    return _Circuit(
        recovery_at,
        failed_over_at=spans.start if at_once else np.where(has_next, next_at, over_at),
        is_failed_over=np.ones(len(over_at), np.bool_) if at_once else ~works_again & (has_next | is_dark),
        waiting=spans.trapped + waiting,
        waited_us=_millionths(waited_s),
    )


@dataclass(frozen=True)
class _Pinged:
    circuit: _Circuit
    diverted: Integers
    pings: Integers
    charged: Integers
    late_us: Integers


def _pinged(spans: _Spans, arrivals: _Arrivals, circuit: _Circuit, ping_interval: float) -> _Pinged:
    """As ``_pinged`` and ``_diverted`` there. ``charged`` is in millionths."""
    first = circuit.failed_over_at + ping_interval * SECOND
    period = ping_interval * SECOND + spans.ping_ms * 1000
    own = first + np.maximum(np.ceil((circuit.recovery_at - first) / period), 0) * period
    earliest = np.full(len(own), np.inf)
    np.minimum.at(earliest, spans.together, np.where(circuit.is_failed_over, own, np.inf))
    at_once = earliest[spans.together]
    is_over = circuit.is_failed_over
    is_told = is_over & (at_once >= circuit.recovery_at) & (at_once >= circuit.failed_over_at)
    noticed = np.where(is_told, at_once, own)
    pings = np.maximum(np.ceil((noticed - first) / period), 0).astype(np.int64) + 1
    noticed_at = np.floor(np.minimum(noticed, spans.until)).astype(np.int64)
    return _Pinged(
        circuit,
        diverted=spans.trapped + arrivals.before(np.where(is_over, noticed_at, circuit.recovery_at)),
        pings=np.where(is_over, pings, 0),
        charged=np.where(is_over, _millionths((pings - 1) * spans.charged + 1), 0),
        late_us=np.maximum(noticed_at - circuit.recovery_at, 0),
    )


def _millionths(values: Floats) -> Integers:
    return np.floor(values * SECOND + 0.5).astype(np.int64)


# -- sums -------------------------------------------------------------------------------------------------------------


def _summed(spans: _Spans, failover_interval: float, ping_interval: float, pinged: Mapping[str, _Pinged]) -> Replay:
    least, likely, most = (pinged[name] for name in RECOVERIES)
    placed = spans.is_placed
    of_outage = np.zeros(len(spans.outage), np.int64)
    np.add.at(of_outage, spans.outage[placed], likely.diverted[placed])
    shortest, longest = _late_bounds(least, most, ping_interval)

    def total(values: Integers) -> int:
        return int(values[placed].sum())

    return Replay(
        failover_interval=float(failover_interval),
        ping_interval=float(ping_interval),
        diverted=total(likely.diverted),
        diverted_least=total(least.diverted),
        diverted_most=total(most.diverted),
        worst=int(of_outage.max()),
        waiting=total(likely.circuit.waiting),
        waited_us=total(likely.circuit.waited_us),
        pings=total(likely.pings),
        pings_least=total(least.pings),
        pings_most=total(most.pings),
        charged=total(likely.charged),
        noticed=int(np.count_nonzero(likely.circuit.is_failed_over[placed])),
        late_us=_total_of_some(likely.late_us, likely.circuit.is_failed_over & placed),
        late_least_us=_total_of_some(shortest, (shortest < NEVER) & placed),
        late_most_us=_total_of_some(longest, (longest >= 0) & placed),
    )


def _late_bounds(least: _Pinged, most: _Pinged, ping_interval: float) -> tuple[Integers, Integers]:
    """How late it is noticed at least and at most; ``NEVER`` and -1 where it is not."""
    has_ping = most.pings > least.pings
    both = [(each.circuit.is_failed_over, each.late_us) for each in (least, most)]
    shortest = [np.where(is_over, late, NEVER) for is_over, late in both] + [np.where(has_ping, 0, NEVER)]
    period = int(ping_interval * SECOND + 0.5)
    longest = [np.where(is_over, late, -1) for is_over, late in both] + [np.where(has_ping, period, -1)]
    return np.minimum.reduce(shortest), np.maximum.reduce(longest)


def _total_of_some(values: Integers, which: Booleans) -> int | None:
    return int(values[which].sum()) if which.any() else None
