"""Which setting of a grid is best, of what replays and the record say of each. Pure.

All of a grid are compared with all, some hundred rows.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

__all__ = ("AIMS", "Record", "Replay", "judged", "settings")

#: What is to be small.
AIMS = ("messages_diverted", "waited_s", "notice_s", "drain_s", "operations")
#: Two figures that differ by less than so much are taken for the same: the replays are no more exact.
NOISE = 0.05
MICROSECONDS = 1_000_000

Row = dict[str, Any]


@dataclass(frozen=True)
class Replay:
    """All recorded failures under one failover interval and one ping interval. All but these two are whole numbers.

    Attributes:
        failover_interval, ping_interval: seconds.
        diverted: messages, by the likely recovery; and by the least and the most.
        worst: messages of the outage that diverts the most.
        waiting, waited_us: callers, and their microseconds together.
        pings: by the likely recovery; and by the least and the most.
        charged: of the pings, those that are charged, in millionths.
        noticed: recoveries that a ping noticed.
        late_us: microseconds from these to the ping, all together; and at least, and at most; None: there is none.
    """

    failover_interval: float
    ping_interval: float
    diverted: int
    diverted_least: int
    diverted_most: int
    worst: int
    waiting: int
    waited_us: int
    pings: int
    pings_least: int
    pings_most: int
    charged: int
    noticed: int
    late_us: int | None
    late_least_us: int | None
    late_most_us: int | None


@dataclass(frozen=True)
class Record:
    """What is known of how it was. None: it does not show.

    Attributes:
        detour: operations that a diverted message takes more than another.
        pace: messages per second that come home.
        queues: backlog queues.
        idle: receives per backlog queue.
        failed_together: backlog queues.
        rate: money per operation.
        set_failover, set_ping: seconds.
    """

    detour: float = 3.0
    pace: float | None = None
    queues: float | None = None
    idle: float = 0.0
    failed_together: float = 0.0
    rate: float | None = None
    set_failover: float | None = None
    set_ping: float | None = None


def settings(replays: Sequence[Replay], backlog_queues: Sequence[int], record: Record) -> list[Row]:
    """Each replay with each number of backlog queues: the columns of ``what_if`` that no other row has a say in."""
    return [_setting(replay, queues, record) for replay in replays for queues in backlog_queues]


def _setting(replay: Replay, queues: int, record: Record) -> Row:
    # The charged pings are a sum of shares: what differs behind the third digit is no further operation.
    caused = replay.diverted * record.detour + replay.charged / MICROSECONDS + queues * record.idle
    operations = math.ceil(round(caused, 3))

    def notice(total_us: int | None) -> float | None:
        return None if total_us is None or not replay.noticed else total_us / replay.noticed / MICROSECONDS

    return {
        "failover_interval": replay.failover_interval,
        "ping_interval": replay.ping_interval,
        "backlog_queues": queues,
        "messages_diverted": replay.diverted,
        "messages_diverted_least": replay.diverted_least,
        "messages_diverted_most": replay.diverted_most,
        "callers_waiting": replay.waiting,
        "waited_s": round(replay.waited_us / MICROSECONDS, 3),
        "pings": replay.pings,
        "pings_least": replay.pings_least,
        "pings_most": replay.pings_most,
        "notice_s": notice(replay.late_us),
        "notice_least_s": notice(replay.late_least_us),
        "notice_most_s": notice(replay.late_most_us),
        "drain_s": None if record.pace is None else replay.worst / record.pace,
        "backlog_queues_left": queues - round(record.failed_together),
        "operations": operations,
        "money": None if record.rate is None else operations * record.rate,
    }


def judged(rows: Sequence[Row], record: Record) -> list[Row]:
    """With what tells which one to choose: ``is_recorded``, ``is_on_front``, ``is_recommended`` and ``reason``."""
    if not rows:
        return []
    sound = [row for row in rows if row["backlog_queues_left"] > 0]
    levels = {_key(row): [_level(_value(row, aim)) for aim in AIMS] for row in rows}
    front = [row for row in sound if not any(_is_better(levels[_key(each)], levels[_key(row)]) for each in sound)]
    best = {aim: min((_value(row, aim) for row in sound), default=0.0) for aim in AIMS}
    recorded = min(rows, key=lambda row: (_from_recorded(row, record), _key(row)))
    chosen = min(front, key=lambda row: (_distance(row, best), _key(row)), default=None)
    on_front = {_key(row) for row in front}
    return [
        {
            **row,
            "is_recorded": row is recorded,
            "is_on_front": _key(row) in on_front,
            "is_recommended": row is chosen,
            "reason": _reason(row, best, len(front)) if row is chosen else None,
        }
        for row in rows
    ]


def _key(row: Row) -> tuple[float, float, int]:
    return row["failover_interval"], row["ping_interval"], row["backlog_queues"]


def _value(row: Row, aim: str) -> float:
    return 0.0 if row[aim] is None else float(row[aim])


def _level(value: float) -> int:
    return math.floor(math.log1p(value) / NOISE + 0.5)


def _is_better(other: Sequence[int], one: Sequence[int]) -> bool:
    """As good in everything and better in something."""
    return other != one and all(theirs <= ours for theirs, ours in zip(other, one, strict=True))


def _distance(row: Row, best: Mapping[str, float]) -> float:
    """How many times worse than the best it is where it is worst, as a logarithm."""
    return max(math.log1p(row[aim]) - math.log1p(best[aim]) if row[aim] is not None else 0.0 for aim in AIMS)


def _from_recorded(row: Row, record: Record) -> float:
    """How far from what was set; what does not show in the record counts nothing."""
    known = zip(_key(row), (record.set_failover, record.set_ping, record.queues), strict=True)
    return sum(abs(math.log1p(tried) - math.log1p(was)) for tried, was in known if was is not None and was > -1)


def _reason(row: Row, best: Mapping[str, float], front: int) -> str:
    def both(aim: str, digits: int = 0) -> str:
        return f"{_value(row, aim):,.{digits}f} ({best[aim]:,.{digits}f})"

    return (
        f"Of {front:,} settings that no other one beats in everything, this one comes closest to the best in its "
        "weakest point. In brackets is the best that any one reaches: "
        f"{both('messages_diverted')} messages diverted, callers wait {both('waited_s', 1)} s together, "
        f"{both('notice_s', 1)} s to notice a recovery, {both('drain_s', 1)} s to drain the worst backlog, "
        f"{both('operations')} operations."
    )
