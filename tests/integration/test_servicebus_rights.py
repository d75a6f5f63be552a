"""A key for one queue alone: enough for a worker, and for a producer, that use that queue."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any

import kombu
import pytest
from azure.servicebus.exceptions import ServiceBusAuthenticationError

from kombu_paired import pairing_of
from kombu_paired.connection_strings import as_url
from kombu_paired.emulator import Emulator
from kombu_paired.errors import NamespaceFailure, NamespaceUnauthorized
from kombu_paired.testing.processes import wait_until
from tests.support.shop import make_app, shop_environment

OWN, LISTENER, SENDER, ALL = "own:one", "listener:two", "sender:three", "all:four"


@pytest.fixture
def primary() -> Iterator[Emulator]:
    policies = [f"{OWN}:Send,Listen:celery", f"{LISTENER}:Listen:celery", f"{SENDER}:Send:celery", ALL]
    with Emulator(process=True, queues=["celery", "orders"], policies=policies) as emulator:
        yield emulator


@pytest.fixture
def secondary() -> Iterator[Emulator]:
    with Emulator(process=True) as emulator:
        yield emulator


@pytest.fixture
def environment(primary, secondary, ledger) -> Callable[[str], dict[str, str]]:
    def make(credentials: str, **conf: Any) -> dict[str, str]:
        options = {
            "secondary": f"azureservicebus://p:k@{secondary.host}",
            "primary_name": "shop",
            "backlog_queue_count": 1,
            "failover_interval": 0,
            "ping_interval": 1,
        }
        url = f"paired+azureservicebus://{credentials}@{primary.host}"
        return shop_environment(url, options, ledger=ledger, conf=conf)

    return make


@pytest.mark.parametrize("credentials", [OWN, LISTENER])
def test_a_worker_runs_what_is_in_its_queue(environment, start_worker, ledger, credentials):
    worker = start_worker(environment(credentials), args=["-E"])
    shop = make_app(environment(ALL))
    for n in range(20):
        shop.record.delay(n)
    wait_until(lambda: len(ledger.counts()) == 20, 30, worker.logs)
    assert ledger.duplicates() == {}
    assert "Traceback" not in worker.logs()
    assert "Trying to re-establish" not in worker.logs()
    assert worker.logs().count("events are dropped") <= 2  # by the consumer's process, and by the pool's
    assert worker.stop()[0] == 0


def test_what_was_diverted_comes_home_with_a_key_for_its_queue(environment, start_worker, primary, secondary, ledger):
    shop = make_app(environment(OWN))
    primary.fault("disabled", "celery")
    shop.record.delay(1)
    assert secondary.status()["queues"]["shop/x-servicebus-transfer/0"]["active"] == 1
    primary.clear_faults()
    worker = start_worker(environment(OWN))
    wait_until(lambda: ledger.executed() == [1], 30, worker.logs)


def test_a_worker_retries_with_a_key_for_its_queue(environment, start_worker, ledger):
    worker = start_worker(environment(OWN))
    make_app(environment(SENDER)).retry.delay(1, 3)
    wait_until(lambda: ledger.executed() == [1] * 4, 30, worker.logs)


def test_a_worker_that_is_refused_says_so_and_waits_as_celery_does(environment, start_worker, primary, ledger):
    make_app(environment(ALL)).record.delay(1)
    primary.fault("token", on=["token"])
    worker = start_worker(environment(OWN), wait=0)
    waits = "Cannot connect .* was answered with 401: InvalidSignature"
    wait_until(lambda: worker.count_in_log(waits), 30, worker.logs)
    assert worker.count_in_log("Connection to broker lost") <= 1
    assert "Trying again in 2.00 seconds... (1/100)" in worker.logs()
    assert " ready." not in worker.logs()

    primary.clear_faults()
    wait_until(lambda: ledger.executed() == [1], 30, worker.logs)
    assert worker.count_in_log(waits) <= 2


@pytest.fixture
def connect(environment) -> Iterator[Callable[[str], kombu.Connection]]:
    connections = []

    def make(credentials: str) -> kombu.Connection:
        connections.append(make_app(environment(credentials)).connection_for_write())
        return connections[-1]

    yield make
    for each in connections:
        pairing_of(each).close()
        each.release()


def publish(connection: kombu.Connection, queue: str) -> None:
    with connection.channel() as channel:
        kombu.Producer(channel).publish("x", routing_key=queue, retry=False)


def test_a_queue_that_the_key_is_not_for_fails_alone(connect, primary, secondary):
    connection = connect(SENDER)
    publish(connection, "celery")
    with pytest.raises(NamespaceUnauthorized):
        publish(connection, "orders")
    publish(connection, "celery")
    assert primary.status()["queues"]["celery"]["active"] == 2
    assert secondary.status()["queues"]["shop/x-servicebus-transfer/0"]["active"] == 0


def test_the_service_is_asked_with_the_queue_that_is_used(connect):
    """As a health page and the syphon ask; until a queue is known, nobody can tell the key from a wrong one."""
    connection = connect(SENDER)
    namespace = pairing_of(connection).primary
    with pytest.raises(NamespaceFailure, match="unauthorized"):
        namespace.probe(None, 5)
    publish(connection, "celery")
    namespace.probe(None, 5)


def test_a_connection_string_names_the_queue_that_its_key_is_for(environment, primary, secondary):
    name, _, key = OWN.partition(":")
    string = f"Endpoint=sb://{primary.host}/;SharedAccessKeyName={name};SharedAccessKey={key};EntityPath=celery"
    options = {"secondary": f"azureservicebus://p:k@{secondary.host}", "backlog_queue_count": 1}
    with kombu.Connection("paired+" + as_url(string), transport_options=options) as connection:
        try:
            pairing_of(connection).primary.probe(None, 5)
        finally:
            pairing_of(connection).close()


def test_a_consumer_of_the_transport_alone(primary):
    """Without a pairing the key is found wrong when the first queue is declared, and from then on at once."""

    def declare(credentials: str) -> None:
        with kombu.Connection(
            f"azureservicebus://{credentials}@{primary.host}",
            transport="kombu_paired.brokers.servicebus.transport:Transport",
        ) as connection:
            connection.connect()
            kombu.Queue("celery", channel=connection.default_channel).declare()

    declare(OWN)
    declare(LISTENER)
    with pytest.raises(ServiceBusAuthenticationError):
        declare("own:wrong")
    with (
        kombu.Connection(
            f"azureservicebus://own:wrong@{primary.host}",
            transport="kombu_paired.brokers.servicebus.transport:Transport",
        ) as connection,
        pytest.raises(ServiceBusAuthenticationError),
    ):
        connection.transport.establish_connection()
