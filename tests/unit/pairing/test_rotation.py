"""The rotation of backlog queues, on a clock and a random source of the test's own."""

from __future__ import annotations

import random
import threading
import time
from concurrent.futures import ThreadPoolExecutor

import pytest
from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, rule

from kombu_paired.pairing.rotation import BacklogRotation

RETRY = 60
QUEUES = ("main/x-servicebus-transfer/0", "main/x-servicebus-transfer/1", "main/x-servicebus-transfer/2")


class Clock:
    def __init__(self):
        self.now = 1000.0

    def __call__(self):
        return self.now


@pytest.fixture
def clock():
    return Clock()


@pytest.fixture
def offered():
    """What the random source was given to choose from."""
    return []


@pytest.fixture
def rotation(clock, offered):
    def first(usable):
        offered.append(list(usable))
        return usable[0]

    return BacklogRotation(QUEUES, RETRY, clock, first)


def test_a_sender_without_a_queue_gets_one_picked_among_all(rotation, offered):
    assert rotation.pick() == QUEUES[0]
    assert offered == [list(QUEUES)]


def test_a_sender_stays_with_its_queue_without_another_throw_of_the_dice(rotation, offered):
    assert [rotation.pick(QUEUES[2]) for _ in range(5)] == [QUEUES[2]] * 5
    assert offered == []


def test_a_sender_whose_queue_is_pulled_gets_one_that_is_not(rotation, offered):
    rotation.pull(QUEUES[0])
    assert rotation.pick(QUEUES[0]) == QUEUES[1]
    assert offered == [[QUEUES[1], QUEUES[2]]]


def test_a_sender_whose_queue_left_the_rotation_gets_another_one(rotation):
    assert rotation.pick("main/x-servicebus-transfer/99") in QUEUES


def test_the_pick_is_the_random_sources_own(clock):
    rotation = BacklogRotation(QUEUES, RETRY, clock, random.Random(7).choice)
    assert {rotation.pick() for _ in range(100)} == set(QUEUES)


def test_the_pick_is_random_unless_told_otherwise(clock):
    rotation = BacklogRotation(QUEUES, RETRY, clock)
    assert {rotation.pick() for _ in range(300)} == set(QUEUES)  # missing one by chance: 1 in 10**52


def test_when_all_are_pulled_the_one_that_was_pulled_first_is_tried_again(rotation, clock, offered):
    for queue in reversed(QUEUES):
        rotation.pull(queue)
        clock.now += 1
    assert rotation.pick() == QUEUES[2]
    assert rotation.pick(QUEUES[0]) == QUEUES[2]
    assert rotation.pick(tried=[QUEUES[2]]) == QUEUES[1]
    assert rotation.pick(tried=QUEUES) is None
    assert rotation.pulled() == list(QUEUES)
    assert offered == []


def test_what_has_just_failed_the_caller_is_not_offered_to_it_again(rotation, offered):
    assert rotation.pick(QUEUES[0], tried=[QUEUES[0]]) == QUEUES[1]
    assert offered == [[QUEUES[1], QUEUES[2]]]


def test_none_is_left_where_there_never_was_one(clock):
    rotation = BacklogRotation((), RETRY, clock)
    assert (len(rotation), rotation.pick(), rotation.pick("gone"), rotation.pulled()) == (0, None, None, [])


def test_a_pulled_queue_is_out_for_the_retry_interval_and_on_trial_afterwards(rotation, clock):
    rotation.pull(QUEUES[0])
    clock.now += RETRY - 0.001
    assert rotation.pick() == QUEUES[1]
    clock.now += 0.001
    assert rotation.pick() == QUEUES[0]
    assert rotation.pulled() == []


def test_a_queue_that_fails_on_trial_is_out_for_another_interval(rotation, clock):
    rotation.pull(QUEUES[0])
    clock.now += RETRY
    assert rotation.pull(QUEUES[0]) is True
    clock.now += RETRY - 1
    assert rotation.pick() == QUEUES[1]


def test_only_the_first_of_many_failures_pulls_a_queue(rotation):
    assert rotation.pull(QUEUES[0]) is True
    assert rotation.pull(QUEUES[0]) is False


def test_a_queue_is_readmitted_once_when_its_trial_succeeds(rotation, clock):
    rotation.pull(QUEUES[0])
    clock.now += RETRY
    assert rotation.readmit(QUEUES[0]) is True
    assert rotation.readmit(QUEUES[0]) is False
    assert rotation.pick(QUEUES[0]) == QUEUES[0]


def test_a_success_on_a_queue_that_was_never_pulled_is_nothing_new(rotation):
    rotation.pull(QUEUES[1])
    assert rotation.readmit(QUEUES[0]) is False
    assert rotation.pulled() == [QUEUES[1]]


def test_a_rotation_knows_its_queues(rotation):
    assert (len(rotation), rotation.queues) == (3, QUEUES)


def test_of_many_threads_that_fail_on_one_queue_exactly_one_pulls_it():
    def polite_clock():
        time.sleep(0)  # lets the other threads go first
        return 1000.0

    rotation = BacklogRotation(QUEUES, RETRY, polite_clock)
    together = threading.Barrier(16)

    def fail():
        together.wait(30)
        return rotation.pull(QUEUES[0])

    with ThreadPoolExecutor(16) as threads:
        answers = [each.result() for each in [threads.submit(fail) for _ in range(16)]]
    assert answers.count(True) == 1


class Rotations(RuleBasedStateMachine):
    """Any sequence of picks, failures, successes and time, against the times at which queues were pulled last."""

    @initialize(n=st.integers(0, 4), retry=st.integers(0, 5), seed=st.integers())
    def start(self, n, retry, seed):
        self.queues = [f"q{i}" for i in range(n)]
        self.retry = retry
        self.clock = Clock()
        self.offered = None
        self.rotation = BacklogRotation(self.queues, retry, self.clock, self._choose)
        self.dice = random.Random(seed)
        self.pulled_at = {}

    def _choose(self, usable):
        self.offered = list(usable)
        return self.dice.choice(usable)

    def _usable(self):
        now = self.clock.now
        return [q for q in self.queues if q not in self.pulled_at or now >= self.pulled_at[q] + self.retry]

    @rule(steps=st.integers(0, 6))
    def time_passes(self, steps):
        self.clock.now += steps

    @rule(i=st.integers(0, 4))
    def a_sender_picks(self, i):
        current = f"q{i}" if i < 4 else None
        usable, self.offered = self._usable(), None
        picked = self.rotation.pick(current)
        if not usable:
            oldest = min(self.pulled_at.values(), default=None)
            assert picked is None if not self.queues else self.pulled_at[picked] == oldest
        elif current in usable:
            assert (picked, self.offered) == (current, None)
        else:
            assert picked in usable
            assert self.offered == usable

    @rule(i=st.integers(0, 3))
    def a_queue_fails(self, i):
        if i < len(self.queues):
            queue = self.queues[i]
            assert self.rotation.pull(queue) is (queue in self._usable())
            self.pulled_at[queue] = self.clock.now

    @rule(i=st.integers(0, 3))
    def a_queue_takes_a_message(self, i):
        if i < len(self.queues):
            queue = self.queues[i]
            assert self.rotation.readmit(queue) is (self.pulled_at.pop(queue, None) is not None)

    @invariant()
    def what_is_not_usable_is_pulled(self):
        if hasattr(self, "rotation"):
            assert self.rotation.pulled() == [q for q in self.queues if q not in self._usable()]


TestRotations = Rotations.TestCase
TestRotations.settings = settings(max_examples=60, stateful_step_count=30, deadline=None)
