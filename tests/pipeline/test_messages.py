"""One message at a time, by hand: its times, its route, its fate."""

from __future__ import annotations

import pytest
from pyspark.sql.types import DateType, DoubleType, IntegerType, LongType, TimestampType

from kombu_paired.pipeline.tables.messages import FATES, MESSAGE_COLUMNS, balance, messages
from tests.pipeline.tables import events_of
from tests.pipeline.truth import in_microseconds

S = 1_000_000


def event(kind, at, entity="orders", **fields):
    """At so many seconds."""
    return {"event": kind, "time": round(at * S), "entity": entity, **fields}


SENT = event("sent", 1, first_attempt=S, route="primary", bytes=700)
DIVERTED = event("diverted", 2, first_attempt=S, route="backlog/3", bytes=900)
SYPHONED = event("syphoned", 9, first_attempt=S, route="backlog/3", bytes=900)
CONSUMED = event("consumed", 10, entity="orders-queue")
IN_QUEUE_3 = {"entity": "main/x-servicebus-transfer/3", "route": "backlog/3"}
RECEIVED, ABANDONED, DEAD = (
    event(kind, at, **IN_QUEUE_3) for kind, at in (("received_from_backlog", 3), ("abandoned", 4), ("dead_lettered", 5))
)
EXPIRED = DEAD | {"detail": "TTLExpiredException"}
FAILED = event("send_failed", 1, first_attempt=S, route="primary", bytes=700, failure="timeout")
REFUSED = event("backlog_unavailable", 2, first_attempt=S, bytes=700, failure="unreachable")
MAYBE = {"maybe_duplicate": True}

THERE = {"route": "stand-in"}
HANDED_OUT = SYPHONED | {"event": "handed_out", "time": 6 * S}
RAN_THERE, HOME_FROM_THERE = CONSUMED | THERE, SYPHONED | THERE
FOUND_THERE, DEAD_THERE = (each | {"entity": "main/x-paired-standin/orders", **THERE} for each in (RECEIVED, DEAD))

#: Name of a message: its events, and what is true of it.
CASES = {
    "direct": ([SENT, CONSUMED], {"fate": "direct", "route": "primary", "delivered_at": S, "consumed_at": 10 * S}),
    "not-consumed-yet": ([SENT], {"fate": "direct", "consumed_at": None, "copies_delivered": 1}),
    "recovered": (
        [FAILED, DIVERTED, RECEIVED, SYPHONED, CONSUMED],
        {"fate": "recovered", "route": "backlog", "backlog_queue": 3, "backlog_s": 7.0, "failed_tries": 1, "bytes": 700}
        | {"first_sent_at": S, "diverted_at": 2 * S, "syphoned_at": 9 * S, "delivered_at": 9 * S, "sends": 1},
    ),
    "in-any-order": ([CONSUMED, SYPHONED, DIVERTED], {"fate": "recovered", "bytes": 900, "backlog_s": 7.0}),
    "given-back-and-again": ([DIVERTED, RECEIVED, ABANDONED, RECEIVED, SYPHONED], {"fate": "recovered"}),
    "waiting": ([DIVERTED], {"fate": "waiting", "syphoned_at": None, "backlog_s": None, "copies_delivered": 0}),
    "dead": ([DIVERTED, RECEIVED, DEAD], {"fate": "dead-lettered", "dead_lettered_at": 5 * S, "backlog_s": 3.0}),
    "expired": ([DIVERTED, EXPIRED], {"fate": "expired", "dead_lettered_at": 5 * S}),
    "home-twice": ([DIVERTED, SYPHONED, SYPHONED], {"fate": "duplicated", "copies_delivered": 2}),
    "ran-twice": ([SENT, CONSUMED, CONSUMED], {"fate": "duplicated", "copies_delivered": 2}),
    "sent-again-by-its-task": ([SENT, CONSUMED, SENT, CONSUMED], {"fate": "direct", "sends": 2}),
    "both-ways": ([SENT, DIVERTED, SYPHONED], {"fate": "recovered", "route": "both", "sends": 2}),
    "retry-waits": ([SENT, CONSUMED, DIVERTED], {"fate": "waiting", "route": "both"}),
    "retry-is-dead": ([SENT, CONSUMED, DIVERTED, DEAD], {"fate": "dead-lettered", "copies_delivered": 1, "sends": 2}),
    "journal-of-the-syphon-is-lost": ([DIVERTED, CONSUMED], {"fate": "recovered", "copies_delivered": 1}),
    "maybe-it-is-there-too": ([DIVERTED | MAYBE, CONSUMED], {"fate": "waiting", "maybe_duplicate": True}),
    "it-was-there-too": ([DIVERTED | MAYBE, SYPHONED | MAYBE, CONSUMED, CONSUMED], {"fate": "duplicated"}),
    "refused": ([FAILED, REFUSED], {"fate": "unknown", "route": None, "caller_errors": 1, "sends": 0, "bytes": 700}),
    "consumed-alone": ([CONSUMED], {"fate": "unknown", "entity": "orders-queue", "first_sent_at": None, "sends": 0}),
    "backlog-alone": ([RECEIVED], {"fate": "unknown", "entity": None, "pairing": None, "route": "backlog"}),
    "two-entities": ([SENT, SENT | {"entity": "apples"}], {"entity": "apples", "fate": "direct"}),
    "names-that-are-not-ascii": ([SENT | {"entity": "rückgaben"}], {"entity": "rückgaben"}),
    "a-fast-sender": (  # its clock is three seconds ahead of the syphon's and the worker's
        [DIVERTED | {"time": 12 * S, "first_attempt": 11 * S}, SYPHONED | {"first_attempt": 11 * S}, CONSUMED],
        {"fate": "recovered", "diverted_at": 12 * S, "syphoned_at": 12 * S, "consumed_at": 12 * S, "backlog_s": 0.0}
        | {"skew_s": 3.0},
    ),
    "consumed-before-it-was-sent": (
        [SENT | {"time": 12 * S, "first_attempt": 12 * S}, CONSUMED],
        {"consumed_at": 12 * S, "delivered_at": 12 * S, "skew_s": 2.0},
    ),
    "consumed-from-the-copy": (  # the primary had it all along: it may run before the syphon brings the other
        [DIVERTED | MAYBE, SYPHONED, event("consumed", 5)],
        {"consumed_at": 5 * S, "syphoned_at": 9 * S, "skew_s": 0.0, "fate": "recovered"},
    ),
    "dead-before-diverted": (
        [DIVERTED, DEAD | {"time": S}],
        {"dead_lettered_at": 2 * S, "backlog_s": 0.0, "skew_s": 1.0},
    ),
    "ran-during-the-outage": (
        [DIVERTED, RECEIVED, HANDED_OUT, RAN_THERE],
        {"fate": "stood-in", "route": "stand-in", "handed_out_at": 6 * S, "delivered_at": 6 * S, "backlog_queue": 3}
        | {"syphoned_at": None, "consumed_at": 10 * S, "backlog_s": 4.0, "late_s": 9.0, "copies_delivered": 1},
    ),
    "handed-out-and-no-more-is-known": ([DIVERTED, HANDED_OUT], {"fate": "stood-in", "late_s": None, "sends": 1}),
    "nobody-took-it-there": (
        [DIVERTED, RECEIVED, HANDED_OUT, FOUND_THERE, HOME_FROM_THERE, CONSUMED],
        {"fate": "recovered", "copies_delivered": 1, "handed_out_at": 6 * S, "syphoned_at": 9 * S, "late_s": None}
        | {"backlog_s": 4.0, "route": "stand-in"},
    ),
    "ran-there-and-came-home-too": ([DIVERTED, HANDED_OUT, RAN_THERE, HOME_FROM_THERE], {"fate": "duplicated"}),
    "handed-out-twice": ([DIVERTED, HANDED_OUT, HANDED_OUT], {"fate": "duplicated", "copies_delivered": 2}),
    "died-there": ([DIVERTED, HANDED_OUT, DEAD_THERE], {"fate": "dead-lettered", "copies_delivered": 0}),
    "expired-there": ([DIVERTED, HANDED_OUT, DEAD_THERE | {"detail": "TTLExpiredException"}], {"fate": "expired"}),
    "nobody-says-that-it-was-handed-out": ([DIVERTED, RAN_THERE], {"fate": "stood-in", "copies_delivered": 1}),
    "its-retry-waits": ([DIVERTED, HANDED_OUT, RAN_THERE, DIVERTED], {"fate": "waiting", "sends": 2}),
    "its-retry-went-straight": (
        [DIVERTED, HANDED_OUT, RAN_THERE, SENT, CONSUMED],
        {"fate": "stood-in", "route": "both", "copies_delivered": 2, "late_s": 9.0},
    ),
    "ran-there-before-it-was-handed-out": (  # by the clock of the syphon, which is fast
        [DIVERTED, HANDED_OUT | {"time": 12 * S}, RAN_THERE],
        {"fate": "stood-in", "consumed_at": 12 * S, "late_s": 11.0},
    ),
    "odd-routes": ([DIVERTED | {"route": "backlog/x"}, SYPHONED | {"route": "backlog/12"}], {"backlog_queue": 12}),
    "many": ([SENT, *[CONSUMED] * 3000], {"copies_delivered": 3000, "fate": "duplicated"}),
}


@pytest.fixture(scope="module")
def table(spark):
    lines = [each | {"message_id": name} for name, (events, _) in CASES.items() for each in events]
    lines += [{"event": "ping", "time": 1, "entity": "orders"}, {"event": "polled", "time": 1}]
    return messages(events_of(spark, *lines)).cache()


@pytest.fixture(scope="module")
def found(table):
    return {row.message_id: row.asDict() for row in in_microseconds(table).collect()}


def test_there_is_one_row_per_message_and_none_for_anything_else(found, table):
    assert found.keys() == CASES.keys()
    assert table.count() == len(CASES)


@pytest.mark.parametrize("name", CASES)
def test_a_message(found, name):
    _, expected = CASES[name]
    assert {column: found[name][column] for column in expected} == expected


def test_the_columns_are_those_of_the_contract(table):
    types = {each.name: type(each.dataType) for each in table.schema.fields}
    assert tuple(types) == MESSAGE_COLUMNS
    assert {name for name in types if types[name] is TimestampType} == {name for name in types if name.endswith("_at")}
    assert types["day"] is DateType
    assert types["backlog_queue"] is IntegerType
    assert types["skew_s"] is types["backlog_s"] is types["late_s"] is DoubleType
    assert {types[name] for name in ("bytes", "sends", "copies_delivered", "failed_tries", "caller_errors")} == {
        LongType
    }


def test_every_fate_is_met(found):
    assert {row["fate"] for row in found.values()} == set(FATES)


def test_the_balance_is_the_sum_of_it_all(table, found):
    row = balance(table).first().asDict()
    assert row["messages"] == len(CASES) == sum(row[fate] for fate in FATES)
    assert (row["refused"], row["lost"]) == (1, 0)
    assert row["ran_meanwhile"] == sum(each["late_s"] is not None for each in found.values()) == 6
    assert row["diverted"] == sum(each["diverted_at"] is not None for each in found.values())
    assert row["accepted"] == len(CASES) - 3


def test_no_event_is_no_message(spark):
    empty = messages(events_of(spark, {"event": "ping", "time": 1}))
    assert empty.isEmpty()
    assert balance(empty).first().messages == 0
