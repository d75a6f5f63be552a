"""What a call had returned for is there, whoever is killed in the midst of what; and many at once lose nothing."""

from __future__ import annotations

import multiprocessing
import os
import random
import signal
import subprocess
import sys
import time
from collections import Counter
from pathlib import Path

import pytest

from tests.spool.work import Told, namespace_of
from tests.support.ledger import Ledger
from tests.support.shop import make_app, shop_environment

#: More by hand.
KILLS = int(os.environ.get("SPOOL_KILLS", "15"))
EACH = int(os.environ.get("SPOOL_MESSAGES", "8"))
PRIMARY = "a-shop"


def send_until_killed(environment: dict[str, str], acks: Path) -> None:
    """Call ``delay()``, and tell when it has returned."""
    told = Told(acks)
    record = make_app(environment).tasks["shop.record"]
    for n in range(1_000_000):
        told.tell("+", record.delay(n).id)


@pytest.fixture
def environment(tmp_path):
    options = {
        "secondary": f"spool://{tmp_path}/spool",
        "primary_name": PRIMARY,
        "backlog_queue_count": 2,
        "failover_interval": 0,
    }
    nobody = "paired+redis://127.0.0.1:1/0"  # no broker listens at this port
    return shop_environment(nobody, options, ledger=Ledger(tmp_path / "ledger"))


def test_what_delay_had_returned_for_survives_that_its_process_is_killed(tmp_path, environment):
    chance, acks = random.Random(7), tmp_path / "acks"
    processes = multiprocessing.get_context("fork")
    told_before = 0
    for kill in range(KILLS):
        process = processes.Process(target=send_until_killed, args=(environment, acks))
        process.start()
        deadline = time.monotonic() + 60
        while kill % 4 and lines(acks) <= told_before:  # every fourth is killed while it begins
            assert process.is_alive()
            assert time.monotonic() < deadline
            time.sleep(0.002)
        time.sleep(chance.expovariate(50))
        assert process.pid is not None
        os.kill(process.pid, signal.SIGKILL)
        process.join()
        told_before = lines(acks)
    owed = Counter(line[1:] for line in acks.read_text().split())
    there = tasks_in(tmp_path / "spool")
    assert len(owed) > KILLS
    assert owed - there == Counter()
    assert max(there.values()) == 1
    assert sum(there.values()) - owed.total() <= KILLS, "more than were under way"


def lines(file: Path) -> int:
    return file.read_bytes().count(b"\n") if file.exists() else 0


def tasks_in(spool: Path) -> Counter[str]:
    namespace = namespace_of(spool)
    receiver = namespace.receiver([f"{PRIMARY}/x-servicebus-transfer/{n}" for n in range(2)], 1000, 60)
    found: Counter[str] = Counter()
    while batch := receiver.receive(1000, 0.01):
        found.update(each.message.headers["id"] for each in batch)
    receiver.close()
    namespace.close()
    return found


def test_many_processes_of_many_threads_send_while_others_drain(tmp_path):
    acks, total = tmp_path / "acks", 8 * 8 * EACH

    def start(*what: str) -> subprocess.Popen[str]:
        command = [sys.executable, "-m", "tests.spool.work", str(tmp_path / "spool"), str(acks), *what]
        return subprocess.Popen(command, stderr=subprocess.PIPE, text=True)

    running = [start("send", f"p{n}", str(EACH), "8", "600") for n in range(8)]
    running.append(start("drain", "d", str(total)))
    said = [each.communicate(timeout=300)[1] for each in running]
    assert [each.returncode for each in running] == [0] * len(running), "\n".join(said)
    assert not any("locked" in text for text in said)
    told = acks.read_text().split()
    sent = Counter(line[1:] for line in told if line[0] == "+")
    drained = Counter(line[1:] for line in told if line[0] == "-")
    assert sent.total() == total
    assert drained == sent, "each once"
