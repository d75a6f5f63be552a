"""Health of entities and reach of a namespace, on clocks of the test's own."""

from __future__ import annotations

import sys
import threading
import time
from concurrent.futures import ThreadPoolExecutor

import pytest
from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, precondition, rule

from kombu_paired.circuit import CircuitState, EntityCircuit, EntityCircuits, NamespaceReach, Transition
from kombu_paired.declarations import Entity
from kombu_paired.errors import NamespaceFailure
from kombu_paired.failures import FailureKind

HEALTHY, SUSPECT, FAILED_OVER = CircuitState
ORDERS, MAILS = Entity("", "orders"), Entity("shop", "mails")
INTERVAL = 10


class Clock:
    def __init__(self):
        self.now = 1000.0

    def __call__(self):
        return self.now


class PoliteClock(Clock):
    """Whoever looks at it lets the other threads go first: what a lock does not guard goes wrong."""

    def __call__(self):
        now = self.now
        time.sleep(0)
        return now


class PoliteSeconds(float):
    """Seconds that let the other threads go first when they are added to something."""

    def __radd__(self, other):
        time.sleep(0)
        return other + float(self)


@pytest.fixture
def clock():
    return Clock()


@pytest.fixture
def eager_threads():
    """Let threads take turns as often as the interpreter can."""
    before = sys.getswitchinterval()
    sys.setswitchinterval(1e-6)
    yield
    sys.setswitchinterval(before)


def at_once(n_threads, call):
    """The answers of many threads that call at the same moment."""
    together = threading.Barrier(n_threads)

    def wait_and_call():
        together.wait(5)
        return call()

    with ThreadPoolExecutor(n_threads) as threads:
        return [each.result() for each in [threads.submit(wait_and_call) for _ in range(n_threads)]]


# -- one entity -----------------------------------------------------------------------------------------------------


@pytest.fixture
def circuit(clock):
    return EntityCircuit(INTERVAL, clock)


def test_an_entity_is_healthy_until_it_fails(circuit):
    assert circuit.asked() == (HEALTHY, HEALTHY)
    assert circuit.succeeded() == (HEALTHY, HEALTHY)


def test_the_first_failure_makes_it_suspect_and_it_is_still_used(circuit):
    assert circuit.failed() == (HEALTHY, SUSPECT)
    assert circuit.asked() == (SUSPECT, SUSPECT)


def test_the_clock_starts_at_the_first_failure_whatever_fails_later(circuit, clock):
    circuit.failed()
    clock.now += INTERVAL - 1
    assert circuit.failed() == (SUSPECT, SUSPECT)
    clock.now += 1
    assert circuit.failed() == (SUSPECT, FAILED_OVER)


def test_a_send_fails_it_over_too_once_the_interval_has_run(circuit, clock):
    circuit.failed()
    clock.now += INTERVAL - 0.001
    assert circuit.asked() == (SUSPECT, SUSPECT)
    clock.now += 0.001
    assert circuit.asked() == (SUSPECT, FAILED_OVER)


def test_a_success_stops_the_clock_and_the_next_failure_starts_it_anew(circuit, clock):
    circuit.failed()
    clock.now += INTERVAL - 1
    assert circuit.succeeded() == (SUSPECT, HEALTHY)
    clock.now += 1
    assert circuit.failed() == (HEALTHY, SUSPECT)
    clock.now += INTERVAL - 1
    assert circuit.asked() == (SUSPECT, SUSPECT)


def test_a_success_counts_even_when_it_comes_after_the_interval_and_nobody_asked_in_between(circuit, clock):
    circuit.failed()
    clock.now += 2 * INTERVAL
    assert circuit.succeeded() == (SUSPECT, HEALTHY)


def test_time_alone_fails_nothing_over(circuit, clock):
    circuit.failed()
    clock.now += 100 * INTERVAL
    assert circuit.state is SUSPECT


def test_without_an_interval_the_first_failure_fails_it_over(clock):
    circuit = EntityCircuit(0, clock)
    assert circuit.failed() == (HEALTHY, FAILED_OVER)
    assert circuit.asked() == (FAILED_OVER, FAILED_OVER)


@pytest.mark.parametrize("late", [EntityCircuit.succeeded, EntityCircuit.failed, EntityCircuit.asked])
def test_after_the_failover_only_a_restore_brings_it_back(clock, late):
    circuit = EntityCircuit(0, clock)
    circuit.failed()
    clock.now += 1e6
    assert late(circuit) == (FAILED_OVER, FAILED_OVER)
    assert circuit.restored() == (FAILED_OVER, HEALTHY)
    assert circuit.asked() == (HEALTHY, HEALTHY)


def test_an_operator_may_restore_a_suspect_too(circuit):
    circuit.failed()
    assert circuit.restored() == (SUSPECT, HEALTHY)


def test_a_transition_enters_a_state_only_by_coming_from_another():
    assert Transition(SUSPECT, FAILED_OVER).enters(FAILED_OVER)
    assert not Transition(FAILED_OVER, FAILED_OVER).enters(FAILED_OVER)
    assert not Transition(SUSPECT, FAILED_OVER).enters(SUSPECT)


# -- all entities ---------------------------------------------------------------------------------------------------


@pytest.fixture
def circuits(clock):
    return EntityCircuits(INTERVAL, clock)


def test_health_is_kept_per_entity(circuits, clock):
    circuits.failed(ORDERS)
    clock.now += INTERVAL
    circuits.failed(ORDERS)
    circuits.failed(MAILS)
    assert circuits.states() == {ORDERS: FAILED_OVER, MAILS: SUSPECT}
    assert circuits.failed_over() == [ORDERS]
    assert circuits.state(Entity("", "mails")) is HEALTHY


def test_only_ailing_entities_are_kept(circuits):
    for i in range(100):
        reply_queue = Entity("", f"reply.{i}")
        circuits.asked(reply_queue)
        circuits.succeeded(reply_queue)
        circuits.restored(reply_queue)
    assert not circuits
    assert circuits.states() == {}
    circuits.failed(ORDERS)
    assert circuits
    circuits.succeeded(ORDERS)
    assert not circuits


def test_an_entity_that_is_well_again_starts_from_scratch(circuits, clock):
    circuits.failed(ORDERS)
    clock.now += INTERVAL - 1
    circuits.restored(ORDERS)
    circuits.failed(ORDERS)
    clock.now += 1
    assert circuits.asked(ORDERS).after is SUSPECT


@pytest.mark.parametrize("attempt", range(5))
def test_of_many_threads_that_fail_at_once_exactly_one_sees_the_failover(eager_threads, attempt):
    circuits = EntityCircuits(0, PoliteClock())
    answers = at_once(16, lambda: circuits.failed(ORDERS))
    assert sum(answer.enters(FAILED_OVER) for answer in answers) == 1
    assert circuits.states() == {ORDERS: FAILED_OVER}


def test_of_many_threads_that_restore_at_once_exactly_one_sees_the_change(clock, eager_threads):
    circuits = EntityCircuits(0, clock)
    circuits.failed(ORDERS)
    answers = at_once(16, lambda: circuits.restored(ORDERS))
    assert sum(answer.enters(HEALTHY) for answer in answers) == 1
    assert not circuits


def health_by_the_rules(history, interval):
    """State of one entity after what happened to it: the design's rules 6 and 7, read aloud."""
    failing_since, is_failed_over = None, False
    for when, event in history:
        if event == "restored":
            failing_since, is_failed_over = None, False
        elif is_failed_over:
            continue
        elif event == "succeeded":
            failing_since = None
        else:
            if event == "failed" and failing_since is None:
                failing_since = when
            is_failed_over = failing_since is not None and when - failing_since >= interval
    return FAILED_OVER if is_failed_over else HEALTHY if failing_since is None else SUSPECT


class Circuits(RuleBasedStateMachine):
    """Any sequence of what can happen to three entities."""

    entities = st.sampled_from([ORDERS, MAILS, Entity("", "reports")])

    @initialize(interval=st.sampled_from([0, 1, 2, 10]))
    def start(self, interval):
        self.interval = interval
        self.clock = Clock()
        self.circuits = EntityCircuits(interval, self.clock)
        self.history = {}
        self.waits_for_restore = set()

    def _happens(self, entity, event):
        history = self.history.setdefault(entity, [])
        before = health_by_the_rules(history, self.interval)
        history.append((self.clock.now, event))
        after = health_by_the_rules(history, self.interval)
        transition = getattr(self.circuits, event)(entity)
        assert transition == (before, after)
        return transition

    @rule(steps=st.integers(0, 11))
    def time_passes(self, steps):
        self.clock.now += steps

    @rule(entity=entities)
    def asked(self, entity):
        may_be_used = self._happens(entity, "asked").after is not FAILED_OVER
        assert not (may_be_used and entity in self.waits_for_restore)
        if not may_be_used:
            self.waits_for_restore.add(entity)

    @rule(entity=entities)
    def succeeded(self, entity):
        self._happens(entity, "succeeded")

    @rule(entity=entities)
    def failed(self, entity):
        if self._happens(entity, "failed").after is FAILED_OVER:
            self.waits_for_restore.add(entity)

    @rule(entity=entities)
    def restored(self, entity):
        self._happens(entity, "restored")
        self.waits_for_restore.discard(entity)

    @invariant()
    def the_ailing_are_kept_and_nobody_else(self):
        if not hasattr(self, "circuits"):
            return
        states = {entity: health_by_the_rules(history, self.interval) for entity, history in self.history.items()}
        assert self.circuits.states() == {entity: state for entity, state in states.items() if state is not HEALTHY}
        assert bool(self.circuits) == any(state is not HEALTHY for state in states.values())
        assert set(self.circuits.failed_over()) == self.waits_for_restore
        assert all(self.circuits.state(entity) is state for entity, state in states.items())


TestCircuits = Circuits.TestCase
TestCircuits.settings = settings(max_examples=80, stateful_step_count=40, deadline=None)


# -- a namespace ----------------------------------------------------------------------------------------------------

FRESH, TRY_WITHIN = 2, 30


def refused(text="refused"):
    return NamespaceFailure(FailureKind.UNREACHABLE, "primary", OSError(text), whole_namespace=True)


@pytest.fixture
def reach(clock):
    return NamespaceReach(FRESH, TRY_WITHIN, clock)


def stale(reach, clock):
    """Let a failure happen and grow stale; returns it."""
    failure = refused()
    reach.failed(failure)
    clock.now += FRESH
    return failure


def test_everybody_may_try_a_namespace_of_which_nothing_bad_is_known(reach):
    assert [reach.known_failure() for _ in range(3)] == [None] * 3
    assert reach.fresh_failure() is None
    assert not reach.has_failed


def test_a_fresh_failure_is_shared_by_all_and_nobody_tries(reach, clock):
    failure = refused()
    reach.failed(failure)
    clock.now += FRESH - 0.001
    assert [reach.known_failure() for _ in range(50)] == [failure] * 50
    assert reach.fresh_failure() is failure
    assert reach.has_failed


def test_after_that_exactly_one_is_let_through_and_the_others_keep_the_stale_answer(reach, clock):
    failure = stale(reach, clock)
    assert [reach.known_failure() for _ in range(50)] == [None] + [failure] * 49


def test_a_stale_failure_is_not_fresh_but_still_the_last_thing_known(reach, clock):
    stale(reach, clock)
    assert reach.fresh_failure() is None
    assert reach.has_failed


def test_looking_for_a_fresh_failure_uses_nobodys_turn_up(reach, clock):
    stale(reach, clock)
    reach.fresh_failure()
    assert reach.known_failure() is None


def test_one_who_does_not_come_back_in_time_is_replaced_by_exactly_one(reach, clock):
    failure = stale(reach, clock)
    assert reach.known_failure() is None
    clock.now += TRY_WITHIN - 0.001
    assert reach.known_failure() is failure
    clock.now += 0.001
    assert [reach.known_failure() for _ in range(3)] == [None, failure, failure]


def test_one_who_failed_again_makes_the_new_failure_fresh_for_all(reach, clock):
    stale(reach, clock)
    reach.known_failure()
    clock.now += 1
    again = refused("still refused")
    reach.failed(again)
    assert [reach.known_failure() for _ in range(3)] == [again] * 3
    clock.now += FRESH
    assert [reach.known_failure() for _ in range(3)] == [None, again, again]


def test_one_who_reached_it_opens_it_for_all(reach, clock):
    stale(reach, clock)
    reach.known_failure()
    reach.reached()
    assert [reach.known_failure() for _ in range(3)] == [None] * 3
    assert not reach.has_failed
    assert reach.fresh_failure() is None


def test_an_answer_from_anybody_ends_a_failure_that_is_still_fresh(reach):
    reach.failed(refused())
    reach.reached()
    assert reach.known_failure() is None
    assert reach.fresh_failure() is None


def test_a_failure_after_an_answer_is_as_fresh_as_any(reach, clock):
    stale(reach, clock)
    reach.known_failure()
    reach.reached()
    again = refused("again")
    reach.failed(again)
    assert reach.known_failure() is again
    clock.now += FRESH
    assert [reach.known_failure() for _ in range(2)] == [None, again]


def test_one_who_learned_nothing_passes_the_turn_on_to_exactly_one(reach, clock):
    failure = stale(reach, clock)
    reach.known_failure()
    reach.undecided()
    assert [reach.known_failure() for _ in range(3)] == [None, failure, failure]


def test_learning_nothing_does_not_make_a_fresh_failure_stale(reach):
    failure = refused()
    reach.failed(failure)
    reach.undecided()
    assert reach.known_failure() is failure


@pytest.mark.parametrize("attempt", range(20))
def test_of_many_threads_exactly_one_is_let_through(clock, eager_threads, attempt):
    reach = NamespaceReach(FRESH, PoliteSeconds(TRY_WITHIN), clock)
    failure = stale(reach, clock)
    answers = at_once(16, reach.known_failure)
    assert answers.count(None) == 1
    assert answers.count(failure) == 15


class Reach(RuleBasedStateMachine):
    """Any sequence of questions and of reports by those who were let through."""

    @initialize(fresh=st.integers(0, 3), try_within=st.integers(1, 5))
    def start(self, fresh, try_within):
        self.fresh, self.try_within = fresh, try_within
        self.clock = Clock()
        self.reach = NamespaceReach(fresh, try_within, self.clock)
        self.failure = None  # the last failure, when it happened, and since when somebody is trying
        self.failed_at = self.trying_since = None

    def _somebody_tries(self):
        return self.trying_since is not None and self.clock.now < self.trying_since + self.try_within

    @rule(steps=st.integers(0, 6))
    def time_passes(self, steps):
        self.clock.now += steps

    @rule()
    def somebody_asks(self):
        answer = self.reach.known_failure()
        if self.failure is None:
            assert answer is None
        elif self.clock.now < self.failed_at + self.fresh or self._somebody_tries():
            assert answer is self.failure
        else:
            assert answer is None
            self.trying_since = self.clock.now

    @rule()
    def a_try_fails(self):
        self.failure, self.failed_at, self.trying_since = refused(), self.clock.now, None
        self.reach.failed(self.failure)

    @rule()
    def a_try_succeeds(self):
        self.failure = self.trying_since = None
        self.reach.reached()

    @precondition(lambda self: self.failure is not None and self._somebody_tries())
    @rule()
    def a_try_decides_nothing(self):
        self.trying_since = None
        self.reach.undecided()

    @invariant()
    def what_is_known_is_the_last_report(self):
        if hasattr(self, "reach"):
            is_fresh = self.failure is not None and self.clock.now < self.failed_at + self.fresh
            assert self.reach.has_failed is (self.failure is not None)
            assert self.reach.fresh_failure() is (self.failure if is_fresh else None)


TestReach = Reach.TestCase
TestReach.settings = settings(max_examples=60, stateful_step_count=30, deadline=None)
