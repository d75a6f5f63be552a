"""When workers change sides: on a clock that is wound by hand."""

from __future__ import annotations

from itertools import pairwise

import pytest
from hypothesis import given
from hypothesis import strategies as st

from kombu_paired.stand_in import STAND_IN_MARK, StandIn, plain_name, stand_in_name, stand_in_register
from kombu_paired.testing import ManualClock


@pytest.fixture
def clock() -> ManualClock:
    return ManualClock()


@pytest.fixture
def rule(clock: ManualClock) -> StandIn:
    return StandIn(10, clock)


def test_a_stand_in_is_named_after_the_primary_and_its_queue() -> None:
    assert stand_in_name("shop", "celery") == "shop/x-paired-standin/celery"
    assert plain_name("shop", "shop/x-paired-standin/a/b") == "a/b"
    assert plain_name("shop", "celery") is None
    assert plain_name("other", "shop/x-paired-standin/celery") is None
    assert STAND_IN_MARK not in stand_in_register("shop"), "no queue at home has its name"


def test_a_primary_that_answers_is_consumed_from(rule: StandIn) -> None:
    assert not rule.is_due
    assert rule.may_come_home


def test_a_worker_stands_in_when_the_primary_has_been_away_for_so_long(rule: StandIn, clock: ManualClock) -> None:
    rule.failed()
    clock.sleep(9)
    rule.failed()
    assert not rule.is_due
    assert rule.wait == pytest.approx(1)
    clock.sleep(1)
    assert rule.is_due


def test_an_answer_in_between_begins_it_anew(rule: StandIn, clock: ManualClock) -> None:
    rule.failed()
    clock.sleep(9)
    rule.reached()
    rule.failed()
    clock.sleep(9)
    assert not rule.is_due


def stand_in_for(rule: StandIn, clock: ManualClock, *consumers: object) -> None:
    rule.failed()
    clock.sleep(rule.after)
    for each in consumers:
        rule.began(each)


def test_others_of_the_process_stand_in_at_once_and_go_home_at_once(rule: StandIn, clock: ManualClock) -> None:
    stand_in_for(rule, clock, "a")
    assert rule.is_due, "for the second one"
    assert not rule.began("b"), "that is no change of sides"
    clock.sleep(10)
    rule.reached()
    rule.ended("a")
    assert rule.came_home()
    assert rule.may_come_home, "for the second one"
    assert not rule.came_home()


def test_who_loses_the_secondary_stands_in_again_at_once(rule: StandIn, clock: ManualClock) -> None:
    stand_in_for(rule, clock, "a")
    rule.ended("a")
    assert not rule.is_active
    assert rule.is_due


def test_a_worker_that_stands_in_stays_for_as_long(rule: StandIn, clock: ManualClock) -> None:
    stand_in_for(rule, clock, "a")
    rule.reached()
    assert not rule.may_come_home
    clock.sleep(10)
    assert rule.may_come_home


def test_whoever_listens_hears_of_the_first_and_the_last(rule: StandIn, clock: ManualClock) -> None:
    heard: list[bool] = []
    rule.when_changed(lambda: heard.append(rule.is_active))
    stand_in_for(rule, clock, "a", "b")
    rule.ended("a")
    rule.ended("b")
    rule.ended("b")
    assert heard[0] is True
    assert heard[-1] is False


@given(st.lists(st.tuples(st.sampled_from(["failed", "reached", "look"]), st.floats(0, 5)), max_size=60))
def test_a_primary_that_comes_and_goes_moves_nobody_about(steps: list[tuple[str, float]]) -> None:
    clock = ManualClock()
    rule = StandIn(10, clock)
    is_out, changed = False, []
    for step, seconds in steps:
        clock.sleep(seconds)
        if step != "look":
            getattr(rule, step)()
        elif not is_out and rule.is_due:
            assert rule.began("a")
            is_out = True
            changed.append(clock())
        elif is_out and rule.may_come_home:
            rule.ended("a")
            assert rule.came_home()
            is_out = False
            changed.append(clock())
    assert all(later - earlier >= 10 - 1e-6 for earlier, later in pairwise(changed))
