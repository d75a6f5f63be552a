"""Outages by hand: when one begins and ends, who saw it, and which messages are its own."""

from __future__ import annotations

import pytest

from kombu_paired.pipeline.tables.messages import messages
from kombu_paired.pipeline.tables.outages import GAP, JOIN, OUTAGE_COLUMNS, intervals, outages
from tests.pipeline.tables import events_of
from tests.pipeline.truth import in_microseconds

S = 1_000_000
T0 = 1_800_000_000 * S


class Fleet:
    """Writes events down, each process numbering its own. Each fleet has a pairing of its own."""

    def __init__(self, pairing):
        self.pairing, self.lines, self._last = pairing, [], {}

    def say(self, process, at, event, entity="orders", **fields):
        self._last[process] = self._last.get(process, 0) + 1
        line = {"host": "h", "pid": process, "seq": self._last[process], "time": T0 + round(at * S), "event": event}
        if "message_id" in fields:
            fields["message_id"] += f" of {self.pairing}"
        self.lines.append(line | {"pairing": self.pairing, "entity": entity, **fields})
        return self

    def outage(self, process, start, end, entity="orders"):
        """Failed, failed over, pinged, restored."""
        self.say(process, start, "send_failed", entity, failure="unreachable", message_id=f"{process}-{start}")
        self.say(process, start, "suspect", entity, failure="unreachable")
        self.say(process, start + 1, "failed_over", entity, failure="timeout")
        self.say(process, (start + end) / 2, "ping", entity, failure="unreachable")
        self.say(process, end, "ping", entity)
        return self.say(process, end, "restored", entity)

    def divert(self, process, at, message, until=None, how="syphoned", entity="orders"):
        first = {"first_attempt": T0 + round(at * S), "message_id": message, "route": "backlog/0"}
        self.say(process, at, "diverted", entity, **first)
        if until is not None:
            self.say(process, until, how, "main/x-servicebus-transfer/0" if how == "dead_lettered" else entity, **first)
        return self

    def sent(self, process, at, entity="orders"):
        return self.say(process, at, "sent", entity, message_id=f"{process}-{at}")


#: All of them, so that Spark is asked once.
FLEETS: dict[str, Fleet] = {}


def fleet(name):
    return FLEETS.setdefault(name, Fleet(name))


@pytest.fixture(scope="module")
def told(spark):
    """Fleet -> the rows of its entities and those of its namespace, by time; times are seconds after the start."""
    events = events_of(spark, *(line for each in FLEETS.values() for line in each.lines)).cache()
    table = outages(intervals(events), events, messages(events))
    assert table.dtypes == list(OUTAGE_COLUMNS.items())
    found = {name: ([], []) for name in FLEETS}
    for row in in_microseconds(table).orderBy("first_failure_at", "entity").collect():
        seconds = {
            name: (row[name] - T0) / S for name in table.columns if name.endswith("_at") and row[name] is not None
        }
        found[row.pairing][row.scope == "namespace"].append(row.asDict() | seconds)
    return found


def of(row, expected):
    """The row's values for what is expected."""
    return {name: row[name] for name in expected}


fleet("whole").outage(1, 10, 100)
fleet("whole").divert(1, 10, "a", 103).divert(1, 50, "b", 110).divert(1, 60, "c", 105, how="dead_lettered")


def test_an_outage_from_first_failure_to_drained(told):
    [entity], [namespace] = told["whole"]
    expected = {
        "entity": "orders", "entities": 1, "first_failure_at": 10.0, "failed_over_at": 11.0, "restored_at": 100.0,
        "ended_at": 100.0, "drained_at": 110.0, "detect_s": 1.0, "restore_s": 90.0, "drain_s": 10.0,
        "failure_kinds": ["timeout", "unreachable"], "messages_diverted": 3, "messages_recovered": 2,
        "messages_dead_lettered": 1, "messages_waiting": 0, "processes_saw": 1, "processes_unrestored": 0,
        "processes_unaffected": 0,
    }  # fmt: skip
    assert of(entity, expected) == expected
    assert namespace | {"scope": "entity", "entity": "orders"} == entity


fleet("stands in").outage(1, 10, 100).divert(1, 10, "home", 103)
for number in range(20):
    fleet("stands in").divert(1, 20 + number, f"there {number}", 41 + number, how="handed_out")
    fleet("stands in").say(2, 42 + 2 * number, "consumed", message_id=f"there {number}", route="stand-in")


def test_how_many_tasks_ran_during_an_outage_and_how_late_they_were(told):
    [entity], [namespace] = told["stands in"]
    expected = {
        "messages_diverted": 21, "messages_recovered": 1, "messages_stood_in": 20, "messages_waiting": 0,
        "messages_ran_meanwhile": 20, "late_median_s": 31.0, "late_p95_s": 40.0, "drained_at": 103.0,
    }  # fmt: skip
    assert of(entity, expected) == of(namespace, expected) == expected


fleet("goes on").say(1, 10, "send_failed", failure="fault").say(1, 20, "failed_over").divert(1, 30, "a")
fleet("goes on").say(1, 80, "ping", failure="fault")


def test_an_outage_that_goes_on_is_not_restored_and_not_drained(told):
    [entity], _ = told["goes on"]
    assert set(of(entity, ("restored_at", "restore_s", "drained_at", "drain_s")).values()) == {None}
    assert (entity["ended_at"], entity["messages_waiting"], entity["processes_unrestored"]) == (80.0, 1, 1)


fleet("suspect").say(1, 10, "suspect", failure="timeout").say(1, 12, "restored")


def test_suspect_alone_is_an_outage_without_failover(told):
    [entity], _ = told["suspect"]
    expected = {"failed_over_at": None, "detect_s": None, "restore_s": 2.0, "messages_diverted": 0, "drained_at": None}
    assert of(entity, expected) == expected


NOT_COUNTED = ["throttled", "unauthorized", "rejected", "missing", None]
for kind in NOT_COUNTED:
    fleet(f"failure {kind}").say(1, 10, "send_failed", failure=kind).say(1, 11, "ping").sent(1, 11)


@pytest.mark.parametrize("kind", NOT_COUNTED)
def test_failures_that_do_not_count_are_no_evidence(told, kind):
    assert told[f"failure {kind}"] == ([], [])


fleet("restored is lost").outage(1, 10, 100).lines.pop()


def test_a_lost_restored_does_no_harm_since_the_next_good_ping_says_so(told):
    [entity], _ = told["restored is lost"]
    assert entity["restored_at"] == 100.0


fleet("twice").outage(1, 10, 100).outage(1, 200, 300).divert(1, 50, "a", 90).divert(1, 250, "b").divert(1, 9, "c")


def test_what_is_restored_and_fails_again_later_is_two_outages(told):
    [first, second], _ = told["twice"]
    assert (first["messages_diverted"], first["messages_recovered"], first["messages_waiting"]) == (1, 1, 0)
    assert (second["messages_diverted"], second["messages_waiting"]) == (1, 1)


TOUCHING = [(JOIN / S - 1, 1), (JOIN / S, 1), (JOIN / S + 1, 2)]
for apart, _ in TOUCHING:
    fleet(f"apart {apart}").outage(1, 0, 100).outage(2, 100 + apart, 200)


@pytest.mark.parametrize(("apart", "count"), TOUCHING)
def test_outages_of_two_processes_are_one_if_they_nearly_touch(told, apart, count):
    entities, namespaces = told[f"apart {apart}"]
    assert (len(entities), len(namespaces)) == (count, count)
    assert sum(each["processes_saw"] for each in entities) == 2


SILENT = [(GAP / S, 1), (GAP / S + 1, 2)]
for silence, _ in SILENT:
    fleet(f"silent {silence}").say(1, 0, "failed_over").say(1, silence, "failed_over")


@pytest.mark.parametrize(("silence", "count"), SILENT)
def test_evidence_after_a_long_silence_tells_of_another_outage(told, silence, count):
    assert len(told[f"silent {silence}"][0]) == count


fleet("overlap").outage(1, 0, 1000).outage(2, 100, 200).outage(3, 990, 1100)


def test_a_long_outage_is_not_ended_by_a_short_one_within(told):
    [entity], _ = told["overlap"]
    assert (entity["first_failure_at"], entity["ended_at"], entity["processes_saw"]) == (0.0, 1100.0, 3)


fleet("entities").outage(1, 0, 100).outage(1, 90, 200, "emails").outage(1, 500, 600, "emails")
fleet("entities").divert(1, 50, "a", 150).divert(1, 120, "b", 260, entity="emails")


def test_entities_that_fail_at_a_time_are_one_outage_of_their_namespace(told):
    entities, [first, second] = told["entities"]
    assert len(entities) == 3
    expected = {"entities": 2, "entity": None, "first_failure_at": 0.0, "restored_at": 200.0, "messages_diverted": 2}
    assert of(first, expected) == expected
    assert (first["drained_at"], first["drain_s"], first["processes_saw"]) == (260.0, 60.0, 1)
    assert (second["entities"], second["messages_diverted"]) == (1, 0)


fleet("unaffected").outage(1, 60, 180).sent(1, 100)  # saw it
fleet("unaffected").sent(2, 100).sent(2, 110)
fleet("unaffected").sent(3, 100, "emails")  # another entity
fleet("unaffected").sent(4, 30).sent(4, 200)  # before and after
fleet("unaffected").sent(5, 181).sent(5, 239)  # in the minute of its end, but later
fleet("unaffected").sent(6, 180)  # at the very end
fleet("unaffected").sent(7, 179.5).sent(7, 239)


def test_a_process_that_sent_meanwhile_and_saw_nothing_is_unaffected(told):
    [entity], [namespace] = told["unaffected"]
    assert entity["processes_unaffected"] == namespace["processes_unaffected"] == 3


fleet("half affected").outage(1, 0, 100).outage(2, 0, 100, "emails").sent(2, 50).sent(3, 50)


def test_a_process_that_saw_one_entity_fail_is_not_unaffected_by_the_namespaces_outage(told):
    [_, orders], [namespace] = told["half affected"]
    assert (orders["entity"], orders["processes_unaffected"]) == ("orders", 2)
    assert namespace["processes_unaffected"] == 1


LATE = 100 + GAP / S
fleet("late").outage(1, 0, 100).divert(1, LATE, "late", LATE + 5).divert(1, LATE + 1, "later", LATE + 5)


def test_a_message_long_after_the_end_is_nobodys(told):
    [entity], _ = told["late"]
    assert entity["messages_diverted"] == 1


fleet("same pid").outage(1, 0, 100).lines += Fleet("same pid").outage(1, 5000, 5100).lines  # numbers from 1 again


def test_a_process_that_starts_again_with_the_same_pid_does_not_stretch_an_outage(told):
    early, late = told["same pid"][0]
    assert [(each["first_failure_at"], each["ended_at"]) for each in (early, late)] == [(0.0, 100.0), (5000.0, 5100.0)]


FAR = 200_000_000_000
fleet("far future").outage(1, 0, 100).say(1, FAR, "suspect").say(2, 10, "suspect").say(2, FAR, "restored").sent(3, 50)


def test_a_clock_in_the_far_future_does_not_stop_the_table(told):
    [entity], _ = told["far future"]
    assert (entity["first_failure_at"], entity["ended_at"], entity["processes_saw"]) == (0.0, FAR, 2)


def test_no_evidence_is_no_outage(spark):
    events = events_of(spark, {"event": "sent", "time": T0, "entity": "orders", "message_id": "a"})
    assert outages(intervals(events), events, messages(events)).isEmpty()
