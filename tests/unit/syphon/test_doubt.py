"""The syphon's batches: what becomes of a message whose send ended without an answer."""

from __future__ import annotations

import time
from collections.abc import Iterator

import pytest

from kombu_paired.errors import NamespaceFailure
from kombu_paired.failures import FailureKind
from kombu_paired.message import Diversion, Message, marked_maybe_duplicate, to_backlog
from kombu_paired.syphon import Destinations
from kombu_paired.syphon.pump import MISSING_GRACE
from kombu_paired.testing import ManualClock
from tests.unit.syphon.trip import QUEUE, Trip

AWAY = [FailureKind.UNREACHABLE, FailureKind.TIMEOUT]


@pytest.fixture
def trip() -> Iterator[Trip]:
    made = Trip()
    yield made
    made.pairing.close()


@pytest.mark.parametrize("whole_namespace", [True, False])
@pytest.mark.parametrize("kind", [*AWAY, FailureKind.FAULT])
def test_only_what_was_sent_without_an_answer_is_marked(trip: Trip, kind: FailureKind, whole_namespace: bool) -> None:
    trip.put("delivered", "uncertain", "unsent")
    uncertain = trip.failure(kind, maybe_stored=True, whole_namespace=whole_namespace)
    trip.move(None, uncertain, uncertain.of_nothing_stored())

    assert trip.backlog.completed == ["delivered"]
    assert trip.backlog.marked == ["uncertain"]  # before the link is closed, and the rest goes back with it

    trip.waiting.clear()
    trip.put("unsent")
    trip.waiting.append(marked_maybe_duplicate(to_backlog(*_uncertain())))
    trip.syphon.destinations = Destinations()
    trip.move()
    assert trip.came_home() == {"delivered": False, "unsent": False, "uncertain": True}


def _uncertain() -> tuple[Message, str, Diversion]:
    why = Diversion(time.time(), time.time(), "web-1/1", "unreachable")
    return Message("{}", "", "orders", properties={"message_id": "uncertain"}), QUEUE, why


@pytest.mark.parametrize("kind", AWAY)
def test_where_the_backlog_cannot_be_marked_the_process_keeps_it_in_mind(kind: FailureKind) -> None:
    trip = Trip(can_mark=False)
    trip.put("a")
    trip.move(trip.failure(kind, maybe_stored=True))
    assert "x-paired-maybe-duplicate" not in trip.waiting[0].headers
    trip.move()
    assert trip.came_home() == {"a": True}
    trip.put("a")
    trip.move()
    assert trip.came_home() == {"a": False}  # another message of this id, sent by hand
    trip.pairing.close()


def test_a_secondary_that_is_away_when_it_should_be_told_leaves_it_to_the_process(trip: Trip) -> None:
    trip.put("delivered", "uncertain")
    waiting = list(trip.waiting)
    trip.secondary.receiving = NamespaceFailure(FailureKind.UNREACHABLE, "secondary", ConnectionError())
    with pytest.raises(NamespaceFailure):
        trip.move(None, trip.failure(FailureKind.TIMEOUT, maybe_stored=True))

    trip.secondary.receiving, trip.waiting[:] = None, waiting  # neither of them was settled
    assert trip.came_home() == {"delivered": False}
    trip.move()
    assert trip.came_home() == {"delivered": True, "uncertain": True}


def test_what_somebody_held_before_who_is_gone_may_be_there_twice(trip: Trip) -> None:
    trip.put("a", "b")
    trip.syphon.destinations.failed(trip_entity := Message("{}", "", "orders").entity)
    trip.move(again=True)
    assert trip.backlog.marked == ["a", "b"]  # the broker does not know it of a copy
    trip.syphon.destinations.worked(trip_entity)
    trip.move()
    assert trip.came_home() == {"a": True, "b": True}


def test_what_was_sent_a_second_time_within_a_batch_says_so(trip: Trip) -> None:
    trip.put("a", "b")
    sender = trip.pump._delivery._sender = trip.primary.sender()
    sender.maybe_twice.add("b")
    trip.move()
    assert trip.came_home() == {"a": False, "b": True}


def test_a_message_that_was_marked_before_is_not_copied_again(trip: Trip) -> None:
    trip.waiting.append(marked_maybe_duplicate(to_backlog(*_uncertain())))
    trip.move(trip.failure(FailureKind.UNREACHABLE, maybe_stored=True))
    assert (trip.backlog.marked, trip.backlog.abandoned) == ([], [])


@pytest.mark.parametrize(
    ("exchange", "dead"), [("celery_delayed_27", []), ("shop_celery_delayed_27", []), ("news", ["a"])]
)
def test_what_only_workers_declare_waits_for_one(trip: Trip, exchange: str, dead: list[str]) -> None:
    clock = ManualClock()
    trip.syphon.destinations = Destinations(clock)
    trip.put("a", exchange=exchange, routing_key="0." * 28 + "orders")
    for _ in range(2):
        trip.move(trip.failure(FailureKind.MISSING))
        clock.now += MISSING_GRACE
    assert trip.backlog.dead == dead
