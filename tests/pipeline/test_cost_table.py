"""The table ``cost``: against the journals' own lines, against the pure model, and by hand."""

from __future__ import annotations

import datetime
from collections import Counter

import pytest
from pyspark.sql import functions as F

from kombu_paired.pipeline.costs import charges
from kombu_paired.pipeline.costs.prices import PriceSheet, Tier
from kombu_paired.pipeline.tables.cost import COST_COLUMNS, cost, heavy
from kombu_paired.pipeline.tables.messages import messages
from kombu_paired.simulation import FleetSettings
from tests.pipeline.tables import events_of, made_of

DAY = 24 * 3600 * 1_000_000
SHEET = PriceSheet(
    "a sheet",
    datetime.date(2026, 1, 1),
    "a test",
    "EUR",
    base_fee=10.0,
    included_operations=1_000_000,
    tiers=(Tier(2_000_000, 3.0), Tier(None, 1.0)),
)


@pytest.fixture(scope="module")
def fleet(spark, tmp_path_factory):
    """Sound journals; messages of up to some megabytes, that run twice, are given back, become dead letters."""
    settings = FleetSettings(
        processes=6, days=0.5, outages=3, messages=6_000, seed=5, duplicated=0.01, abandoned=0.03, dead_lettered=0.01
    )
    return made_of(spark, settings.without_faults(), tmp_path_factory.mktemp("cost"))


def operations(table, *by):
    return {tuple(row)[:-1]: row[-1] for row in table.groupBy(*by).agg(F.sum("operations")).collect()}


def test_each_stage_of_each_entity_and_day_counts_what_its_lines_say(spark, fleet):
    sizes, stored = {}, Counter()
    for line in fleet.lines:
        if line["event"] in ("diverted", "syphoned"):
            stored[line["message_id"]] = max(stored[line["message_id"]], line["bytes"])
    for row in fleet.truth_messages():
        sizes[row["message_id"]] = row["bytes"] or 0

    expected = Counter()
    for line in fleet.lines:
        day = (datetime.datetime(1970, 1, 1) + datetime.timedelta(microseconds=line["time"])).date()
        entity, event, message = line.get("entity"), line["event"], line.get("message_id")
        queue = f"{line['pairing']}/x-servicebus-transfer/{line.get('route', '').removeprefix('backlog/')}"
        told = {
            "sent": [("send_to_primary", entity, charges.steps(line.get("bytes", 0)))],
            "diverted": [("send_to_backlog", queue, charges.steps(line.get("bytes", 0)))],
            "received_from_backlog": [("receive_from_backlog", queue, charges.steps(stored[message]))],
            "syphoned": [
                ("complete_in_backlog", queue, 1),
                ("send_home", entity, charges.steps(line.get("bytes", 0))),
            ],
            "abandoned": [("complete_in_backlog", queue, 1)],
            "dead_lettered": [("complete_in_backlog", queue, 1)],
            "consumed": [
                ("receive_from_primary", entity, charges.steps(sizes.get(message, 0))),
                ("complete_at_primary", entity, 1),
            ],
            "ping": [("ping", entity, 1)] if line.get("failure") != "unreachable" else [],
            "polled": [("idle_receive", entity, 1)] if line.get("detail") == "0 messages" else [],
        }
        for stage, place, count in told.get(event, ()):
            expected[day, line["pairing"], place, stage] += count

    table = cost(fleet.events, heavy(fleet.events, fleet.messages))
    assert table.columns == list(COST_COLUMNS)
    rows = table.collect()
    assert {(row.day, row.pairing, row.entity, row.stage): row.operations for row in rows} == expected
    assert len(rows) == len(expected)
    assert all(row.money is None and row.currency is None for row in rows)
    assert {row.stage for row in rows} == set(charges.STAGES) - {"lock_renewal", "heartbeat", "idle_consume"}
    assert max(charges.steps(size) for size in sizes.values()) > 1  # else the sizes would not have been tested


def test_what_messages_cost_is_what_the_model_says_of_each_of_them(spark, tmp_path):
    """No message is given back, sent again or left: then the model knows all."""
    off = dict.fromkeys(
        ("unconsumed", "duplicated", "retried", "odd_failures", "waiting", "dead_lettered", "expired", "abandoned"), 0
    )
    settings = FleetSettings(
        processes=4, days=0.2, outages=1, messages=3_000, secondary_outages=0, pulled=0, seed=2, **off
    )
    settings = settings.without_faults()
    fleet = made_of(spark, settings, tmp_path)
    expected = Counter()
    for row in fleet.truth_messages():
        if row["consumed_at"] is not None and not row["maybe_duplicate"] and row["fate"] in ("direct", "recovered"):
            expected.update(charges.of_message(row["bytes"], diverted=row["fate"] == "recovered"))
    ids = fleet.messages.where(
        F.col("consumed_at").isNotNull() & ~F.col("maybe_duplicate") & F.col("fate").isin("direct", "recovered")
    ).select("message_id")
    events = fleet.events.join(ids, "message_id", "left_semi")
    table = cost(events, heavy(events, fleet.messages))
    assert operations(table, "stage") == {(stage,): count for stage, count in expected.items()}
    assert expected["send_home"] > 100

    whole = cost(fleet.events, heavy(fleet.events, fleet.messages)).where("stage = 'idle_receive'")
    hours = settings.days * 24
    syphons = charges.Syphons(settings.backlog_queues, settings.poll, count=2)  # every second process
    receives = charges.idle_receives(syphons, hours)
    assert operations(whole, "stage") == {("idle_receive",): pytest.approx(receives, abs=20)}


def test_pings_that_did_not_reach_the_namespace_are_free_and_long_tasks_renew_their_lock(spark):
    events = events_of(
        spark,
        {"time": 1, "event": "ping", "entity": "a", "failure": "unreachable"},
        {"time": 2, "event": "ping", "entity": "a", "failure": "timeout"},
        {"time": 3, "event": "ping", "entity": "a"},
        {"time": 4, "event": "consumed", "entity": "a", "message_id": "m", "ms": 150_000.0},
        {"time": 5, "event": "consumed", "entity": "a", "message_id": "n", "ms": 59_999.0},
        {"time": 6, "event": "polled", "entity": "main/x-servicebus-transfer/0", "detail": "10 messages"},
    )
    found = operations(cost(events, heavy(events, messages(events))), "entity", "stage")
    assert found == {
        ("a", "ping"): 2,
        ("a", "lock_renewal"): 2,
        ("a", "receive_from_primary"): 2,
        ("a", "complete_at_primary"): 2,
    }


def test_heartbeats_are_told_apart_from_messages(spark):
    events = events_of(
        spark,
        {"time": 1, "event": "sent", "entity": "celeryev/worker.heartbeat", "message_id": "h", "bytes": 600},
        {"time": 2, "event": "sent", "entity": "celeryev/worker.heartbeat", "message_id": "i", "bytes": 600},
        {"time": 3, "event": "sent", "entity": "celeryev/worker.online", "message_id": "o", "bytes": 600},
        {"time": 4, "event": "sent", "entity": "heartbeat", "message_id": "m", "bytes": 600},
    )
    assert operations(cost(events, heavy(events, messages(events))), "entity", "stage") == {
        ("celeryev/worker.heartbeat", "heartbeat"): 2,
        ("celeryev/worker.online", "send_to_primary"): 1,
        ("heartbeat", "send_to_primary"): 1,
    }


def test_a_message_of_many_steps_is_charged_for_each_wherever_it_is_carried(spark):
    size, queue = 3 * charges.STEP, "main/x-servicebus-transfer/7"
    common = {"message_id": "m", "route": "backlog/7"}
    events = events_of(
        spark,
        {"time": 1, "event": "send_failed", "entity": "a", "message_id": "m", "bytes": size, "failure": "fault"},
        {"time": 2, "event": "diverted", "entity": "a", "bytes": size + 1, **common},
        {"time": 3, "event": "received_from_backlog", "entity": queue, **common},
        {"time": DAY, "event": "syphoned", "entity": "a", "bytes": size + 1, **common},
        {"time": DAY + 1, "event": "consumed", "entity": "a-queue", "message_id": "m"},
    )
    first, second = datetime.date(1970, 1, 1), datetime.date(1970, 1, 2)
    assert operations(cost(events, heavy(events, messages(events))), "day", "entity", "stage") == {
        (first, queue, "send_to_backlog"): 4,
        (first, queue, "receive_from_backlog"): 4,
        (second, queue, "complete_in_backlog"): 1,
        (second, "a", "send_home"): 4,
        (second, "a-queue", "receive_from_primary"): 3,
        (second, "a-queue", "complete_at_primary"): 1,
    }


@pytest.mark.parametrize("per_day", [10_000, 40_000, 500_000])
def test_money_is_the_share_of_the_bill_of_a_month_like_these_days(spark, per_day):
    steps = per_day // 10
    events = events_of(
        spark,
        *(
            {"time": DAY * day + number, "event": "sent", "entity": entity, "bytes": steps * charges.STEP}
            for day in (3, 4)
            for number, entity in enumerate("aaaaaaabbb")
        ),
    )
    rows = cost(events, heavy(events, messages(events)), SHEET).collect()
    of_month = SHEET.of_operations(per_day * 30)
    assert len(rows) == 4
    for row in rows:
        share = 0.7 if row.entity == "a" else 0.3
        assert row.money == pytest.approx(of_month * share / 30)
        assert row.currency == "EUR"
    assert (of_month > 0) == (per_day * 30 > SHEET.included_operations)


def test_a_sheet_without_tiers_prices_no_operation(spark):
    flat = PriceSheet("flat", datetime.date(2026, 1, 1), "a test", "EUR", base_fee=600.0)
    events = events_of(spark, {"time": 1, "event": "sent", "entity": "a", "bytes": 1})
    [row] = cost(events, heavy(events, messages(events)), flat).collect()
    assert (row.operations, row.money) == (1, 0.0)
