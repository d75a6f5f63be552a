"""Which destinations rest, and for how long."""

from __future__ import annotations

from kombu_paired.declarations import Entity
from kombu_paired.syphon import Destinations
from kombu_paired.syphon.destinations import FIRST_REST, LONGEST_REST
from kombu_paired.testing import ManualClock


def test_rests_grow_up_to_a_bound_and_end_with_a_success():
    clock, entity = ManualClock(), Entity("", "orders")
    destinations, rests = Destinations(clock), []
    for _ in range(9):
        destinations.failed(entity)
        destinations.failed(entity)  # another message of the same batch
        rests.append(destinations.next_wake())
        clock.sleep(rests[-1])
        assert not destinations.is_resting(entity)
    assert rests[:3] == [FIRST_REST, 2 * FIRST_REST, 4 * FIRST_REST]
    assert rests[-1] == LONGEST_REST
    destinations.failed(entity)
    assert destinations.is_resting(entity)
    assert not destinations.is_resting(Entity("", "mails"))
    destinations.worked(entity)
    assert (destinations.is_resting(entity), destinations.next_wake()) == (False, 0.0)
    destinations.failed(entity)
    assert destinations.next_wake() == FIRST_REST
