"""Queues of somebody else's that a pump looks after until something is in them."""

from __future__ import annotations

from typing import Any

import pytest

from kombu_paired.failures import FailureKind
from kombu_paired.message import Message
from tests.unit.syphon.trip import QUEUE, Trip

OTHER = "contoso/x-servicebus-transfer/results-12345678"


class Watched(Trip):
    """A pump that looks after one queue besides its own."""

    def __init__(self) -> None:
        super().__init__()
        self.called: list[str] = []
        self.syphon._pump = self.pump
        self.syphon.primary_is_back()

    def keep(self) -> bool:
        return self.pump.lookout.keep(OTHER, lambda: self.called.append(OTHER), lambda: self.syphon.primary_works)

    def put_theirs(self, *names: str) -> None:
        for name in names:
            self.secondary.put(OTHER, Message("{}", "", OTHER, properties={"message_id": name}))

    def theirs(self) -> list[str | None]:
        return [each.message_id for each in self.secondary.queues[OTHER]]


@pytest.fixture
def trip() -> Any:
    made = Watched()
    yield made
    made.pairing.close()


def test_what_is_somebody_elses_stays_and_the_rest_goes_home(trip: Watched) -> None:
    trip.pump.lookout.keep(OTHER, trip.syphon.stopping.set, lambda: True)  # after this one batch
    receiver = trip.pump.queues.open_receiver(100)
    trip.put("own")
    trip.put_theirs("a", "b")
    trip.pump._pump(receiver)
    assert trip.came_home() == {"own": False}
    assert trip.theirs() == ["a", "b"]


def test_its_owner_is_called_once_and_the_queue_is_left_alone(trip: Watched) -> None:
    assert trip.keep()
    receiver = trip.pump.queues.open_receiver(100)
    trip.put_theirs("a")
    assert trip.pump.lookout.sort_out(receiver, receiver.receive()) == []
    assert trip.called == [OTHER]
    trip.put_theirs("b")
    assert receiver.receive() == []
    assert trip.theirs() == ["a", "b"]
    assert trip.pump.queues.wanted == [QUEUE]


def test_when_the_primary_is_away_nobody_looks_and_owners_look_for_themselves(trip: Watched) -> None:
    assert trip.keep()
    trip.syphon.primary_failed(trip.failure(FailureKind.UNREACHABLE))
    assert trip.called == [OTHER]
    assert trip.pump.queues.wanted == [QUEUE]
    assert not trip.keep()
    trip.syphon.primary_is_back()
    assert trip.keep()
    assert trip.called == [OTHER]


def test_what_comes_late_of_a_queue_that_was_left_alone_is_not_the_pumps_own(trip: Watched) -> None:
    trip.keep()
    receiver = trip.pump.queues.open_receiver(100)
    trip.put_theirs("a")
    batch = receiver.receive()
    trip.pump.lookout.end()
    assert trip.pump.lookout.sort_out(receiver, batch) == []
    assert trip.theirs() == ["a"]
    assert trip.called == [OTHER]


def test_a_secondary_that_fails_meanwhile_keeps_no_owner_from_being_called(trip: Watched) -> None:
    trip.keep()
    receiver = trip.pump.queues.open_receiver(100)
    trip.put_theirs("a")
    batch = receiver.receive()

    def fail(queue: str) -> None:
        raise trip.failure(FailureKind.UNREACHABLE)

    receiver.remove = fail  # type: ignore[method-assign]
    with pytest.raises(Exception, match="unreachable"):
        trip.pump.lookout.sort_out(receiver, batch)
    assert trip.called == [OTHER]


def test_a_syphon_that_does_not_run_looks_after_nothing(trip: Watched) -> None:
    assert not trip.syphon.look_out(OTHER, lambda: trip.called.append(OTHER))
    assert trip.pump.queues.wanted == [QUEUE]
