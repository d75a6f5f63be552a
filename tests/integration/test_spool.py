"""One broker, and a spool on the local disk: who brings home what was written there."""

from __future__ import annotations

import base64
import json
import os
import signal
import subprocess
import sys

import pytest

from kombu_paired.testing.processes import wait_until
from tests.support.shop import make_app, shop_environment

on_redis = pytest.mark.parametrize("broker_kind", ["redis"])

#: A web process: it opens its pairing, and sends when it is told how many.
SENDS = """
import os, sys
from tests.support.shop import make_app
shop = make_app(os.environ)
record = shop.tasks["shop.record"]
for line in sys.stdin:
    first, after = map(int, line.split())
    for n in range(first, after):
        record.delay(n)
    print("sent", flush=True)
"""


class Web:
    """A process that only sends."""

    def __init__(self, environment):
        self.process = subprocess.Popen(
            [sys.executable, "-c", SENDS],
            env=os.environ | environment,
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            text=True,
        )

    def send(self, first, after):
        self.process.stdin.write(f"{first} {after}\n")
        self.process.stdin.flush()
        assert self.process.stdout.readline() == "sent\n"

    def end(self):
        self.process.send_signal(signal.SIGCONT)
        self.process.kill()
        self.process.wait()
        self.process.stdin.close()
        self.process.stdout.close()


@pytest.fixture
def options(options, tmp_path):
    return options | {"secondary": f"spool://{tmp_path}/spool"}


@pytest.fixture
def web(primary, options, ledger):
    processes = []

    def start():
        processes.append(Web(shop_environment(f"paired+{primary.url}", options, ledger=ledger)))
        return processes[-1]

    yield start
    for each in processes:
        each.end()


@pytest.fixture
def arrived(primary):
    """The numbers of the tasks that wait on the primary, of which nobody takes any."""
    plain = make_app({"SHOP_BROKER_URL": primary.url})

    def numbers():
        with plain.connection_for_write() as connection:
            texts = connection.default_channel.client.lrange("celery", 0, -1)
        return sorted(json.loads(_decoded(text))[0][0] for text in texts)

    return numbers


def _decoded(text):
    return base64.b64decode(json.loads(text)["body"])


@on_redis
def test_who_has_written_it_brings_it_home(primary, web, arrived):
    shop = web()
    shop.send(0, 5)
    primary.kill()
    shop.send(5, 25)
    primary.restart()
    wait_until(lambda: len(arrived()) >= 25, 60, lambda: f"only {arrived()} came home")
    assert arrived() == list(range(25))


@on_redis
def test_another_process_brings_home_what_one_has_left_that_was_killed(primary, web, arrived):
    first, second = web(), web()
    first.send(0, 1)
    second.send(1, 2)
    primary.kill()
    first.send(2, 22)
    second.send(22, 32)
    first.end()
    primary.restart()
    wait_until(lambda: len(arrived()) >= 32, 60, lambda: f"only {arrived()} came home")
    assert arrived() == list(range(32))


@on_redis
def test_a_worker_of_the_machine_brings_home_what_is_there_when_it_starts(primary, web, paired_worker, ledger):
    shop = web()
    shop.send(0, 1)
    primary.kill()
    shop.send(1, 21)
    shop.end()
    primary.restart()
    paired_worker()
    ledger.wait_for(21, timeout=60)
    assert ledger.counts() == dict.fromkeys(range(21), 1)
