"""Steps that may never return, and callers that wait for them no longer than they may."""

from __future__ import annotations

import os
import signal
import threading
import time
from functools import partial

import pytest

from kombu_paired.bounded import GivenUp, bounded, shared


def threads_named(what):
    return [each for each in threading.enumerate() if what in each.name]


def test_a_step_answers_or_raises_as_if_it_were_called():
    assert bounded(lambda: 7, 5, "a step") == 7
    with pytest.raises(LookupError, match="gone"):
        bounded(lambda: {}["gone"], 5, "a step")


def test_a_step_that_takes_too_long_is_given_up_and_what_it_makes_is_cleaned_up():
    may_go_on, given_up, cleaned_up = threading.Event(), [], threading.Event()

    def slow():
        may_go_on.wait(30)
        return "a connection"

    began = time.monotonic()
    with pytest.raises(GivenUp, match=r"a slow step took longer than 0\.05 s"):
        bounded(
            slow,
            0.05,
            "a slow step",
            give_up=lambda: given_up.append(True),
            too_late=lambda late: late == "a connection" and cleaned_up.set(),
        )

    assert time.monotonic() - began < 10
    assert given_up == [True]
    may_go_on.set()
    assert cleaned_up.wait(30)


def test_the_time_until_a_busy_machine_begins_a_step_is_a_part_of_its_time(monkeypatch):
    now, may_go_on = [0.0], threading.Event()
    monkeypatch.setattr("kombu_paired.bounded.monotonic", lambda: now[0])
    begin = threading.Thread.start

    def begin_late(self):
        now[0] += 10
        begin(self)

    monkeypatch.setattr(threading.Thread, "start", begin_late)
    began = time.monotonic()
    for run in (bounded, partial(shared, "a host")):
        with pytest.raises(GivenUp, match="took longer than 10 s"):
            run(lambda: may_go_on.wait(30), 10, "a step")
    may_go_on.set()
    assert time.monotonic() - began < 8


def test_what_a_step_makes_for_a_caller_that_was_interrupted_is_cleaned_up():
    class TimeLimit(BaseException):
        pass

    def interrupt(*_):
        raise TimeLimit

    go_on, cleaned_up = threading.Event(), threading.Event()
    before = signal.signal(signal.SIGALRM, interrupt)
    try:
        signal.setitimer(signal.ITIMER_REAL, 0.1)
        with pytest.raises(TimeLimit):
            bounded(lambda: go_on.wait(30), 30, "a step", too_late=lambda _: cleaned_up.set())
    finally:
        signal.setitimer(signal.ITIMER_REAL, 0)
        signal.signal(signal.SIGALRM, before)
    go_on.set()
    assert cleaned_up.wait(30)


def test_what_is_in_time_is_not_cleaned_up():
    late = []
    assert bounded(lambda: "a connection", 5, "a step", too_late=late.append) == "a connection"
    assert late == []


def test_being_given_up_is_a_timeout():
    assert issubclass(GivenUp, TimeoutError)


def test_of_a_step_that_cannot_be_ended_one_runs_at_a_time_and_all_wait_for_it():
    may_go_on, runs = threading.Event(), []

    def hang():
        runs.append(True)
        may_go_on.wait(30)
        return "an address"

    for _ in range(20):
        with pytest.raises(GivenUp):
            shared("a host", hang, 0.01, "asking")
    assert runs == [True]
    assert len(threads_named("asking")) == 1
    assert shared("another host", lambda: "its address", 5, "asking") == "its address"

    answers = []
    waiting = [threading.Thread(target=lambda: answers.append(shared("a host", hang, 30, "asking"))) for _ in range(5)]
    for thread in waiting:
        thread.start()
    may_go_on.set()
    for thread in waiting:
        thread.join(30)
    assert answers == ["an address"] * 5


def test_when_it_has_ended_the_next_one_asks_anew():
    answers = iter(["old", "new"])
    assert shared("a host", lambda: next(answers), 5, "asking") == "old"
    assert shared("a host", lambda: next(answers), 5, "asking") == "new"


def test_without_threads_it_runs_unbounded(monkeypatch):
    def refuse(self):
        raise RuntimeError("can't start new thread at interpreter shutdown")

    monkeypatch.setattr(threading.Thread, "start", refuse)
    assert bounded(lambda: 7, 0.01, "a step") == 7


def test_a_child_process_waits_for_nothing_that_its_parent_began():
    may_go_on = threading.Event()
    with pytest.raises(GivenUp):
        shared("a host", lambda: may_go_on.wait(30), 0.01, "asking")

    child = os.fork()
    if child == 0:
        code = 1
        try:
            code = 0 if shared("a host", lambda: "the child's", 20, "asking") == "the child's" else 2
        finally:
            os._exit(code)

    may_go_on.set()
    assert os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) == 0
