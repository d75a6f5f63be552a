"""What a process does once: at a fork and at its exit, and the pairings that it shares. In processes of their own."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

ROOT = Path(__file__).resolve().parents[2]

PAIRING = """
import os
from kombu_paired import process

def say(*words):
    os.write(1, (" ".join(map(str, words)) + chr(10)).encode())  # at once: a child writes beside its parent

def fail():
    raise ValueError("of no importance to others")

class Pairing:
    closed = False

    def __init__(self, name):
        self.name = name

    def close(self):
        self.closed = True
        say("closed", self.name)
"""


def said_by(program: str) -> list[str]:
    """What a fresh interpreter prints."""
    run = subprocess.run(
        [sys.executable, "-c", PAIRING + program], cwd=ROOT, capture_output=True, text=True, check=True, timeout=60
    )
    return run.stdout.splitlines()


def test_at_the_exit_pairings_close_first_and_then_the_last_that_came() -> None:
    assert said_by("""
process.at_exit(lambda: say("first to come"))
process.at_exit(fail)
process.at_exit(lambda: say("last to come"))
process.shared("a", lambda: Pairing("a"))
""") == ["closed a", "last to come", "first to come"]


def test_a_pairing_that_cannot_close_keeps_no_other_from_closing() -> None:
    assert said_by("""
process.shared("a", lambda: Pairing("a")).close = fail
process.shared("b", lambda: Pairing("b"))
""") == ["closed b"]


def test_around_a_fork_everybody_has_a_turn_whatever_becomes_of_the_others() -> None:
    said = said_by("""
process.at_fork(before=lambda: say("before 1"), in_parent=lambda: say("parent 1"), in_child=lambda: say("child 1"))
process.at_fork(before=lambda: say("before 2"), in_parent=fail, in_child=fail)
process.at_fork(in_parent=lambda: say("parent 3"), in_child=lambda: say("child 3"))
if os.fork() == 0:
    os._exit(0)
os.wait()
""")
    assert said[:2] == ["before 2", "before 1"]
    assert [each for each in said if each.startswith("parent")] == ["parent 1", "parent 3"]
    assert [each for each in said if each.startswith("child")] == ["child 1", "child 3"]


def test_a_pairing_is_shared_until_it_is_closed() -> None:
    assert said_by("""
first = process.shared("a", lambda: Pairing("a"))
say(process.shared("a", fail) is first, process.shared("b", lambda: Pairing("b")) is first)
first.close()
say(process.shared("a", lambda: Pairing("a again")).name)
os._exit(0)
""") == ["True False", "closed a", "a again"]


def test_a_child_has_pairings_of_its_own_and_neither_closes_nor_forgets_those_of_its_parent() -> None:
    assert said_by("""
import gc, threading, weakref
parents = process.shared("a", lambda: Pairing("the parent's"))
seen = weakref.ref(parents)
del parents
process._lock.acquire()  # by a thread that the child does not have
if os.fork() == 0:
    gc.collect()
    say(process.shared("a", lambda: Pairing("the child's")).name, seen() is not None)
    process._exit()
    os._exit(0)
os.wait()
say(process.shared("a", fail).name)
""") == ["the child's True", "closed the child's", "the parent's", "closed the parent's"]
