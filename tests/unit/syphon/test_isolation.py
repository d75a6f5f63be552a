"""A syphon moves nothing to what is isolated: its primary is about to be stopped."""

from __future__ import annotations

import pytest

from kombu_paired.isolation import ALL
from kombu_paired.testing.processes import wait_until
from tests.unit.syphon.trip import Trip


@pytest.fixture
def trip():
    made = Trip()
    made.secondary.keeps_notices = True
    yield made
    made.pairing.close()


def arrived(trip):
    return [message.properties["message_id"] for message in trip.primary.stored]


def left(trip):
    return sorted(message.message_id for message in trip.waiting)


def test_messages_of_an_isolated_entity_stay_and_others_go_home(trip):
    trip.pairing.isolation.isolate("orders")
    trip.put("a")
    trip.put("b", routing_key="mails")
    trip.move()
    assert (arrived(trip), left(trip)) == (["b"], ["a"])


def test_where_all_is_isolated_the_pump_stops_with_what_it_holds(trip):
    trip.secondary.written[ALL] = 1.0
    trip.put("a", "b")
    trip.move()
    assert arrived(trip) == []
    assert not trip.syphon.has_a_way
    trip.backlog.close()
    assert left(trip) == ["a", "b"]


def test_it_goes_on_when_that_ends(trip, monkeypatch):
    monkeypatch.setattr("kombu_paired.syphon.syphon.FIRST_PROBE", 0.01)
    trip.pairing.isolation.interval = 0.01
    trip.secondary.written[ALL] = 1.0
    trip.put("a")
    syphon = type(trip.syphon)(trip.pairing, poll=0.1)
    syphon.start()
    wait_until(
        lambda: trip.pairing.isolation.now.is_everything and not syphon.primary_works, 10, lambda: "it does not wait"
    )
    assert arrived(trip) == []
    trip.pairing.isolation.restore(ALL)
    wait_until(lambda: arrived(trip) == ["a"], 10, lambda: "it does not go on")
    syphon.stop()
