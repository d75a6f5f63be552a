"""The pace of a syphon: on a clock that the test turns, against primaries whose speed it sets."""

from __future__ import annotations

import heapq
import math
import random
from dataclasses import dataclass, field
from itertools import pairwise

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from kombu_paired.syphon import pace as rules
from kombu_paired.syphon import pump
from kombu_paired.syphon.pace import Pace
from kombu_paired.testing import ManualClock

BATCH, LARGEST = BATCHES = pump.BATCH, pump.LARGEST_BATCH
#: Messages per second that the simulated process can move at most, whatever the primary takes.
PROCESS = 8000.0


@dataclass
class Primary:
    """One that serves whoever sends in turn: so many messages per second in all, after a round trip.

    Attributes:
        speed: messages per second.
        trip: seconds of a round trip.
    """

    speed: float = 30_000.0
    trip: float = 0.001
    free: float = 0.0
    waits: list = field(default_factory=list)

    def seconds_of(self, count: int, now: float) -> float:
        self.free = max(self.free, now) + count / self.speed
        self.waits.append((now, self.free - now))
        return self.free - now + self.trip


class Process:
    """The pumps of one process, which share a processor and a pace.

    Attributes:
        moved: when, and how many messages.
    """

    def __init__(self, clock: ManualClock, primary: Primary, limit: float | None = None, backlog: int = 10**9) -> None:
        self.pace = Pace(limit, clock)
        self.primary = primary
        self.backlog = backlog
        self.moved: list[tuple[float, int]] = []
        self._clock = clock
        self._processor_free = 0.0

    def move(self, held: int | None):
        """One step of a pump that holds so many messages; gives the seconds until the next one, and what it is."""
        now, count = self._clock.now, held
        if count is None:
            count = min(self.pace.at_a_time(*BATCHES), self.backlog)
            self.backlog -= count
        if not count:
            return None
        wait = self.pace.ask(count)
        if wait > 0:
            return wait, lambda: self.move(count)
        turn = self.pace.turn(count)
        turn.__enter__()
        self._processor_free = max(self._processor_free, now) + count / PROCESS
        seconds = max(self._processor_free - now, self.primary.seconds_of(count, now))
        self.moved.append((now, count))

        def end():
            self.pace.sent(count, count, now)
            turn.__exit__(None, None, None)
            return self.move(None)

        return seconds, end


def run(clock: ManualClock, processes: list[Process], seconds: float, pumps: int = 1) -> float:
    """Let all pumps run for so long, or until nothing is left; gives the seconds that it took."""
    began, number = clock.now, 0
    agenda = []
    for process in processes:
        for _ in range(pumps):
            agenda.append((clock.now, number, lambda process=process: process.move(None)))
            number += 1
    heapq.heapify(agenda)
    while agenda and agenda[0][0] <= began + seconds:
        clock.now, _, step = heapq.heappop(agenda)
        following = step()
        if following is not None:
            wait, step = following
            heapq.heappush(agenda, (clock.now + wait, number, step))
            number += 1
    return clock.now - began


def moved(processes: list[Process], since: float, until: float) -> int:
    return sum(count for process in processes for at, count in process.moved if since <= at < until)


def waits(primary: Primary, since: float) -> list[float]:
    return [wait for at, wait in primary.waits if at >= since]


@pytest.fixture
def clock():
    return ManualClock()


def moves(pace: Pace, clock: ManualClock, count: int, seconds: float) -> None:
    """Somebody moves so many messages, in turn, and the primary takes so long for it."""
    while (wait := pace.ask(count)) > 0:
        clock.now += wait
    with pace.turn(count):
        began = clock.now
        clock.now += seconds
        pace.sent(count, count, began)


def lasts(pace: Pace, clock: ManualClock, seconds: float, per_message: float) -> int:
    """One pump moves all that it may for so long; gives how many messages that were."""
    moved, until = 0, clock.now + seconds
    while clock.now < until:
        count = pace.at_a_time(*BATCHES)
        moves(pace, clock, count, count * per_message)
        moved += count
    return moved


# -- slowly at first --------------------------------------------------------------------------------------------------


@given(speed=st.floats(100, 50_000), trip=st.floats(0.0001, 0.2), pumps=st.integers(1, 10))
def test_it_begins_with_a_tenth_of_what_the_primary_took_at_first(speed, trip, pumps):
    clock = ManualClock()
    process = Process(clock, Primary(speed, trip))
    began = clock.now
    run(clock, [process], 0.01 + trip + rules.TASTE / min(speed, PROCESS), pumps)
    (at, count), *_ = process.moved
    assert (at, count) == (began, rules.TASTE)
    taken = rules.TASTE / max(rules.TASTE / PROCESS, rules.TASTE / speed + trip)
    assert process.pace.rate == pytest.approx(max(taken / 10, rules.LEAST_RATE))


@given(speed=st.floats(1000, 50_000), trip=st.floats(0.0001, 0.05), pumps=st.integers(1, 10))
def test_it_doubles_at_most_from_one_step_to_the_next(speed, trip, pumps):
    clock = ManualClock()
    process = Process(clock, Primary(speed, trip))
    began = clock.now
    run(clock, [process], 5, pumps)
    pieces = [moved([process], began + n * rules.STEP, began + (n + 1) * rules.STEP) for n in range(10)]
    assert pieces[0] <= rules.TASTE + PROCESS * rules.SHARE_AT_FIRST * 2 * rules.STEP
    for before, after in pairwise(pieces):  # a step begins when the last one was looked at, a little later
        assert after <= 4 * before + 2 * LARGEST


@given(per_message=st.floats(0.0001, 0.005))
def test_the_rate_doubles_while_the_primary_keeps_up(per_message):
    clock = ManualClock()
    pace = Pace(clock=clock)
    moves(pace, clock, rules.TASTE, rules.TASTE * per_message)
    rates = [pace.rate]
    began = clock.now
    while pace.rate < 0.5 / per_message:
        count = pace.at_a_time(*BATCHES)
        moves(pace, clock, count, count * per_message)
        if pace.rate != rates[-1]:
            rates.append(pace.rate)
    assert [after / before for before, after in pairwise(rates)] == pytest.approx([2.0] * (len(rates) - 1))
    assert clock.now - began <= 1.5 * rules.STEP * len(rates)


def test_a_rate_that_nobody_needs_does_not_grow(clock):
    pace = Pace(clock=clock)
    moves(pace, clock, rules.TASTE, 0.01)
    rate = pace.rate
    for _ in range(100):
        clock.now += rules.STEP
        moves(pace, clock, 1, 0.001)
    assert pace.rate == rate


def test_a_primary_that_was_away_is_met_as_at_first(clock):
    pace = Pace(clock=clock)
    lasts(pace, clock, 5, 0.0001)
    assert pace.rate > 5000
    pace.restart()
    assert pace.at_a_time(*BATCHES) == rules.TASTE
    moves(pace, clock, rules.TASTE, 0.01)
    assert pace.rate == pytest.approx(250)


def test_a_first_one_that_fails_keeps_nobody_from_being_the_next(clock):
    pace = Pace(clock=clock)
    assert pace.ask(rules.TASTE) == 0
    with pytest.raises(ZeroDivisionError), pace.turn(rules.TASTE):
        raise ZeroDivisionError
    assert pace.ask(rules.TASTE) == 0


# -- slower -----------------------------------------------------------------------------------------------------------


def going(clock: ManualClock, limit: float | None = None) -> Pace:
    """A pace at some rate, with a step that has just begun."""
    pace = Pace(limit, clock)
    lasts(pace, clock, 3, 0.0002)
    return pace


def test_it_halves_when_sends_take_longer_and_goes_on_carefully(clock):
    pace = going(clock)
    used = lasts(pace, clock, 2 * rules.STEP, 0.0002) / (2 * rules.STEP)
    lasts(pace, clock, 2.5 * rules.STEP, 0.002)
    assert pace.rate <= used / 2
    lasts(pace, clock, 2 * rules.STEP, 0.0002)
    slow = pace.rate
    lasts(pace, clock, 2 * rules.STEP, 0.0002)
    assert slow < pace.rate < 4 * slow


def test_one_send_that_takes_a_moment_longer_changes_nothing(clock):
    pace = going(clock)
    rate = pace.rate
    moves(pace, clock, BATCH, BATCH * 0.0002 + rules.HICCUP / 2)
    lasts(pace, clock, 2 * rules.STEP, 0.0002)
    assert pace.rate >= rate


def test_it_halves_when_it_is_throttled_once_per_step(clock):
    pace = going(clock, limit=1000)
    assert pace.rate == 1000
    for _ in range(5):
        pace.throttled()
    lasts(pace, clock, rules.STEP, 0.0002)
    assert 400 <= pace.rate <= 500


def test_a_primary_that_is_slower_for_good_is_used_fully_in_the_end(clock):
    pace = going(clock)
    lasts(pace, clock, 30, 0.002)
    assert lasts(pace, clock, 10, 0.002) >= 0.7 * 10 / 0.002


@given(st.lists(st.sampled_from(["move", "slow", "throttle", "rest", "restart"]), max_size=60), st.floats(1, 10_000))
def test_it_always_goes_on_within_its_bounds(steps, limit):
    clock = ManualClock()
    pace = Pace(limit, clock)
    for step in steps:
        count, asked = pace.at_a_time(*BATCHES), clock.now
        if step == "move":
            moves(pace, clock, count, 0.001)
        elif step == "slow":
            moves(pace, clock, count, 2.0)
        elif step == "throttle":
            pace.throttled()
        elif step == "rest":
            clock.now += 1
        else:
            pace.restart()
        assert clock.now - asked <= 2 + max(rules.AT_MOST, rules.AT_A_TIME, 1 / limit)
        assert min(rules.LEAST_RATE, limit) <= pace.rate <= limit
        assert 1 <= count <= LARGEST


def test_a_busy_machine_on_which_sends_take_now_longer_and_now_shorter_is_no_slow_primary(clock):
    chance = random.Random(7)
    pace = going(clock)
    moved, began = 0, clock.now
    while clock.now < began + 30:
        count = pace.at_a_time(*BATCHES)
        moves(pace, clock, count, count * 0.0002 * chance.choice([0.3, 0.5, 1, 1, 1, 1, 2, 4]))
        moved += count
    assert moved >= 0.8 * 30 / (0.0002 * 1.35)


@pytest.mark.parametrize(("trip", "most"), [(0.0005, BATCH), (0.05, LARGEST)])
def test_more_go_at_a_time_only_where_the_primary_is_far_away(clock, trip, most):
    process = Process(clock, Primary(trip=trip), limit=4000)
    run(clock, [process], 10)
    assert max(count for _, count in process.moved) <= most
    assert moved([process], clock.now - 2, clock.now) >= 0.95 * 2 * 4000


@pytest.mark.parametrize("trip", [0.0005, 0.05, 0.2])
def test_however_far_away_the_primary_is_the_rate_grows(clock, trip):
    process = Process(clock, Primary(trip=trip))
    run(clock, [process], 60)
    assert moved([process], clock.now - 10, clock.now) >= 0.7 * 10 * LARGEST / (LARGEST / PROCESS + trip)


# -- the limit --------------------------------------------------------------------------------------------------------


@settings(max_examples=25, deadline=None)
@given(limit=st.floats(1, 5000), speed=st.floats(10, 50_000), trip=st.floats(0.0001, 0.5), pumps=st.integers(1, 10))
def test_a_limit_holds_in_every_second(limit, speed, trip, pumps):
    clock = ManualClock()
    process = Process(clock, Primary(speed, trip), limit)
    run(clock, [process], 10, pumps)
    at_once = max(1, limit * max(rules.AT_A_TIME, 2 * (trip + rules.TASTE / min(speed, PROCESS))))
    for at, _ in process.moved[:: max(1, len(process.moved) // 50)]:
        assert moved([process], at, at + 1) <= limit * (1 + rules.CREDIT) + 2 * at_once


def test_a_limit_is_used(clock):
    process = Process(clock, Primary(), limit=500)
    began = clock.now
    run(clock, [process], 20)
    assert moved([process], began + 3, began + 20) == pytest.approx(17 * 500, rel=0.05)


@given(st.floats(1, 10**6), st.integers(1, 1000))
def test_a_limited_receiver_fetches_no_more_ahead_than_goes_in_two_seconds(limit, most):
    assert 1 <= Pace(limit).ahead(most) <= max(1, min(most, 2 * limit))
    assert Pace().ahead(most) == most


# -- new messages first -----------------------------------------------------------------------------------------------


def test_while_new_messages_are_sent_a_few_move_and_a_rest_follows_that_is_longer(clock):
    since_new = 0.0
    pace = Pace(clock=clock, since_new=lambda: since_new)
    since_new = math.inf
    lasts(pace, clock, 5, 0.0001)
    since_new = 0.0
    assert pace.at_a_time(*BATCHES) == rules.A_FEW
    moves(pace, clock, rules.A_FEW, 0.01)
    began, busy = clock.now, 0
    for _ in range(20):
        moves(pace, clock, rules.A_FEW, 0.01)
        busy += 0.01
    assert busy <= (clock.now - began) / (1 + rules.RESTS) + 0.01
    assert pace.ask(rules.A_FEW) > 0
    since_new = rules.EXPECTING  # and now they are not
    moves(pace, clock, rules.A_FEW, 0.01)
    assert pace.ask(rules.A_FEW) == 0
    assert pace.at_a_time(*BATCHES) >= BATCH


# -- together ---------------------------------------------------------------------------------------------------------


@settings(max_examples=10, deadline=None)
@given(trip=st.floats(0.0001, 0.02))
def test_a_hundred_thousand_messages_take_hardly_longer_than_without_a_pace(trip):
    clock = ManualClock()
    took = run(clock, [Process(clock, Primary(trip=trip), backlog=100_000)], 1000)
    assert took <= 100_000 / PROCESS + 5


@pytest.mark.parametrize("count", [20, 300])
def test_a_fleet_keeps_nobody_waiting_at_the_primary_and_uses_it_all_the_same(clock, count):
    primary, began = Primary(), clock.now
    fleet = [Process(clock, primary, backlog=150_000 // count) for _ in range(count)]
    took = run(clock, fleet, 1000)
    assert sum(process.backlog for process in fleet) == 0
    assert took <= 4 * 150_000 / primary.speed
    waited = waits(primary, began)  # without a pace it is 25 seconds for whoever sends then
    assert max(waited) < 1.5
    assert sum(waited) / len(waited) < 0.5
    assert moved(fleet, began, began + 0.5) <= primary.speed / 2
