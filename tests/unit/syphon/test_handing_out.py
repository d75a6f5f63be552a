"""While workers stand in, the pump hands the backlog out to them; afterwards stand-in queues come home."""

from __future__ import annotations

import time
from typing import Any

import pytest

from kombu_paired.declarations import Declaration
from kombu_paired.errors import NamespaceFailure
from kombu_paired.events import EventKind
from kombu_paired.failures import FailureKind
from kombu_paired.message import Diversion, Message, from_backlog, to_backlog
from kombu_paired.stand_in import StandIn, stand_in_name
from kombu_paired.syphon import stand_ins
from kombu_paired.syphon.pace import TASTE
from kombu_paired.syphon.stand_ins import EMPTY_FOR, SELDOM, SOON, StandIns
from kombu_paired.testing import ManualClock
from tests.unit.syphon.trip import QUEUE, Trip


def queue(name: str) -> Declaration:
    return Declaration("queue_declare", {"queue": name, "durable": True})


def exchange(name: str, type: str) -> Declaration:
    return Declaration("exchange_declare", {"exchange": name, "type": type, "durable": True})


def bind(name: str, exchange: str, key: str = "") -> Declaration:
    return Declaration("queue_bind", {"queue": name, "exchange": exchange, "routing_key": key})


class HandOut(Trip):
    """A trip to workers that stand in."""

    def __init__(self) -> None:
        super().__init__()
        self.pairing.stand_in = StandIn(1)
        self.pairing.stand_in.began(self)

    def put_declared(self, name: str, exchange: str, key: str, *declarations: Declaration, doubt: bool = False) -> None:
        why = Diversion(time.time(), time.time(), "web-1/1", "unreachable", doubt, declarations)
        message = Message("{}", exchange, key, properties={"message_id": name}, headers={"own": name})
        self.secondary.put(QUEUE, to_backlog(message, QUEUE, why))

    def hand_out(self) -> None:
        self.pump._hand_out(self.backlog, self.backlog.receive())

    def stood_in_for(self, name: str) -> list[Message]:
        """What is in the stand-in of a queue, as it was sent."""
        found = self.secondary.queues[stand_in_name("contoso", name)]
        return [from_backlog(each, time.time()) for each in found]


@pytest.fixture
def trip() -> Any:
    made = HandOut()
    yield made
    made.pairing.close()


def test_a_message_goes_to_the_stand_in_of_its_queue_and_leaves_the_backlog(trip: HandOut) -> None:
    trip.put("a", routing_key="orders")
    trip.hand_out()
    [message] = trip.stood_in_for("orders")
    assert (message.exchange, message.routing_key, message.message_id) == ("", "orders", "a")
    assert trip.waiting == []
    assert [each.message_id for each in trip.events if each.kind is EventKind.HANDED_OUT] == ["a"]


def test_it_is_settled_only_when_the_stand_in_queue_has_it(trip: HandOut) -> None:
    trip.put("a")
    trip.secondary.script = [trip.secondary.failure(FailureKind.FAULT)]
    trip.hand_out()
    assert [each.message_id for each in trip.waiting] == ["a"]
    assert trip.stood_in_for("orders") == []


def test_a_message_to_an_exchange_keeps_its_destination_for_the_way_home(trip: HandOut) -> None:
    trip.put_declared("a", "shop", "o", exchange("shop", "direct"), queue("orders"), bind("orders", "shop", "o"))
    trip.hand_out()
    [message] = trip.stood_in_for("orders")
    assert (message.exchange, message.routing_key) == ("shop", "o")


def test_of_what_goes_to_several_queues_each_gets_a_copy_that_goes_to_it_alone(trip: HandOut) -> None:
    trip.put_declared(
        "a", "news", "", exchange("news", "fanout"), queue("x"), queue("y"), bind("x", "news"), bind("y", "news")
    )
    trip.hand_out()
    for name in "xy":
        [message] = trip.stood_in_for(name)
        assert (message.exchange, message.routing_key, message.headers["own"]) == ("", name, "a")


def test_what_goes_nowhere_that_is_known_stays_and_keeps_no_other(trip: HandOut) -> None:
    trip.put_declared("a", "nobody", "knows")
    trip.put("b")
    trip.hand_out()
    assert [each.message_id for each in trip.waiting] == ["a"]
    assert [each.message_id for each in trip.stood_in_for("orders")] == ["b"]


def test_a_doubt_travels_with_it(trip: HandOut) -> None:
    trip.put_declared("a", "", "orders", doubt=True)
    trip.hand_out()
    [stored] = trip.secondary.queues[stand_in_name("contoso", "orders")]
    assert stored.headers["x-paired-maybe-duplicate"] == "true"


def marks(trip: HandOut, name: str) -> list[bool]:
    """Whether each message in the stand-in of a queue says that it may be there twice."""
    return [
        "x-paired-maybe-duplicate" in each.headers for each in trip.secondary.queues[stand_in_name("contoso", name)]
    ]


def test_what_cannot_be_settled_is_handed_out_again_marked(trip: HandOut) -> None:
    trip.put("a")
    trip.secondary.receiving = trip.secondary.failure(FailureKind.UNREACHABLE)
    with pytest.raises(NamespaceFailure):
        trip.hand_out()
    trip.secondary.receiving = None
    trip.backlog.close()  # what it holds goes back
    trip.backlog = trip.secondary.receiver([QUEUE], 0, 1)
    trip.hand_out()
    assert marks(trip, "orders") == [False, True]


def test_of_copies_of_which_one_has_arrived_all_come_again_marked(trip: HandOut) -> None:
    trip.put_declared(
        "a", "news", "", exchange("news", "fanout"), queue("x"), queue("y"), bind("x", "news"), bind("y", "news")
    )
    trip.secondary.script = [None, trip.secondary.failure(FailureKind.FAULT)]
    trip.hand_out()
    trip.hand_out()
    assert (marks(trip, "x"), marks(trip, "y")) == ([False, True], [True])


def test_a_stand_in_queue_that_was_removed_is_made_anew(trip: HandOut) -> None:
    trip.put("a")
    trip.hand_out()
    trip.put("b")
    trip.secondary.script = [trip.secondary.failure(FailureKind.MISSING)]
    trip.hand_out()
    trip.log.clear()
    trip.hand_out()
    assert ("secondary", "ensure", stand_in_name("contoso", "orders")) in [tuple(each) for each in trip.log]
    assert [each.message_id for each in trip.stood_in_for("orders")] == ["a", "b"]


def test_the_pump_hands_out_while_the_primary_is_away_and_moves_home_when_it_is_back(trip: HandOut) -> None:
    trip.put("a")
    trip.syphon._find_way()
    assert trip.syphon.has_a_way
    moved: list[str] = []

    def stop_after(step: Any) -> Any:
        def moving(*args: Any) -> None:
            step(*args)
            moved.append(step.__name__)
            trip.syphon.stopping.set()

        return moving

    trip.pump._hand_out = stop_after(trip.pump._hand_out)  # type: ignore[method-assign]
    trip.pump.run()
    assert moved == ["_hand_out"]
    assert [each.message_id for each in trip.stood_in_for("orders")] == ["a"]


def test_the_slow_start_is_for_a_primary_that_returns_and_not_for_handing_out(trip: HandOut) -> None:
    trip.put(*(str(number) for number in range(2 * TASTE)))
    trip.syphon._find_way()
    sizes: list[int] = []

    def note(receiver: Any, batch: Any) -> None:
        sizes.append(len(batch))
        trip.syphon.stopping.set()

    trip.pump._hand_out = note  # type: ignore[method-assign]
    trip.pump.run()
    assert sizes == [2 * TASTE]


def test_without_workers_that_stand_in_there_is_no_way(trip: HandOut) -> None:
    assert trip.pairing.stand_in is not None
    trip.pairing.stand_in.ended(trip)
    trip.syphon._find_way()
    assert not trip.syphon.has_a_way


# -- the way home -----------------------------------------------------------------------------------------------------

NAME = stand_in_name("contoso", "orders")


class Looks:
    """Looks at stand-in queues, on a clock that is wound by hand."""

    def __init__(self, trip: HandOut) -> None:
        self.trip = trip
        self.clock = ManualClock()
        self.of = StandIns(trip.pairing, trip.pump, trip.syphon.teller, self.clock)

    def after(self, seconds: float) -> list[str]:
        """The stand-in queues that the pump moves home, so many seconds later."""
        self.clock.sleep(seconds)
        self.of.tend()
        return [each for each in self.trip.pump.queues.wanted if each != QUEUE]


@pytest.fixture
def looks(trip: HandOut) -> Looks:
    return Looks(trip)


def test_what_was_left_comes_home_and_its_queue_is_left_alone_then(trip: HandOut, looks: Looks) -> None:
    trip.put("a")
    trip.hand_out()
    assert looks.after(0) == [NAME]
    assert not looks.of.are_empty
    trip.secondary.queues[NAME].clear()
    assert looks.after(SOON) == []
    assert not looks.of.are_empty, "a name that somebody else reads just now would be overlooked"
    assert looks.after(SOON) == []
    assert looks.of.are_empty


def test_what_is_told_of_it_names_no_backlog_queue(trip: HandOut) -> None:
    trip.put("a")
    trip.hand_out()
    trip.backlog = trip.secondary.receiver([NAME], 0, 1)
    trip.move()
    routes = {each.kind: each.route for each in trip.events if each.message_id == "a"}
    assert routes == {EventKind.HANDED_OUT: "backlog/0", EventKind.SYPHONED: "stand-in"}


def test_for_a_while_it_looks_often_since_others_may_hand_out_still(trip: HandOut, looks: Looks) -> None:
    trip.pairing.stand_in_queues.ensure("orders", {})
    assert looks.after(0) == []
    trip.put("a")
    trip.hand_out()
    assert looks.after(SOON) == [NAME]


def test_later_it_looks_seldom(trip: HandOut, looks: Looks) -> None:
    looks.after(0)
    looks.after(stand_ins.NEWS_TRAVEL)
    trip.log.clear()
    looks.after(SELDOM - 1)
    assert trip.log == []
    looks.after(1)
    assert trip.log != []


def test_while_the_primary_is_away_they_are_left_to_the_workers(trip: HandOut, looks: Looks) -> None:
    trip.put("a")
    trip.hand_out()
    looks.after(0)
    looks.of.leave()
    assert trip.pump.queues.wanted == [QUEUE]
    assert looks.after(0) == [NAME], "it is looked for at once when the primary is back"


def test_what_a_look_finds_that_was_overtaken_is_of_no_use(trip: HandOut, looks: Looks) -> None:
    trip.put("a")
    trip.hand_out()
    depths = trip.secondary.backlog_depths

    def overtaken(*args: Any) -> Any:
        looks.of.leave()
        return depths(*args)

    trip.secondary.backlog_depths = overtaken  # type: ignore[method-assign]
    assert looks.after(0) == []


def test_one_whose_name_somebody_else_reads_just_now_is_not_forgotten(trip: HandOut, looks: Looks) -> None:
    trip.put("a")
    trip.hand_out()
    assert looks.after(0) == [NAME]
    trip.secondary.stand_in_queues = lambda *args, **more: []  # type: ignore[method-assign]
    assert looks.after(SOON) == [NAME]
    assert not looks.of.are_empty


def test_one_that_is_empty_for_long_is_removed_and_no_other(trip: HandOut, looks: Looks) -> None:
    trip.pairing.stand_in_queues.ensure("orders", {})
    looks.after(0)
    looks.after(EMPTY_FOR - 1)
    assert trip.secondary.stand_in_queues("contoso", 1) == [NAME]
    looks.after(SELDOM)
    assert trip.secondary.stand_in_queues("contoso", 1) == []
    assert NAME not in trip.pairing.stand_in_queues


def test_a_look_that_fails_is_told_once_and_tried_again(trip: HandOut, looks: Looks, caplog: Any) -> None:
    trip.secondary.go_away()
    looks.after(0)
    looks.after(SELDOM)
    assert [each.getMessage().count("cannot look for stand-in queues") for each in caplog.records] == [1]
    trip.secondary.come_back()
    looks.after(SELDOM)
    looks.after(SOON)
    assert looks.of.are_empty
