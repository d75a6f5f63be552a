"""The two ways of a message, which say what happened in values, and the teller that puts it into words."""

from __future__ import annotations

import logging
from typing import Any

import pytest

from kombu_paired.deadline import Deadline
from kombu_paired.declarations import Declaration, DeclarationBook, Entity, as_it_is
from kombu_paired.errors import ConfigurationError, MessageTooLarge, NamespaceFailure
from kombu_paired.events import Event, EventKind, EventStream
from kombu_paired.failures import FailureKind
from kombu_paired.message import MAYBE_DUPLICATE, Message, diversion_of
from kombu_paired.options import PairedNamespaceOptions
from kombu_paired.pairing.backlog_route import BacklogRoute, Pulled, Stored
from kombu_paired.pairing.call import Call
from kombu_paired.pairing.circuit import CircuitState, Transition
from kombu_paired.pairing.clocks import Clocks
from kombu_paired.pairing.primary_route import PrimaryRoute
from kombu_paired.pairing.teller import Teller
from kombu_paired.testing import ManualClock, ScriptedBroker
from tests.unit.pairing.test_pairing import COUNTED

ORDERS = Entity("", "orders")
QUEUES = [f"contoso/x-servicebus-transfer/{i}" for i in range(3)]
DECLARATION = Declaration("queue_declare", {"queue": "orders", "durable": True})


class Scene:
    """Two routes on scripted namespaces, and a teller that nobody feeds but the test."""

    def __init__(self, **options: Any) -> None:
        self.clock = ManualClock()
        self.options = PairedNamespaceOptions(secondary="scripted://secondary", backlog_queue_count=3, **options)
        self.book, self.waits = DeclarationBook(), list[NamespaceFailure]()
        self.primary = ScriptedBroker("primary", clock=self.clock)
        self.secondary = ScriptedBroker("secondary", clock=self.clock)
        clocks = Clocks(self.clock, self.clock, self.clock.sleep)
        self.primary_route = PrimaryRoute(self.primary, self.book, self.options, clocks, self.wait)
        self.backlog_route = BacklogRoute(self.secondary, QUEUES, self.book, self.options, clocks)
        stream, self.events = EventStream(), list[Event]()
        stream.listen(self.events.append)
        self.teller = Teller("contoso", self.options, self.secondary.uri, stream, self.clock, as_it_is)

    def wait(self, failure: NamespaceFailure, seconds: float) -> None:
        self.waits.append(failure)

    def call(self, body: str = "{}") -> Call:
        message = Message(body, "", "orders", headers={"id": "7"}, properties={"delivery_mode": 2})
        return Call(message, self.clock(), Deadline(20, self.clock))

    def store(self, call: Call | None = None) -> Stored:
        return self.backlog_route.store(call or self.call(), None, 10)


@pytest.fixture
def scene() -> Scene:
    return Scene()


# -- to the primary -----------------------------------------------------------------------------------------------


@pytest.mark.parametrize("kind", COUNTED)
def test_a_failure_of_the_primary_is_an_answer_and_leaves_a_doubt_if_it_is_one(scene: Scene, kind: FailureKind) -> None:
    found = scene.primary.failure(kind, maybe_stored=True)
    scene.primary.script, call = [found], scene.call()
    assert scene.primary_route.send(call, 10) is found
    assert (call.maybe_stored, call.primary) == (True, 1000)
    assert scene.primary_route.send(call, 10) is None
    assert MAYBE_DUPLICATE in scene.primary.stored[0].headers


def test_who_can_go_elsewhere_is_told_what_others_found_and_has_not_tried(scene: Scene) -> None:
    found = scene.primary.failure(FailureKind.UNREACHABLE, whole_namespace=True)
    scene.primary.always = found
    scene.primary_route.send(scene.call(), 10)
    call = scene.call()
    known = scene.primary_route.send(call, 10, sharing=True)
    assert (known and known.cause, call.primary, scene.primary.attempts) == (found.cause, None, 1)
    together = scene.primary_route.send_together([call.message] * 2, sharing=True)
    assert (together.outcomes, together.tried) == ([known, known], None)
    assert scene.primary_route.send_together([call.message], sharing=False).tried == scene.clock()


def test_a_busy_primary_is_waited_for_and_each_wait_is_heard_of_before_it_begins(scene: Scene) -> None:
    busy = scene.primary.failure(FailureKind.THROTTLED)
    scene.primary.script = [busy, busy]
    assert scene.primary_route.send(scene.call(), 10) is None
    assert scene.waits == [busy, busy]


def test_a_busy_primary_that_has_lost_the_queue_has_it_declared_once(scene: Scene) -> None:
    scene.book.note(DECLARATION.operation, DECLARATION.arguments)
    missing, busy = (scene.primary.failure(kind) for kind in (FailureKind.MISSING, FailureKind.THROTTLED))
    scene.primary.script = [busy, missing, busy]
    assert scene.primary_route.send(scene.call(), 10) is None
    scene.primary.script = [missing, busy, missing]
    assert scene.primary_route.send(scene.call(), 10) is missing, "once for each call"


def test_a_declaration_has_an_answer_or_a_failure(scene: Scene) -> None:
    assert scene.primary_route.declare(DECLARATION, 10) == ("declared", None)
    scene.primary.always = scene.primary.failure(FailureKind.TIMEOUT)
    assert scene.primary_route.declare(DECLARATION, 10) == (None, scene.primary.always)
    assert scene.primary_route.reach.fresh_failure is not None, "the publish that follows need not wait again"


# -- to the backlog -----------------------------------------------------------------------------------------------


def test_the_first_message_finds_the_backlog_queues_and_says_so(scene: Scene) -> None:
    assert [scene.store().usable for _ in range(2)] == [3, None]
    assert scene.backlog_route.find_queues() == (None, None)


def test_what_is_stored_is_returned_as_it_lies_there(scene: Scene) -> None:
    call = scene.call()
    call.maybe_stored = True
    stored = scene.store(call)
    assert stored.message is scene.secondary.stored[0]
    assert stored.maybe_duplicate
    assert diversion_of(scene.secondary.stored[0]).maybe_duplicate
    assert (stored.failure, stored.pulled, stored.is_readmitted) == (None, [], False)


def test_queues_that_failed_on_the_way_are_named_with_their_failures_and_when(scene: Scene) -> None:
    scene.backlog_route.find_queues()
    found = scene.secondary.failure(FailureKind.FAULT, maybe_stored=True)
    scene.secondary.script, scene.secondary.cost = [found, found], 1.0
    stored = scene.store()
    assert stored.message is not None
    assert [(each.failure, each.at) for each in stored.pulled] == [(found, 1001), (found, 1002)]
    queues = [*(each.queue for each in stored.pulled), stored.message.routing_key]
    assert sorted(queues) == scene.backlog_route.wanted
    assert stored.maybe_duplicate, "one of the two may have it"
    scene.clock.sleep(scene.options.backlog_retry_interval)
    scene.secondary.failing_queues = {queues[2]}
    assert scene.store().is_readmitted


def test_a_secondary_that_is_away_is_no_fault_of_its_queues(scene: Scene) -> None:
    scene.backlog_route.find_queues()
    found = scene.secondary.always = scene.secondary.failure(FailureKind.UNREACHABLE, whole_namespace=True)
    assert scene.store() == Stored(failure=found, pulled=[])


@pytest.mark.parametrize("found_before", [True, False])
def test_refused_credentials_are_final_and_nobody_waits_for_who_learned_nothing(
    scene: Scene, found_before: bool
) -> None:
    if found_before:
        scene.backlog_route.find_queues()
    scene.secondary.always = scene.secondary.failure(FailureKind.UNAUTHORIZED)
    stored = scene.store()
    assert (stored.failure, stored.is_final) == (scene.secondary.always, True)
    assert scene.backlog_route.reach.verdict(5) is None
    assert scene.clock() == 1000


def test_what_two_queues_reject_is_final_and_both_are_in_the_rotation_again(scene: Scene) -> None:
    scene.secondary.always = None
    scene.backlog_route.find_queues()
    scene.secondary.script = [scene.secondary.failure(FailureKind.REJECTED)] * 2
    stored = scene.store()
    assert stored.is_final
    assert len(stored.pulled) == 2
    assert scene.backlog_route.rotation.pulled() == []


def test_what_is_too_large_is_said_together_with_what_happened_before(scene: Scene) -> None:
    scene.secondary.max_message_size = 10
    stored = scene.store()
    assert isinstance(stored.too_large, MessageTooLarge)
    assert (stored.message, stored.usable) == (None, 3)
    assert len(scene.backlog_route.links) == 1, "the link is as it was"


@pytest.mark.parametrize("kind", [FailureKind.REJECTED, FailureKind.MISSING])
def test_backlog_queues_that_cannot_be_used_are_an_error_of_configuration(scene: Scene, kind: FailureKind) -> None:
    scene.secondary.always = scene.secondary.failure(kind)
    with pytest.raises(ConfigurationError, match="cannot use its backlog queues"):
        scene.backlog_route.find_queues()
    with pytest.raises(ConfigurationError, match="cannot use its backlog queues"):
        scene.store()


# -- in words -----------------------------------------------------------------------------------------------------


def told(caplog: pytest.LogCaptureFixture) -> list[tuple[str, str, str]]:
    return [(record.name, record.levelname, record.getMessage()) for record in caplog.records]


def test_one_value_tells_all_that_happened_to_a_message_in_its_order(
    scene: Scene, caplog: pytest.LogCaptureFixture
) -> None:
    call, failure = scene.call(), scene.secondary.failure(FailureKind.FAULT)
    in_backlog = Message("{}", "", "contoso/x-servicebus-transfer/2", headers={"id": "7"})
    scene.clock.sleep(3)
    stored = Stored(in_backlog, usable=2, pulled=[Pulled("contoso/1", failure, 1001)], is_readmitted=True)
    with caplog.at_level(logging.INFO, "kombu_paired"):
        scene.teller.stored(call, stored, scene.primary.failure(FailureKind.TIMEOUT))
    assert told(caplog) == [
        ("kombu_paired.pairing", "WARNING", "pairing contoso: 2 of 3 backlog queues are usable"),
        (
            "kombu_paired.pairing",
            "WARNING",
            f"pairing contoso: backlog queue contoso/1 failed and is left alone for 60 s: {failure}",
        ),
        (
            "kombu_paired.pairing",
            "INFO",
            "pairing contoso: backlog queue contoso/x-servicebus-transfer/2 works again",
        ),
    ]
    assert [(each.kind, each.time) for each in scene.events] == [
        (EventKind.BACKLOG_PULLED, 1001),
        (EventKind.BACKLOG_READMITTED, 1003),
        (EventKind.DIVERTED, 1003),
    ]
    diverted = scene.events[-1]
    assert (diverted.entity, diverted.route, diverted.failure) == ("orders", "backlog/2", "timeout")
    assert diverted.seconds == 3


def test_what_no_queue_took_is_not_told_as_diverted(scene: Scene) -> None:
    scene.teller.stored(scene.call(), Stored(failure=scene.secondary.failure(FailureKind.TIMEOUT)), None)
    assert scene.events == []


@pytest.mark.parametrize(
    ("after", "level", "line", "kind"),
    [
        (CircuitState.SUSPECT, "WARNING", "orders is suspect: {}", EventKind.SUSPECT),
        (
            CircuitState.FAILED_OVER,
            "ERROR",
            "orders is failed over to {1}; pinged every 60 s. {0}",
            EventKind.FAILED_OVER,
        ),
        (CircuitState.HEALTHY, "WARNING", "orders is restored {}", EventKind.RESTORED),
    ],
)
def test_a_change_of_an_entity_is_told_in_the_words_that_operators_know(
    scene: Scene, caplog: pytest.LogCaptureFixture, after: CircuitState, level: str, line: str, kind: EventKind
) -> None:
    before = CircuitState.SUSPECT if after is CircuitState.HEALTHY else CircuitState.HEALTHY
    scene.teller.changed(ORDERS, Transition(before, after), detail="by hand")
    assert told(caplog) == [
        ("kombu_paired.pairing", level, "pairing contoso: " + line.format("by hand", scene.secondary.uri))
    ]
    assert [(each.kind, each.entity, each.detail) for each in scene.events] == [(kind, "orders", "by hand")]
