"""Networks that are slow, and namespaces of several addresses: a call keeps to its time, and a living node is found."""

from __future__ import annotations

import time

import pytest

from kombu_paired.events import EventKind
from tests.integration.conftest import GRACE, SEND_TIMEOUT
from tests.support.peers import unused_port
from tests.support.traffic import Traffic, assert_backlog_empties, heard, wait_for

both = pytest.mark.parametrize("broker_kind", ["amqp", "redis"], indirect=True)


def dead(url: str) -> str:
    """Another address of the same namespace, where nobody listens."""
    return f"{url.split('://')[0]}://127.0.0.1:{unused_port()}/0"


@both
@pytest.mark.parametrize("delay", [0.27, 1.0])
def test_the_first_call_through_a_slow_network_keeps_to_its_time(primary, secondary, paired_shop, delay):
    primary.proxy.slow(delay)
    shop, traffic = paired_shop(primary.proxied_url), Traffic()

    traffic.publish(shop.record.delay, range(4))

    assert traffic.errors == []
    assert traffic.longest <= 2 * SEND_TIMEOUT + GRACE


@both
def test_a_silent_node_costs_a_moment_and_no_failover(primary, secondary, paired_shop):
    url = primary.proxied_url
    primary.blackhole()
    shop, first, others = paired_shop(f"{url};paired+{primary.url}"), Traffic(), Traffic()

    with heard(EventKind.SUSPECT, EventKind.DIVERTED) as noticed:
        first.publish(shop.record.delay, [1])
        began = time.monotonic()
        others.publish(shop.record.delay, range(2, 21))
        seconds = time.monotonic() - began

    assert (first.errors, others.errors, noticed) == ([], [], [])
    assert primary.depth("celery") == 20
    assert first.longest < SEND_TIMEOUT + GRACE
    assert seconds < 19 * SEND_TIMEOUT / 3  # not each of them asked the silent one again


@both
def test_a_node_that_dies_under_rare_traffic_fails_nothing_over(primary, secondary, paired_shop):
    shop, traffic = paired_shop(f"{primary.proxied_url};paired+{primary.url}"), Traffic()
    traffic.publish(shop.record.delay, [1])
    primary.cut()

    with heard(EventKind.SUSPECT, EventKind.DIVERTED) as noticed:
        traffic.publish(shop.record.delay, [2, 3], pace=1.1)  # a failover interval apart

    assert (traffic.errors, noticed) == ([], [])
    assert primary.depth("celery") == 3


@pytest.mark.parametrize("broker_kind", ["redis"], indirect=True)
def test_workers_and_their_syphons_find_the_living_nodes_of_both_sides(
    primary, secondary, paired_shop, worker_factory, options, ledger
):
    options["secondary"] = f"{dead(secondary.url)};{secondary.url}"
    urls = f"{dead(primary.url)};paired+{primary.url}"
    worker_factory(f"paired+{urls}", options)
    shop, traffic = paired_shop(urls), Traffic()

    traffic.publish(shop.record.delay, range(20))
    ledger.wait_for(20, timeout=60)
    primary.kill()
    traffic.publish(shop.record.delay, range(20, 40))
    wait_for(lambda: secondary.backlog() == 20, 30, "the secondary's living node has not got all")
    primary.restart()

    ledger.wait_for(40, timeout=60)
    assert traffic.errors == []
    assert_backlog_empties(secondary)
