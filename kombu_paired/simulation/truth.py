"""The known truth: rows of the tables, worked out from each event as it happens, in the order of causes.

The rules are those of the pipeline's tables (:mod:`kombu_paired.pipeline`); the way is another one: here events come in
the order in which they happened, one message or one process at a time, and nothing is grouped or joined.
"""

from __future__ import annotations

import math
from array import array
from bisect import bisect_right
from collections import defaultdict
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field
from typing import Any, NamedTuple

from kombu_paired.simulation.plan import SECOND

__all__ = ("COUNTED", "GAP", "JOIN", "Happened", "OutageTruth", "Row", "message_row")

Row = dict[str, Any]

#: Failure kinds that count towards failing an entity over.
COUNTED = frozenset({"unreachable", "timeout", "fault"})
#: A process whose evidence pauses for longer has a new outage: longer than the longest ping interval.
GAP = 3600 * SECOND
#: Outages with no more than this between them are one: clocks of hosts differ.
JOIN = 10 * SECOND
EXPIRED = "TTLExpiredException"
_MINUTE = 60 * SECOND
_NONE = -1
#: Numbers that are kept of each diverted message: when it was diverted, and the arguments of :func:`_add_message`.
_TIMES = 5


class Happened(NamedTuple):
    """One event of a message that can be read in a journal.

    Attributes:
        entity: pairing and destination path; of a consumed event its queue; None for events that name a backlog queue.
        queue: number of the backlog queue.
        is_there: it happened at a stand-in queue.
    """

    event: str
    time: int
    entity: tuple[str, str] | None = None
    first_attempt: int | None = None
    size: int | None = None
    queue: int | None = None
    maybe_duplicate: bool = False
    detail: str | None = None
    is_there: bool = False


def _latest_of(*times: int | None) -> int:
    return max(time for time in times if time is not None)


def message_row(message_id: str, history: Sequence[Happened]) -> Row:
    """The row of ``messages`` for a message, times in integer microseconds."""
    counts: dict[str, int] = defaultdict(int)
    at: dict[str, int] = {}
    firsts, sizes, queues, maybe = [], [], [], False
    for event, time, _, first_attempt, size, queue, maybe_duplicate, _, is_there in history:
        for name in (event, f"{event} there") if is_there else (event,):
            counts[name] += 1
            if name not in at or time < at[name]:
                at[name] = time
        if first_attempt is not None:
            firsts.append(first_attempt)
        if size is not None:
            sizes.append((event in ("diverted", "syphoned", "handed_out"), size))  # the form in the backlog is larger
        if queue is not None:
            queues.append(queue)
        maybe = maybe or maybe_duplicate
    first = min(firsts) if firsts else None
    diverted, arrived, died, ran = at.get("diverted"), at.get("syphoned"), at.get("dead_lettered"), at.get("consumed")
    syphoned = None if arrived is None else _latest_of(arrived, diverted, first)
    dead = None if died is None else _latest_of(died, diverted, first)
    gone, ran_there = at.get("handed_out"), at.get("consumed there")
    handed_out = None if gone is None else _latest_of(gone, diverted, first)
    delivered = _least((at.get("sent"), syphoned, handed_out))
    consumed = None if ran is None else _latest_of(ran, first, None if maybe else delivered)
    left = _least((syphoned, handed_out))
    out = left if left is not None else dead
    late = None if ran_there is None or first is None else _latest_of(ran_there, first, handed_out) - first
    copies, there = _copies(counts)
    pairing, entity = _destination(history)
    return {
        "message_id": message_id,
        "pairing": pairing,
        "entity": entity,
        "first_sent_at": first,
        "bytes": min(sizes)[1] if sizes else None,
        "route": _route(counts, there),
        "backlog_queue": min(queues) if queues else None,
        "diverted_at": diverted,
        "syphoned_at": syphoned,
        "handed_out_at": handed_out,
        "dead_lettered_at": dead,
        "delivered_at": delivered,
        "consumed_at": consumed,
        "backlog_s": None if diverted is None or out is None else (out - diverted) / 1e6,
        "late_s": None if late is None else late / 1e6,
        "sends": counts["sent"] + counts["diverted"],
        "copies_delivered": copies,
        "failed_tries": counts["send_failed"],
        "caller_errors": counts["backlog_unavailable"],
        "maybe_duplicate": maybe,
        "skew_s": max([0, *(_behind(diverted, each) for each in (arrived, gone, died)), _behind(first, ran)]) / 1e6,
        "fate": _fate(history, counts, copies, there, maybe),
    }


def _copies(counts: dict[str, int]) -> tuple[int, int]:
    """How many came to workers, and how many of these to stand-in queues: what goes home from there is the same."""
    died_there = counts["dead_lettered there"]
    there = max(counts["handed_out"], counts["consumed there"] + counts["syphoned there"] + died_there)
    from_backlog = counts["syphoned"] - counts["syphoned there"]
    return max(counts["sent"] + from_backlog + there - died_there, counts["consumed"]), there


def _behind(cause: int | None, effect: int | None) -> int:
    """By how much an effect's clock is behind its cause's."""
    return 0 if cause is None or effect is None else cause - effect


def _destination(history: Sequence[Happened]) -> tuple[str | None, str | None]:
    named = [each.entity for each in history if each.entity and each.event != "consumed"]
    named = named or [each.entity for each in history if each.entity]
    return min(named, default=(None, None))


def _route(counts: dict[str, int], there: int) -> str | None:
    detour = ("diverted", "received_from_backlog", "abandoned", "syphoned", "dead_lettered")
    was_in_backlog = there > 0 or any(counts[event] for event in detour)
    if counts["sent"]:
        return "both" if was_in_backlog else "primary"
    if there:
        return "stand-in"
    return "backlog" if was_in_backlog else None


def _fate(history: Sequence[Happened], counts: dict[str, int], copies: int, there: int, maybe_duplicate: bool) -> str:
    sends = counts["sent"] + counts["diverted"]
    owed = max(sends, 1)
    letters = [each.detail for each in history if each.event == "dead_lettered"]
    if copies > owed:
        return "duplicated"
    is_owed = copies < owed
    left_there = counts["syphoned there"] + counts["dead_lettered there"]
    from_backlog = counts["syphoned"] + len(letters) - left_there
    if counts["diverted"] > from_backlog + there and (maybe_duplicate or copies < sends):
        return "waiting"
    if is_owed and letters:
        return "expired" if all(reason == EXPIRED for reason in letters) else "dead-lettered"
    if counts["consumed there"] or (there > left_there and not counts["consumed"]):
        return "stood-in"
    if counts["diverted"] or counts["syphoned"] or there:
        return "recovered"
    return "direct" if counts["sent"] else "unknown"


# -- outages --------------------------------------------------------------------------------------------------------


@dataclass
class _Interval:
    """One outage of one entity as one process saw it."""

    process: int
    start: int
    last_bad: int
    last: int
    was_good: bool = False
    good: int | None = None
    failed_over: int | None = None
    kinds: set[str] = field(default_factory=set)

    @property
    def end(self) -> int:
        return self.last_bad if self.good is None else self.good


@dataclass
class _Outage:
    """One outage of some entities as the fleet saw it."""

    pairing: str
    entity: str | None
    entities: set[str]
    first: int
    ended: int
    failed_over: int | None
    restored: int | None
    kinds: set[str]
    saw: set[int]
    unrestored: set[int]
    unaffected: set[int] = field(default_factory=set)
    parts: list[_Outage] = field(default_factory=list)
    diverted: int = 0
    recovered: int = 0
    stood_in: int = 0
    dead: int = 0
    drained: int = _NONE
    late: list[int] = field(default_factory=list)

    def row(self) -> Row:
        waiting = self.diverted - self.recovered - self.stood_in - self.dead
        drained = self.drained if self.diverted and not waiting else None
        return {
            "scope": "namespace" if self.entity is None else "entity",
            "pairing": self.pairing,
            "entity": self.entity,
            "entities": len(self.entities),
            "first_failure_at": self.first,
            "failed_over_at": self.failed_over,
            "restored_at": self.restored,
            "ended_at": self.ended,
            "drained_at": drained,
            "detect_s": _seconds(self.first, self.failed_over),
            "restore_s": _seconds(self.first, self.restored),
            "drain_s": None if drained is None else _seconds(self.restored, drained, least=0),
            "failure_kinds": sorted(self.kinds),
            "messages_diverted": self.diverted,
            "messages_recovered": self.recovered,
            "messages_stood_in": self.stood_in,
            "messages_dead_lettered": self.dead,
            "messages_waiting": waiting,
            "messages_ran_meanwhile": len(self.late),
            "late_median_s": _percentile(self.late, 0.5),
            "late_p95_s": _percentile(self.late, 0.95),
            "processes_saw": len(self.saw),
            "processes_unrestored": len(self.unrestored),
            "processes_unaffected": len(self.unaffected),
        }


def _seconds(since: int | None, until: int | None, least: int | None = None) -> float | None:
    if since is None or until is None:
        return None
    return (until - since if least is None else max(least, until - since)) / 1e6


def _percentile(microseconds: Sequence[int], share: float) -> float | None:
    """In seconds: the least that a share of them do not exceed."""
    if not microseconds:
        return None
    return sorted(microseconds)[max(0, math.ceil(share * len(microseconds)) - 1)] / 1e6


def _least(values: Iterable[int | None]) -> int | None:
    return min((value for value in values if value is not None), default=None)


def _most(values: Iterable[int | None]) -> int | None:
    return max((value for value in values if value is not None), default=None)


class OutageTruth:
    """Follows the outages of a fleet, process by process. A process is known by a number."""

    def __init__(self) -> None:
        self._current: dict[tuple[int, str, str], _Interval] = {}
        self._seen: list[tuple[str, str, _Interval]] = []
        self._sends: dict[tuple[int, str, str, int], list[int]] = {}
        self._outages: list[_Outage] = []
        self._diverted: defaultdict[tuple[str, str], array[int]] = defaultdict(lambda: array("q"))

    def bad(
        self, process: int, pairing: str, entity: str, time: int, failure: str | None, *, fails_over: bool = False
    ) -> None:
        """The process failed to reach the entity."""
        key = (process, pairing, entity)
        found = self._current.get(key)
        if found is None or found.was_good or time - found.last > GAP:
            found = self._current[key] = _Interval(process, time, time, time)
            self._seen.append((pairing, entity, found))
        found.last = found.last_bad = time
        if failure is not None:
            found.kinds.add(failure)
        if fails_over and found.failed_over is None:
            found.failed_over = time

    def good(self, process: int, pairing: str, entity: str, time: int) -> None:
        """The process found that the entity works."""
        found = self._current.get((process, pairing, entity))
        if found is not None:
            found.last, found.was_good = time, True
            if found.good is None:
                found.good = time

    def sent(self, process: int, pairing: str, entity: str, time: int) -> None:
        """The process sent to the entity. Needs to be told near outages only, and there of all."""
        key = (process, pairing, entity, time // _MINUTE)
        found = self._sends.get(key)
        if found is None:
            self._sends[key] = [time, time]
        elif time < found[0]:
            found[0] = time
        elif time > found[1]:
            found[1] = time

    def finished(self, row: Row) -> None:
        """The row of a message is known."""
        if row["diverted_at"] is not None:
            times = [row[name] for name in ("diverted_at", "syphoned_at", "dead_lettered_at", "handed_out_at")]
            times.append(None if row["late_s"] is None else round(row["late_s"] * SECOND))
            self._diverted[row["pairing"], row["entity"]].extend(_NONE if each is None else each for each in times)

    def settle(self, now: int | None) -> None:
        """Nothing happens at the moment: what is over can be added up.

        Arguments:
            now: the earliest time that anything can still happen at; None: never again.
        """
        if not self._seen:
            self._sends.clear()
            return
        if now is not None and any(
            not each.was_good and now - each.last <= GAP + JOIN for each in self._current.values()
        ):
            return
        entities = self._entity_outages()
        namespaces = self._namespace_outages(entities)
        for outage in (*entities, *namespaces):
            outage.unaffected = self._unaffected(outage)
        self._outages += (*entities, *namespaces)
        self._current.clear()
        self._seen.clear()
        self._sends.clear()

    def _entity_outages(self) -> list[_Outage]:
        found: list[_Outage] = []
        for pairing, entity, interval in sorted(self._seen, key=lambda each: (each[0], each[1], each[2].start)):
            outage = _Outage(
                pairing,
                entity,
                {entity},
                interval.start,
                interval.end,
                interval.failed_over,
                interval.good,
                set(interval.kinds),
                {interval.process},
                {interval.process} if interval.good is None else set(),
            )
            last = found[-1] if found else None
            if last and (last.pairing, last.entity) == (pairing, entity) and outage.first <= last.ended + JOIN:
                _unite(last, outage)
            else:
                found.append(outage)
        return found

    def _namespace_outages(self, outages: Sequence[_Outage]) -> list[_Outage]:
        found: list[_Outage] = []
        for each in sorted(outages, key=lambda outage: (outage.pairing, outage.first)):
            whole = _Outage(
                each.pairing,
                None,
                set(each.entities),
                each.first,
                each.ended,
                each.failed_over,
                each.restored,
                set(each.kinds),
                set(each.saw),
                set(each.unrestored),
                parts=[each],
            )
            last = found[-1] if found else None
            if last and last.pairing == whole.pairing and whole.first <= last.ended + JOIN:
                _unite(last, whole)
            else:
                found.append(whole)
        return found

    def _unaffected(self, outage: _Outage) -> set[int]:
        """Processes that sent all the while."""
        return {
            process
            for (process, pairing, entity, _), (first, last) in self._sends.items()
            if pairing == outage.pairing
            and entity in outage.entities
            and process not in outage.saw
            and last >= outage.first
            and first <= outage.ended
        }

    def rows(self) -> list[Row]:
        """The rows of ``outages``, in their order. Nothing may happen afterwards."""
        self.settle(None)
        self._assign_messages()
        for outage in self._outages:
            for part in outage.parts:
                outage.diverted += part.diverted
                outage.recovered += part.recovered
                outage.stood_in += part.stood_in
                outage.dead += part.dead
                outage.late += part.late
                outage.drained = max(outage.drained, part.drained)
        rows = [outage.row() for outage in self._outages]
        return sorted(
            rows, key=lambda row: (row["scope"], row["pairing"], row["entity"] or "", row["first_failure_at"])
        )

    def _assign_messages(self) -> None:
        of_entity: defaultdict[tuple[str, str], list[_Outage]] = defaultdict(list)
        for outage in self._outages:
            if outage.entity is not None:
                of_entity[outage.pairing, outage.entity].append(outage)
        for key, times in self._diverted.items():
            outages = sorted(of_entity[key], key=lambda each: each.first)
            starts = [each.first for each in outages]
            for place in range(0, len(times), _TIMES):
                at, *became = times[place : place + _TIMES]
                number = bisect_right(starts, at) - 1
                if number >= 0 and at <= outages[number].ended + GAP:
                    _add_message(outages[number], *became)


def _unite(outage: _Outage, other: _Outage) -> None:
    outage.entities |= other.entities
    outage.ended = max(outage.ended, other.ended)
    outage.failed_over = _least((outage.failed_over, other.failed_over))
    outage.restored = _most((outage.restored, other.restored))
    outage.kinds |= other.kinds
    outage.saw |= other.saw
    outage.unrestored |= other.unrestored
    outage.parts += other.parts


def _add_message(outage: _Outage, syphoned: int, dead: int, handed_out: int, late: int) -> None:
    outage.diverted += 1
    if syphoned != _NONE:
        outage.recovered += 1
    elif dead != _NONE:
        outage.dead += 1
    elif handed_out != _NONE:
        outage.stood_in += 1
    out = next((each for each in (syphoned, dead, handed_out) if each != _NONE), _NONE)
    outage.drained = max(outage.drained, out)
    if late != _NONE:
        outage.late.append(late)
