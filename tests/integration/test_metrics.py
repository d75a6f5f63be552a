"""A prefork worker and a web process through an outage: what is scraped adds up, and is what really happened."""

from __future__ import annotations

import subprocess
import sys
import time
import urllib.request
from collections import Counter
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from prometheus_client.parser import text_string_to_metric_families

from kombu_paired.testing import HOST, free_port
from tests.support.ledger import Ledger
from tests.support.nodes import ROOT
from tests.support.shop import shop_environment
from tests.support.traffic import wait_for

pytestmark = pytest.mark.parametrize("broker_kind", ["redis"], indirect=True)

A_WEB_PROCESS = """
import sys
from tests.support.shop import app
for line in sys.stdin:
    call, first, last = line.split()
    for number in range(int(first), int(last)):
        if call == "expire":
            with app.producer_pool.acquire() as producer:
                producer.publish("x", exchange="", routing_key="celery", expiration=0.001)
        else:
            getattr(app, call).delay(number)
    print("done", flush=True)
"""


class Web:
    """A process that publishes when it is told to."""

    def __init__(self, environment: dict[str, str]) -> None:
        command = [sys.executable, "-c", A_WEB_PROCESS]
        pipe = subprocess.PIPE
        self.process = subprocess.Popen(command, env=environment, stdin=pipe, stdout=pipe, text=True)

    def __call__(self, call: str, first: int, last: int) -> None:
        assert self.process.stdin is not None
        assert self.process.stdout is not None
        self.process.stdin.write(f"{call} {first} {last}\n")
        self.process.stdin.flush()
        assert self.process.stdout.readline() == "done\n"


class Scrape(Counter[str]):
    """What an endpoint shows, over all labels."""

    def __init__(self, port: int) -> None:
        super().__init__()
        with urllib.request.urlopen(f"http://{HOST}:{port}/metrics", timeout=30) as answer:
            text = answer.read().decode()
        for family in text_string_to_metric_families(text):
            for sample in family.samples:
                self[sample.name.removeprefix("kombu_paired_")] += sample.value  # type: ignore[assignment]


@pytest.fixture
def environment(tmp_path: Path, primary: Any, options: dict[str, Any], ledger: Ledger) -> dict[str, str]:
    (tmp_path / "metrics").mkdir()
    options["failover_interval"] = 0
    return {
        **shop_environment(f"paired+{primary.url}", options, ledger=ledger),
        "SHOP_METRICS_PORT": str(free_port()),
        "SHOP_LIVENESS": str(tmp_path / "%n.alive"),
        "PROMETHEUS_MULTIPROC_DIR": str(tmp_path / "metrics"),
        "PYTHONPATH": str(ROOT),
    }


@pytest.fixture
def web(environment: dict[str, str]) -> Iterator[Web]:
    made = Web(environment)
    yield made
    made.process.kill()
    made.process.wait()


def test_what_is_scraped_adds_up(primary, secondary, environment, web, start_worker, ledger, tmp_path):
    port = int(environment["SHOP_METRICS_PORT"])
    worker = start_worker(environment, wait=60)
    web("record", 0, 40)
    web("spawn", 40, 50)  # ten tasks in a process of the pool publish another one each
    ledger.wait_for(50, timeout=60)
    wait_for(lambda: Scrape(port)["messages_sent_total"] == 60, 30, lambda: str(Scrape(port)))

    primary.kill()
    web("record", 50, 150)
    web("expire", 0, 1)
    wait_for(lambda: Scrape(port)["messages_diverted_total"] == 101, 30, lambda: str(Scrape(port)))
    wait_for(lambda: Scrape(port)["backlog_messages"] == 101, 30, lambda: str(Scrape(port)))
    found = Scrape(port)
    assert (found["messages_sent_total"], found["messages_syphoned_total"]) == (60, 0)
    assert found["failovers_total"] == 1
    assert found["entity_state"] == 2
    worker.wait_for_log("is away")
    alive, now = tmp_path / f"{worker.container.name}.alive", time.time()
    wait_for(lambda: alive.stat().st_mtime > now, 30, "a worker that waits for its primary does not look alive")

    primary.restart()
    ledger.wait_for(150, timeout=60)
    wait_for(lambda: Scrape(port)["messages_syphoned_total"] == 100, 30, lambda: str(Scrape(port)))
    wait_for(lambda: Scrape(port)["entity_state"] == 0, 30, lambda: str(Scrape(port)))
    wait_for(lambda: Scrape(port)["dead_letters"] == 1, 30, lambda: str(Scrape(port)))  # the last look was before
    found = Scrape(port)
    assert found["messages_sent_total"] + found["messages_diverted_total"] == 161
    assert (found["backlog_messages"], found["messages_dead_lettered_total"]) == (0, 1)
    assert found["messages_refused_total"] == 0
    assert found["send_seconds_count"] == 161
    assert found["backlog_wait_seconds_count"] == 100
    assert found["syphons"] == 1
    assert ledger.duplicates() == {}
    now = time.time()
    wait_for(lambda: alive.stat().st_mtime > now, 30, "a worker that consumes again does not look alive")
