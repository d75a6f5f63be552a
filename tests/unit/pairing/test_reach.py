"""What is known together of a namespace: on a clock of the test's own, which waiting moves, or a report ends."""

from __future__ import annotations

import sys
import threading
import time
from concurrent.futures import ThreadPoolExecutor

import pytest
from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, rule

from kombu_paired.errors import NamespaceFailure
from kombu_paired.failures import FailureKind
from kombu_paired.pairing.reach import CHEAP, FRESH, GLANCE, NamespaceReach

TRY_WITHIN = 30
PATIENCE = 5


class Clock:
    def __init__(self):
        self.now = 1000.0
        #: What happens while somebody waits: seconds later, a report.
        self.then = []

    def __call__(self):
        return self.now

    def wait(self, condition, seconds):
        """Let time pass; the first report within it ends the wait."""
        assert seconds > 0
        if self.then and self.then[0][0] <= seconds:
            after, report = self.then.pop(0)
            self.now += after
            report()
        else:
            self.now += seconds


def failure(text="refused", **facts):
    return NamespaceFailure(FailureKind.UNREACHABLE, "primary", OSError(text), whole_namespace=True, **facts)


@pytest.fixture
def clock():
    return Clock()


@pytest.fixture
def reach(clock):
    return NamespaceReach(TRY_WITHIN, clock, wait=clock.wait)


def stale(reach, clock, took=PATIENCE):
    """Let a failure happen and grow stale; returns it."""
    found = failure()
    reach.failed(found, took)
    clock.now += FRESH
    return found


# -- who can go elsewhere -------------------------------------------------------------------------------------------


def test_everybody_may_try_a_namespace_of_which_nothing_bad_is_known(reach):
    assert [reach.known_failure() for _ in range(3)] == [None] * 3
    assert [reach.verdict(PATIENCE) for _ in range(3)] == [None] * 3
    assert reach.fresh_failure is None
    assert not reach.has_failed


def test_a_fresh_failure_turns_away_all_who_can_go_elsewhere(reach, clock):
    found = failure()
    reach.failed(found, took=0)
    clock.now += FRESH - 0.001
    assert [reach.known_failure() for _ in range(50)] == [found] * 50
    assert reach.has_failed


def test_of_a_stale_one_exactly_one_makes_sure(reach, clock):
    found = stale(reach, clock)
    assert [reach.known_failure() for _ in range(50)] == [None] + [found] * 49


def test_one_who_does_not_come_back_in_time_is_replaced_by_exactly_one(reach, clock):
    found = stale(reach, clock)
    assert reach.known_failure() is None
    clock.now += TRY_WITHIN - 0.001
    assert reach.known_failure() is found
    clock.now += 0.001
    assert [reach.known_failure() for _ in range(3)] == [None, found, found]


def test_one_who_failed_again_makes_the_new_failure_fresh_for_all(reach, clock):
    stale(reach, clock)
    reach.known_failure()
    again = failure("still refused")
    reach.failed(again, took=1)
    assert [reach.known_failure() for _ in range(3)] == [again] * 3


def test_an_answer_from_anybody_opens_it_for_all(reach):
    reach.failed(failure(), took=1)
    reach.reached()
    assert [reach.known_failure() for _ in range(3)] == [None] * 3
    assert not reach.has_failed
    assert reach.fresh_failure is None


def test_one_who_learned_nothing_passes_the_turn_on_to_exactly_one(reach, clock):
    found = stale(reach, clock)
    reach.known_failure()
    reach.undecided()
    assert [reach.known_failure() for _ in range(3)] == [None, found, found]


def test_what_is_shared_says_nothing_about_the_messages_of_others(reach):
    reach.failed(failure(maybe_stored=True), took=1)
    shared = reach.known_failure()
    assert not shared.maybe_stored
    assert shared.whole_namespace


# -- who would raise ------------------------------------------------------------------------------------------------


def test_no_failure_that_was_known_before_is_a_verdict(reach, clock):
    reach.failed(failure(), took=PATIENCE)
    assert reach.verdict(PATIENCE) is None, "not even a fresh one"
    reach.undecided()
    clock.now += FRESH
    assert reach.verdict(PATIENCE) is None, "nor a stale one"


@pytest.mark.parametrize("took", [0, 1])
def test_the_word_of_one_who_began_after_the_question_is_a_verdict_for_all_who_wait(reach, clock, took):
    stale(reach, clock)
    assert reach.verdict(PATIENCE) is None
    found = failure("found meanwhile")
    clock.then = [(1, lambda: reach.failed(found, took))]
    before = clock.now
    assert reach.verdict(PATIENCE) is found
    assert clock.now == before + 1


def test_the_word_of_one_who_began_before_lets_one_try_and_the_others_wait_for_that_one(reach, clock):
    stale(reach, clock)
    assert reach.verdict(PATIENCE) is None
    clock.then = [(1, lambda: reach.failed(failure("it may have come back meanwhile"), took=PATIENCE))]
    before = clock.now
    assert reach.verdict(PATIENCE) is None
    assert clock.now == before + 1
    found = failure("it has not")
    clock.then = [(0.5, lambda: reach.failed(found, took=0.5))]
    assert reach.verdict(PATIENCE) is found


@pytest.mark.parametrize("word", ["reached", "undecided"])
def test_whoever_waited_is_to_try_after_any_other_word(reach, clock, word):
    stale(reach, clock)
    reach.verdict(PATIENCE)
    clock.then = [(1, getattr(reach, word))]
    assert reach.verdict(PATIENCE) is None


def test_without_a_word_in_time_the_caller_is_to_try(reach, clock):
    stale(reach, clock)
    reach.verdict(PATIENCE)
    before = clock.now
    assert reach.verdict(PATIENCE) is None
    assert clock.now == before + PATIENCE


def test_a_vanished_one_is_replaced_at_once(reach, clock):
    stale(reach, clock)
    reach.verdict(PATIENCE)
    clock.now += TRY_WITHIN - 1
    before = clock.now
    assert reach.verdict(PATIENCE) is None
    assert clock.now == before + 1


def test_a_namespace_that_nobody_has_reached_yet_is_tried_by_one_and_the_others_wait(clock):
    reach = NamespaceReach(TRY_WITHIN, clock, known=False, wait=clock.wait)
    assert not reach.has_failed
    assert reach.verdict(PATIENCE) is None
    clock.then = [(1, reach.reached)]
    before = clock.now
    assert reach.verdict(PATIENCE) is None
    assert clock.now == before + 1
    assert reach.verdict(PATIENCE) is None
    assert clock.now == before + 1, "nobody waits for what is known to work"


def test_a_try_is_worth_a_glance_while_it_is_fresh_that_the_last_one_waited_in_vain(reach, clock):
    assert reach.worth(10) == 10
    reach.failed(failure(), took=CHEAP / 2)
    assert reach.worth(10) == 10, "a refusal costs nothing"
    reach.failed(failure(), took=5)
    assert (reach.worth(10), reach.worth(0.1)) == (GLANCE, 0.1)
    clock.now += FRESH
    assert reach.worth(10) == 10
    reach.failed(failure(), took=5)
    reach.reached()
    assert reach.worth(10) == 10


# -- many threads, and any sequence ---------------------------------------------------------------------------------


@pytest.fixture
def eager_threads():
    before = sys.getswitchinterval()
    sys.setswitchinterval(1e-6)
    yield
    sys.setswitchinterval(before)


class PoliteSeconds(float):
    """Seconds that let the other threads go first when they are added to something."""

    def __radd__(self, other):
        time.sleep(0)
        return other + float(self)


def at_once(n_threads, call):
    together = threading.Barrier(n_threads)

    def wait_and_call():
        together.wait(30)
        return call()

    with ThreadPoolExecutor(n_threads) as threads:
        return [each.result() for each in [threads.submit(wait_and_call) for _ in range(n_threads)]]


@pytest.mark.parametrize("attempt", range(20))
def test_of_many_threads_exactly_one_is_let_through(clock, eager_threads, attempt):
    reach = NamespaceReach(PoliteSeconds(TRY_WITHIN), clock)
    found = stale(reach, clock)
    answers = at_once(16, reach.known_failure)
    assert answers.count(None) == 1
    assert answers.count(found) == 15


def test_of_many_threads_one_tries_and_all_others_get_its_word():
    reach = NamespaceReach(TRY_WITHIN, time.monotonic, known=False)
    found, tries = failure(), []

    def ask():
        verdict = reach.verdict(20)
        if verdict is None:
            tries.append(1)
            time.sleep(0.2)
            reach.failed(found, 0.2)
        return verdict

    answers = at_once(16, ask)
    assert len(tries) < 16
    assert answers.count(found) == 16 - len(tries)


class Reach(RuleBasedStateMachine):
    """Any sequence of questions, and of reports by those who were let through."""

    @initialize(known=st.booleans(), try_within=st.integers(1, 5))
    def start(self, known, try_within):
        self.try_within = try_within
        self.clock = Clock()
        self.reach = NamespaceReach(try_within, self.clock, known=known, wait=self.clock.wait)
        self.doubted, self.failure = not known, None
        self.failed_at = self.trying_since = None

    def _somebody_tries(self):
        return self.trying_since is not None and self.clock.now < self.trying_since + self.try_within

    @rule(steps=st.integers(0, 6))
    def time_passes(self, steps):
        self.clock.now += steps

    @rule()
    def one_who_can_go_elsewhere_asks(self):
        answer = self.reach.known_failure()
        if self.failure is None:
            assert answer is None
        elif self.clock.now < self.failed_at + FRESH or self._somebody_tries():
            assert answer is self.failure
        else:
            assert answer is None
            self.trying_since = self.clock.now

    @rule(
        patience=st.integers(1, 6),
        after=st.integers(0, 6),
        took=st.sampled_from([0, 10]),
        word=st.sampled_from(["failed", "reached", "undecided"]),
    )
    def one_who_would_raise_asks(self, patience, after, took, word):
        asked_at, trying_since = self.clock.now, self.trying_since
        is_to_wait = self.doubted and self._somebody_tries()
        found, reports = failure("found now"), []

        def report():
            reports.append(self.clock.now)
            self._report(word, found, took)

        self.clock.then = [(after, report)]
        answer = self.reach.verdict(patience)
        self.clock.then = []
        assert self.clock.now - asked_at <= patience
        if not is_to_wait:
            assert (answer, reports, self.clock.now) == (None, [], asked_at)
        if answer is not None:
            assert (answer, word, took) == (found, "failed", 0)
            assert reports, "a verdict is never older than the question"
        elif reports and word == "failed":
            assert took, "it was found meanwhile"
            self.trying_since = self.clock.now
        elif not reports and (self.trying_since is None or self.clock.now >= trying_since + self.try_within):
            self.trying_since = self.clock.now if self.doubted else None

    @rule(word=st.sampled_from(["failed", "reached", "undecided"]))
    def somebody_reports(self, word):
        self._report(word, failure())

    def _report(self, word, found, took=1):
        if word == "failed":
            self.failure, self.failed_at, self.doubted = found, self.clock.now, True
            self.reach.failed(found, took)
        else:
            getattr(self.reach, word)()
        if word == "reached":
            self.failure, self.doubted = None, False
        self.trying_since = None

    @invariant()
    def what_is_known_is_the_last_report(self):
        if hasattr(self, "reach"):
            is_fresh = self.failure is not None and self.clock.now < self.failed_at + FRESH
            assert self.reach.has_failed is (self.failure is not None)
            assert self.reach.fresh_failure is (self.failure if is_fresh else None)


TestReach = Reach.TestCase
TestReach.settings = settings(max_examples=100, stateful_step_count=30, deadline=None)
