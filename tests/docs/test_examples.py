"""The examples run: what is published while the primary is dead runs when it is back."""

from __future__ import annotations

import ast
import os
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.conftest import WorkerFactory
from tests.docs.reading import ROOT
from tests.support.nodes import LocalTestBroker

pytestmark = pytest.mark.integration

CELERY = ROOT / "examples" / "celery_minimal"
DJANGO = ROOT / "examples" / "django_minimal"

PUBLISH = """
from shop import send_receipt

def handle(order):
    send_receipt.delay(order)
    return "published"
"""

#: The web side alone: the project's settings, its view, and no worker.
POST = """
import os
import django
from django.test import Client

os.environ["DJANGO_SETTINGS_MODULE"] = "proj.settings"
django.setup()
client = Client()

def handle(order):
    return client.post(f"/orders/{order}/").status_code
"""

#: The settings file alone, with a Celery application that knows nothing of this package.
SEND_BY_SETTINGS = """
import os
from celery import Celery

os.environ["DJANGO_SETTINGS_MODULE"] = "settings"
app = Celery("web")
app.config_from_object("django.conf:settings", namespace="CELERY")

def handle(order):
    app.send_task("orders.tasks.send_receipt", (order,))
    return "published"
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
        return self.process.wait(10)


@pytest.fixture
def orders(tmp_path: Path) -> Path:
    return tmp_path / "orders.txt"


@pytest.fixture
def environment(primary: LocalTestBroker, secondary: LocalTestBroker, orders: Path) -> dict[str, str]:
    """The variables that both examples are configured by."""
    return {"PRIMARY_URL": primary.url, "SECONDARY_URL": secondary.url, "ORDERS_FILE": str(orders)}


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


def start_worker(worker_factory: WorkerFactory, module: str, folder: Path, environment: dict[str, str]) -> None:
    env = environment | {"PYTHONPATH": os.pathsep.join([str(folder), str(ROOT)])}
    worker_factory("", module=module, env=env)  # the URL is the example's own business


def publish_through_an_outage(client: Asked, primary: LocalTestBroker, orders: Path, answer: object) -> None:
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


def test_django_minimal(worker_factory, primary, environment, orders, asked):
    start_worker(worker_factory, "proj", DJANGO, environment)
    asked.append(Asked(POST, DJANGO, environment))
    publish_through_an_outage(asked[0], primary, orders, 202)


def test_django_settings_alone_are_enough_for_the_web_side(
    worker_factory, primary, environment, orders, asked, tmp_path
):
    settings = (DJANGO / "proj" / "settings.py").read_text()
    assert "kombu_paired" not in settings
    start_worker(worker_factory, "proj", DJANGO, environment)
    web = tmp_path / "web"  # a folder in which there is nothing else
    web.mkdir()
    (web / "settings.py").write_text(settings)
    asked.append(Asked(SEND_BY_SETTINGS, web, environment))
    publish_through_an_outage(asked[0], primary, orders, "published")


def test_django_checks_pass(environment):
    done = subprocess.run(
        [sys.executable, "manage.py", "check"],
        cwd=DJANGO,
        env=os.environ | environment,
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
