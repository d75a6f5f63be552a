"""The time that one call has, on a clock that moves when it is told to."""

from __future__ import annotations

import math

import pytest

from kombu_paired.deadline import LEAST, Deadline
from kombu_paired.testing import ManualClock


@pytest.fixture
def clock():
    return ManualClock()


def test_what_is_left_is_a_time_limit_that_every_driver_takes(clock):
    deadline = Deadline(2.0, clock)
    assert (deadline.left, deadline.is_over) == (2.0, False)
    clock.sleep(1.5)
    assert (deadline.left, deadline.is_over) == (0.5, False)
    clock.sleep(0.5)
    assert (deadline.left, deadline.is_over) == (LEAST, True)
    clock.sleep(10)
    assert (deadline.left, deadline.is_over) == (LEAST, True)


def test_without_a_time_it_is_never_over(clock):
    deadline = Deadline(clock=clock)
    clock.sleep(1e9)
    assert (deadline.left, deadline.is_over) == (math.inf, False)


def test_a_part_ends_no_later_than_the_whole(clock):
    whole = Deadline(2.0, clock)
    assert [whole.part(seconds).left for seconds in (1.0, 5.0)] == [1.0, 2.0]


def test_what_a_part_waits_for_is_not_the_wholes_own_time(clock):
    whole = Deadline(2.0, clock)
    part = whole.part(1.0)
    part.postpone(10.0)
    assert (part.left, whole.left) == (11.0, 12.0)


def test_a_block_shortens_it_and_no_more_than_that(clock):
    deadline = Deadline(2.0, clock)
    with deadline.within(5.0):
        assert deadline.left == 2.0
    with deadline.within(1.0):
        assert deadline.left == 1.0
    with pytest.raises(KeyError), deadline.within(1.0):
        raise KeyError
    assert deadline.left == 2.0
