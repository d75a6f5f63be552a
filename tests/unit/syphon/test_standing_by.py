"""A syphon that waits for its turn, and one that nobody started."""

from __future__ import annotations

import logging
import threading

import pytest

from kombu_paired.brokers.turn import Turn
from kombu_paired.options import PairedNamespaceOptions
from kombu_paired.pairing import Pairing
from kombu_paired.syphon import Syphon, run_by_itself, standby, stop_what_runs_by_itself
from kombu_paired.testing import ScriptedBroker
from kombu_paired.testing.processes import wait_until


class OurTurn(Turn):
    """Nobody's, until the test says so."""

    def __init__(self) -> None:
        self.is_ours = False
        self.trouble: Exception | None = None
        self.asked = 0
        self.signs = 0
        self.here = threading.Event()
        self.left = threading.Event()

    def arrive(self) -> None:
        self.here.set()

    def take(self) -> bool:
        self.asked += 1
        if self.trouble is not None:
            raise self.trouble
        return self.is_ours

    def show_life(self) -> None:
        self.signs += 1

    def leave(self) -> None:
        self.left.set()

    def anybody(self) -> bool:
        return self.here.is_set()


class OnOneMachine(ScriptedBroker):
    """A secondary that only the processes of one machine can reach."""

    syphons_by_itself = True

    def __init__(self) -> None:
        super().__init__("secondary")
        self.one = OurTurn()

    def turn(self, primary: str) -> Turn:
        return self.one


@pytest.fixture(autouse=True)
def impatient(monkeypatch):
    monkeypatch.setattr(standby, "LOOK_INTERVAL", 0.01)


@pytest.fixture
def pairings():
    made = []

    def make(secondary: ScriptedBroker, **settings) -> Pairing:
        options = PairedNamespaceOptions(secondary=secondary.uri, backlog_queue_count=1, **settings)
        pairing = Pairing("contoso", options, ScriptedBroker("primary"), secondary)
        made.append(pairing)
        return pairing

    yield make
    for pairing in made:
        pairing.close()


def syphon_threads(what: str = "") -> list[threading.Thread]:
    return [each for each in threading.enumerate() if f"kombu-paired-syphon-contoso-{what}" in each.name]


def test_it_moves_nothing_until_it_is_its_turn(pairings):
    secondary = OnOneMachine()
    syphon = Syphon(pairings(secondary), waits_for_turn=True)
    syphon.start()
    wait_until(lambda: secondary.one.asked > 3, 30, lambda: "it does not ask")
    assert syphon.is_running
    assert not syphon_threads("pump")
    secondary.one.is_ours = True
    wait_until(lambda: syphon_threads("pump"), 30, lambda: "it has the turn, and does not pump")
    wait_until(lambda: secondary.one.signs, 30, lambda: "it shows no life")
    syphon.stop()
    wait_until(lambda: not syphon_threads(), 30, lambda: str(syphon_threads()))
    assert secondary.one.left.is_set()


def test_one_that_stands_by_can_be_stopped(pairings):
    secondary = OnOneMachine()
    syphon = Syphon(pairings(secondary), waits_for_turn=True)
    syphon.start()
    wait_until(lambda: secondary.one.asked, 30, lambda: "it does not ask")
    syphon.stop()
    assert not syphon_threads()
    secondary.one.is_ours = True
    syphon._begin()
    assert not syphon_threads(), "it was stopped"


def test_a_disk_that_is_away_is_told_of_once_and_asked_again(pairings, caplog):
    secondary = OnOneMachine()
    secondary.one.trouble = OSError("the folder is gone")
    syphon = Syphon(pairings(secondary), waits_for_turn=True)
    with caplog.at_level(logging.INFO, "kombu_paired"):
        syphon.start()
        wait_until(lambda: secondary.one.asked > 3, 30, lambda: "it does not ask again")
    told = [each.getMessage() for each in caplog.records]
    assert [text for text in told if "folder is gone" in text] == [
        "syphon of pairing contoso cannot know whether it is its turn, and asks again: the folder is gone"
    ]
    assert not any("stands by" in text for text in told)
    secondary.one.trouble, secondary.one.is_ours = None, True
    wait_until(lambda: syphon_threads("pump"), 30, lambda: "it does not pump")
    syphon.stop()


def test_one_that_does_not_wait_is_there_at_once(pairings):
    secondary = OnOneMachine()
    syphon = Syphon(pairings(secondary))
    syphon.start()
    assert syphon_threads("pump")
    assert secondary.one.here.wait(30)
    syphon.stop()
    assert secondary.one.left.is_set()


@pytest.mark.parametrize(
    ("secondary", "enable_syphon", "runs"),
    [
        (OnOneMachine, None, True),
        (OnOneMachine, False, False),
        (lambda: ScriptedBroker("secondary"), None, False),
        (lambda: ScriptedBroker("secondary"), True, True),
    ],
)
def test_who_runs_one_by_itself(pairings, secondary, enable_syphon, runs):
    pairing = pairings(secondary(), enable_syphon=enable_syphon)
    run_by_itself(pairing)
    assert bool(syphon_threads()) is runs
    stop_what_runs_by_itself(pairing)
    wait_until(lambda: not syphon_threads(), 30, lambda: str(syphon_threads()))


def test_one_that_runs_by_itself_ends_with_its_pairing(pairings):
    pairing = pairings(OnOneMachine())
    run_by_itself(pairing)
    pairing.close()
    wait_until(lambda: not syphon_threads(), 30, lambda: str(syphon_threads()))
