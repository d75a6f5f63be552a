"""The ping task, on a clock that the test turns.

A pinger waits in real seconds for what its clock says is due, so with intervals of a thousand seconds nothing happens
unless a test turns the clock and makes the pinger look at it.
"""

from __future__ import annotations

import logging
import random
import threading
import time
from collections import Counter

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from kombu_paired.declarations import Entity
from kombu_paired.pairing import pinger as rules
from kombu_paired.pairing.pinger import Pinger

ORDERS, MAILS, NOBODY = Entity("", "orders"), Entity("shop", "mails"), Entity("", "nobody")
INTERVAL = 1000
#: With a jitter of a tenth a ping is due between these.
EARLIEST, LATEST = 900, 1100
#: Processes that fail over in the same second.
FLEET = 500
PATIENCE = 10
THREAD = "test-pinger"


class Clock:
    """Shows what the test says, and remembers what the pinger's thread saw."""

    def __init__(self):
        self.now = 0.0
        self.seen = None

    def __call__(self):
        now = self.now
        if threading.current_thread().name == THREAD:
            self.seen = now
        return now


class NoticedCondition(threading.Condition):
    """The pinger's own condition, on which a test can see that the pinger did all that was due and waits."""

    def __init__(self, clock):
        super().__init__()
        self._clock = clock
        self._changed = threading.Condition()
        self._idle_since = None  # what the clock showed when it found nothing due

    def wait(self, timeout=None):
        self._set_idle(self._clock.seen)
        try:
            return super().wait(timeout)
        finally:
            self._set_idle(None)

    def _set_idle(self, since):
        with self._changed:
            self._idle_since = since
            self._changed.notify_all()

    def wait_until_idle(self, since=None):
        def is_idle():
            return self._idle_since is not None if since is None else self._idle_since == since

        with self._changed:
            assert self._changed.wait_for(is_idle, PATIENCE), "the pinger does not come to rest"


class Primary:
    """Answers pings, and writes down when which entity was pinged."""

    def __init__(self, clock):
        self.pings = []
        self.works = set()
        self.on_ping = lambda entity: None
        self._clock = clock
        self._pinged = threading.Condition()

    def ping(self, entity):
        self.on_ping(entity)
        with self._pinged:
            self.pings.append((entity, self._clock.now))
            self._pinged.notify_all()
        return entity in self.works

    def wait_for_pings(self, n):
        with self._pinged:
            assert self._pinged.wait_for(lambda: len(self.pings) >= n, PATIENCE), f"pinged only {len(self.pings)} times"


@pytest.fixture(autouse=True)
def narrow(request, monkeypatch):
    """First pings come within the same bounds as all others, but for tests that ask for the true ones."""
    if "wide" not in request.fixturenames:
        monkeypatch.setattr(rules, "SPREAD", rules.JITTER)


@pytest.fixture
def wide():
    """First pings come as they do."""


@pytest.fixture
def clock():
    return Clock()


@pytest.fixture
def primary(clock):
    return Primary(clock)


@pytest.fixture
def pinger(primary, clock):
    pinger = Pinger(primary.ping, INTERVAL, name=THREAD, clock=clock)
    pinger._changed = NoticedCondition(clock)
    yield pinger
    pinger.close()
    wait_until_threads_end()


@pytest.fixture
def nudge(pinger, clock):
    """Turn the clock, and make the pinger look at it."""

    def nudge(to):
        pinger._changed.wait_until_idle()
        clock.now = to
        pinger.forget(NOBODY)

    return nudge


@pytest.fixture
def turn(pinger, nudge):
    """Turn the clock, and wait until the pinger did all that is due."""

    def turn(to):
        nudge(to)
        pinger._changed.wait_until_idle(since=to)

    return turn


def threads():
    return [each for each in threading.enumerate() if each.name == THREAD]


def wait_until_threads_end():
    for thread in threads():
        thread.join(PATIENCE)
        assert not thread.is_alive(), "the pinger's thread goes on"


# -- when -----------------------------------------------------------------------------------------------------------


def test_an_entity_is_first_pinged_after_one_interval(pinger, primary, turn):
    pinger.watch(ORDERS)
    turn(EARLIEST - 1)
    assert primary.pings == []
    turn(LATEST + 1)
    assert primary.pings == [(ORDERS, LATEST + 1)]


def test_an_entity_that_does_not_work_is_pinged_once_per_interval(pinger, primary, turn):
    pinger.watch(ORDERS)
    now = 0
    for n in range(5):
        turn(now + EARLIEST - 1)
        assert len(primary.pings) == n
        now += LATEST + 1
        turn(now)
        assert primary.pings[n:] == [(ORDERS, now)]


def test_a_fleet_does_not_ping_in_step(pinger, primary, turn):
    fleet = [Entity("", f"queue-{i}") for i in range(20)]
    for entity in fleet:
        pinger.watch(entity)
    for now in range(EARLIEST, LATEST + 1, 10):
        turn(now)
    assert sorted(entity for entity, _ in primary.pings) == sorted(fleet)
    assert len({time for _, time in primary.pings}) > 1  # all in one step by chance: 1 in 10**24


def test_a_first_ping_comes_after_half_an_interval_to_one_and_a_half(pinger, primary, turn, wide):
    fleet = [Entity("", f"queue-{i}") for i in range(20)]
    for entity in fleet:
        pinger.watch(entity)
    turn(INTERVAL // 2 - 1)
    assert primary.pings == []
    turn(INTERVAL + INTERVAL // 2 + 1)
    assert sorted(entity for entity, _ in primary.pings) == sorted(fleet)


@pytest.mark.parametrize("interval", [1, 10, 60])
@given(seed=st.integers())
@settings(max_examples=10, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
def test_processes_that_failed_over_in_the_same_second_do_not_ping_in_the_same_second(interval, seed, wide):
    random.seed(seed)
    rounds = [first_pings(interval), second_pings(interval)]
    for number, times in enumerate(rounds, 1):
        assert sum(times) / FLEET <= number * interval * 1.07  # by chance alone it is a hundredth more or less
        crowds = Counter(int(time * 10) for time in times)
        assert max(crowds.values()) <= 3 * FLEET / (interval * 10) + 8


class Unwatched(Pinger):
    """A pinger without a thread."""

    def __init__(self, interval, now):
        super().__init__(lambda entity: False, interval, name=THREAD, clock=lambda: now)
        self._thread = threading.current_thread()


def first_pings(interval):
    """When each process of a fleet pings that failed over at 0."""
    fleet = [Unwatched(interval, 0.0) for _ in range(FLEET)]
    for pinger in fleet:
        pinger.watch(ORDERS)
    return [pinger._due[ORDERS] for pinger in fleet]


def second_pings(interval):
    """When they ping for the second time, in vain."""
    times = []
    for first in first_pings(interval):
        pinger = Unwatched(interval, first)
        pinger._pinging = ORDERS
        pinger._reschedule(ORDERS, works=False)
        times.append(pinger._due[ORDERS])
    return times


def test_watching_an_entity_twice_neither_postpones_nor_doubles_its_ping(pinger, primary, turn):
    pinger.watch(ORDERS)
    turn(EARLIEST - 1)
    pinger.watch(ORDERS)
    turn(LATEST + 1)
    turn(LATEST + EARLIEST - 1)
    assert primary.pings == [(ORDERS, LATEST + 1)]


def test_each_entity_has_its_own_time(pinger, primary, turn):
    pinger.watch(ORDERS)
    turn(500)
    pinger.watch(MAILS)
    turn(LATEST + 1)
    turn(500 + LATEST + 1)
    assert primary.pings == [(ORDERS, LATEST + 1), (MAILS, 500 + LATEST + 1)]


def test_pings_come_at_real_intervals_by_the_real_clock(primary):
    pinger = Pinger(primary.ping, 0.01, name=THREAD)
    started = time.monotonic()
    pinger.watch(ORDERS)
    try:
        primary.wait_for_pings(5)
        assert time.monotonic() - started >= 5 * 0.009
    finally:
        pinger.close()
        wait_until_threads_end()


# -- until when -----------------------------------------------------------------------------------------------------


def test_an_entity_that_works_again_is_pinged_no_more_and_the_thread_ends(pinger, primary, nudge):
    primary.works = {ORDERS}
    pinger.watch(ORDERS)
    nudge(LATEST + 1)
    wait_until_threads_end()
    assert primary.pings == [(ORDERS, LATEST + 1)]


def test_one_that_works_pulls_the_others_forward(pinger, primary, turn):
    primary.works = {ORDERS}
    pinger.watch(ORDERS)
    turn(500)
    pinger.watch(MAILS)
    turn(LATEST + 1)
    assert primary.pings == [(ORDERS, LATEST + 1), (MAILS, LATEST + 1)]


def test_one_that_does_not_work_leaves_the_others_their_time(pinger, primary, turn):
    primary.works = {MAILS}
    pinger.watch(ORDERS)
    turn(500)
    pinger.watch(MAILS)
    turn(LATEST + 1)
    assert primary.pings == [(ORDERS, LATEST + 1)]


def test_one_that_was_pulled_forward_in_vain_waits_for_a_whole_interval_again(pinger, primary, turn):
    primary.works = {ORDERS}
    pinger.watch(ORDERS)
    turn(500)
    pinger.watch(MAILS)
    turn(LATEST + 1)
    turn(LATEST + EARLIEST)
    assert len(primary.pings) == 2
    turn(2 * LATEST + 2)
    assert primary.pings[2:] == [(MAILS, 2 * LATEST + 2)]


def test_when_all_work_again_each_is_pinged_once_at_once(pinger, primary, nudge):
    fleet = [Entity("", f"queue-{i}") for i in range(20)]
    primary.works = set(fleet)
    for entity in fleet:
        pinger.watch(entity)
    nudge(LATEST + 1)
    wait_until_threads_end()
    assert sorted(primary.pings) == sorted((entity, LATEST + 1) for entity in fleet)


def test_a_forgotten_entity_is_not_pinged_and_the_thread_ends(pinger, primary):
    pinger.watch(ORDERS)
    pinger.forget(ORDERS)
    wait_until_threads_end()
    assert primary.pings == []


def test_forgetting_one_keeps_the_others(pinger, primary, turn):
    pinger.watch(ORDERS)
    pinger.watch(MAILS)
    pinger.forget(ORDERS)
    turn(LATEST + 1)
    assert primary.pings == [(MAILS, LATEST + 1)]


def test_an_entity_that_is_restored_by_hand_during_its_ping_is_pinged_no_more(pinger, primary, nudge):
    primary.on_ping = pinger.forget
    pinger.watch(ORDERS)
    nudge(LATEST + 1)
    wait_until_threads_end()
    assert primary.pings == [(ORDERS, LATEST + 1)]


def test_an_entity_that_fails_over_again_while_its_ping_succeeds_is_pinged_on(pinger, primary, turn):
    primary.works = {ORDERS}
    again = [ORDERS]

    def restored_and_failed_over_again(entity):
        """What the pairing does during a good ping, and what a send that fails at that moment does."""
        if entity in again:
            again.remove(entity)
            pinger.forget(entity)
            pinger.watch(entity)

    primary.on_ping = restored_and_failed_over_again
    pinger.watch(ORDERS)
    pinger.watch(MAILS)  # never works, so that the thread goes on
    turn(LATEST + 1)
    turn(2 * LATEST + 2)
    assert [entity for entity, _ in primary.pings].count(ORDERS) == 2


# -- the thread -----------------------------------------------------------------------------------------------------


def test_there_is_no_thread_without_an_entity_to_ping(pinger):
    assert threads() == []


def test_there_is_one_thread_for_all_and_it_keeps_no_interpreter_from_exiting(pinger):
    for i in range(20):
        pinger.watch(Entity("", f"queue-{i}"))
    (thread,) = threads()
    assert thread.daemon


def test_a_new_thread_starts_when_there_is_something_to_ping_again(pinger, primary, turn):
    pinger.watch(ORDERS)
    pinger.forget(ORDERS)
    wait_until_threads_end()
    pinger.watch(MAILS)
    turn(LATEST + 1)
    assert primary.pings == [(MAILS, LATEST + 1)]


def test_whoever_comes_while_the_thread_is_about_to_end_is_pinged(primary):
    primary.works = {ORDERS}
    pinger = Pinger(primary.ping, 0, name=THREAD)
    for n in range(1, 200):
        pinger.watch(ORDERS)
        primary.wait_for_pings(n)
        pinger.forget(ORDERS)
    pinger.close()
    wait_until_threads_end()


# -- closing --------------------------------------------------------------------------------------------------------


def test_closing_ends_the_thread_at_once_however_long_the_interval(pinger, primary):
    pinger.watch(ORDERS)
    pinger.watch(MAILS)
    started = time.monotonic()
    pinger.close()
    wait_until_threads_end()
    assert time.monotonic() - started < 10
    assert primary.pings == []


def test_closing_does_not_wait_for_a_ping_under_way_and_none_follows(pinger, primary, nudge):
    is_under_way, may_end = threading.Event(), threading.Event()

    def hang(entity):
        is_under_way.set()
        assert may_end.wait(PATIENCE)

    primary.on_ping = hang
    pinger.watch(ORDERS)
    pinger.watch(MAILS)
    nudge(LATEST + 1)
    assert is_under_way.wait(PATIENCE)
    pinger.close()
    assert primary.pings == []
    may_end.set()
    wait_until_threads_end()
    assert len(primary.pings) == 1


def test_a_closed_pinger_watches_nothing(pinger):
    pinger.close()
    pinger.watch(ORDERS)
    assert threads() == []


def test_closing_twice_is_closing_once(pinger):
    pinger.watch(ORDERS)
    pinger.close()
    pinger.close()
    wait_until_threads_end()


# -- failures -------------------------------------------------------------------------------------------------------


def test_a_ping_that_raises_is_logged_and_goes_on_at_the_next_interval(pinger, primary, turn, caplog):
    def fail(entity):
        primary.on_ping = lambda entity: None
        raise ZeroDivisionError("unexpected")

    primary.on_ping = fail
    pinger.watch(ORDERS)
    with caplog.at_level(logging.ERROR, "kombu_paired.ping"):
        turn(LATEST + 1)
        turn(LATEST + EARLIEST)
        assert primary.pings == []
        turn(2 * LATEST + 2)
        assert primary.pings == [(ORDERS, 2 * LATEST + 2)]
    (record,) = caplog.records
    assert "orders" in record.getMessage()
    assert record.exc_info[0] is ZeroDivisionError


def test_a_ping_that_raises_keeps_nobody_else_from_being_pinged(pinger, primary, turn):
    def fail_for_orders(entity):
        if entity == ORDERS:
            raise ZeroDivisionError("unexpected")

    primary.on_ping = fail_for_orders
    pinger.watch(ORDERS)
    pinger.watch(MAILS)
    turn(LATEST + 1)
    assert primary.pings == [(MAILS, LATEST + 1)]
