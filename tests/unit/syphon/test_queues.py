"""One pump of several backlog queues: which it serves, what it tells, and what one that fails costs the others."""

from __future__ import annotations

import pytest

from kombu_paired.events import EventKind
from kombu_paired.failures import FailureKind
from kombu_paired.message import Message
from kombu_paired.syphon.patience import LONGEST_WAIT
from tests.unit.syphon.plan import POLL, Run
from tests.unit.syphon.trip import QUEUE

OTHER = "contoso/x-servicebus-transfer/1"
BOTH = f"{QUEUE} {OTHER}"


@pytest.fixture
def run():
    made = Run([QUEUE, OTHER])
    yield made
    made.pairing.close()


def told(run, kind):
    return [(each.entity, each.message_id, each.route) for each in run.events if each.kind is kind]


def polled(run):
    return [(each.entity, each.detail) for each in run.events if each.kind is EventKind.POLLED]


def test_one_link_receives_from_all_and_each_message_is_settled_where_it_lay(run):
    run.put("a", "b")
    run.put("c", queue=OTHER)
    run()
    assert run.asked("open receiver") == [("secondary", "open receiver", BOTH)]
    assert run.arrived == ["a", "b", "c"]
    assert (run.secondary.queues[QUEUE], run.secondary.queues[OTHER]) == ([], [])
    assert run.asked("complete") == [("secondary", "complete", each) for each in "abc"]


def test_what_is_told_of_a_message_names_the_queue_that_it_came_from(run):
    run.put("a")
    run.put("b", queue=OTHER)
    run.put("back", queue=OTHER, routing_key="bad")
    run.secondary.put(OTHER, Message("x", "", OTHER, headers={"some": "header"}, properties={"message_id": "dead"}))
    run.primary.failing_queues = {"bad"}
    run()
    assert told(run, EventKind.RECEIVED_FROM_BACKLOG)[:4] == [
        (QUEUE, "a", "backlog/0"),
        (OTHER, "b", "backlog/1"),
        (OTHER, "back", "backlog/1"),
        (OTHER, "dead", "backlog/1"),
    ]
    assert told(run, EventKind.SYPHONED) == [("orders", "a", "backlog/0"), ("orders", "b", "backlog/1")]
    assert told(run, EventKind.ABANDONED)[0] == (OTHER, "back", "backlog/1")
    assert told(run, EventKind.DEAD_LETTERED) == [(OTHER, "dead", "backlog/1")]


def test_a_poll_that_found_nothing_is_told_of_each_queue_and_one_that_did_of_those_it_found_something_in(run):
    run(lambda: None, lambda: run.put("late", queue=OTHER))
    nothing = [(QUEUE, "0 messages"), (OTHER, "0 messages")]
    assert polled(run) == [*nothing, (OTHER, "1 messages"), *nothing]
    assert run.plan.waits == [POLL] * 3


def test_all_must_be_empty_for_it_to_have_seen_the_backlog_empty(run):
    seen = []
    run.put("a", queue=OTHER)
    run.pump._move = lambda receiver, batch: seen.append(run.pump.found_empty)
    run(lambda: seen.append(run.pump.found_empty), lambda: seen.append(run.pump.found_empty))
    assert seen == [False, False, True]


# -- a queue that fails alone -----------------------------------------------------------------------------------------


def test_a_missing_queue_is_created_and_the_others_do_not_wait_for_that(run, caplog):
    run.secondary.missing_queues = {QUEUE}
    run.put("a", queue=OTHER)

    def is_there():
        assert run.arrived == ["a"]
        run.put("b")

    run(is_there, lambda: None)
    assert run.arrived == ["a", "b"]
    assert run.asked("ensure") == [("secondary", "ensure", QUEUE)]
    assert len([each for each in caplog.records if f"cannot receive from {QUEUE}" in each.message]) == 1


def test_one_that_must_not_be_created_is_looked_for_again_and_again_and_is_told_of_once(run, caplog):
    run.pairing.options = run.pairing.options.__class__(secondary="x", create_backlog_queues=False)
    run.pump.queues._options = run.pairing.options
    run.secondary.missing_queues = {QUEUE}
    empty = []
    run(*[lambda: empty.append(run.pump.found_empty)] * 9, run.secondary.missing_queues.clear, lambda: run.put("a"))
    assert run.asked("ensure") == []
    assert run.arrived == ["a"]
    assert len([each for each in caplog.records if "cannot receive from" in each.message]) == 1
    assert not any(empty), "nobody knows what is in it"
    pauses = run.plan.waits[:9]
    assert all(0.2 <= pause <= LONGEST_WAIT for pause in pauses)
    assert pauses[-1] > pauses[0]


def test_what_came_home_and_could_not_be_settled_in_one_queue_is_in_doubt_and_the_rest_is_not(run):
    run.put("a")
    run.put("b", queue=OTHER)
    run.secondary.stuck_queues = {OTHER}
    run(run.secondary.stuck_queues.clear)
    assert run.asked("complete") == [("secondary", "complete", "a"), ("secondary", "complete", "b")]
    homecomings = [(each.message_id, each.maybe_duplicate) for each in run.events if each.kind is EventKind.SYPHONED]
    assert homecomings == [("a", False), ("b", False), ("b", True)]


@pytest.mark.parametrize("what", ["bad", "dead"])
def test_what_could_not_be_put_back_or_buried_is_not_told_of(run, what):
    run.put("a", routing_key="bad")
    run.secondary.put(QUEUE, Message("x", "", QUEUE, headers={}, properties={"message_id": "dead"}))
    run.primary.failing_queues = {"bad"}
    run.secondary.stuck_queues = {QUEUE}
    run()
    assert run.kinds(EventKind.ABANDONED, EventKind.DEAD_LETTERED) == []
    assert len(run.waiting) == 2


def test_a_secondary_that_dies_while_a_queue_is_in_trouble_is_waited_for(run, caplog):
    run.secondary.missing_queues = {QUEUE}
    run.put("a", queue=OTHER)
    run(run.secondary.go_away, lambda: None, lambda: None, run.secondary.come_back, lambda: run.put("b"))
    assert run.arrived == ["a", "b"]
    assert len(run.asked("close receiver")) == 2


# -- queues that come and go ------------------------------------------------------------------------------------------

THIRD = "contoso/x-paired-standin/orders"


def test_a_queue_that_is_added_is_received_from_at_once_and_one_that_is_removed_no_more(run):
    run.put("a", queue=THIRD)
    run(
        lambda: run.pump.add(THIRD),
        lambda: run.pump.remove(THIRD),
        lambda: run.put("b", queue=THIRD),
    )
    assert run.arrived == ["a"]
    assert len(run.secondary.queues[THIRD]) == 1
    assert run.asked("open receiver") == [("secondary", "open receiver", BOTH)]
    assert run.asked("remove") == [("secondary", "remove", THIRD)]
    assert run.asked("receive")[0] == ("secondary", "receive", BOTH)


def test_what_is_added_is_remembered_when_the_link_is_another_one(run):
    run.pump.add(THIRD)
    run.put("a", queue=THIRD)
    run(run.secondary.go_away, run.secondary.come_back, lambda: run.put("b", queue=THIRD))
    assert run.asked("open receiver")[-1] == ("secondary", "open receiver", f"{BOTH} {THIRD}")
    assert run.arrived == ["a", "b"]


@pytest.mark.parametrize("kind", [FailureKind.UNREACHABLE, FailureKind.UNAUTHORIZED])
def test_a_secondary_that_fails_as_a_whole_is_told_of_once_for_all_queues(run, kind, caplog):
    run.secondary.always = run.secondary.failure(kind, whole_namespace=kind is FailureKind.UNREACHABLE)
    run(lambda: None, lambda: None, run.secondary.come_back)
    assert [each.message for each in caplog.records if "cannot receive from 2 backlog queues" in each.message]
    assert len(caplog.records) == 1
