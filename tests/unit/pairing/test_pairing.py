"""The send path, on two namespaces that fail as they are told to, and a clock that moves when it is told to."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, invariant, rule

from kombu_paired.brokers.roles import Sender
from kombu_paired.declarations import Entity
from kombu_paired.errors import (
    BacklogUnavailable,
    ConfigurationError,
    MessageTooLarge,
    NamespaceUnauthorized,
    PairingClosed,
    PrimaryUnavailable,
)
from kombu_paired.events import Event, EventKind
from kombu_paired.failures import FailureKind
from kombu_paired.message import MAYBE_DUPLICATE, Message, diversion_of, from_backlog
from kombu_paired.options import PairedNamespaceOptions
from kombu_paired.pairing import Pairing, stranded
from kombu_paired.pairing.circuit import CircuitState
from kombu_paired.pairing.reach import FRESH
from kombu_paired.pairing.retrying import THROTTLE_WAITS
from kombu_paired.testing import ManualClock, ScriptedBroker
from kombu_paired.testing.scripted import ScriptedRefusal, ScriptedSender

COUNTED = [kind for kind in FailureKind if kind.counts]


class World:
    def __init__(self, *, fails_by_queue: bool = False, **options: Any) -> None:
        self.clock = ManualClock()
        self.primary, self.secondary = (
            ScriptedBroker("primary", clock=self.clock),
            ScriptedBroker("secondary", clock=self.clock),
        )
        self.primary.fails_by_queue = fails_by_queue
        settings = {"secondary": "scripted://secondary", "backlog_queue_count": 3, **options}
        self.pairing = Pairing(
            "contoso",
            PairedNamespaceOptions(**settings),
            self.primary,
            self.secondary,
            clock=self.clock,
            wall_clock=self.clock,
            sleep=self.clock.sleep,
        )
        self.events: list[Event] = []
        self.pairing.events.listen(self.events.append)

    def send(self, queue: str = "orders", **facts: Any) -> Message:
        properties = {"delivery_mode": facts.pop("delivery_mode", 2)}
        message = Message("{}", "", queue, properties=properties, **facts)
        self.pairing.send(message)
        return message

    def kinds(self) -> list[EventKind]:
        return [event.kind for event in self.events]

    def close(self) -> None:
        self.pairing.close()


@pytest.fixture
def world() -> Any:
    made = World()
    yield made
    made.close()


@pytest.mark.parametrize(("fails_by_queue", "failed"), [(True, ["orders"]), (False, ["orders", "shop/orders"])])
def test_where_queues_fail_alone_the_exchange_that_leads_to_one_shares_its_health(
    fails_by_queue: bool, failed: list[str]
) -> None:
    world = World(fails_by_queue=fails_by_queue, failover_interval=0)
    world.pairing.book.note("exchange_declare", {"exchange": "shop", "type": "direct", "durable": True})
    world.pairing.book.note("queue_bind", {"queue": "orders", "exchange": "shop", "routing_key": "orders"})
    world.primary.fail(FailureKind.FAULT)
    by_exchange = Message("{}", "shop", "orders", properties={"delivery_mode": 2})
    world.pairing.send(by_exchange)
    asked = len(world.primary.log)
    if not fails_by_queue:
        world.primary.fail(FailureKind.FAULT)
    world.send("orders")
    assert (len(world.primary.log) == asked) is fails_by_queue
    assert sorted(entity.path for entity in world.pairing.circuits.failed_over()) == failed
    diverted = [event.entity for event in world.events if event.kind is EventKind.DIVERTED]
    assert diverted == (["orders", "orders"] if fails_by_queue else ["shop/orders", "orders"])
    world.pairing.mark_healthy(by_exchange.entity)
    assert sorted(entity.path for entity in world.pairing.circuits.failed_over()) == failed[:-1]
    world.close()


def test_a_healthy_message_goes_to_the_primary_unchanged(world: World) -> None:
    message = world.send()
    assert world.primary.stored == [message]
    assert world.primary.stored[0] is message
    assert world.secondary.attempts == 0


@pytest.mark.parametrize("kind", COUNTED)
def test_a_counted_failure_diverts_the_message_and_suspects_the_entity(world: World, kind: FailureKind) -> None:
    world.primary.always = world.primary.failure(kind)
    world.send()
    [stored] = world.secondary.stored
    assert stored.routing_key.startswith("contoso/x-servicebus-transfer/")
    assert from_backlog(stored, world.clock()).routing_key == "orders"
    assert world.pairing.circuits.state(Entity("", "orders")) is CircuitState.SUSPECT
    assert world.pairing.circuits.state(Entity("", "mails")) is CircuitState.HEALTHY


def test_an_answer_that_never_came_marks_the_copy_as_maybe_duplicate(world: World) -> None:
    world.primary.script = [world.primary.failure(FailureKind.TIMEOUT, maybe_stored=True)]
    world.send()
    world.primary.script = [world.primary.failure(FailureKind.UNREACHABLE, whole_namespace=True)]
    world.send()
    assert [diversion_of(each).maybe_duplicate for each in world.secondary.stored] == [True, False]


def test_a_message_that_was_just_being_taken_is_diverted_and_marked(world: World) -> None:
    failure = world.primary.failure(FailureKind.TIMEOUT, maybe_stored=True)
    world.pairing.divert_stranded(Message("{}", "", "orders"), failure)
    [stored] = world.secondary.stored
    assert diversion_of(stored).maybe_duplicate
    assert world.primary.attempts == 0
    assert world.pairing.circuits.state(Entity("", "orders")) is CircuitState.SUSPECT


def wait_until(condition: Callable[[], object]) -> None:
    deadline = time.monotonic() + 20
    while not condition():
        assert time.monotonic() < deadline
        time.sleep(0.01)


@pytest.mark.parametrize("found", ["by itself", "by a consumer", "by a ping"])
def test_without_a_secondary_it_waits_until_a_namespace_takes_it(
    world: World, caplog: Any, found: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(stranded, "FIRST_WAIT", 0.05 if found == "by itself" else 600)
    monkeypatch.setattr(stranded, "LONGEST_WAIT", 600)
    failure = world.primary.failure(FailureKind.UNREACHABLE)
    world.primary.always, world.secondary.always = failure, world.secondary.failure(FailureKind.UNREACHABLE)
    for queue in ("orders", "mails"):
        world.pairing.divert_stranded(Message("{}", "", queue), failure)
    assert "2 messages that were just being taken wait in this process" in caplog.text
    assert world.primary.stored == []

    world.primary.always = None
    if found == "by a ping":
        assert world.pairing._failover.ping(Entity("", "orders"))
    elif found == "by a consumer":
        world.pairing.primary_was_reached()
    wait_until(lambda: len(world.primary.stored) == 2)
    assert sorted(message.routing_key for message in world.primary.stored) == ["mails", "orders"]
    wait_until(lambda: not [each for each in threading.enumerate() if "stranded" in each.name])
    world.close()
    assert "lost with this process" not in caplog.text


@pytest.mark.parametrize("maybe_stored", [True, False])
def test_what_a_broker_may_bring_back_by_itself_is_sent_again_with_the_mark(world: World, maybe_stored: bool) -> None:
    failure = world.primary.failure(FailureKind.UNREACHABLE, maybe_stored=maybe_stored)
    world.primary.script, world.secondary.always = [failure], world.secondary.failure(FailureKind.UNREACHABLE)
    message = Message("{}", "", "orders", headers={"id": "7"})
    world.pairing.divert_stranded(message, failure)
    wait_until(lambda: world.primary.stored)
    [stored] = world.primary.stored
    assert (stored.headers.get(MAYBE_DUPLICATE) == "true") is maybe_stored
    assert message.headers == {"id": "7"}


def test_a_pairing_that_closes_sends_what_waits_in_it(
    world: World, caplog: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(stranded, "FIRST_WAIT", 600)
    failure = world.primary.failure(FailureKind.UNREACHABLE)
    world.primary.always, world.secondary.always = failure, world.secondary.failure(FailureKind.UNREACHABLE)
    world.pairing.divert_stranded(Message("{}", "", "orders"), failure)
    world.secondary.always = None
    world.close()
    assert len(world.secondary.stored) == 1
    assert "lost" not in caplog.text


def test_a_pairing_that_closes_names_what_it_could_send_nowhere(
    world: World, caplog: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(stranded, "FIRST_WAIT", 600)
    failure = world.primary.failure(FailureKind.UNREACHABLE)
    world.primary.always, world.secondary.always = failure, world.secondary.failure(FailureKind.UNREACHABLE)
    world.pairing.divert_stranded(Message("{}", "", "orders", headers={"id": "7"}), failure)
    world.close()
    assert "lost with this process: 7 of orders" in caplog.text


def test_remote_control_of_a_primary_in_alarm_is_dropped_and_other_transient_messages_raise(world: World) -> None:
    world.pairing.declare("exchange_declare", {"exchange": "celery.pidbox", "type": "fanout", "durable": False})
    world.primary.script = [world.primary.failure(FailureKind.FAULT, whole_namespace=True)]
    greeting = Message("{}", "celery.pidbox", "")
    world.primary.cost = 1.0
    world.pairing.send(greeting)
    world.pairing.send(greeting)  # now it is known
    assert world.primary.attempts == 1
    assert world.secondary.stored == []
    with pytest.raises(PrimaryUnavailable):
        world.send(delivery_mode=1)
    world.clock.sleep(FRESH)
    world.primary.script = [world.primary.failure(FailureKind.UNREACHABLE, whole_namespace=True)]
    with pytest.raises(ConnectionError, match="primary unreachable"):
        world.pairing.send(greeting)


def test_after_the_interval_the_primary_is_not_touched(world: World) -> None:
    world.primary.always = world.primary.failure(FailureKind.FAULT)
    world.send()
    world.clock.sleep(world.pairing.options.failover_interval)
    attempts = world.primary.attempts
    world.send()
    assert world.primary.attempts == attempts
    assert len(world.secondary.stored) == 2
    assert EventKind.FAILED_OVER in world.kinds()


def test_a_namespace_that_cannot_be_reached_costs_one_try_for_all_entities(world: World) -> None:
    world.primary.always = world.primary.failure(FailureKind.UNREACHABLE, whole_namespace=True)
    for number in range(50):
        world.send(f"queue-{number}")
    assert world.primary.attempts == 1
    assert len(world.secondary.stored) == 50
    assert len(world.pairing.circuits.states()) == 50, "each counts its failure"
    world.clock.sleep(FRESH)
    world.send("queue-1")
    assert world.primary.attempts == 2, "a stale failure is tried again by one"


def test_an_old_connection_that_died_in_its_sleep_is_no_failure(world: World) -> None:
    world.send()
    world.primary.script = [world.primary.failure(FailureKind.UNREACHABLE)]
    world.send()
    assert len(world.primary.stored) == 2
    assert world.secondary.attempts == 0
    assert not world.pairing.circuits


def test_a_message_that_may_be_stored_is_not_sent_to_the_primary_again(world: World) -> None:
    world.send()
    world.primary.script = [world.primary.failure(FailureKind.UNREACHABLE, maybe_stored=True)]
    world.send()
    assert len(world.primary.stored) == 1
    assert diversion_of(world.secondary.stored[0]).maybe_duplicate


def test_throttled_waits_and_sends_again_and_does_not_count(world: World) -> None:
    before = world.clock()
    world.primary.script = [world.primary.failure(FailureKind.THROTTLED)] * 2
    world.send()
    assert world.clock() - before == 2 * world.pairing.options.throttle_wait
    assert len(world.primary.stored) == 1
    assert not world.pairing.circuits


def test_a_primary_that_stays_busy_gets_no_more_waiting_and_the_message_is_diverted(world: World) -> None:
    before = world.clock()
    world.primary.always = world.primary.failure(FailureKind.THROTTLED)
    world.send()
    assert world.clock() - before == THROTTLE_WAITS * world.pairing.options.throttle_wait
    assert len(world.secondary.stored) == 1
    assert not world.pairing.circuits


def test_wrong_credentials_raise_at_once_say_which_side_and_divert_nothing(world: World) -> None:
    world.primary.always = world.primary.failure(FailureKind.UNAUTHORIZED)
    with pytest.raises(NamespaceUnauthorized, match=r"primary namespace.*broker_url"):
        world.send()
    assert world.secondary.attempts == 0
    world.primary.always = world.primary.failure(FailureKind.FAULT)
    world.secondary.always = world.secondary.failure(FailureKind.UNAUTHORIZED)
    with pytest.raises(NamespaceUnauthorized, match=r"secondary namespace.*option secondary"):
        world.send()


def test_a_rejected_message_raises_what_the_plain_transport_would(world: World) -> None:
    failure = world.primary.failure(FailureKind.REJECTED)
    world.primary.always = failure
    with pytest.raises(ScriptedRefusal) as caught:
        world.send()
    assert caught.value is failure.cause
    assert world.secondary.attempts == 0


def test_a_missing_entity_is_declared_once_and_the_message_sent_again(world: World) -> None:
    world.pairing.declare("queue_declare", {"queue": "orders", "durable": True})
    world.primary.declared.clear()
    world.primary.script = [world.primary.failure(FailureKind.MISSING)]
    world.send()
    assert len(world.primary.stored) == 1
    assert [each.name for each in world.primary.declared] == ["orders"], "said once, and again as it was missing"
    world.primary.always = world.primary.failure(FailureKind.MISSING)
    with pytest.raises(ScriptedRefusal):
        world.send("nobody-declared-it")


def test_transient_messages_are_never_diverted(world: World) -> None:
    failure = world.primary.failure(FailureKind.UNREACHABLE, whole_namespace=True)
    world.primary.always = failure
    for _ in range(2):  # a refusal costs nothing, so it is found out anew
        with pytest.raises(ConnectionError) as caught:
            world.send(delivery_mode=1)
        assert caught.value is failure.cause
    world.primary.cost = 5.0
    with pytest.raises(ConnectionError):
        world.send(delivery_mode=1)
    with pytest.raises(PrimaryUnavailable):
        world.send(delivery_mode=1)
    assert world.primary.attempts == 3, "a timeout is not found out again"
    assert world.secondary.attempts == 0


def test_who_tries_a_transient_message_again_waits_for_it_or_not_at_all(world: World) -> None:
    failure = world.primary.failure(FailureKind.UNREACHABLE, whole_namespace=True)
    world.primary.always = failure

    def try_again(**how: bool) -> None:
        with pytest.raises(ConnectionError):
            world.send(delivery_mode=1)
        world.pairing.require_sendable(**how)

    with pytest.raises(ConnectionError) as caught:
        try_again()
    assert caught.value is failure.cause, "Kombu pauses and goes on: its error tuples have this one"
    world.pairing.require_sendable()  # said once
    with pytest.raises(PrimaryUnavailable, match="worth nothing later"):
        try_again(may_wait=False)
    with pytest.raises(ConnectionError):
        world.send(delivery_mode=1)
    world.clock.sleep(1)
    world.pairing.require_sendable()  # of another try


def test_remote_control_is_tried_again_for_as_long_as_a_plain_connection_is(world: World) -> None:
    """Kombu tries it again without end, every second, and its caller waits."""
    world.pairing.declare("exchange_declare", {"exchange": "celery.pidbox", "type": "fanout", "durable": False})
    failure = world.primary.failure(FailureKind.UNREACHABLE, whole_namespace=True)
    world.primary.always = failure
    broadcast = Message("{}", "celery.pidbox", "")
    for _ in range(4):
        with pytest.raises(ConnectionError) as caught:
            world.pairing.send(broadcast)
        assert caught.value is failure.cause
        world.clock.sleep(1)
    with pytest.raises(PrimaryUnavailable, match="worth nothing later"):
        world.pairing.send(broadcast)
    with pytest.raises(PrimaryUnavailable):
        world.pairing.send(broadcast)  # and so does the next one, at once
    world.clock.sleep(3)
    with pytest.raises(ConnectionError) as caught:
        world.pairing.send(broadcast)
    assert caught.value is failure.cause


@pytest.mark.parametrize("cost", [0.0, 5.0])
def test_a_transient_message_goes_to_a_primary_that_is_back_whatever_is_known(world: World, cost: float) -> None:
    world.primary.cost = cost
    world.primary.always = world.primary.failure(FailureKind.UNREACHABLE, whole_namespace=True)
    world.send()
    world.clock.sleep(20)
    world.send()
    assert world.pairing.circuits.failed_over()
    world.primary.always = None
    world.send(delivery_mode=1)
    assert len(world.primary.stored) == 1


@pytest.mark.parametrize("kind", [FailureKind.FAULT, FailureKind.UNREACHABLE])
def test_the_caller_sees_each_failure_until_the_failover_if_so_set(kind: FailureKind) -> None:
    world = World(divert_while_suspect=False, failover_interval=10)
    failure = world.primary.failure(kind)
    world.primary.always = failure
    for pause in (0, 5, 4.9):
        world.clock.sleep(pause)
        with pytest.raises(ConnectionError) as caught:
            world.send()
        assert caught.value is failure.cause
    assert world.secondary.stored == []
    world.clock.sleep(0.1)
    world.send()
    assert len(world.secondary.stored) == 1
    world.close()


def test_an_entity_that_is_marked_healthy_is_sent_to_again_without_a_ping() -> None:
    world, orders = World(failover_interval=0, ping_interval=1800), Entity("", "orders")
    world.primary.always = world.primary.failure(FailureKind.UNREACHABLE, whole_namespace=True)
    world.send()
    world.primary.always = None
    world.clock.sleep(3)  # by then nothing is known of the namespace any more
    world.send()
    assert world.pairing.circuits.state(orders) is CircuitState.FAILED_OVER
    assert (len(world.primary.stored), len(world.secondary.stored)) == (0, 2)

    world.pairing.mark_healthy(orders)

    assert world.pairing.circuits.state(orders) is CircuitState.HEALTHY
    world.send()
    assert (len(world.primary.stored), len(world.secondary.stored)) == (1, 2)
    world.close()


def test_a_failing_backlog_queue_is_pulled_and_another_takes_the_message(world: World) -> None:
    world.primary.always = world.primary.failure(FailureKind.FAULT)
    world.send()
    first = world.secondary.stored[0].routing_key
    world.secondary.failing_queues = {first}
    world.send()
    assert world.secondary.stored[1].routing_key != first
    assert world.pairing.rotation.pulled() == [first]
    assert EventKind.BACKLOG_PULLED in world.kinds()


def test_a_message_that_every_backlog_queue_rejects_pulls_none_of_them(world: World) -> None:
    world.primary.always = world.primary.failure(FailureKind.FAULT)
    failure = world.secondary.failure(FailureKind.REJECTED)
    world.secondary.script = [failure, failure]
    with pytest.raises(ScriptedRefusal) as caught:
        world.send()
    assert caught.value is failure.cause
    assert not world.pairing.rotation.pulled()
    world.send()
    assert len(world.secondary.stored) == 1


def test_both_down_names_both_failures_and_pulls_nothing(world: World) -> None:
    world.pairing.open()
    world.primary.always = world.primary.failure(FailureKind.UNREACHABLE, whole_namespace=True)
    world.secondary.always = world.secondary.failure(FailureKind.UNREACHABLE, whole_namespace=True)
    with pytest.raises(BacklogUnavailable, match=r"primary unreachable.*secondary unreachable"):
        world.send()
    assert not world.pairing.rotation.pulled()
    with pytest.raises(BacklogUnavailable):
        world.pairing.require_sendable()
    world.secondary.always = None
    world.send()
    world.pairing.require_sendable()
    assert len(world.secondary.stored) == 1


def test_a_call_that_raised_in_doubt_says_so_since_its_caller_may_send_it_again(world: World) -> None:
    world.pairing.open()
    world.secondary.always = world.secondary.failure(FailureKind.UNREACHABLE, whole_namespace=True)
    for maybe_stored in (True, False):
        world.primary.always = world.primary.failure(FailureKind.TIMEOUT, maybe_stored=maybe_stored)
        with pytest.raises(BacklogUnavailable):
            world.send()
    raised = [event for event in world.events if event.kind is EventKind.BACKLOG_UNAVAILABLE]
    assert [event.maybe_duplicate for event in raised] == [True, False]


# -- nobody raises on what was known before ---------------------------------------------------------------------------


def failed_together(world: World, primary_cost: float = 0.0, secondary_cost: float = 0.0) -> None:
    """Both sides were away for one call."""
    world.primary.cost, world.secondary.cost = primary_cost, secondary_cost
    for namespace in (world.primary, world.secondary):
        namespace.always = namespace.failure(FailureKind.UNREACHABLE, whole_namespace=True)
    with pytest.raises(BacklogUnavailable):
        world.send()


@pytest.mark.parametrize("cost", [0.0, 5.0])
@pytest.mark.parametrize("later", [0.0, FRESH / 2, FRESH, 20.0])
@pytest.mark.parametrize("who", ["primary", "secondary"])
def test_a_side_that_is_back_is_used_whatever_is_known_of_it(world: World, who: str, later: float, cost: float) -> None:
    failed_together(world, cost, cost)
    world.clock.sleep(later)
    back: ScriptedBroker = getattr(world, who)
    back.always = None
    world.send()
    assert len(back.stored) == 1


@pytest.mark.parametrize("later", [0.0, FRESH, 20.0])
def test_a_failed_over_primary_that_is_back_takes_what_the_secondary_cannot(world: World, later: float) -> None:
    failed_together(world)
    world.clock.sleep(10)
    world.secondary.always = None
    world.send()
    orders = Entity("", "orders")
    assert world.pairing.circuits.state(orders) is CircuitState.FAILED_OVER
    world.primary.always, world.secondary.always = None, world.secondary.failure(FailureKind.FAULT)
    world.clock.sleep(later)
    world.send()
    assert len(world.primary.stored) == 1
    assert world.pairing.circuits.state(orders) is CircuitState.HEALTHY, "what takes a message is not failed over"


def test_the_caller_of_a_strict_pairing_sees_no_failure_of_before() -> None:
    world = World(divert_while_suspect=False, failover_interval=60)
    world.primary.always = world.primary.failure(FailureKind.UNREACHABLE, whole_namespace=True)
    world.primary.cost = 5.0
    for _ in range(2):
        with pytest.raises(ConnectionError):
            world.send()
    assert world.primary.attempts == 2
    world.primary.always = None
    world.send()
    world.pairing.send_batch([Message("{}", "", "orders", properties={"delivery_mode": 2})])
    assert len(world.primary.stored) == 2
    world.close()


def test_a_primary_that_comes_back_while_the_secondary_is_silent_is_used(world: World) -> None:
    world.pairing.open()
    world.primary.script = [world.primary.failure(FailureKind.UNREACHABLE, whole_namespace=True)]
    world.secondary.always = world.secondary.failure(FailureKind.UNREACHABLE, whole_namespace=True)
    world.secondary.cost = 5.0
    world.send()
    assert len(world.primary.stored) == 1


def test_when_all_backlog_queues_are_pulled_they_are_tried_all_the_same(world: World) -> None:
    world.pairing.open()
    world.primary.always = world.primary.failure(FailureKind.FAULT)
    world.secondary.script = [world.secondary.failure(FailureKind.FAULT)] * 3
    with pytest.raises(BacklogUnavailable):
        world.send()
    assert len(world.pairing.rotation.pulled()) == 3
    world.send()
    assert len(world.secondary.stored) == 1


def test_what_a_cold_process_spends_on_opening_is_a_part_of_its_first_call(world: World) -> None:
    timeout = world.pairing.options.send_timeout
    started = world.clock()

    def slow(sender: ScriptedSender, message: Message, timeout: float) -> None:
        world.clock.sleep(timeout)
        raise sender.namespace.failure(FailureKind.TIMEOUT)

    world.secondary.cost = timeout
    world.secondary.always = world.secondary.failure(FailureKind.TIMEOUT)
    world.pairing.open()
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(ScriptedSender, "send", slow)
        with pytest.raises(BacklogUnavailable):
            world.send()
    assert world.clock() - started <= 2.5 * timeout


def test_a_thread_that_comes_second_to_the_backlog_queues_keeps_nobody_waiting(world: World) -> None:
    world.pairing.rotation.use(["contoso/x-servicebus-transfer/0"])  # by another thread, in the moment before
    world.pairing._backlog_route.reach._wait = lambda *arguments: pytest.fail("waits for one who does not try")
    world.pairing.open()
    world.primary.always = world.primary.failure(FailureKind.UNREACHABLE)
    world.send()
    assert len(world.secondary.stored) == 1


def test_whoever_tries_again_pauses_while_both_are_away_and_asks_neither(world: World) -> None:
    failed_together(world, 5.0, 5.0)
    with pytest.raises(BacklogUnavailable, match=r"primary unreachable.*secondary unreachable"):
        world.pairing.require_sendable()
    assert (world.primary.probes, world.secondary.probes) == (0, 0)
    world.primary.always = None
    world.send()
    world.pairing.require_sendable()


def test_a_question_is_put_to_a_primary_that_is_back(world: World) -> None:
    failed_together(world)
    world.clock.sleep(20)
    world.secondary.always = None
    world.send()
    world.primary.always = None
    assert world.pairing.declare("queue_declare", {"queue": "orders", "passive": True}) == "declared"


def test_a_ping_believes_a_timeout_of_just_now_and_nothing_else(world: World) -> None:
    world.pairing.open()
    orders = Entity("", "orders")
    world.primary.always = world.primary.failure(FailureKind.UNREACHABLE, whole_namespace=True)
    world.send()
    world.primary.always = None
    assert world.pairing._failover.ping(orders), "a refusal is found out anew"
    world.primary.always, world.primary.cost = world.primary.failure(FailureKind.UNREACHABLE, whole_namespace=True), 5.0
    world.send()
    assert not world.pairing._failover.ping(orders)
    assert world.primary.probes == 1
    world.clock.sleep(FRESH)
    world.primary.always = None
    assert world.pairing._failover.ping(orders)


# -- one deadline for a call ----------------------------------------------------------------------------------------


@pytest.mark.parametrize("before", ["nothing", "both failed"])
def test_no_call_has_more_than_two_send_timeouts_and_no_step_more_than_one(world: World, before: str) -> None:
    world.pairing.open()
    if before != "nothing":
        failed_together(world)
        world.clock.sleep(FRESH)
    given: list[float] = []
    timeout = world.pairing.options.send_timeout

    def slow(self: ScriptedSender, message: Message, left: float) -> None:
        given.append(left)
        self.namespace.clock.sleep(left)
        raise self.namespace.failure(FailureKind.TIMEOUT)

    started = world.clock()
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(ScriptedSender, "send", slow)
        with pytest.raises(BacklogUnavailable):
            world.send()
    assert max(given) <= timeout
    assert world.clock() - started <= 2 * timeout + 0.01


@pytest.mark.parametrize("pause", [0.0, 0.8])
@pytest.mark.parametrize("opened", ["before", "in the call"])
def test_steps_in_vain_are_a_part_of_the_call_that_follows_on_a_busy_machine_too(
    world: World, opened: str, pause: float
) -> None:
    if opened == "before":
        world.pairing.open()
    timeout, started = world.pairing.options.send_timeout, world.clock()

    def silent(namespace: ScriptedBroker, left: float) -> None:
        namespace.clock.sleep(left)
        raise namespace.failure(FailureKind.TIMEOUT)

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(ScriptedSender, "send", lambda self, message, left: silent(self.namespace, left))
        patch.setattr(ScriptedSender, "declare_one", lambda self, declaration, book, left: silent(self.namespace, left))
        patch.setattr(ScriptedBroker, "ensure_backlog_queues", lambda self, names, create, left: silent(self, left))
        if opened == "in the call":
            world.pairing.open()
            world.clock.sleep(pause)
        for operation in ("exchange_declare", "queue_declare"):
            world.pairing.declare(operation, {"exchange": "orders", "queue": "orders", "durable": True})
            world.clock.sleep(pause)
        with pytest.raises(BacklogUnavailable):
            world.send()
    assert world.clock() - started <= 2 * timeout + 0.01


def test_a_declaration_in_vain_is_a_part_of_the_call_that_follows(world: World) -> None:
    world.pairing.open()
    world.primary.cost = world.secondary.cost = 10.0
    for namespace in (world.primary, world.secondary):
        namespace.always = namespace.failure(FailureKind.TIMEOUT)
    started = world.clock()
    world.pairing.declare("queue_declare", {"queue": "orders", "durable": True})
    assert world.clock() - started == 10
    with pytest.raises(BacklogUnavailable):
        world.send()
    assert world.clock() - started <= 2 * world.pairing.options.send_timeout + 1


# -- one message's doubt is not another's -----------------------------------------------------------------------------


def test_a_doubt_about_one_message_marks_no_other(world: World) -> None:
    world.primary.always = world.primary.failure(FailureKind.TIMEOUT, maybe_stored=True, whole_namespace=True)
    world.send()
    for number in range(3):
        world.send(f"queue-{number}")
    assert world.primary.attempts == 1
    assert [diversion_of(each).maybe_duplicate for each in world.secondary.stored] == [True, False, False, False]


def test_silence_before_anything_was_sent_is_no_doubt(world: World) -> None:
    world.primary.always = world.primary.failure(FailureKind.TIMEOUT)
    world.send()
    assert not diversion_of(world.secondary.stored[0]).maybe_duplicate


def test_of_a_batch_only_those_are_marked_that_may_be_stored(world: World) -> None:
    unsure, unsent = (
        world.primary.failure(FailureKind.TIMEOUT, maybe_stored=True),
        world.primary.failure(FailureKind.TIMEOUT),
    )
    world.primary.script = [None, unsure, unsent]
    world.pairing.send_batch([Message(str(n), "", "orders", properties={"delivery_mode": 2}) for n in range(3)])
    assert [each.body for each in world.primary.stored] == ["0"]
    marks = {each.body: diversion_of(each).maybe_duplicate for each in world.secondary.stored}
    assert marks == {"1": True, "2": False}


def test_a_message_that_one_backlog_queue_may_have_is_marked_in_the_next(world: World) -> None:
    world.primary.always = world.primary.failure(FailureKind.FAULT)
    world.secondary.script = [world.secondary.failure(FailureKind.TIMEOUT, maybe_stored=True)]
    world.send()
    assert diversion_of(world.secondary.stored[0]).maybe_duplicate


def test_a_message_that_the_secondary_may_have_is_marked_at_home(world: World) -> None:
    world.pairing.open()
    world.primary.script = [world.primary.failure(FailureKind.UNREACHABLE, whole_namespace=True)]
    world.secondary.always = world.secondary.failure(FailureKind.UNREACHABLE, maybe_stored=True)
    world.secondary.cost = 5.0
    world.send()
    assert world.primary.stored[0].headers[MAYBE_DUPLICATE] == "true"


@pytest.mark.parametrize("goes", ["to the primary", "to the backlog"])
def test_what_raised_in_doubt_is_marked_when_it_is_sent_again(world: World, goes: str) -> None:
    world.pairing.open()
    world.primary.script = [world.primary.failure(FailureKind.TIMEOUT, maybe_stored=True)]
    world.secondary.script = [world.secondary.failure(FailureKind.UNREACHABLE, whole_namespace=True)]
    with pytest.raises(BacklogUnavailable):
        world.send(headers={"id": "7"})
    if goes == "to the backlog":
        world.primary.always = world.primary.failure(FailureKind.UNREACHABLE)
    world.send(headers={"id": "8"})
    world.send(headers={"id": "7"})
    stored = {each.message_id: each for each in (*world.primary.stored, *world.secondary.stored)}
    assert {id: MAYBE_DUPLICATE in each.headers for id, each in stored.items()} == {"7": True, "8": False}
    told = [each for each in world.events if each.kind in (EventKind.SENT, EventKind.DIVERTED)]
    assert {each.message_id: each.maybe_duplicate for each in told} == {"7": True, "8": False}
    world.primary.always = None
    world.send(headers={"id": "7"})
    assert MAYBE_DUPLICATE not in world.primary.stored[-1].headers, "once it is sent, a doubt is over"


# -- no sender is lost ----------------------------------------------------------------------------------------------


def test_a_sender_whose_declaration_failed_is_dropped(world: World, monkeypatch: pytest.MonkeyPatch) -> None:
    dropped: list[Sender] = []
    monkeypatch.setattr(ScriptedSender, "drop", lambda self: dropped.append(self))
    world.primary.always = world.primary.failure(FailureKind.UNREACHABLE)
    world.pairing.declare("queue_declare", {"queue": "orders", "durable": True})
    assert len(dropped) == 1


def test_a_message_too_large_for_the_backlog_leaves_its_sender_to_the_next(world: World) -> None:
    world.primary.always = world.primary.failure(FailureKind.FAULT)
    world.send()
    [idle] = world.pairing._backlog_route.links._idle
    world.secondary.max_message_size = 10
    with pytest.raises(MessageTooLarge):
        world.send()
    assert list(world.pairing._backlog_route.links._idle) == [idle]


# -- opening ----------------------------------------------------------------------------------------------------------


def test_a_secondary_that_is_away_at_first_is_tried_again_when_it_is_needed(world: World) -> None:
    world.secondary.always = world.secondary.failure(FailureKind.UNREACHABLE, whole_namespace=True)
    world.pairing.open()
    assert world.pairing.backlog_queue_count == 0
    world.send()
    world.secondary.always = None
    world.primary.always = world.primary.failure(FailureKind.FAULT)
    world.clock.sleep(FRESH)
    world.send()
    assert world.pairing.backlog_queue_count == 3


def test_opening_counts_what_is_usable_and_refuses_none() -> None:
    world = World(create_backlog_queues=False)
    names = world.pairing.backlog_queue_names
    world.secondary.missing_queues = set(names[1:])
    world.pairing.open()
    assert world.pairing.backlog_queue_count == 1
    world.close()
    empty = World(create_backlog_queues=False)
    empty.secondary.missing_queues = set(names)
    with pytest.raises(ConfigurationError, match="create_backlog_queues"):
        empty.pairing.open()
    empty.close()


def test_a_diverted_message_takes_the_queue_for_its_answer_along(world: World) -> None:
    world.primary.always = world.primary.failure(FailureKind.UNREACHABLE, whole_namespace=True)
    world.pairing.declare("queue_declare", {"queue": "orders", "durable": True})
    world.pairing.declare("queue_declare", {"queue": "replies", "durable": True, "auto_delete": True})
    message = Message("{}", "", "orders", properties={"delivery_mode": 2, "reply_to": "replies"})

    world.pairing.send(message)

    carried = diversion_of(world.secondary.stored[0]).declarations
    assert [each.name for each in carried] == ["orders", "replies"]


def test_declarations_are_noted_while_the_primary_is_away_and_travel_with_the_message(world: World) -> None:
    world.primary.always = world.primary.failure(FailureKind.UNREACHABLE, whole_namespace=True)
    assert world.pairing.declare("queue_declare", {"queue": "orders", "durable": True}) is None
    world.send()
    [declaration] = diversion_of(world.secondary.stored[0]).declarations
    assert (declaration.operation, declaration.name) == ("queue_declare", "orders")


def test_nothing_is_sent_through_a_closed_pairing(world: World) -> None:
    world.pairing.close()
    with pytest.raises(PairingClosed):
        world.send()


def test_one_of_many_threads_tries_a_stale_primary(world: World) -> None:
    world.pairing.open()
    world.primary.always = world.primary.failure(FailureKind.UNREACHABLE, whole_namespace=True)
    world.send()
    threads = [threading.Thread(target=world.send, args=(f"queue-{n}",)) for n in range(16)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(10)
    assert world.primary.attempts == 1
    assert len(world.secondary.stored) == 17


@given(st.lists(st.sampled_from([None, *COUNTED]), max_size=12))
@settings(max_examples=50, deadline=None)
def test_a_batch_loses_nothing_whatever_happens_to_its_messages(outcomes: list[FailureKind | None]) -> None:
    world = World()
    world.primary.script = [kind and world.primary.failure(kind) for kind in outcomes]
    messages = [Message(str(n), "", f"queue-{n % 3}", properties={"delivery_mode": 2}) for n in range(len(outcomes))]
    world.pairing.send_batch(messages)
    bodies = [each.body for each in (*world.primary.stored, *world.secondary.stored)]
    assert sorted(bodies) == sorted(each.body for each in messages)
    world.close()


class SendPath(RuleBasedStateMachine):
    """No sequence of successes and failures loses a message, uses a failed-over primary, or a pulled queue."""

    def __init__(self) -> None:
        super().__init__()
        self.world = World(ping_interval=1800)
        self.world.pairing.open()
        self.returned: list[str] = []
        self.number = 0

    @rule(
        entity=st.sampled_from(["orders", "mails"]),
        primary=st.lists(st.sampled_from([None, *FailureKind]), max_size=3),
        whole=st.booleans(),
        stored=st.booleans(),
        secondary=st.lists(st.sampled_from([None, FailureKind.FAULT, FailureKind.TIMEOUT]), max_size=2),
    )
    def send(
        self,
        entity: str,
        primary: list[FailureKind | None],
        whole: bool,
        stored: bool,
        secondary: list[FailureKind | None],
    ) -> None:
        world, body = self.world, str(self.number)
        self.number += 1
        world.primary.script = [
            kind and world.primary.failure(kind, whole_namespace=whole and kind.counts, maybe_stored=stored)
            for kind in primary
        ]
        world.secondary.script = [kind and world.secondary.failure(kind) for kind in secondary]
        was_failed_over = world.pairing.circuits.state(Entity("", entity)) is CircuitState.FAILED_OVER
        attempts, pulled = world.primary.attempts, world.pairing.rotation.pulled()
        kept_before = len(world.secondary.stored)
        try:
            world.pairing.send(Message(body, "", entity, properties={"delivery_mode": 2}))
        except (BacklogUnavailable, NamespaceUnauthorized, ConnectionError, ScriptedRefusal):
            pass  # the caller knows, and still has the message
        else:
            self.returned.append(body)
        if was_failed_over and len(secondary) < 2:
            assert world.primary.attempts == attempts, "a failed-over primary was used"
        if len(pulled) + len(secondary) < 3:  # else it may be the last that is left
            for kept in world.secondary.stored[kept_before:]:
                assert kept.routing_key not in pulled, "a pulled queue was used"

    @rule(seconds=st.sampled_from([0.5, 2.0, 5.0, 10.0, 60.0]))
    def pass_time(self, seconds: float) -> None:
        self.world.clock.sleep(seconds)

    @rule(entity=st.sampled_from(["orders", "mails"]))
    def restore(self, entity: str) -> None:
        self.world.pairing.mark_healthy(Entity("", entity))

    @invariant()
    def nothing_is_lost(self) -> None:
        there = {each.body for each in (*self.world.primary.stored, *self.world.secondary.stored)}
        assert set(self.returned) <= there

    def teardown(self) -> None:
        self.world.close()


TestSendPath = SendPath.TestCase
TestSendPath.settings = settings(max_examples=60, stateful_step_count=30, deadline=None)
