"""What the bench of standing in makes of a ledger: what is lost, what ran twice, and what excuses it."""

from __future__ import annotations

import math

from tests.bench.standing_in.figures import Finding, Harm, Sent, delays, duplicates, lost, median, quantile

SENT = {"a": Sent(1, 10.0), "b": Sent(2, 11.0), "retried": Sent(3, 12.0, runs=2)}


def test_a_task_is_lost_that_ran_less_often_than_it_should():
    assert lost(SENT, [(1, 10.1, "a"), (3, 12.1, "retried")]) == [2, 3]
    assert lost(SENT, [(1, 10.1, "a"), (2, 11.1, "b"), (3, 12.1, "retried"), (3, 12.2, "retried")]) == []


def test_a_delay_is_from_the_call_to_the_first_run_of_what_was_called_in_time():
    runs = [(1, 10.5, "a"), (2, 13.0, "b"), (2, 14.0, "b"), (9, 12.5, "somebody else's")]
    assert delays(SENT, runs, 10.0, 12.0) == [0.5, 2.0]
    assert delays(SENT, runs, 10.5, 12.0) == [2.0]


def test_a_second_run_is_marked_or_was_held_or_has_no_excuse():
    twice = [(1, 10.1, "a"), (1, 40.0, "a")]
    assert duplicates(SENT, twice, {}, {"a"}, []).marked == 1
    hit = [Harm(11.0, "primary")]
    assert duplicates(SENT, twice, {}, (), hit).held == 1, "a worker held it when something was hit"
    assert duplicates(SENT, twice, {"a": ["primary", "primary"]}, (), hit).held == 1
    assert duplicates(SENT, twice, {"a": ["secondary", "primary"]}, (), hit).unexplained == [1], "of the other side"
    late = duplicates(SENT, twice, {}, (), [Harm(39.0, "primary")])
    assert (late.marked, late.held, late.unexplained) == (0, 0, [1]), "its first run was over long before"
    assert duplicates(SENT, [(3, 12.1, "retried"), (3, 12.2, "retried")], {}, (), []).unexplained == []


def test_without_a_run_figures_are_infinite():
    assert median([]) == quantile([], 0.95) == math.inf
    assert quantile([1.0, 2.0, 3.0], 1.0) == 3.0


def test_a_finding_passes_until_something_is_wrong():
    finding = Finding({"first": 1.234, "lost": 0})
    finding.require(True, "fine")
    assert finding.passed
    assert str(finding) == "first 1.23, lost 0"
    finding.require(False, "a worker ended")
    assert not finding.passed
    assert finding.wrong == ["a worker ended"]
