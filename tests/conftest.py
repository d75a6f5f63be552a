"""Fixtures for tests on real brokers, which start once per session, when first asked for."""

from __future__ import annotations

import os
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any, Protocol

import kombu.pools
import pytest
from celery import Celery
from hypothesis import settings

from kombu_paired.testing import Kind, local_broker_missing, processes
from tests.support import naps
from tests.support.brokers import NODES, BrokerNode, new_node
from tests.support.ledger import Ledger
from tests.support.nodes import LocalTestWorker, PairedCluster
from tests.support.shop import make_app, shop_environment

TESTS = Path(__file__).parent

# No example is too slow by the clock of a busy machine.
settings.register_profile("tests", deadline=None)
settings.load_profile("tests")


def pytest_configure() -> None:
    naps.shorten()
    # Those of pytest-xdist's processes do not take each other's ports while a broker is down.
    worker = os.environ.get("PYTEST_XDIST_WORKER")
    if worker is not None:
        share, number = len(processes.PORTS) // 16, int(worker.removeprefix("gw")) % 16
        processes.PORTS = processes.PORTS[number * share : (number + 1) * share]


#: What no test of these folders is, so that the lane of that in tests/run need not collect them.
_NOT_IN = {
    "unit": ("integration", "spark", "alone"),
    "pipeline": ("integration",),
    "simulation": ("integration",),
}


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    for item in items:
        if "broker_pool" in getattr(item, "fixturenames", ()):
            item.add_marker(pytest.mark.integration)
        for folder, marks in _NOT_IN.items():
            if TESTS / folder in item.path.parents and (found := [m for m in marks if item.get_closest_marker(m)]):
                raise pytest.UsageError(
                    f"{item.nodeid} is marked {found[0]!r}: tests/run has no such tests in {folder}"
                )
    if "PYTEST_XDIST_WORKER" in os.environ:  # at the end, no process is to be waited for
        items.sort(key=lambda item: item.get_closest_marker("slow") is None)


@pytest.fixture(autouse=True)
def _naps(request: pytest.FixtureRequest) -> None:
    naps.are_short(request.node.get_closest_marker("real_naps") is None)


class BrokerPool:
    """Two brokers of each kind, started together, and reset before each test that takes them."""

    def __init__(self, folder: Callable[[str], Path]) -> None:
        self._folder = folder
        self._pairs: dict[Kind, tuple[BrokerNode, BrokerNode]] = {}

    def pair(self, kind: Kind) -> tuple[BrokerNode, BrokerNode]:
        """A pair that is up, empty and healed."""
        if kind not in self._pairs:
            require_broker(kind)
            first, second = (new_node(kind, self._folder(f"{kind}-{i}")) for i in (1, 2))
            self._pairs[kind] = (first, second)
        with ThreadPoolExecutor(2) as threads:
            list(threads.map(lambda node: node.reset(), self._pairs[kind]))
        return self._pairs[kind]

    def close(self) -> None:
        for pair in self._pairs.values():
            for broker in pair:
                broker.teardown()


def require_broker(kind: Kind) -> None:
    """Skip the test when that broker is not installed; where CI is set, fail it."""
    missing = local_broker_missing(kind)
    if missing is None:
        return
    if os.environ.get("CI"):
        pytest.fail(missing, pytrace=False)
    pytest.skip(missing)


@pytest.fixture(scope="session")
def broker_pool(tmp_path_factory: pytest.TempPathFactory) -> Iterator[BrokerPool]:
    pool = BrokerPool(tmp_path_factory.mktemp)
    yield pool
    pool.close()


@pytest.fixture(params=list(NODES))
def broker_kind(request: pytest.FixtureRequest) -> Kind:
    """Which broker: every test that uses it, or a broker below, runs once for each."""
    kind: Kind = request.param
    return kind


@pytest.fixture
def paired_cluster(broker_pool: BrokerPool, broker_kind: Kind) -> Iterator[PairedCluster]:
    """A primary and a secondary, up and empty. What a test does to them is undone for the next."""
    yield PairedCluster(*broker_pool.pair(broker_kind))
    kombu.pools.reset()


@pytest.fixture
def primary(paired_cluster: PairedCluster) -> BrokerNode:
    return paired_cluster.primary


@pytest.fixture
def secondary(paired_cluster: PairedCluster) -> BrokerNode:
    return paired_cluster.secondary


@pytest.fixture
def ledger(tmp_path: Path) -> Ledger:
    """What the tasks of this test really did."""
    return Ledger(tmp_path / "ledger")


class WorkerFactory(Protocol):
    def __call__(
        self,
        broker_url: str,
        transport_options: dict[str, Any] | None = None,
        *,
        setup: bool = True,
        conf: dict[str, Any] | None = None,
        wait: bool = True,
        pool: str = "prefork",
        concurrency: int = 2,
        args: tuple[str, ...] = (),
        env: dict[str, str] | None = None,
        **options: Any,
    ) -> LocalTestWorker: ...


@pytest.fixture
def start_worker(tmp_path: Path) -> Iterator[Callable[..., LocalTestWorker]]:
    """Start workers of the shop that these variables describe: ``start_worker(environment, queue="orders", ...)``.

    It returns when the worker consumes, after ``wait`` seconds at most; at once with ``wait=0``.
    """
    workers: list[LocalTestWorker] = []

    def start(environment: dict[str, str], wait: float = 30.0, **options: Any) -> LocalTestWorker:
        worker = LocalTestWorker(tmp_path, env=environment, **options)
        workers.append(worker)
        if wait:
            worker.ready(wait)
        return worker

    yield start
    for worker in workers:
        worker.teardown()


@pytest.fixture
def worker_factory(start_worker: Callable[..., LocalTestWorker], ledger: Ledger) -> WorkerFactory:
    """Start workers of the shop: ``worker_factory(url, transport_options, pool="gevent", ...)``.

    It returns when the worker consumes, or at once with ``wait=False``.
    """

    def start(
        broker_url: str,
        transport_options: dict[str, Any] | None = None,
        *,
        setup: bool = True,
        conf: dict[str, Any] | None = None,
        wait: bool = True,
        env: dict[str, str] | None = None,
        **options: Any,
    ) -> LocalTestWorker:
        shop = shop_environment(broker_url, transport_options, ledger=ledger, setup=setup, conf=conf)
        return start_worker(shop | (env or {}), 30.0 if wait else 0, **options)

    return start


@pytest.fixture
def shop_factory(ledger: Ledger) -> Iterator[Callable[..., Celery]]:
    """Producers in this process: ``shop_factory(url, transport_options).record.delay(1)``."""
    apps: list[Celery] = []

    def make(
        broker_url: str,
        transport_options: dict[str, Any] | None = None,
        *,
        setup: bool = False,
        conf: dict[str, Any] | None = None,
    ) -> Celery:
        environment = shop_environment(broker_url, transport_options, ledger=ledger, setup=setup, conf=conf)
        apps.append(make_app(environment))
        return apps[-1]

    yield make
    for app in apps:
        app.close()
