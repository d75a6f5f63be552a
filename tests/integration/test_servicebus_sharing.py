"""The connections of a worker on Service Bus: one to each side, and what becomes of its links when that breaks."""

from __future__ import annotations

import shutil
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import pytest
from azure.servicebus import ServiceBusMessage

from kombu_paired.brokers.servicebus.address import Address
from kombu_paired.brokers.servicebus.amqp_links import ReceiverLink, SenderLink
from kombu_paired.brokers.servicebus.clients import Clients
from kombu_paired.brokers.servicebus.settings import ServiceBusSettings
from kombu_paired.emulator import Emulator
from tests.integration.test_servicebus_workers import url_of, wait_for
from tests.support.ledger import Ledger
from tests.support.nodes import LocalTestWorker
from tests.support.shop import make_app, shop_environment

BACKLOG_QUEUES = 10
#: Messages on each of several links, and how long any of it may take.
MESSAGES, SECONDS = 10, 30.0


@pytest.fixture
def sides() -> Iterator[tuple[Emulator, Emulator]]:
    with Emulator(process=True) as primary, Emulator(process=True) as secondary:
        yield primary, secondary


def is_idle(side: Emulator, links: int) -> bool:
    """One connection, and so many links, of which no two are to the same entity."""
    status = side.status()
    return status["connections"] == 1 and list(status["links"].values()) == [1] * links


def test_an_idle_worker_has_one_connection_to_each_side_and_a_link_for_each_queue(
    sides: tuple[Emulator, Emulator], tmp_path: Path
) -> None:
    primary, secondary = sides
    ledger = Ledger(tmp_path / "ledger")
    options: dict[str, Any] = {"secondary": url_of(secondary), "backlog_queue_count": BACKLOG_QUEUES}
    environment = shop_environment(f"paired+{url_of(primary)}", options, ledger=ledger)
    worker = LocalTestWorker(tmp_path, env=environment)

    def is_quiet() -> bool:
        return is_idle(primary, 3) and is_idle(secondary, BACKLOG_QUEUES)

    def seen() -> str:
        return f"{primary.status()} {secondary.status()} {worker.logs()}"

    try:
        worker.ready(30.0)
        wait_for(is_quiet, 30, seen)
        queues = {name for name in primary.status()["links"] if "pidbox" not in name}
        assert queues == {"celery", "celeryev"}

        for side in sides:  # every link finds out, and there is one connection again
            side.drop_connections()
            wait_for(is_quiet, 30, seen)
        make_app(environment).record.delay(1)
        ledger.wait_for(1, timeout=60)
        assert ledger.executed() == [1]
        code, _ = worker.stop()
        assert code == 0
    finally:
        worker.kill()
    wait_for(lambda: secondary.status()["connections"] == 0, 30, seen)


def test_where_it_is_asked_for_each_link_has_a_connection_of_its_own(
    sides: tuple[Emulator, Emulator], tmp_path: Path
) -> None:
    primary, secondary = sides
    apart = {"share_connection": False}
    options = {"secondary": url_of(secondary), "primary_options": apart, "secondary_options": apart}
    environment = shop_environment(f"paired+{url_of(primary)}", options, ledger=Ledger(tmp_path / "ledger"))
    worker = LocalTestWorker(tmp_path, env=environment)
    try:
        worker.ready(30.0)
        wait_for(lambda: primary.status()["connections"] == 3, 30, worker.logs)
        wait_for(lambda: secondary.status()["connections"] == BACKLOG_QUEUES, 30, worker.logs)
    finally:
        worker.kill()


@pytest.mark.skipif(shutil.which("openssl") is None, reason="making a certificate needs openssl")
def test_links_share_a_connection_over_tls_too_and_large_messages_come_whole(tmp_path: Path) -> None:
    queues = [f"queue-{number}" for number in range(4)]
    authority = tmp_path / "ca.pem"
    with Emulator(queues, process=True) as emulator:
        authority.write_text(emulator.certificate())
        options = {
            "custom_endpoint_address": f"sb://{emulator.host}",
            "connection_verify": str(authority),
            "transport_type": "Amqp",
        }
        address = Address.parse("azureservicebus://RootManageSharedAccessKey:SAS_KEY_VALUE@contoso")
        clients = Clients(address, ServiceBusSettings.parse({"client_options": options}))
        receivers = [clients.receiver(queue) for queue in queues]
        senders = [clients.sender(queue, shared=True) for queue in queues]
        for link in (*receivers, *senders):
            link.open(SECONDS)
        assert emulator.status()["connections"] == 1

        def send(sender: SenderLink) -> None:
            for number in range(MESSAGES):
                sender.send(ServiceBusMessage(bytes([number]) * 200_000), SECONDS)

        def received(receiver: ReceiverLink) -> list[bytes]:
            found: list[bytes] = []
            while len(found) < MESSAGES:
                found += [b"".join(each.body) for each in receiver.receive(MESSAGES, SECONDS)]
            return found

        with ThreadPoolExecutor(len(receivers) + len(senders)) as threads:
            receiving = [threads.submit(received, each) for each in receivers]
            sending = [threads.submit(send, each) for each in senders]
            for sent in sending:
                sent.result(2 * SECONDS)
            for each in receiving:
                assert each.result(2 * SECONDS) == [bytes([number]) * 200_000 for number in range(MESSAGES)]
        for link in (*receivers, *senders):
            link.close()
        wait_for(lambda: emulator.status()["connections"] == 0, 30, emulator.status)
