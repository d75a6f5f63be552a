"""The trip of a message through the house goes as ``docs/architecture.md`` draws it: which file is on, step by step."""

from __future__ import annotations

import re
import sys
from collections.abc import Callable
from pathlib import Path
from types import FrameType
from typing import Any

import pytest

import kombu_paired
from kombu_paired.failures import FailureKind
from tests.unit.pairing.test_pairing import World
from tests.unit.syphon.trip import Trip

HOUSE = Path(kombu_paired.__file__).parent
PAGE = HOUSE.parent / "docs" / "architecture.md"
#: Room -> the files of it that a message passes, beginning with the one that decides.
ROOMS = {
    "pairing": ("pairing", "primary_route", "backlog_route", "failover", "teller"),
    "syphon": ("pump", "parcel", "delivery", "teller"),
}


def trip_of(send: Callable[[], object], room: str = "pairing") -> list[str]:
    """The stations in a room that a call passes, in the order in which one file calls another."""
    stations = {str(HOUSE / room / f"{name}.py"): name for name in ROOMS[room]}
    passed: list[str] = []
    inside: list[str] = []

    def follow(frame: FrameType, event: str, argument: Any) -> None:
        station = stations.get(frame.f_code.co_filename)
        if station is None or event not in ("call", "return"):
            return
        if event == "return":
            inside.pop()
            return
        if inside[-1:] != [station] and passed[-1:] != [station]:
            passed.append(station)
        inside.append(station)

    sys.setprofile(follow)
    try:
        send()
    finally:
        sys.setprofile(None)
    return passed


def drawn(begins: str, room: str = "pairing") -> list[str]:
    """The stations of a trip in the page, of the first block after these words. A return is no step."""
    decides = ROOMS[room][0]
    block = PAGE.read_text().partition("## The trip of a message")[2].partition(begins)[2].split("```")[1]
    found = re.findall(rf"^ *{room}/(\w+)\.py", block, re.M)
    return [decides, *(name for name in found if name != decides)]


@pytest.fixture
def world() -> Any:
    made = World()
    made.pairing.open()
    made.send()  # so that links are there
    yield made
    made.close()


def test_a_healthy_message_goes_as_it_is_drawn(world: World) -> None:
    assert trip_of(world.send) == drawn("Its entity is healthy")


def test_a_message_that_the_primary_does_not_take_goes_as_it_is_drawn(world: World) -> None:
    world.primary.always = world.primary.failure(FailureKind.FAULT)
    assert trip_of(world.send) == drawn("The primary fails, and the message is diverted")


def test_a_message_to_a_failed_over_entity_takes_the_second_half_of_that_at_once(world: World) -> None:
    world.primary.always = world.primary.failure(FailureKind.FAULT)
    world.send()
    world.clock.sleep(world.pairing.options.failover_interval)
    world.send()
    second_half = drawn("The primary fails, and the message is diverted")[-3:]
    assert trip_of(world.send) == ["pairing", "failover", *second_half]


def test_a_message_comes_home_as_it_is_drawn() -> None:
    trip = Trip()
    trip.put("a")
    assert trip_of(trip.move, "syphon") == drawn("It comes home", "syphon")
    assert trip.came_home() == {"a": False}
    trip.pairing.close()
