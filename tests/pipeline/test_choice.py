"""Which setting is best, of figures by hand and of any."""

from __future__ import annotations

import random

from kombu_paired.pipeline.tables.choice import AIMS, Record, Replay, judged, settings

RECORD = Record(detour=3.5, pace=4.0, queues=10.0, idle=100.0, failed_together=2.0, rate=0.5, set_ping=60.0)


def replay(failover=10.0, ping=60.0, **values):
    some = dict.fromkeys((name for name in Replay.__dataclass_fields__ if "interval" not in name), 0)
    return Replay(**some | {"failover_interval": failover, "ping_interval": ping} | values)


def one(record=RECORD, queues=5, **values):
    [row] = settings([replay(**values)], [queues], record)
    return row


def test_a_setting_is_worked_out_of_its_replay_and_the_record():
    row = one(
        diverted=10, worst=8, waiting=3, waited_us=1_234_567, charged=2_250_000, noticed=4, late_us=6_000_000,
        late_least_us=0, late_most_us=8_000_000,
    )  # fmt: skip
    expected = {
        "drain_s": 2.0, "waited_s": 1.235, "callers_waiting": 3, "notice_s": 1.5, "notice_least_s": 0.0,
        "notice_most_s": 2.0, "backlog_queues_left": 3, "operations": 538, "money": 269.0,
    }  # fmt: skip
    assert {name: row[name] for name in expected} == expected  # 10 detours of 3.5, 2.25 pings, 5 times 100 receives


def test_what_the_record_does_not_show_is_null():
    row = one(Record(), diverted=10, late_us=None)
    assert (row["drain_s"], row["money"], row["notice_s"], row["operations"]) == (None, None, None, 30)
    assert row["backlog_queues_left"] == 5


def test_thirds_of_pings_are_not_one_operation_more():
    """Three times 0.666667 are two pings."""
    assert one(queues=0, charged=3 * 666_667)["operations"] == 2


def test_where_every_setting_leaves_callers_without_a_queue_none_is_recommended():
    [row] = judged([one(queues=2)], RECORD)
    assert (row["is_on_front"], row["is_recommended"], row["reason"], row["is_recorded"]) == (False, False, None, True)
    assert judged([], RECORD) == []


def test_the_front_and_the_recorded_setting_of_any_rows():
    rng = random.Random(4)
    for _ in range(20):
        replays = [
            replay(failover, ping, **{name: rng.randrange(1000) for name in ("diverted", "worst", "noticed", "pings")},
                   waited_us=rng.randrange(10**9), late_us=rng.randrange(10**9))
            for failover in (0.0, 10.0, 30.0) for ping in (15.0, 60.0, 300.0)
        ]  # fmt: skip
        rows = judged(settings(replays, (2, 5, 10), RECORD), RECORD)
        sound, front = ([row for row in rows if keep(row)] for keep in (is_sound, is_on_front))
        assert front
        assert all(is_sound(row) for row in front)
        assert not [row for row in front for each in sound if beats(each, row)]
        [best] = [row for row in rows if row["is_recommended"]]
        assert best in front
        assert best["reason"].startswith(f"Of {len(front)} settings")
        [recorded] = [row for row in rows if row["is_recorded"]]
        assert (recorded["ping_interval"], recorded["backlog_queues"]) == (60.0, 10)


def is_sound(row):
    return row["backlog_queues_left"] > 0


def is_on_front(row):
    return row["is_on_front"]


def beats(one, other):
    """By more than what is taken for the same."""
    values = [(one[aim] or 0, other[aim] or 0) for aim in AIMS]
    return all(ours <= theirs for ours, theirs in values) and any(ours < 0.9 * theirs - 1 for ours, theirs in values)
