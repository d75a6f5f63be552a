"""Fixtures of the conformance suite: ``site`` is every broker that has the abilities that a test needs.

A test says so with ``@pytest.mark.needs("process", "outlives_restart")``.
"""

from __future__ import annotations

import itertools
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from kombu_paired.brokers.drivers import DRIVERS
from kombu_paired.brokers.roles import Namespace, Receiver, Sender
from tests.conformance.sites import ABILITIES, FACTORIES, TIMEOUT, Site
from tests.support.nodes import LocalTestBroker

HERE = Path(__file__).parent

#: No two tests use the same names: RabbitMQ, killed just after a quorum queue was deleted, may lose the next one of
#: that name.
_numbers = itertools.count(1)


def pytest_configure(config: pytest.Config) -> None:
    config.addinivalue_line("markers", "needs(*abilities): the broker must be able to do this")


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    for item in items:
        if HERE in item.path.parents:
            item.add_marker(pytest.mark.integration)


def pytest_generate_tests(metafunc: pytest.Metafunc) -> None:
    if "site" not in metafunc.fixturenames:
        return
    needed: set[str] = set()
    for mark in metafunc.definition.iter_markers("needs"):
        needed.update(mark.args)
    assert needed <= ABILITIES, needed - ABILITIES
    able = [name for name, factory in FACTORIES.items() if needed <= factory.abilities]
    metafunc.parametrize("site", able, indirect=True)


class Source:
    """What a factory may take: a folder, and brokers of the session's pool."""

    def __init__(self, request: pytest.FixtureRequest, folder: Path) -> None:
        self._request = request
        self.folder = folder

    def broker(self, kind: Any) -> LocalTestBroker:
        return self._request.getfixturevalue("broker_pool").pair(kind)[0]


@pytest.fixture
def site(request: pytest.FixtureRequest, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Site]:
    factory = FACTORIES[request.param]
    if not factory.driver.is_installed:
        pytest.skip(f"{factory.driver.package} is not installed: pip install '{factory.driver.extra}'")
    monkeypatch.setitem(DRIVERS, factory.scheme, factory.driver)  # the line for a broker that is none of the product's
    made = factory(Source(request, tmp_path))
    made.number = next(_numbers)
    yield made
    made.close()


@pytest.fixture
def queue(site: Site) -> str:
    """The name of one queue."""
    return site.names(1)[0]


@pytest.fixture
def short_locks(site: Site, queue: str) -> None:
    """Locks of the queue end soon, where they outlive who held them. To be asked for before ``namespace``."""
    site.make_queue_with_short_locks(queue)


@pytest.fixture
def opened() -> Iterator[Callable[..., Any]]:
    """``opened(link)``: closed after the test, whatever became of it."""
    links: list[Any] = []

    def add(link: Any) -> Any:
        links.append(link)
        return link

    yield add
    for link in reversed(links):
        try:
            link.close()
        except Exception as exc:
            print(f"closing {link!r}: {exc!r}")


@pytest.fixture
def namespace(site: Site, queue: str, opened: Callable[..., Any]) -> Namespace:
    """A namespace on it, with the queue made."""
    made: Namespace = opened(site.namespace())
    made.ensure_backlog_queues([queue], True, 10)
    return made


@pytest.fixture
def sender(namespace: Namespace, opened: Callable[..., Any]) -> Sender:
    made: Sender = opened(namespace.sender())
    return made


@pytest.fixture
def receiver(namespace: Namespace, queue: str, opened: Callable[..., Any]) -> Receiver:
    made: Receiver = opened(namespace.receiver([queue], 100, TIMEOUT))
    return made
