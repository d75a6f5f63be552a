"""The examples run: what is published while the primary is dead runs when it is back."""

from __future__ import annotations

import ast
import os
import re
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path

import pytest

from kombu_paired.emulator import Emulator
from tests.conftest import WorkerFactory
from tests.docs.reading import ROOT
from tests.support.nodes import LocalTestBroker

pytestmark = pytest.mark.integration

CELERY = ROOT / "examples" / "celery_minimal"
DJANGO = ROOT / "examples" / "django_minimal"
FASTAPI = ROOT / "examples" / "fastapi_producer"
IDENTITY = ROOT / "examples" / "servicebus_identity"
CLIENT_ID = "11111111-2222-3333-4444-555555555555"
#: In the place of azure-identity.
STUB = ROOT / "tests" / "support" / "azure_identity"

PUBLISH = """
from shop import send_receipt

def handle(order):
    send_receipt.delay(order)
    return "published"
"""

#: The web side alone: every second customer's card is refused, after the view has asked for its tasks.
POST = """
import os
import django
from django.core.management import call_command
from django.test import Client

os.environ["DJANGO_SETTINGS_MODULE"] = "proj.settings"
django.setup()
call_command("migrate", verbosity=0)
client = Client(HTTP_HOST="localhost")

def handle(order):
    card = "good" if order % 2 else "refused"
    return client.post("/orders/", {"article": "socks", "card": card}).status_code
"""

POST_TO_FASTAPI = """
from fastapi.testclient import TestClient
from web import web

clients = []

def handle(order):
    if order % 10 == 0:  # the application ends, and begins again
        for client in clients:
            client.__exit__()
        clients[:] = [TestClient(web).__enter__()]
    return clients[0].post(f"/orders/{order}").status_code
"""

#: Posts an order, and asks whether the event loop turns as long as that has no answer; says how often it did.
ASK_MEANWHILE = """
import asyncio
import httpx
from web import web

async def main(order):
    transport = httpx.ASGITransport(app=web)
    async with httpx.AsyncClient(transport=transport, base_url="http://shop") as client:
        placed = asyncio.create_task(client.post(f"/orders/{order}"))
        await asyncio.sleep(0)
        turns = 0
        while not placed.done():
            turns += (await client.get("/alive")).json()["alive"]
            await asyncio.sleep(0.05)
        return (await placed).status_code, turns

def handle(order):
    return asyncio.run(main(order))
"""

LOOP = """
import sys
for line in sys.stdin:
    print([handle(order) for order in range(*map(int, line.split()))], flush=True)
"""


class Asked:
    """A process that handles orders when it is told to."""

    def __init__(self, program: str, folder: Path, env: dict[str, str]) -> None:
        self.process = subprocess.Popen(
            [sys.executable, "-c", program + LOOP],
            cwd=folder,
            env=os.environ | env,
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            text=True,
        )

    def handle(self, first: int, behind_last: int) -> list[object]:
        assert self.process.stdin is not None
        assert self.process.stdout is not None
        print(first, behind_last, file=self.process.stdin, flush=True)
        answers: list[object] = ast.literal_eval(self.process.stdout.readline())
        return answers

    def exit(self) -> int:
        assert self.process.stdin is not None
        self.process.stdin.close()
        return self.process.wait(30)


@pytest.fixture
def orders(tmp_path: Path) -> Path:
    return tmp_path / "orders.txt"


@pytest.fixture
def environment(primary: LocalTestBroker, secondary: LocalTestBroker, orders: Path) -> dict[str, str]:
    """The variables that the examples are configured by."""
    return {
        "PRIMARY_URL": primary.url,
        "SECONDARY_URL": secondary.url,
        "SEND_TIMEOUT": "30",  # for a machine with too much to do
        "ORDERS_FILE": str(orders),
    }


@pytest.fixture
def asked(tmp_path: Path) -> Iterator[list[Asked]]:
    processes: list[Asked] = []
    yield processes
    for each in processes:
        each.process.kill()
        each.process.wait()


def wait_for_orders(file: Path, expected: set[int], timeout: float = 60) -> None:
    deadline = time.monotonic() + timeout
    while time.monotonic() < deadline:
        if expected <= written(file):
            return
        time.sleep(0.1)
    pytest.fail(f"after {timeout:g} s these never ran: {sorted(expected - written(file))}")


def written(file: Path) -> set[int]:
    return {int(line) for line in file.read_text().split()} if file.exists() else set()


def start_worker(
    worker_factory: WorkerFactory, module: str, folder: Path, environment: dict[str, str], *more: Path
) -> None:
    env = environment | {"PYTHONPATH": os.pathsep.join(map(str, [folder, ROOT, *more]))}
    worker_factory("", module=module, env=env)  # the URL is the example's own business


def publish_through_an_outage(client: Asked, primary: LocalTestBroker | Emulator, orders: Path, answer: object) -> None:
    assert client.handle(0, 5) == [answer] * 5
    wait_for_orders(orders, set(range(5)))
    primary.kill()
    assert client.handle(5, 25) == [answer] * 20
    primary.restart()
    assert client.handle(25, 30) == [answer] * 5
    wait_for_orders(orders, set(range(30)))
    assert client.exit() == 0


def test_celery_minimal(worker_factory, primary, environment, orders, asked):
    start_worker(worker_factory, "shop", CELERY, environment)
    asked.append(Asked(PUBLISH, CELERY, environment))
    publish_through_an_outage(asked[0], primary, orders, "published")


def test_django_minimal():
    """One command: brokers, web process, worker and beat; an outage; and what ``paired_status`` says of it."""
    done = subprocess.run(
        [sys.executable, "outage.py"],
        cwd=DJANGO,
        capture_output=True,
        text=True,
        timeout=900,
        env=os.environ | {"NO_COLOR": "1"},
    )
    assert done.returncode == 0, done.stdout + done.stderr
    before, during, after = done.stdout.split("manage.py paired_status")
    assert "orders accepted: 4, cards refused: 1" in before
    assert "orders accepted: 20, cards refused: 5" in before
    assert "The primary cannot be used." in during
    [waiting] = re.findall(r"^(\d+) messages waiting for a syphon", during, re.M)
    assert int(waiting) >= 40  # two of each order; and what beat sent
    assert '"diverting": true' in during
    assert "Nothing waits in the backlog." in after
    assert "All 28 orders were processed" in after


@pytest.mark.parametrize("broker_kind", ["redis"])
def test_what_a_transaction_asks_for_is_sent_once_when_it_is_committed_and_never_else(
    primary, secondary, environment, asked
):
    asked.append(Asked(POST, DJANGO, environment | {"DATABASE_FILE": ":memory:"}))
    primary.kill()
    assert asked[0].handle(0, 1) == [402]
    assert secondary.backlog() == 0
    assert asked[0].handle(1, 2) == [201]
    assert secondary.backlog() == 2  # delay_on_commit(), and on_commit() with a delay()
    assert asked[0].handle(2, 6) == [402, 201, 402, 201]
    assert secondary.backlog() == 6
    assert asked[0].exit() == 0


@pytest.mark.parametrize("broker_kind", ["redis"])
def test_fastapi_producer(worker_factory, primary, environment, orders, asked):
    start_worker(worker_factory, "shop", FASTAPI, environment)
    asked.append(Asked(POST_TO_FASTAPI, FASTAPI, environment))
    publish_through_an_outage(asked[0], primary, orders, 202)


@pytest.mark.parametrize("broker_kind", ["redis"])
def test_other_requests_go_on_while_one_waits_for_a_frozen_primary(primary, environment, asked):
    primary.freeze()
    asked.append(Asked(ASK_MEANWHILE, FASTAPI, environment | {"SEND_TIMEOUT": "8"}))
    try:
        [(status, turns)] = asked[0].handle(1, 2)
    finally:
        primary.thaw()
    assert status == 202
    assert turns > 3


@pytest.mark.parametrize(
    "identity", ["DefaultAzureCredential", "ManagedIdentityCredential:11111111-2222-3333-4444-555555555555"]
)
def test_servicebus_identity(worker_factory, identity, orders, asked, tmp_path):
    with Emulator(process=True, data=tmp_path / "primary") as primary, Emulator(process=True) as secondary:
        environment = {
            "PRIMARY": primary.host,
            "SECONDARY": secondary.host,
            "IDENTITY": identity,
            "ORDERS_FILE": str(orders),
        }
        start_worker(worker_factory, "shop", IDENTITY, environment, STUB)
        path = os.pathsep.join(map(str, [ROOT, STUB]))
        asked.append(Asked(PUBLISH, IDENTITY, environment | {"PYTHONPATH": path}))
        publish_through_an_outage(asked[0], primary, orders, "published")


def test_django_checks_pass():
    done = subprocess.run(
        [sys.executable, "manage.py", "check", "--fail-level", "WARNING"],
        cwd=DJANGO,
        capture_output=True,
        text=True,
        timeout=60,
    )
    assert done.returncode == 0, done.stderr


def test_publish_script(environment, primary):
    """``python publish.py`` of the Celery example, with the primary dead from the start."""
    primary.kill()
    done = subprocess.run(
        [sys.executable, "publish.py", "3", "0"],
        cwd=CELERY,
        env=os.environ | environment,
        capture_output=True,
        text=True,
        timeout=60,
    )
    assert done.returncode == 0, done.stderr
    assert done.stdout.count("published in") == 3


def test_the_two_brokers_may_be_of_different_kinds(worker_factory, broker_pool, broker_kind, orders, asked):
    other_kind = "redis" if broker_kind == "amqp" else "amqp"
    primary, _ = broker_pool.pair(broker_kind)
    _, secondary = broker_pool.pair(other_kind)
    environment = {"PRIMARY_URL": primary.url, "SECONDARY_URL": secondary.url, "ORDERS_FILE": str(orders)}
    start_worker(worker_factory, "shop", CELERY, environment)
    asked.append(Asked(PUBLISH, CELERY, environment))
    publish_through_an_outage(asked[0], primary, orders, "published")
