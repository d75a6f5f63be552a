"""How much is fetched ahead: what the consumer settles while a message is on its way, and nothing where it is slow."""

from __future__ import annotations

import pytest

from kombu_paired.brokers.servicebus.ahead import MOST_AHEAD, PART_OF_LOCK, REMEMBERED, ROUND_TRIPS, WINDOW, Pace

LOCK = 60.0


class Clock:
    now = 1000.0

    def __call__(self) -> float:
        return self.now


@pytest.fixture
def clock() -> Clock:
    return Clock()


@pytest.fixture
def pace(clock) -> Pace:
    return Pace(clock)


def run(pace: Pace, clock: Clock, rate: float, seconds: float = 2.0) -> None:
    """The consumer settles so many a second, for so long."""
    ends = clock.now + seconds
    while clock.now < ends:
        clock.now += 1 / rate
        pace.settled()


def test_at_first_nothing_is_fetched_ahead(pace):
    assert pace.ahead(LOCK) == 0


def test_while_the_round_trip_is_not_known_nothing_is(pace, clock):
    run(pace, clock, 1000)
    assert pace.ahead(LOCK) == 0


@pytest.mark.parametrize(("rate", "round_trip"), [(2000, 0.03), (200, 0.03), (2000, 0.001), (100, 0.2)])
def test_it_is_what_is_settled_in_three_round_trips(pace, clock, rate, round_trip):
    pace.answered(round_trip)
    run(pace, clock, rate)
    assert pace.ahead(LOCK) == pytest.approx(ROUND_TRIPS * rate * round_trip, rel=0.15, abs=1)


def test_where_a_task_takes_longer_than_that_it_is_none(pace, clock):
    pace.answered(0.03)
    run(pace, clock, 10, seconds=10)
    assert pace.ahead(LOCK) == 0


def test_a_burst_of_a_worker_of_two_that_takes_long_tasks_is_none(pace):
    pace.answered(0.03)
    for _ in range(4):
        pace.settled()
    assert pace.ahead(LOCK) == 0


def test_as_soon_as_the_consumer_stands_still_it_is_none(pace, clock):
    pace.answered(0.03)
    run(pace, clock, 2000)
    clock.now += WINDOW
    assert pace.ahead(LOCK) == 0


def test_it_is_handed_out_within_a_small_part_of_the_lock(pace, clock):
    pace.answered(3.0)
    run(pace, clock, 50)
    assert pace.ahead(lock=5.0) <= 50 * 5.0 * PART_OF_LOCK * 1.15
    assert pace.ahead(lock=300.0) > pace.ahead(lock=5.0)


def test_it_is_bounded(pace, clock):
    pace.answered(1.0)
    run(pace, clock, 5000)
    assert pace.ahead(300.0) == MOST_AHEAD


def test_of_the_last_round_trips_the_middle_one_counts(pace):
    for seconds in (0.031, 0.03, 4.0, 0.032, 0.03):
        pace.answered(seconds)
    assert pace.round_trip == 0.031


def test_where_all_of_them_take_longer_so_is_it_soon(pace):
    pace.answered(0.03)
    for _ in range(REMEMBERED):
        pace.answered(0.09)
    assert pace.round_trip == 0.09
