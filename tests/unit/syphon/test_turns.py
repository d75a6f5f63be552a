"""Pumps keep to the pace of their process, and tell it what the primary does."""

from __future__ import annotations

import time

import pytest

from kombu_paired import Syphon
from kombu_paired.failures import FailureKind
from kombu_paired.message import Message
from kombu_paired.options import PairedNamespaceOptions
from kombu_paired.pairing import Pairing
from kombu_paired.syphon import MessagePump
from kombu_paired.syphon.pace import A_FEW, LEAST_RATE, TASTE, Pace
from kombu_paired.testing import ManualClock, ScriptedBroker
from tests.unit.syphon.plan import Run
from tests.unit.syphon.trip import QUEUE


def nothing() -> None:
    """A step of a plan."""


@pytest.fixture
def run():
    """A pump with a limit of ten messages per second."""
    made = Run()
    made.syphon.pace = Pace(10, made.plan)
    made.pump = MessagePump(made.syphon, [QUEUE], made.plan)
    yield made
    made.pairing.close()


def test_a_pump_moves_no_more_than_the_pace_lets_it(run):
    run.put(*"abcdefgh")
    began = run.plan.now
    run(*[nothing] * 50)
    assert run.arrived == list("abcdefgh")
    assert run.plan.waits[:7] == pytest.approx([0.1] * 7, abs=0.06)
    assert run.plan.now - began >= 0.65


def test_what_a_pump_holds_goes_back_unsent_when_the_syphon_stops_before_its_turn(run):
    run.put(*"abc")
    run()  # the plan's end is a stop
    assert run.arrived == ["a"]
    assert run.left == ["b", "c"]
    assert run.asked("receive")[-1] == ("secondary", "receive", QUEUE)


def test_what_a_pump_holds_goes_back_unsent_when_another_one_finds_the_primary_away(run):
    run.put(*"abc")
    run.syphon.primary_is_back()

    def goes_away():
        run.primary.go_away()
        run.syphon.primary_failed(run.failure(FailureKind.UNREACHABLE))

    def comes_back():
        assert run.left == ["b", "c"]
        assert len(run.asked("send")) == 1
        run.primary.come_back()

    run(goes_away, comes_back, *[nothing] * 10)
    assert run.arrived == list("abc")


def test_a_primary_that_was_away_is_met_slowly_again(run):
    run.syphon.pace.rate = 10.0
    run.syphon.pace = pace = Pace(1000, run.plan)
    pace.rate = 1000.0
    run.syphon.primary_is_back()
    run.syphon.primary_failed(run.failure(FailureKind.UNREACHABLE))
    assert pace.rate == 100


def test_a_busy_primary_slows_the_whole_process_down(run):
    run.syphon.pace = pace = Pace(1000, run.plan)
    pace.rate = 1000.0
    run.put("a")
    run.move(run.failure(FailureKind.THROTTLED))
    run.plan.now += 1
    pace.ask(1)
    assert pace.rate <= 500


@pytest.fixture
def told(run):
    """What the pace is told of sends: how many, and how heavy."""
    told: list[tuple[int, float]] = []
    run.syphon.pace.sent = lambda count, load, began: told.append((count, load))
    return told


def test_the_pace_is_told_of_what_the_primary_took_and_not_of_what_it_refused(run, told):
    run.put("a", "bad", "c")
    run.pump._delivery._sender = sender = run.primary.sender()
    sender.fresh = False
    run.move(None, run.failure(FailureKind.REJECTED), None)
    assert told == [(2, pytest.approx(2 + 2 * len("{}") / 1000))]


def test_the_pace_is_not_told_of_a_send_that_had_to_connect_first(run, told):
    run.put("a")
    run.move()
    assert run.arrived == ["a"]
    assert told == []


def a_pairing(clock: ManualClock, **settings) -> Pairing:
    options = PairedNamespaceOptions(secondary="scripted://secondary", **settings)
    return Pairing("contoso", options, ScriptedBroker("primary"), ScriptedBroker("secondary"), clock=clock)


def test_a_syphon_has_the_limit_of_its_settings():
    assert Syphon(a_pairing(ManualClock(), syphon_rate=50.0)).pace.ahead(500) == 100
    assert Syphon(a_pairing(ManualClock(), syphon_rate=50.0)).pace.rate == LEAST_RATE
    assert Syphon(a_pairing(ManualClock())).pace.ahead(500) == 500


def test_a_message_that_the_application_sends_makes_its_syphon_stand_back():
    clock = ManualClock()
    pairing = a_pairing(clock)
    pace = Syphon(pairing).pace
    assert pace.at_a_time(100, 500) == TASTE
    pace.rate, pace._is_known = 10_000.0, True
    assert pace.at_a_time(100, 500) == 100
    pairing.send(Message("{}", "", "orders"))
    assert pace.at_a_time(100, 500) == A_FEW
    assert pace.ask(A_FEW) == 0
    with pace.turn(A_FEW):
        time.sleep(0.01)
    assert pace.ask(A_FEW) > 0.01, "it rests"
    clock.now += 1
    assert pace.at_a_time(100, 500) >= 100
    pairing.close()
