"""Workers stand in at a broker of another kind than their primary."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import kombu
import pytest

from tests.conftest import BrokerPool
from tests.support.nodes import PairedCluster
from tests.support.traffic import Traffic, assert_backlog_empties

IS_BACK = "the primary is back, and this worker"


@pytest.fixture(params=[("redis", "amqp"), ("amqp", "redis")], ids=" at ".join)
def paired_cluster(broker_pool: BrokerPool, request: pytest.FixtureRequest) -> Iterator[PairedCluster]:
    """A primary of one kind, and a secondary of another."""
    primary, secondary = request.param
    yield PairedCluster(broker_pool.pair(primary)[0], broker_pool.pair(secondary)[1])
    kombu.pools.reset()


@pytest.fixture
def options(options: dict[str, Any], secondary: Any) -> dict[str, Any]:
    return {**options, "stand_in_after": 1, "secondary_options": dict(secondary.gives_back_soon)}


def test_a_worker_works_on_at_a_broker_of_another_kind(primary, secondary, paired_shop, paired_worker, ledger):
    worker = paired_worker()
    shop, traffic = paired_shop(), Traffic()
    primary.kill()
    traffic.publish(shop.record.delay, range(20))
    shop.retry.delay(20, 2)
    ledger.wait_for(21, timeout=40)
    assert shop.control.ping(timeout=20, limit=1), "remote control goes over the secondary"
    primary.restart()
    worker.wait_for_log(IS_BACK, timeout=40)
    traffic.publish(shop.record.delay, range(21, 30))
    ledger.wait_for(30, timeout=40)
    assert traffic.errors == []
    assert_backlog_empties(secondary)
