"""Everything in this folder starts brokers: producers and workers of a pair that is about to suffer."""

from __future__ import annotations

import itertools
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
from celery import Celery

from kombu_paired.transport import pairing_of
from tests.support.brokers import BrokerNode

HERE = Path(__file__).parent
SEND_TIMEOUT = 2.0
#: Seconds that a call may take longer with other tests beside it; a step with a budget of its own would add two.
GRACE = 1.8

_names = itertools.count(1)


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    for item in items:
        if HERE in item.path.parents:
            item.add_marker(pytest.mark.integration)


@pytest.fixture
def options(primary: BrokerNode, secondary: BrokerNode) -> dict[str, Any]:
    """Quick settings, and a primary name of its own: no two tests share a pairing or a backlog."""
    return {
        "secondary": secondary.url,
        "primary_name": f"{primary.kind}-shop-{next(_names)}",
        "primary_options": dict(primary.gives_back_soon),
        "backlog_queue_count": 4,
        "send_timeout": SEND_TIMEOUT,
        "failover_interval": 1,
        "ping_interval": 1,
        "syphon_poll": 5,
    }


@pytest.fixture
def paired_shop(
    shop_factory: Callable[..., Celery], primary: BrokerNode, options: dict[str, Any]
) -> Iterator[Callable[..., Celery]]:
    """A producer in this process: ``paired_shop(primary.proxied_url)``; its pairing ends with the test."""
    shops: list[Celery] = []

    def make(url: str | None = None, conf: dict[str, Any] | None = None, setup: bool = False) -> Celery:
        shops.append(shop_factory(f"paired+{url or primary.url}", options, conf=conf, setup=setup))
        return shops[-1]

    yield make
    for shop in shops:
        with shop.connection_for_write() as connection:
            pairing_of(connection).close()


@pytest.fixture
def paired_worker(worker_factory: Any, primary: BrokerNode, options: dict[str, Any]) -> Callable[..., Any]:
    """A worker that syphons: ``paired_worker(setup=False)`` is one that does not."""

    def start(**arguments: Any) -> Any:
        return worker_factory(f"paired+{primary.url}", options, **arguments)

    return start
