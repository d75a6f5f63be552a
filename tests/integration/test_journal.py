"""The journals of real processes, held against what really ran."""

from __future__ import annotations

import gzip
import json
import os
import signal
import subprocess
import sys
import time
from collections import Counter, defaultdict
from pathlib import Path
from typing import Any

import pytest

from kombu_paired import journal
from kombu_paired.events import EventKind
from tests.support.nodes import ROOT
from tests.support.shop import shop_environment
from tests.support.traffic import heard, produce_in_a_new_process, publish_through_an_outage, wait_for


@pytest.fixture
def folder(tmp_path: Path, options: dict[str, Any]) -> Path:
    """Where everybody in this test writes a journal."""
    options["journal"] = str(tmp_path / "journal")
    return tmp_path / "journal"


def read(folder: Path) -> list[dict[str, Any]]:
    """All whole lines in the folder."""
    found = []
    for path in sorted(folder.iterdir()):
        text = gzip.decompress(path.read_bytes()) if path.suffix == ".gz" else path.read_bytes()
        found += [json.loads(line) for line in text.splitlines(keepends=True) if line.endswith(b"\n")]
    return found


def of(lines: list[dict[str, Any]], *events: str) -> list[dict[str, Any]]:
    return [line for line in lines if line["event"] in events]


def ids(lines: list[dict[str, Any]]) -> Counter[str]:
    return Counter(line["message_id"] for line in lines)


def assert_no_holes(lines: list[dict[str, Any]]) -> None:
    numbers: dict[int, list[int]] = defaultdict(list)
    for line in lines:
        numbers[line["pid"]].append(line["seq"])
    for pid, found in numbers.items():
        assert sorted(found) == list(range(1, len(found) + 1)), f"process {pid}"


# The pool does not know which broker there is.
@pytest.mark.parametrize(
    ("broker_kind", "pool"),
    [("amqp", "prefork"), ("amqp", "threads"), ("redis", "prefork"), ("azureservicebus", "prefork")],
    indirect=["broker_kind"],
)
def test_the_lines_of_an_outage_add_up_to_what_ran(
    primary, secondary, paired_shop, paired_worker, ledger, folder, pool
):
    shop, worker = paired_shop(), paired_worker(pool=pool)
    published, traffic = publish_through_an_outage(shop, primary, secondary, ledger)

    def send(n: int) -> None:
        published[shop.record.delay(n).id] = n

    traffic.publish(send, range(600, 650), pace=0.05)
    ledger.wait_for(650, timeout=60)
    ledger.wait_until_quiet(0.5, timeout=10)
    code, _ = worker.stop()
    journal.close_all()

    lines = read(folder)
    assert (code, traffic.errors) == (0, [])
    assert_no_holes(lines)
    sent, diverted, syphoned = (of(lines, kind) for kind in ("sent", "diverted", "syphoned"))
    assert ids(sent) + ids(diverted) == dict.fromkeys(published, 1)
    assert len(diverted) >= 400
    assert ids(syphoned) == ids(diverted)
    assert set(ids(of(lines, "received_from_backlog"))) == set(ids(diverted))
    assert ids(of(lines, "consumed")) == Counter(task_id for _, _, task_id in ledger.entries())

    tried = of(lines, "send_failed")
    assert {line["message_id"] for line in tried} <= set(ids(diverted))
    assert {line["failure"] for line in tried} <= {"unreachable", "timeout"}
    assert [
        line["event"] for line in of(lines, "suspect", "failed_over", "restored") if line["entity"] == "celery"
    ] == [
        "suspect",
        "failed_over",
        "restored",
    ]
    assert of(lines, "closed")
    assert len(of(lines, "syphon_started")) == len(of(lines, "syphon_stopped")) == 1
    assert {line["entity"] for line in [*sent, *diverted, *syphoned, *of(lines, "consumed")]} == {"celery"}
    assert {line["route"] for line in sent} == {"primary"}
    assert {line["route"] for line in syphoned} == {line["route"] for line in diverted}
    assert all(line["first_attempt"] <= line["time"] for line in [*sent, *diverted, *syphoned])
    assert all(line["bytes"] > 100 for line in [*sent, *diverted, *syphoned])
    assert [path.name for path in folder.iterdir() if not path.name.endswith(".jsonl.gz")] == []
    assert "guest:guest" not in json.dumps(lines)


def test_a_killed_producer_leaves_lines_that_can_be_read(primary, options, ledger, folder):
    program = "import itertools\nfor n in itertools.count(): app.record.delay(n)"
    environment = shop_environment(f"paired+{primary.url}", options, ledger=ledger, setup=False)
    producer = subprocess.Popen(
        [sys.executable, "-c", f"from tests.support.shop import app\n{program}"],
        env=os.environ | environment | {"PYTHONPATH": str(ROOT)},
    )
    try:
        wait_for(lambda: folder.exists() and len(read(folder)) > 500, 30, "nothing is written")
    finally:
        os.kill(producer.pid, signal.SIGKILL)
        producer.wait()

    [path] = folder.iterdir()
    assert path.name.endswith(".jsonl.part")
    assert f"-{producer.pid}-" in path.name
    lines = read(folder)
    assert_no_holes(lines)
    whole = path.read_bytes().count(b"\n")
    assert len(of(lines, "sent")) == len(lines) == whole > 500


def test_forked_children_write_files_of_their_own(primary, options, ledger, folder):
    program = """
import os, kombu_paired
def close():
    with app.connection_for_write() as connection:
        kombu_paired.pairing_of(connection).close()
app.record.delay(0)
children = []
for first in (100, 200):
    child = os.fork()
    if child == 0:
        for n in range(first, first + 20): app.record.delay(n)
        close()
        os._exit(0)
    children.append(child)
app.record.delay(1)
print(*[child for child in children if os.waitpid(child, 0)[1] == 0], os.getpid())
"""
    environment = shop_environment(f"paired+{primary.url}", options, ledger=ledger, setup=False)
    done = produce_in_a_new_process(environment, program)
    one, other, parent = map(int, done.stdout.split())

    lines = read(folder)
    assert_no_holes(lines)
    assert Counter(line["pid"] for line in of(lines, "sent")) == {one: 20, other: 20, parent: 2}
    assert len(list(folder.iterdir())) == 3
    assert len(ids(of(lines, "sent"))) == 42


def test_tasks_that_fail_are_consumed_and_those_that_come_again_are_not_yet(
    primary, paired_shop, worker_factory, options, ledger, folder, tmp_path
):
    (tmp_path / "moody.py").write_text(
        "from tests.support.shop import app\n"
        "@app.task(name='shop.fail', shared=False)\n"
        "def fail(): raise KeyError('no such order')\n"
        "@app.task(name='shop.again', bind=True, shared=False)\n"
        "def again(self):\n"
        "    if self.request.retries < 2: raise self.retry(countdown=0)\n"
    )
    shop = paired_shop()
    worker = worker_factory(f"paired+{primary.url}", options, module="moody", args=("--no-syphon",))
    failed, came_again = shop.send_task("shop.fail"), shop.send_task("shop.again")
    worker.container.wait_for(lambda: worker.count_in_log(r"again.* succeeded"), "it does not end", 20)
    worker.stop()
    journal.close_all()

    lines = read(folder)
    consumed = {line["message_id"]: line.get("detail") for line in of(lines, "consumed")}
    assert consumed == {failed.id: "FAILURE", came_again.id: None}
    assert ids(of(lines, "sent"))[came_again.id] == 3  # by this process, and twice by the worker's


@pytest.mark.parametrize("level", ["messages", "transitions"])
def test_at_level_transitions_no_line_is_about_a_message(primary, paired_shop, options, folder, level):
    options["journal_level"] = level
    shop = paired_shop()
    shop.record.delay(0)
    primary.kill()
    with heard(EventKind.PING) as pings:
        deadline = time.monotonic() + 20
        while not pings and time.monotonic() < deadline:
            shop.record.delay(1)
            time.sleep(0.1)
    journal.close_all()

    events = {line["event"] for line in read(folder)}
    assert events >= {"suspect", "failed_over", "ping"}
    about_messages = {"sent", "send_failed", "diverted"}
    assert events & about_messages == (about_messages if level == "messages" else set())
