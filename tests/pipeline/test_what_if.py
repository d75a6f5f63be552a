"""The table ``what_if``: against the real circuit, against the record, and against a fleet that ran otherwise."""

from __future__ import annotations

import dataclasses
import random

import pytest
from pyspark.sql import functions as F

from kombu_paired.pairing.circuit import CircuitState, EntityCircuit
from kombu_paired.pipeline.tables import what_if as table
from kombu_paired.pipeline.tables.choice import AIMS
from kombu_paired.pipeline.tables.outages import intervals
from kombu_paired.pipeline.tables.replay import ARRIVAL_COLUMNS, RECOVERIES, SPAN_COLUMNS, arrivals, replayed, spans
from kombu_paired.pipeline.tables.what_if import WHAT_IF_COLUMNS, Grid, what_if
from tests.pipeline.tables import GRID, RAN, events_of, made_of

SECOND = 1_000_000
START = 1_000_000 * SECOND
FAILOVERS, PINGS = (0.0, 5.0, 30.0, 600.0), (5.0, 45.0, 120.0)


def real_circuit(times, start, recovery, failover_interval, ping_interval, ping_takes):
    """The fate of the messages that come at these times, by the circuit itself: all in microseconds but settings."""
    now = start / SECOND
    circuit = EntityCircuit(failover_interval, lambda: now)
    circuit.failed()
    failed_over_at = start if circuit.state is CircuitState.FAILED_OVER else None
    next_ping = None if failed_over_at is None else start + ping_interval * SECOND
    waiting = diverted = pings = 0
    todo = sorted(times)
    while True:
        if next_ping is not None and (not todo or next_ping <= todo[0]):
            pings += 1
            if next_ping >= recovery:
                return waiting, diverted, pings, (next_ping - recovery) / SECOND
            next_ping += (ping_interval + ping_takes) * SECOND
            continue
        if not todo:
            return waiting, diverted, pings, None
        at = todo.pop(0)
        now = at / SECOND
        if circuit.asked().after is CircuitState.FAILED_OVER:
            diverted += 1
            if next_ping is None:
                next_ping = at + ping_interval * SECOND
        elif at < recovery:
            waiting, diverted = waiting + 1, diverted + 1
            circuit.failed()
        else:
            circuit.succeeded()
            return waiting, diverted, pings, None


def recorded_outage(rng):
    """Events of a process that saw an entity fail, and the times at which messages came."""
    last_bad = START + rng.randrange(1, 400) * SECOND
    good = last_bad + rng.randrange(1, 120) * SECOND
    times = sorted({START + int(rng.expovariate(1 / 8) * 60 * SECOND) + 1 for _ in range(rng.randrange(1, 60))})
    common = {"entity": "orders"}
    failed = {"event": "send_failed", "failure": "timeout", "ms": 4_000.0, **common}
    lines = [
        {"time": START, "event": "suspect", "failure": "timeout", **common},
        {"time": START + 1, "first_attempt": START - 4 * SECOND, "message_id": "first", **failed},
        {"time": last_bad, "event": "ping", "failure": "timeout", "ms": 2_000.0, **common},
        {"time": good, "event": "ping", **common},
        *({"time": at + 5, "first_attempt": at, "event": "diverted", "message_id": str(at), **common} for at in times),
    ]
    return [line | {"seq": number} for number, line in enumerate(lines, 1)], times, last_bad, good


def test_a_replay_does_what_the_circuit_does(spark):
    """Forty processes, each with an outage of its own."""
    recorded = {pid: recorded_outage(random.Random(pid)) for pid in range(1, 41)}
    events = events_of(spark, *(line | {"pid": pid} for pid, (lines, *_) in recorded.items() for line in lines))
    known = spans(intervals(events))
    came = arrivals(events, known, longest_failover=max(FAILOVERS), longest_ping=max(PINGS))
    number = {}
    for span in known.collect():
        _, _, last_bad, good = recorded[span.pid]
        assert (span.least, span.most, span.until) == (last_bad, good, None)
        assert (span.trapped, span.trapped_ms, span.wait_ms, span.ping_ms) == (1, 4_000.0, 4_000.0, 2_000.0)
        number[span.number] = span.pid

    rows = replayed(known, came, FAILOVERS, PINGS).collect()
    assert len(rows) == len(recorded) * len(FAILOVERS) * len(PINGS) * len(RECOVERIES)
    for row in rows:
        _, times, last_bad, good = recorded[number[row.number]]
        seen = [at for at in times if at <= max(good, START + 600 * SECOND) + 122 * SECOND]
        recovery = {"least": last_bad, "likely": (last_bad + good) // 2, "most": good}[row.recovery]
        waiting, diverted, pings, late = real_circuit(
            seen, START, recovery, row.failover_interval, row.ping_interval, 2.0
        )
        found = (row.waiting, row.diverted, row.pings, row.late_s, row.waited_s)
        assert found == (waiting + 1, diverted + 1, pings, late, 4.0 * (waiting + 1)), (row, recovery - START)
        assert row.is_failed_over == (pings > 0)
    assert {row.is_failed_over for row in rows if row.failover_interval == 30} == {True, False}


def test_the_ping_that_finds_a_namespace_back_has_the_others_of_its_process_pinged_at_once(spark):
    """Entities that were failed over at other times need not wait for their turn."""
    lines = []
    for entity, after in (("a", 0), ("b", 20)):
        begin, common = START + after * SECOND, {"entity": entity}
        lines += [
            {"time": begin, "event": "failed_over", "failure": "unreachable", **common},
            {"time": START + 65 * SECOND, "event": "ping", "failure": "unreachable", "ms": 0.0, **common},
            {"time": START + 75 * SECOND, "event": "ping", **common},
            {"time": begin + 1, "event": "diverted", "message_id": f"{entity}-0", **common},
            {"time": START + 125 * SECOND, "event": "diverted", "message_id": f"{entity}-1", **common},
        ]
    lines.append({"pid": 2, "time": START, "event": "failed_over", "failure": "unreachable", "entity": "b"})
    lines.append({"pid": 2, "time": START + 70 * SECOND, "event": "ping", "entity": "b"})
    events = events_of(spark, *(line | {"seq": number} for number, line in enumerate(lines, 1)))
    known = spans(intervals(events))
    came = arrivals(events, known, longest_failover=0, longest_ping=60)
    rows = replayed(known, came, [0.0], [60.0]).where("recovery = 'likely'").join(known, "number")
    found = {(row.pid, row.entity): (row.late_s, row.pings, row.diverted) for row in rows.collect()}
    # 70 s after the start both work. a is pinged at 60 and 120 s, b at 80 s, and a is told then.
    assert found == {(1, "a"): (10.0, 2, 1), (1, "b"): (10.0, 1, 1), (2, "b"): (25.0, 1, 0)}


# -- a whole fleet ----------------------------------------------------------------------------------------------------


@pytest.fixture(scope="module")
def fleet(fleet_with_outages):
    return fleet_with_outages


@pytest.fixture(scope="module")
def found(tried):
    rows = tried.what_if.collect()
    return {(row.failover_interval, row.ping_interval, row.backlog_queues): row for row in rows}, tried.cost


def test_its_tables_have_the_columns_that_they_are_said_to_have(tried):
    assert tried.spans.dtypes == list(SPAN_COLUMNS.items())
    assert tried.arrivals.dtypes == list(ARRIVAL_COLUMNS.items())
    assert tried.what_if.dtypes == list(WHAT_IF_COLUMNS.items())


def of_lines(fleet, event, **fields):
    return [
        line
        for line in fleet.lines
        if line["event"] == event and all(line.get(name) == value for name, value in fields.items())
    ]


def counted(fleet):
    """What the journals say of the outages, without the pipeline."""
    kinds = ("unreachable", "timeout", "fault")
    failed = [line for line in of_lines(fleet, "send_failed") if line["failure"] in kinds]
    throttled = {line["message_id"] for line in of_lines(fleet, "send_failed", failure="throttled")}
    diverted = [line for line in of_lines(fleet, "diverted") if line["message_id"] not in throttled]
    return {
        "messages_diverted": len(diverted),
        "callers_waiting": len(failed),
        "waited_s": sum(line["ms"] for line in failed) / 1000,
        "pings": len(of_lines(fleet, "ping")),
    }


def test_under_the_settings_that_were_set_the_replay_is_the_record(fleet, found):
    rows, _ = found
    row, record = rows[10.0, 60.0, 5], counted(fleet)
    assert row.is_recorded
    for name, value in record.items():
        assert row[name] == pytest.approx(value, rel=0.06 if name == "waited_s" else 0.03), name
    assert 0.97 * row.pings_least <= record["pings"] <= 1.03 * row.pings_most
    assert row.messages_diverted_least <= row.messages_diverted <= row.messages_diverted_most
    assert row.notice_least_s <= row.notice_s <= row.notice_most_s <= 75
    assert row.backlog_queues_left <= 4  # the simulation has some fail
    assert row.operations > 3 * row.messages_diverted + row.pings / 3


def test_a_fleet_that_ran_with_other_settings_did_what_was_foretold(spark, found, tmp_path):
    rows, _ = found
    other = made_of(spark, dataclasses.replace(RAN, failover_interval=40.0, ping_interval=15.0), tmp_path)
    row, record = rows[40.0, 15.0, 5], counted(other)
    assert row["messages_diverted"] == pytest.approx(record["messages_diverted"], rel=0.05)
    assert row["pings"] == pytest.approx(record["pings"], rel=0.05)
    assert row["callers_waiting"] == pytest.approx(record["callers_waiting"], rel=0.2)
    assert record["pings"] > 1.5 * rows[10.0, 60.0, 5].pings  # it makes a difference


def test_more_backlog_queues_cost_more_idle_receives_and_drain_no_sooner(found):
    rows, costs = found
    [[idle]] = costs.where("stage = 'idle_receive'").agg(F.sum("operations")).collect()
    one, five, ten = (rows[10.0, 60.0, count] for count in (1, 5, 10))
    assert five.operations - one.operations == pytest.approx(idle * 4 / 5, abs=1)
    assert ten.operations - five.operations == pytest.approx(idle, abs=1)
    assert one.drain_s == five.drain_s == ten.drain_s
    assert five.backlog_queues_left - one.backlog_queues_left == 4


def test_nothing_on_the_front_is_beaten_and_one_of_it_is_recommended(found):
    rows = list(found[0].values())

    def beats(one, other):
        return all(one[aim] <= other[aim] for aim in AIMS) and any(one[aim] < 0.9 * other[aim] - 1 for aim in AIMS)

    sound = [row for row in rows if row.backlog_queues_left > 0]
    front = [row for row in rows if row.is_on_front]
    assert 0 < len(front) <= len(sound)
    assert not [row for row in front for each in sound if beats(each, row)]
    [best] = [row for row in rows if row.is_recommended]
    assert best.is_on_front
    assert f"{best.messages_diverted:,} ({min(row.messages_diverted for row in sound):,}) messages" in best.reason
    assert [row.reason for row in rows if not row.is_recommended] == [None] * (len(rows) - 1)
    assert sum(row.is_recorded for row in rows) == 1


def test_a_setting_that_leaves_callers_without_a_backlog_queue_is_not_recommended(found):
    rows = [row for row in found[0].values() if row.backlog_queues_left <= 0]
    assert rows
    assert not any(row.is_on_front for row in rows)


def test_where_nothing_failed_there_is_nothing_to_replay(spark, fleet, found):
    _, costs = found
    calm = fleet.events.where("event in ('sent', 'consumed')")
    known = spans(intervals(calm))
    came = arrivals(calm, known, longest_failover=10, longest_ping=60)
    assert what_if(known, came, calm, fleet.messages, fleet.outages.limit(0), costs, GRID).collect() == []


# -- in memory, and by Spark ------------------------------------------------------------------------------------------


def any_spans(rng, count):
    """Spans of which some overlap, follow each other, were not failed over, or have broken clocks; and arrivals."""
    spans_, arrivals_ = [], []
    for number in range(1, count + 1):
        start = START + rng.randrange(0, 40) * 30 * SECOND
        least = start + rng.choice((0, rng.randrange(1, 10**9), rng.randrange(1, 10**8)))
        most = least + rng.choice((0, rng.randrange(1, 2 * 10**8)))
        spans_.append(
            (
                number, rng.randrange(10), "h", 1, rng.choice(("main", "other", "calm")), str(number), start,
                rng.choice((None, start, start + 10 * SECOND)), rng.choice((None, most + rng.randrange(10**9))),
                least, (least + most) // 2, most, rng.randrange(3), rng.random() * 9_000, rng.random() * 5_000,
                rng.choice((0.0, rng.random() * 2_000)), rng.choice((0.0, 1.0, rng.random())),
            )
        )  # fmt: skip
        moments = (start + 1, least, most, start + 30 * SECOND, start + rng.randrange(1, 10**9))
        arrivals_ += [(number, rng.choice(moments)) for _ in range(rng.choice((0, 1, 5, 60)))]
    return spans_, arrivals_


@pytest.mark.parametrize("seed", range(3))
def test_what_is_replayed_in_memory_is_what_spark_replays(spark, seed):
    some, came = any_spans(random.Random(seed), 300)
    known = spark.createDataFrame(some, ", ".join(f"{name} {type_}" for name, type_ in SPAN_COLUMNS.items()))
    arrived = spark.createDataFrame(came, "number int, at bigint")
    ranges = [("main", START, START + 600 * SECOND), ("main", START + 900 * SECOND, START + 960 * SECOND)]
    whole = spark.createDataFrame([*ranges, ("other", START, START)], "pairing string, outage bigint, ended bigint")
    grid = Grid(FAILOVERS, PINGS)
    here, there = table._in_memory(known, arrived, whole, grid), table._by_spark(known, arrived, whole, grid)
    assert sorted(here, key=pair_of) == sorted(there, key=pair_of)
    assert len(here) == len(FAILOVERS) * len(PINGS)
    assert 0 < here[0].noticed < len(some)  # some are in no outage


def pair_of(replay):
    return replay.failover_interval, replay.ping_interval


@pytest.mark.parametrize("most", ["MOST_SPANS", "MOST_ARRIVALS"])
def test_what_is_too_much_for_memory_is_left_to_spark_and_gives_the_same_table(fleet, tried, most, monkeypatch):
    def refuse(*arguments):
        raise AssertionError("in memory")

    monkeypatch.setattr(table, most, 3)
    monkeypatch.setattr(table, "replayed_in_memory", refuse)
    made = what_if(tried.spans, tried.arrivals, fleet.events, fleet.messages, fleet.outages, tried.cost, GRID)
    assert sorted(made.collect()) == sorted(tried.what_if.collect())
