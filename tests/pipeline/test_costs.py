"""The cost model: the figures of the documents, and what holds for any load."""

from __future__ import annotations

from dataclasses import replace
from unittest.mock import Mock

import pytest
from celery.worker.consumer.gossip import Gossip
from celery.worker.consumer.mingle import Mingle
from celery.worker.heartbeat import Heart
from hypothesis import given
from hypothesis import strategies as st

from kombu_paired.brokers.servicebus import fetching
from kombu_paired.brokers.servicebus.transport import Transport
from kombu_paired.pipeline.costs import charges
from kombu_paired.pipeline.costs.charges import STAGES, STEP, Load, Outages, Syphons, Workers

sizes = st.integers(0, 2_000_000)
loads = st.builds(Load, st.floats(0, 1e7), sizes, st.floats(0, 10))
outages = st.builds(
    Outages,
    seconds=st.floats(0, 1e6),
    per_month=st.floats(0, 30),
    entities=st.integers(0, 50),
    processes=st.integers(0, 500),
    failover_interval=st.floats(0, 3600),
    ping_interval=st.floats(1, 1800),
)
syphons = st.builds(Syphons, st.integers(0, 50), st.floats(1, 3600), st.integers(0, 20))
workers = st.builds(Workers, st.integers(0, 50), st.integers(0, 20), st.floats(1, 60), st.booleans())
NOBODY = Syphons(count=0)
NO_WORKERS = Workers(count=0)


# -- the documents ----------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(("hours", "receives"), [(1, 40), (24, 960), (30 * 24, 28_800)])
def test_ten_backlog_queues_polled_every_15_minutes(hours, receives):
    assert charges.idle_receives(Syphons(backlog_queues=10, poll=15 * 60), hours) == receives


def test_a_diverted_message_has_four_charged_stages_and_a_direct_one_two():
    direct, diverted = charges.of_message(1024, diverted=False), charges.of_message(1024, diverted=True)
    completes = {"complete_in_backlog", "complete_at_primary"}
    assert direct.keys() - completes == {"send_to_primary", "receive_from_primary"}
    assert diverted.keys() - completes == {
        "send_to_backlog",
        "receive_from_backlog",
        "send_home",
        "receive_from_primary",
    }
    assert sum(direct.values()) == 3
    assert sum(diverted.values()) == 6


def test_a_month_without_outage_costs_three_operations_a_message_and_the_polls():
    total = charges.of_month(Load(10_000), Outages(0), Syphons(), NO_WORKERS)
    assert total["send_to_primary"] == total["receive_from_primary"] == total["complete_at_primary"] == 300_000
    assert total["idle_receive"] == 28_800
    assert sum(total.values()) == 3 * 300_000 + 28_800


def test_an_outage_of_an_hour_worked_out_by_hand():
    """10 messages a second. Failed over after 10 s, pinged every 60 s: the 60th ping, after 3,610 s, is good."""
    outage = Outages(3600, entities=2, processes=5, failover_interval=10, ping_interval=60)
    total = charges.of_month(Load(864_000), outage, NOBODY, NO_WORKERS)
    assert total["send_to_backlog"] == total["receive_from_backlog"] == total["complete_in_backlog"] == 36_100
    assert total["send_home"] == 36_100
    assert total["send_to_primary"] == 864_000 * 30 - 36_100
    assert total["receive_from_primary"] == 864_000 * 30
    assert total["ping"] == 60 * 2 * 5


def test_an_idle_worker_makes_1_800_heartbeats_an_hour_and_60_receives_for_each_queue_and_its_remote_control():
    worker = Workers(queues=3)
    hour = charges.of_idle_hour(Syphons(), worker)
    assert hour == {"heartbeat": 1800, "idle_consume": 4 * 60, "idle_receive": 40}
    month = charges.of_month(Load(0), Outages(0), Syphons(), worker)
    assert {stage: count for stage, count in month.items() if count} == {
        stage: 720 * count for stage, count in hour.items()
    }
    quiet = charges.of_idle_hour(Syphons(count=0), Workers(heartbeat=0, remote_control=False))
    assert quiet == {"heartbeat": 0, "idle_consume": 60, "idle_receive": 0}


def test_celery_s_heartbeat_and_our_consumer_are_as_the_model_has_them():
    assert Heart(None, Mock()).interval == charges.HEARTBEAT
    assert fetching.ASK_AGAIN == charges.CONSUME


@pytest.mark.parametrize("step", [Gossip, Mingle])
def test_gossip_and_mingle_are_for_other_brokers_alone(step):
    assert Transport.driver_type not in step.compatible_transports


# -- what holds for any load ------------------------------------------------------------------------------------------


@pytest.mark.parametrize(("size", "count"), [(0, 1), (1, 1), (STEP, 1), (STEP + 1, 2), (2 * STEP, 2), (256 * 1024, 4)])
def test_steps_of_64_kilobytes(size, count):
    assert charges.steps(size) == count


@given(sizes)
def test_steps_carry_the_message_and_no_more(size):
    count = charges.steps(size)
    assert (count - 1) * STEP < max(size, 1) <= count * STEP


@given(loads, outages, syphons, workers)
def test_every_message_is_received_once_at_home_whichever_way_it_came(load, outage, syphon, fleet):
    total = charges.of_month(load, outage, syphon, fleet)
    carried = charges.steps(load.size)
    assert tuple(total) == STAGES
    assert all(count >= 0 for count in total.values())
    assert total["send_to_primary"] + total["send_home"] == total["receive_from_primary"]
    assert total["receive_from_primary"] == total["complete_at_primary"] * carried
    assert total["send_to_backlog"] == total["receive_from_backlog"] == total["send_home"]
    assert total["send_to_backlog"] == total["complete_in_backlog"] * carried
    assert total["complete_in_backlog"] == charges.diverted_of_month(load, outage) <= total["complete_at_primary"]


@given(loads, outages, st.floats(0, 1e5))
def test_a_longer_outage_never_costs_less(load, outage, more):
    longer = replace(outage, seconds=outage.seconds + more)
    long, short = (charges.of_month(load, each, NOBODY, NO_WORKERS) for each in (longer, outage))
    assert sum(long.values()) >= sum(short.values())


@given(outages)
def test_the_last_ping_of_an_outage_is_the_first_one_after_its_end(outage):
    if outage.pings_of_one == 0:
        assert outage.seconds == 0 or outage.seconds < outage.failover_interval
        assert outage.diverting_seconds == outage.seconds
        return
    last = outage.failover_interval + outage.pings_of_one * outage.ping_interval
    assert last >= outage.seconds - 1e-6
    assert outage.pings_of_one == 1 or last - outage.ping_interval < outage.seconds + 1e-6
    assert outage.diverting_seconds == pytest.approx(last)


@given(loads, outages, syphons, workers, st.integers(2, 5))
def test_what_is_charged_while_nothing_moves_grows_with_who_makes_it(load, outage, syphon, fleet, times):
    once = charges.of_month(load, outage, syphon, fleet)
    more = charges.of_month(
        load,
        replace(outage, processes=outage.processes * times),
        replace(syphon, count=syphon.count * times),
        replace(fleet, count=fleet.count * times),
    )
    for stage in ("heartbeat", "idle_consume", "idle_receive"):
        assert more[stage] == once[stage] * times
    assert abs(more["ping"] - once["ping"] * times) <= times
    assert {stage: more[stage] for stage in STAGES[:-4]} == {stage: once[stage] for stage in STAGES[:-4]}


@pytest.mark.parametrize(
    ("make", "said"),
    [
        (lambda: Load(-1), "messages_per_day"),
        (lambda: Load(float("nan")), "messages_per_day"),
        (lambda: Load(1, size=-1), "size"),
        (lambda: Load(1, renewals_per_message=-1), "renewals"),
        (lambda: Outages(-1), "seconds"),
        (lambda: Outages(1, per_month=-1), "per_month"),
        (lambda: Outages(1, entities=-1), "entities"),
        (lambda: Outages(1, ping_interval=0), "ping_interval"),
        (lambda: Outages(1, failover_interval=-1), "failover_interval"),
        (lambda: Syphons(-1), "backlog_queues"),
        (lambda: Syphons(poll=0), "poll"),
        (lambda: Workers(-1), "workers"),
        (lambda: Workers(heartbeat=-1), "heartbeat"),
    ],
)
def test_what_cannot_be_is_refused(make, said):
    with pytest.raises(ValueError, match=said):
        make()
