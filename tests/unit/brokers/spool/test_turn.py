"""Whose turn it is to bring a spool home."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager

import pytest

from kombu_paired.brokers.spool import turn as module
from kombu_paired.brokers.spool.turn import LONGEST_SILENCE, Silence, SpoolTurn
from kombu_paired.message import Message
from kombu_paired.testing.clocks import ManualClock
from kombu_paired.testing.processes import wait_until
from tests.unit.brokers.spool.conftest import QUEUE

HOLDS_IT = """
import sys, time
from kombu_paired.brokers.spool.turn import SpoolTurn
turn = SpoolTurn(sys.argv[1], "shop")
taken = turn.take()
turn.show_life()  # who is stopped while it does this has a lock that others wait for
print(taken, flush=True)
while True:
    turn.show_life()
    time.sleep(0.05)
"""


@pytest.fixture
def turn(folder) -> Iterator[SpoolTurn]:
    made = SpoolTurn(str(folder), "shop")
    yield made
    made.leave()


@contextmanager
def another_process(folder):
    process = subprocess.Popen([sys.executable, "-c", HOLDS_IT, str(folder)], stdout=subprocess.PIPE, text=True)
    try:
        assert process.stdout.readline() == "True\n"
        yield process
    finally:
        process.kill()
        process.wait()
        process.stdout.close()


def test_one_of_a_process_has_it_until_it_leaves(folder, turn):
    other = SpoolTurn(str(folder), "shop")
    assert turn.take()
    assert not other.take()
    turn.leave()
    assert other.take()
    other.leave()


def test_each_primary_has_its_own(folder, turn):
    other = SpoolTurn(str(folder), "stock")
    assert turn.take()
    assert other.take()
    other.leave()


def test_a_process_that_is_killed_gives_it_up(folder, turn):
    with another_process(folder) as process:
        assert not turn.take()
        process.kill()
        wait_until(turn.take, 30, lambda: "the turn is still taken")


def test_a_process_that_was_stopped_keeps_it_while_there_is_nothing_to_do(folder, turn, monkeypatch):
    monkeypatch.setattr(module, "LONGEST_SILENCE", 0.0)
    with another_process(folder) as process:
        os.kill(process.pid, signal.SIGSTOP)
        assert not any(turn.take() for _ in range(20))


def test_a_process_that_was_stopped_does_not_keep_messages_from_going_home(folder, turn, sender, monkeypatch):
    sender.send(Message(b"x", routing_key=QUEUE), 10)
    with another_process(folder) as process:
        os.kill(process.pid, signal.SIGSTOP)
        assert not turn.take(), "it is silent, but not for long"
        monkeypatch.setattr(module, "LONGEST_SILENCE", 0.2)
        wait_until(turn.take, 30, lambda: "nobody brings them home")


def test_a_process_that_is_at_work_is_not_taken_for_stopped(folder, turn, sender, monkeypatch):
    sender.send(Message(b"x", routing_key=QUEUE), 10)
    monkeypatch.setattr(module, "SIGN_INTERVAL", 0.0)
    turn.arrive()
    assert turn.take()
    turn.show_life()
    first = turn._borrowed().folder.last_sign(turn._name)
    wait_until(
        lambda: turn.show_life() or turn._borrowed().folder.last_sign(turn._name) != first, 30, lambda: "no sign"
    )


def test_nothing_touches_the_disk_while_there_is_nothing_to_do(turn, monkeypatch):
    monkeypatch.setattr(module, "SIGN_INTERVAL", 0.0)
    assert turn.take()
    turn.show_life()
    assert turn._borrowed().folder.last_sign(turn._name) is None


def test_a_syphon_that_stands_by_is_there_and_one_that_left_is_not(folder, turn):
    looks = SpoolTurn(str(folder), "shop")
    assert not looks.anybody()
    turn.arrive()
    assert looks.anybody()
    turn.leave()
    assert not looks.anybody()
    looks.leave()


def test_a_syphon_of_another_process_is_seen(folder, turn):
    with another_process(folder) as process:
        assert turn.anybody()
        process.kill()
        process.wait()
        assert not turn.anybody()


def test_only_one_sign_for_all_of_the_time_is_silence():
    clock = ManualClock()
    silence = Silence(clock)
    assert not silence.lasts(1)
    clock.now += LONGEST_SILENCE
    assert not silence.lasts(1)
    clock.now += 1
    assert silence.lasts(1)
    assert not silence.lasts(0), "another sign, though the clock of the day was set back"
    clock.now += LONGEST_SILENCE + 1
    assert silence.lasts(0)
    silence.is_over()
    assert not silence.lasts(0)
