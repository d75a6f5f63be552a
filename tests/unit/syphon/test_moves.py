"""The syphon at work, on brokers that fail as they are told to: what it moves, leaves, gives up, and waits for.

A pump runs in the thread of its test, by a plan: see ``plan``.
"""

from __future__ import annotations

import itertools
import threading
import time
from collections import Counter
from types import SimpleNamespace
from typing import Any

import pytest

from kombu_paired.declarations import Declaration, Entity
from kombu_paired.events import EventKind
from kombu_paired.failures import FailureKind
from kombu_paired.message import Diversion, Message, to_backlog
from kombu_paired.syphon import Syphon, syphon
from kombu_paired.syphon.destinations import FIRST_REST, LONGEST_REST
from kombu_paired.syphon.patience import FIRST_WAIT, LONGEST_WAIT
from tests.unit.syphon.plan import POLL, Run
from tests.unit.syphon.trip import QUEUE, Trip


@pytest.fixture
def run():
    made = Run()
    yield made
    made.pairing.close()


# -- what it moves ----------------------------------------------------------------------------------------------------


def test_a_message_is_confirmed_first_and_settled_then(run):
    run.put("a", "b")
    run()
    assert run.asked("send", "complete") == [
        ("primary", "send", "orders"),
        ("primary", "send", "orders"),
        ("secondary", "complete", "a"),
        ("secondary", "complete", "b"),
    ]
    assert (run.arrived, run.left) == (["a", "b"], [])
    assert run.kinds(EventKind.SYPHONED) == [(EventKind.SYPHONED, "a"), (EventKind.SYPHONED, "b")]


@pytest.mark.parametrize("kind", [FailureKind.UNREACHABLE, FailureKind.TIMEOUT, FailureKind.FAULT])
def test_what_was_not_confirmed_is_not_settled(run, kind):
    run.put("a", "b")
    run.syphon.primary_is_back()
    run.primary.script, run.primary.always = [None], run.failure(kind)
    run()
    assert run.asked("complete") == [("secondary", "complete", "a")]
    assert run.left == ["b"]


def test_an_empty_queue_is_polled_for_as_long_as_the_settings_say(run):
    run(lambda: None, lambda: run.put("late"))
    assert run.plan.waits == [POLL] * 3
    assert run.arrived == ["late"]
    assert [event.detail for event in run.events if event.kind is EventKind.POLLED] == [
        "0 messages",
        "1 messages",
        "0 messages",
    ]


def test_what_senders_declared_is_declared_before_it_is_sent_once_per_link(run):
    queue = Declaration("queue_declare", {"queue": "orders"})
    why = Diversion(time.time(), time.time(), "web-1/1", "unreachable", declarations=(queue,))
    for name in ("a", "b"):
        message = Message("{}", "", "orders", properties={"message_id": name})
        run.waiting.append(to_backlog(message, QUEUE, why))
    run()
    assert run.asked("declare", "send") == [("primary", "declare", "orders"), *[("primary", "send", "orders")] * 2]


def test_an_entity_that_is_missing_is_declared_and_gets_its_message_again(run):
    queue = Declaration("queue_declare", {"queue": "orders"})
    why = Diversion(time.time(), time.time(), "web-1/1", "unreachable", declarations=(queue,))
    run.waiting.append(to_backlog(Message("{}", "", "orders", properties={"message_id": "a"}), QUEUE, why))
    run.primary.script = [run.failure(FailureKind.MISSING)]
    run()
    assert [what for _, what, _ in run.asked("declare", "send")] == ["declare", "send", "declare", "send"]
    assert (run.arrived, run.left, run.dead_letters) == (["a"], [], [])


# -- destinations that fail -------------------------------------------------------------------------------------------


@pytest.mark.parametrize("kind", [FailureKind.FAULT, FailureKind.THROTTLED, FailureKind.UNAUTHORIZED])
def test_a_destination_that_fails_is_left_alone_and_the_others_go_on(run, kind, caplog):
    for turn in "12":
        run.put(f"bad-{turn}", routing_key="bad")
        run.put(f"good-{turn}")
    run.move(run.failure(kind), None, run.failure(kind), None)
    run.put("bad-3", routing_key="bad")
    run.put("good-3")
    run.move()
    assert run.arrived == ["good-1", "good-2", "good-3"]
    assert sorted(map(str, run.left)) == ["bad-1", "bad-2", "bad-3"]
    assert [about for _, _, about in run.asked("send")].count("bad") == 2, "while it rests it is not tried"
    assert len([each for each in caplog.records if "leaves bad alone" in each.message]) == 1


def test_a_destination_that_works_again_gets_what_waited_for_it(run):
    run.put("a", "b", routing_key="bad")
    run.primary.failing_queues = {"bad"}

    def mend():
        run.primary.failing_queues = set()
        run.plan.now += LONGEST_REST

    run(lambda: None, mend)
    assert sorted(run.arrived) == ["a", "b"]
    assert run.left == []
    assert run.syphon.destinations.failed(Entity("", "bad")) == 0.0, "what it failed for is forgotten"


@pytest.mark.parametrize(("asked", "rest"), [(None, 10.0), (2.0, 2.0), (60.0, 10.0)])
def test_a_busy_destination_rests_as_long_as_it_asks_for_and_no_longer_each_time(run, asked, rest):
    """A namespace that is throttled works: a rest is ``throttle_wait`` at most, as for a sender, and does not grow."""
    run.put("a", routing_key="busy")
    busy, rests = run.syphon.destinations.busy, []
    run.syphon.destinations.busy = lambda entity, seconds: (rests.append(seconds), busy(entity, seconds))
    for _ in range(4):
        run.move(run.failure(FailureKind.THROTTLED, wait=asked))
        assert run.syphon.destinations.is_resting(Entity("", "busy")) or rest <= FIRST_REST
        run.plan.now += rest
    assert rests == [rest] * 4
    run.move(None)
    assert (run.arrived, run.left) == (["a"], [])


@pytest.mark.parametrize("first", [True, False])
def test_a_rest_that_begins_or_ends_in_the_middle_of_a_batch_leaves_nothing_out_and_takes_nothing_twice(run, first):
    run.put("a", "b", "c")
    answers = itertools.cycle([first, not first])
    run.syphon.destinations.is_resting = lambda entity: next(answers)
    run.move()
    assert sorted([*run.arrived, *map(str, run.left)]) == ["a", "b", "c"]


def test_where_queues_fail_alone_all_that_leads_to_a_queue_rests_with_it(run):
    run.pairing.concerns = run.pairing.book.queue_of
    run.pairing.book.note("exchange_declare", {"exchange": "shop", "type": "direct", "durable": True})
    run.pairing.book.note("queue_bind", {"queue": "orders", "exchange": "shop", "routing_key": "fast"})
    run.put("a", exchange="shop", routing_key="fast")
    run.put("b")
    run.move(run.failure(FailureKind.UNAUTHORIZED))
    run.put("c", exchange="shop", routing_key="fast")
    sent = len(run.asked("send"))
    run.move()
    assert len(run.asked("send")) == sent
    assert sorted(map(str, run.left)) == ["a", "c"]


def test_where_all_that_waits_is_for_resting_destinations_it_does_not_go_round_and_round(run):
    run.put("a", routing_key="bad")
    run.primary.failing_queues = {"bad"}
    run(*[lambda: None] * 20)
    assert all(0.1 <= wait <= FIRST_REST for wait in run.plan.waits)
    tries = len(run.asked("send"))
    assert 2 <= tries <= 6, "longer between any two"
    assert tries < len(run.asked("receive"))
    assert run.left == ["a"]


# -- what can never be delivered --------------------------------------------------------------------------------------

GOOD = {"x-ms-path": "orders", "x-paired-routing-key": "orders", "x-paired-exchange": ""}
TIMES = {"x-paired-first-attempt": "1.0", "x-paired-diverted-at": "1.0"}


@pytest.mark.parametrize(
    ("reason", "headers"),
    [
        ("NoPath", {"some": "header"}),
        ("MalformedHeader", {**GOOD, "x-paired-first-attempt": "soon"}),
        ("MalformedDeclarations", {**GOOD, **TIMES, "x-paired-declare": "{not JSON"}),
        ("MalformedBody", {**GOOD, **TIMES, "x-paired-body-encoding": "zlib"}),
        ("TTLExpiredException", {**GOOD, **TIMES, "x-ms-timetolive": "1000"}),
    ],
)
def test_what_is_malformed_or_expired_is_a_dead_letter_with_its_reason(run, reason, headers, caplog):
    run.put("before")
    run.waiting.append(Message("x", "", QUEUE, headers=headers, properties={"message_id": "bad"}))
    run.put("after")
    run()
    assert run.arrived == ["before", "after"]
    assert run.dead_letters == [("bad", reason)]
    assert run.left == []
    assert run.kinds(EventKind.DEAD_LETTERED) == [(EventKind.DEAD_LETTERED, "bad")]
    assert f"is a dead letter: {reason}" in caplog.text


def test_what_the_primary_refuses_for_good_is_one_too_and_its_neighbours_arrive(run):
    run.put("before", "bad", "after")
    run.primary.script = [None, run.failure(FailureKind.REJECTED), None]
    run()
    assert run.arrived == ["before", "after"]
    assert run.dead_letters == [("bad", "Rejected")]
    assert run.left == []


# -- a primary that is away -------------------------------------------------------------------------------------------


def test_a_dead_primary_is_probed_and_its_backlog_is_not_touched(run):
    run.put("a")
    run.primary.go_away()
    run(lambda: None, lambda: None, run.primary.come_back)
    assert [what for _, what, _ in run.asked("probe", "open receiver", "receive", "send")] == [
        *["probe"] * 4,
        "open receiver",
        "receive",
        "send",
        "receive",
    ]
    assert run.arrived == ["a"]


@pytest.mark.parametrize("kind", [FailureKind.UNREACHABLE, FailureKind.TIMEOUT])
def test_a_primary_that_dies_in_mid_batch_leaves_all_where_it_was(run, kind, caplog):
    run.put("a", "b", "c")
    dead = run.failure(kind, whole_namespace=True)
    run.syphon.primary_is_back()
    run.primary.script, run.primary.always = [None], dead

    def still_away():
        assert sorted(map(str, run.left)) == ["b", "c"]
        assert len(run.asked("receive")) == 1, "it is not given out and back over and over"

    run(still_away, still_away, run.primary.come_back)
    assert sorted(run.arrived) == ["a", "b", "c"]
    assert len([each for each in caplog.records if "The backlog stays where it is" in each.message]) == 1


@pytest.mark.parametrize(("is_full", "resting"), [(True, False), (False, True)])
def test_a_fault_is_the_whole_brokers_if_a_probe_says_so(run, caplog, is_full, resting):
    run.put("a")
    if is_full:
        run.primary.always = run.failure(FailureKind.FAULT, whole_namespace=True)
    run.move(run.failure(FailureKind.FAULT))
    assert run.syphon.primary_works is not is_full
    assert ("leaves orders alone" in caplog.text) is resting
    assert run.primary.probes == 1


def test_pauses_between_probes_grow_and_differ_from_syphon_to_syphon():
    pauses = []
    for _ in range(2):
        run = Run()
        run.primary.go_away()
        run(*[lambda: None] * 11)
        pauses.append(run.plan.waits)
        run.pairing.close()
    for each in pauses:
        assert len(each) == 12
        assert all(0 <= pause <= min(FIRST_WAIT * 2**number, LONGEST_WAIT) for number, pause in enumerate(each))
        assert max(each) > FIRST_WAIT
    assert pauses[0] != pauses[1], "a fleet does not knock at the same moment"


def probes_of(processes: int) -> list[list[float]]:
    """When syphons probe that lost their primary at 0."""
    probes = []
    for _ in range(processes):
        run = Run()
        times: list[float] = []
        run.syphon.primary_is_back()
        run.syphon.primary_failed(run.failure(FailureKind.UNREACHABLE))
        run.primary.go_away()
        run.plan.now = 0.0
        run.plan.steps = [lambda: None] * 12
        probe = run.primary.probe
        run.primary.probe = lambda *args, run=run, times=times, probe=probe: (times.append(run.plan.now), probe(*args))
        run.syphon._probe_primary()
        run.pairing.close()
        probes.append(times)
    return probes


def test_a_fleet_that_lost_its_primary_in_the_same_second_does_not_probe_in_the_same_second():
    probes = probes_of(500)
    first = Counter(int(10 * times[0]) for times in probes)
    assert max(first.values()) <= 3 * 500 / 20, "within two seconds"
    of_all = Counter(int(10 * time) for times in probes for time in times if time < 15)
    assert max(of_all.values()) <= 150, "a few times as many as when all have waited for long, and nobody at once"
    assert all(times[0] < 2 for times in probes)


# -- a secondary that is away -----------------------------------------------------------------------------------------


def test_a_secondary_that_is_away_is_tried_again_and_what_waits_there_arrives(run, caplog):
    run.put("a")
    run.secondary.go_away()
    run(lambda: None, lambda: None, run.secondary.come_back)
    assert run.asked("open receiver") == [("secondary", "open receiver", QUEUE)] * 4
    assert all(0 <= pause <= FIRST_WAIT * 2**number for number, pause in enumerate(run.plan.waits[:3]))
    assert run.arrived == ["a"]
    assert len([each for each in caplog.records if "cannot receive from" in each.message]) == 1


def test_a_secondary_that_dies_while_it_is_polled_is_connected_to_again(run):
    run(run.secondary.go_away, run.secondary.come_back, lambda: run.put("a"))
    assert run.arrived == ["a"]
    assert len(run.asked("close receiver")) == len(run.asked("open receiver"))


def test_a_backlog_queue_that_somebody_deleted_is_created_anew(run):
    run.secondary.missing_queues = {QUEUE}
    run(lambda: None, lambda: run.put("a"))
    assert run.asked("ensure") == [("secondary", "ensure", QUEUE)]
    assert run.arrived == ["a"]


def test_nothing_that_was_not_foreseen_ends_it(run, monkeypatch, caplog):
    receiver = run.secondary.receiver
    broken = iter([RuntimeError("a bug of a driver's")])

    def fail_once(*args):
        for error in broken:
            raise error
        return receiver(*args)

    monkeypatch.setattr(run.secondary, "receiver", fail_once)
    run.put("a")
    run(lambda: None)
    assert "unexpected; it goes on" in caplog.text
    assert run.plan.waits[0] == LONGEST_WAIT
    assert run.arrived == ["a"]


# -- its end, and that of a namespace ---------------------------------------------------------------------------------


@pytest.mark.parametrize("closed", ["primary", "secondary"])
def test_a_namespace_that_is_closed_takes_its_partner_with_it_in_time(run, monkeypatch, closed, caplog):
    monkeypatch.setattr(syphon, "time", SimpleNamespace(monotonic=run.plan, time=time.time))
    one, other = run.primary, run.secondary
    if closed == "secondary":
        one, other = other, one
    run.pairing.when_closing(run.syphon.stop)
    one.close()
    run.plan.steps = [lambda: None] * 100
    run.plan.steps[8] = lambda: states.append(other.closed)  # after 4 seconds and a half
    states = []
    run.syphon.primary_is_back()
    run.syphon._watch()
    assert states == [False]
    assert other.closed
    assert run.pairing.closed
    assert run.syphon.stopping.is_set()
    assert 5.0 <= run.plan.now - 1000.0 <= 6.0
    assert [each.kind for each in run.events if each.kind is EventKind.FAULTED] == [EventKind.FAULTED]
    assert f"{other.label} is faulted" in caplog.text


@pytest.mark.parametrize("both", [True, False])
def test_two_that_are_open_and_two_that_are_closed_are_left_as_they_are(run, both):
    if both:
        run.primary.close()
        run.secondary.close()
    assert run.syphon._check_halves(1.0) is None
    assert not run.pairing.closed
    assert run.kinds(EventKind.FAULTED) == []


def test_a_syphon_has_a_pump_and_a_watch_and_stops_while_they_wait():
    trip = Trip()
    started = Syphon(trip.pairing, poll=POLL)
    waiting = threading.Event()
    wait = trip.secondary.wait_for_message

    def wait_and_tell(*args: Any) -> None:
        waiting.set()
        wait(*args)

    trip.secondary.wait_for_message = wait_and_tell  # type: ignore[method-assign]
    started.start()
    started.start()
    assert started.is_running
    assert waiting.wait(30)
    threads = list(started._threads)
    assert len(threads) == 2, "a pump and the watch"
    trip.pairing.close()
    assert not started.is_running
    for thread in threads:
        thread.join(30)
        assert not thread.is_alive()
    kinds = [each.kind for each in trip.events]
    assert kinds.count(EventKind.SYPHON_STARTED) == kinds.count(EventKind.SYPHON_STOPPED) == 1
