"""What docs/operations.md says about dead letters: where they are, and how to re-queue them."""

from __future__ import annotations

import re
import subprocess
import sys
import time

import pytest
from kombu import Connection

from kombu_paired import Syphon, pairing_of
from kombu_paired.namespaces.base import BacklogDepth
from kombu_paired.pairing import Pairing
from tests.docs.reading import DOCS, Block, all_blocks

pytestmark = pytest.mark.integration

REQUEUE = [
    block
    for block in all_blocks("python")
    if block.path == DOCS / "operations.md" and "dead_letter_queue" in block.text
]


@pytest.fixture
def requeue(broker_kind) -> Block:
    [block] = [block for block in REQUEUE if block.kind == broker_kind]
    return block


@pytest.fixture
def pairing(primary, secondary, requeue):
    [name] = re.findall(r'backlog_queue = "([^/]+)/', requeue.text)
    options = {"secondary": secondary.url, "primary_name": name, "backlog_queue_count": 1}
    pairing = pairing_of(Connection("paired+" + primary.url, transport_options=options))
    pairing.open()
    yield pairing
    pairing.close()


def depth(pairing: Pairing) -> BacklogDepth:
    [found] = pairing.secondary.backlog_depths(pairing.backlog_queue_names, 5)
    return found


def test_dead_letters_can_be_requeued(pairing, primary, secondary, requeue):
    secondary.put(pairing.backlog_queue_names[0], ("who wrote this?", {}))
    syphon = Syphon(pairing)
    syphon.start()
    deadline = time.monotonic() + 15
    while not depth(pairing).dead_letters and time.monotonic() < deadline:
        time.sleep(0.1)
    syphon.stop()
    found = depth(pairing)
    assert (found.messages, found.dead_letters, found.dead_letter_reason) == (0, 1, "NoPath")

    program = requeue.with_brokers(primary.url, secondary.url)
    subprocess.run([sys.executable, "-c", program], check=True, timeout=30)

    found = depth(pairing)
    assert (found.messages, found.dead_letters) == (1, 0)
