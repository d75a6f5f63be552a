"""What a message that comes home says to its task."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import pytest

from kombu_paired import maybe_duplicate, was_diverted
from kombu_paired.failures import FailureKind
from kombu_paired.syphon import Destinations
from tests.unit.syphon.trip import Trip


@pytest.fixture
def trip() -> Iterator[Trip]:
    made = Trip()
    yield made
    made.pairing.close()


def arrived(trip: Trip) -> list[Any]:
    return [(each.message_id, was_diverted(each), maybe_duplicate(each)) for each in trip.primary.stored]


def test_a_task_learns_that_it_was_diverted_and_whether_there_may_be_two(trip: Trip) -> None:
    trip.put("certain", "uncertain")
    trip.move(None, trip.failure(FailureKind.TIMEOUT, maybe_stored=True))
    trip.syphon.destinations = Destinations()
    trip.move()
    assert arrived(trip) == [("certain", True, False), ("uncertain", True, True)]


def test_so_does_one_whose_queue_had_to_be_declared_first(trip: Trip) -> None:
    trip.put("a")
    trip.move(trip.failure(FailureKind.MISSING), again=True)
    trip.syphon.destinations = Destinations()
    trip.move()
    assert arrived(trip) == [("a", True, True)]


@pytest.mark.parametrize("room", [-10, 10])
def test_what_would_be_too_large_with_its_marks_goes_without_them(trip: Trip, room: int) -> None:
    trip.put("a")
    trip.move()
    with_marks = trip.primary.stored.pop()
    trip.primary.max_message_size = with_marks.size + room  # the time has not always as many digits
    trip.put("a")
    trip.move()
    assert arrived(trip) == [("a", room > 0, False)]
