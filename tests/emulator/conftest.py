"""An emulator per module, on a free port, and queues of its own for each test."""

from __future__ import annotations

import itertools
from collections.abc import Callable, Iterator
from datetime import timedelta
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest

from kombu_paired.emulator import Emulator

if TYPE_CHECKING:
    from azure.servicebus import ServiceBusClient
    from azure.servicebus.management import ServiceBusAdministrationClient

_names = itertools.count(1)


def connect(emulator: Emulator, **options: Any) -> ServiceBusClient:
    """An SDK client that says at once what went wrong."""
    from azure.servicebus import ServiceBusClient

    options = {"retry_total": 0, **options}
    return ServiceBusClient.from_connection_string(emulator.connection_string, **options)


#: Without the SDK, and quick.
PURE = {
    "test_codec.py",
    "test_command.py",
    "test_distance.py",
    "test_faults.py",
    "test_frames.py",
    "test_queues.py",
    "test_rules.py",
    "test_store.py",
}


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """Opening and closing a link takes the SDK a second and a half: these are no unit tests."""
    for item in items:
        if item.path.parent == Path(__file__).parent and item.path.name not in PURE:
            item.add_marker(pytest.mark.integration)


@pytest.fixture(scope="module")
def emulator() -> Iterator[Emulator]:
    with Emulator() as running:
        yield running


@pytest.fixture(scope="module")
def admin(emulator: Emulator, tmp_path_factory: pytest.TempPathFactory) -> Iterator[ServiceBusAdministrationClient]:
    from azure.servicebus.management import ServiceBusAdministrationClient

    authority = tmp_path_factory.mktemp("certificate") / "ca.pem"
    authority.write_text(emulator.certificate())
    client = ServiceBusAdministrationClient.from_connection_string(
        emulator.connection_string, connection_verify=str(authority), retry_total=0
    )
    with client:
        yield client


@pytest.fixture(autouse=True)
def no_faults_left(request: pytest.FixtureRequest) -> Iterator[None]:
    yield
    if "emulator" in request.fixturenames:
        request.getfixturevalue("emulator").clear_faults()


@pytest.fixture
def client(emulator: Emulator) -> Iterator[ServiceBusClient]:
    with connect(emulator) as connected:
        yield connected


@pytest.fixture
def make_queue(admin: ServiceBusAdministrationClient) -> Callable[..., str]:
    """Create a queue with these properties; durations are seconds."""

    def make(**properties: Any) -> str:
        name = f"queue-{next(_names)}"
        durations = {key: timedelta(seconds=value) for key, value in properties.items() if isinstance(value, float)}
        admin.create_queue(name, **{**properties, **durations})
        return name

    return make


@pytest.fixture
def queue(make_queue: Callable[..., str]) -> str:
    return make_queue()
