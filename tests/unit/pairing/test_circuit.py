"""Health of entities and reach of a namespace, on clocks of the test's own."""

from __future__ import annotations

import sys
import threading
import time
from concurrent.futures import ThreadPoolExecutor

import pytest
from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, rule

from kombu_paired.declarations import Entity
from kombu_paired.isolation import Isolated
from kombu_paired.pairing.circuit import CircuitState, EntityCircuit, EntityCircuits, Transition

HEALTHY, SUSPECT, FAILED_OVER, ISOLATED = CircuitState
ORDERS, MAILS = Entity("", "orders"), Entity("shop", "mails")
THREE = [ORDERS, MAILS, Entity("", "reports")]
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
        together.wait(30)
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


# -- by hand --------------------------------------------------------------------------------------------------------


def test_what_is_isolated_is_not_restored_by_a_ping_nor_by_a_message_that_went_through(circuit):
    assert circuit.isolated() == (HEALTHY, ISOLATED)
    for event in (circuit.restored, circuit.succeeded, circuit.asked, circuit.failed):
        assert event() == (ISOLATED, ISOLATED)


def test_what_is_released_waits_for_a_ping(circuit):
    circuit.isolated()
    assert circuit.released() == (ISOLATED, FAILED_OVER)
    assert circuit.restored() == (FAILED_OVER, HEALTHY)
    assert circuit.released() == (HEALTHY, HEALTHY)


def test_an_entity_is_isolated_by_the_name_of_the_queue_that_it_leads_to(clock):
    circuits = EntityCircuits(INTERVAL, clock, lambda entity: ORDERS if entity == MAILS else entity)
    circuits.isolate(Isolated({"orders": 1.0}))
    assert circuits.asked(MAILS) == (HEALTHY, ISOLATED)
    assert circuits.asked(Entity("", "reports")) == (HEALTHY, HEALTHY)
    assert circuits.isolate(Isolated()) == {MAILS: (ISOLATED, FAILED_OVER)}


def test_it_is_known_for_how_long_an_entity_has_been_as_it_is(clock):
    circuits = EntityCircuits(INTERVAL, clock)
    circuits.failed(ORDERS)
    clock.now += 4
    circuits.failed(ORDERS)
    assert circuits.seconds() == {ORDERS: 4}
    circuits.isolate(Isolated({"all": 1.0}))
    clock.now += 1
    assert circuits.seconds() == {ORDERS: 1}


def health_by_the_rules(history, interval):
    """State of one entity after what happened to it: docs/architecture.md, rules 6 and 7, read aloud."""
    failing_since, is_failed_over, is_isolated = None, False, False
    for when, event in history:
        if event == "isolated":
            is_isolated = True
        elif event == "released":
            is_isolated, is_failed_over = False, is_failed_over or is_isolated
        elif is_isolated:
            continue
        elif event == "restored":
            failing_since, is_failed_over = None, False
        elif is_failed_over:
            continue
        elif event == "succeeded":
            failing_since = None
        else:
            if event == "failed" and failing_since is None:
                failing_since = when
            is_failed_over = failing_since is not None and when - failing_since >= interval
    if is_isolated:
        return ISOLATED
    return FAILED_OVER if is_failed_over else HEALTHY if failing_since is None else SUSPECT


class Circuits(RuleBasedStateMachine):
    """Any sequence of what can happen to three entities."""

    entities = st.sampled_from(THREE)

    @initialize(interval=st.sampled_from([0, 1, 2, 10]))
    def start(self, interval):
        self.interval = interval
        self.clock = Clock()
        self.circuits = EntityCircuits(interval, self.clock)
        self.history = {}
        self.waits_for_restore = set()
        self.isolated = Isolated()

    def _happens(self, entity, event):
        history = self.history.setdefault(entity, [])
        before = health_by_the_rules(history, self.interval)
        history.append((self.clock.now, "isolated" if self.isolated.covers([entity]) else event))
        after = health_by_the_rules(history, self.interval)
        transition = getattr(self.circuits, event)(entity)
        assert transition == (before, after)
        return transition

    @rule(steps=st.integers(0, 11))
    def time_passes(self, steps):
        self.clock.now += steps

    @rule(entity=entities)
    def asked(self, entity):
        may_be_used = not self._happens(entity, "asked").after.diverts
        assert not (may_be_used and entity in self.waits_for_restore)
        if not may_be_used:
            self.waits_for_restore.add(entity)

    @rule(entity=entities)
    def succeeded(self, entity):
        if self._happens(entity, "succeeded").after.diverts:
            self.waits_for_restore.add(entity)

    @rule(entity=entities)
    def failed(self, entity):
        if self._happens(entity, "failed").after.diverts:
            self.waits_for_restore.add(entity)

    @rule(entity=entities)
    def restored(self, entity):
        if self._happens(entity, "restored").after is HEALTHY:
            self.waits_for_restore.discard(entity)
        else:
            self.waits_for_restore.add(entity)

    @rule(names=st.sets(st.sampled_from(["all", *(each.path for each in THREE)])))
    def isolate(self, names):
        before = {entity: health_by_the_rules(history, self.interval) for entity, history in self.history.items()}
        self.isolated = Isolated(dict.fromkeys(names, 1.0))
        for entity, state in before.items():
            if state is not HEALTHY:
                is_covered = self.isolated.covers([entity])
                self.history[entity].append((self.clock.now, "isolated" if is_covered else "released"))
                self.waits_for_restore.update([entity] if is_covered else [])
        found = self.circuits.isolate(self.isolated)
        after = {entity: health_by_the_rules(self.history[entity], self.interval) for entity in found}
        assert found == {entity: (before[entity], state) for entity, state in after.items()}
        assert set(found) == {entity for entity, state in before.items() if state is not HEALTHY}

    @invariant()
    def the_ailing_are_kept_and_nobody_else(self):
        if not hasattr(self, "circuits"):
            return
        states = {entity: health_by_the_rules(history, self.interval) for entity, history in self.history.items()}
        assert self.circuits.states() == {entity: state for entity, state in states.items() if state is not HEALTHY}
        assert bool(self.circuits) == (bool(self.isolated) or any(state is not HEALTHY for state in states.values()))
        assert {entity for entity, state in self.circuits.states().items() if state.diverts} == self.waits_for_restore
        assert set(self.circuits.failed_over()) == {entity for entity in states if states[entity] is FAILED_OVER}
        assert all(
            self.circuits.state(entity) is (ISOLATED if self.isolated.covers([entity]) else state)
            for entity, state in states.items()
        )


TestCircuits = Circuits.TestCase
TestCircuits.settings = settings(max_examples=80, stateful_step_count=40, deadline=None)
