"""Workers run the backlog while the primary is away, and go home when it is back: on real brokers, really killed."""

from __future__ import annotations

import gzip
import json
import time
from pathlib import Path
from typing import Any

import pytest
from click.testing import CliRunner
from kombu import Queue

from kombu_paired.brokers.kombu import new_connection
from kombu_paired.cli import main
from kombu_paired.stand_in import stand_in_name
from tests.support.traffic import Traffic, assert_backlog_empties, wait_for

STANDS_IN = "this worker stands in"
IS_BACK = "the primary is back, and this worker"


@pytest.fixture
def options(options: dict[str, Any], secondary: Any) -> dict[str, Any]:
    """A worker stands in after a second."""
    return {**options, "stand_in_after": 1, "secondary_options": dict(secondary.gives_back_soon)}


def stand_in_is_empty(secondary: Any, options: dict[str, Any], queue: str = "celery") -> bool:
    return not secondary.depth(stand_in_name(options["primary_name"], queue))


# The pool does not know which broker there is.
@pytest.mark.parametrize(
    ("broker_kind", "pool"),
    [("amqp", "prefork"), ("amqp", "threads"), ("redis", "prefork"), ("azureservicebus", "prefork")],
    indirect=["broker_kind"],
)
def test_a_worker_works_on_while_the_primary_is_away_and_comes_home(
    primary, secondary, options, paired_shop, paired_worker, ledger, pool, tmp_path
):
    options["journal"] = str(tmp_path / "journal")
    worker = paired_worker(pool=pool)
    shop, traffic = paired_shop(), Traffic()
    traffic.publish(shop.record.delay, range(10))
    ledger.wait_for(10, timeout=30)

    primary.kill()
    traffic.publish(shop.record.delay, range(10, 60))
    traffic.publish(shop.spawn.delay, range(60, 70))
    shop.retry.delay(70, 2)
    shop.record.apply_async((71,), countdown=2)
    ledger.wait_for(72, timeout=30)
    assert wait_for(lambda: ledger.counts()[70] == 3, 30, worker.logs) is None
    assert primary.broker.state == "down", "all of it ran meanwhile"
    assert shop.control.ping(timeout=20, limit=1), "remote control goes over the secondary"

    primary.restart()
    worker.wait_for_log(IS_BACK, timeout=30)
    traffic.publish(shop.record.delay, range(100, 150))
    ledger.wait_for(72 + 50, timeout=30)
    assert traffic.errors == []
    assert worker.alive()
    assert_backlog_empties(secondary)
    wait_for(lambda: stand_in_is_empty(secondary, options), 30, worker.logs)
    worker.stop()
    assert_it_is_written_down(tmp_path / "journal")


def assert_it_is_written_down(folder: Path) -> None:
    """The worker's journal tells the tasks of the outage, and those that they sent, from the others."""
    lines = [json.loads(line) for file in folder.iterdir() for line in lines_of(file)]
    ran = [line for line in lines if line["event"] == "consumed"]
    ran_there = {line["message_id"] for line in ran if line.get("route") == "stand-in"}
    ran_at_home = {line["message_id"] for line in ran if "route" not in line}
    assert len(ran_there) >= 60
    assert len(ran_at_home) >= 50
    # What is handed out in the moment in which the primary returns may run at home.
    assert ran_there <= {line["message_id"] for line in lines if line["event"] == "handed_out"}
    assert {line["event"] for line in lines} >= {"standing_in", "came_home"}


def lines_of(file: Path) -> list[bytes]:
    content = file.read_bytes()
    lines = (gzip.decompress(content) if file.suffix == ".gz" else content).splitlines(keepends=True)
    return [line for line in lines if line.endswith(b"\n")]  # this process still writes its own


def test_what_runs_when_the_primary_is_back_is_run_once(
    primary, secondary, options, paired_shop, paired_worker, ledger
):
    worker = paired_worker(conf={"task_acks_late": True})
    shop = paired_shop()
    primary.kill()
    worker.wait_for_log(STANDS_IN, timeout=30)
    for number in range(8):  # all that a worker holds; five seconds for each two, while the primary starts
        shop.slow_record.delay(number, 5)
    wait_for(lambda: worker.count_in_log("slow_record.* received") >= 3, 30, worker.logs)

    primary.restart()
    worker.wait_for_log(IS_BACK, timeout=30)
    assert len(ledger.counts()) < 6, "some run, and others were fetched"

    ledger.wait_for(8, timeout=60)
    wait_for(lambda: stand_in_is_empty(secondary, options), 30, worker.logs)
    counts = ledger.wait_until_quiet(4, timeout=30)
    assert counts == dict.fromkeys(range(8), 1)


# On Service Bus it takes the minute that a lock lasts.
@pytest.mark.parametrize("broker_kind", ["amqp", "redis"], indirect=True)
def test_what_a_worker_held_that_was_killed_while_it_stood_in_comes_home(
    primary, secondary, options, paired_shop, paired_worker, ledger
):
    victim = paired_worker(conf={"task_acks_late": True})
    shop = paired_shop()
    primary.kill()
    victim.wait_for_log(STANDS_IN, timeout=30)
    for number in range(20):
        shop.slow_record.delay(number, 0.5)
    ledger.wait_for(2, timeout=30)
    victim.container.kill()
    primary.restart()

    other = paired_worker(conf={"task_acks_late": True})
    ledger.wait_for(20, timeout=60)
    assert other.alive()
    wait_for(lambda: stand_in_is_empty(secondary, options), 30, other.logs)


@pytest.mark.parametrize("broker_kind", ["amqp"])
def test_syphon_once_brings_home_what_a_killed_worker_left(
    primary, secondary, options, paired_shop, paired_worker, ledger
):
    victim = paired_worker(conf={"task_acks_late": True})
    shop = paired_shop()
    primary.kill()
    victim.wait_for_log(STANDS_IN, timeout=30)
    for number in range(20):
        shop.slow_record.delay(number, 1)
    ledger.wait_for(1, timeout=30)
    victim.container.kill()
    ran = len(ledger.counts())
    primary.restart()

    stand_in = stand_in_name(options["primary_name"], "celery")
    pair = ["--primary", primary.url, "--secondary", secondary.url]
    pair += [f"--option={key}={json.dumps(value)}" for key, value in options.items() if key != "secondary"]
    status = CliRunner().invoke(main, ["status", "--json", *pair])
    assert [each["queue"] for each in json.loads(status.stdout)["stand_in"]] == [stand_in]
    moved = CliRunner().invoke(main, ["syphon", "--once", *pair])
    assert moved.exit_code == 0, moved.output
    assert not secondary.depth(stand_in)
    assert secondary.backlog() == 0
    assert primary.depth("celery") >= 20 - ran


@pytest.mark.parametrize("broker_kind", ["amqp", "azureservicebus"], indirect=True)
def test_a_queue_of_the_same_name_on_the_secondary_is_not_touched(
    primary, secondary, options, paired_shop, paired_worker, ledger
):
    with new_connection(secondary.url) as connection:
        Queue("celery")(connection.default_channel).declare()
    secondary.put("celery", *(("not ours", {}) for _ in range(5)))
    worker = paired_worker()
    primary.kill()
    worker.wait_for_log(STANDS_IN, timeout=30)
    shop, traffic = paired_shop(), Traffic()
    traffic.publish(shop.record.delay, range(20))
    ledger.wait_for(20, timeout=30)
    primary.restart()
    worker.wait_for_log(IS_BACK, timeout=30)
    assert secondary.depth("celery") == 5
    assert set(ledger.counts()) == set(range(20))


# What is silent is found out by the pairing's deadlines, which each kind of broker is held to elsewhere.
@pytest.mark.parametrize("broker_kind", ["redis"], indirect=True)
def test_a_frozen_primary_is_found_out(primary, paired_shop, paired_worker, ledger):
    worker = paired_worker()
    shop, traffic = paired_shop(), Traffic()
    traffic.publish(shop.record.delay, range(5))
    ledger.wait_for(5, timeout=30)
    primary.freeze()
    traffic.publish(shop.record.delay, range(5, 10))
    ledger.wait_for(10, timeout=40)
    primary.thaw()
    worker.wait_for_log(IS_BACK, timeout=40)
    traffic.publish(shop.record.delay, range(10, 15))
    ledger.wait_for(15, timeout=30)
    assert traffic.errors == []


@pytest.mark.parametrize("broker_kind", ["amqp", "redis"], indirect=True)
def test_a_primary_that_comes_and_goes_loses_nothing(primary, secondary, options, paired_shop, paired_worker, ledger):
    worker = paired_worker()
    shop, traffic = paired_shop(), Traffic()
    for start in range(0, 160, 40):
        traffic.publish(shop.record.delay, range(start, start + 20), pace=0.05)
        primary.kill()
        traffic.publish(shop.record.delay, range(start + 20, start + 40), pace=0.1)
        primary.restart()
    ledger.wait_for(160, timeout=60)
    assert traffic.errors == []
    assert worker.alive()
    assert_backlog_empties(secondary)
    wait_for(lambda: stand_in_is_empty(secondary, options), 30, worker.logs)
    started = time.monotonic()
    shop.record.delay(999)
    ledger.wait_for(161, timeout=30)
    assert time.monotonic() - started < 20


@pytest.mark.parametrize("broker_kind", ["amqp", "redis"], indirect=True)
def test_a_worker_that_is_cut_off_alone_stands_in_and_strands_nothing(
    primary, secondary, options, paired_shop, worker_factory, ledger
):
    """Producers reach the primary, and what they send waits there; what others divert runs meanwhile."""
    worker = worker_factory(f"paired+{primary.proxied_url}", options)
    shop, cut_off = paired_shop(), paired_shop(primary.proxied_url)
    shop.record.delay(0)
    ledger.wait_for(1, timeout=30)
    primary.cut()
    worker.wait_for_log(STANDS_IN, timeout=30)
    for number in range(1, 11):
        shop.record.delay(number)
        cut_off.record.delay(100 + number)
    ledger.wait_for(11, timeout=30)
    assert set(ledger.counts()) == {0, *range(101, 111)}
    primary.heal()
    ledger.wait_for(21, timeout=40)
    assert ledger.wait_until_quiet(2, timeout=30) == dict.fromkeys([*range(11), *range(101, 111)], 1)
    assert_backlog_empties(secondary)
    wait_for(lambda: stand_in_is_empty(secondary, options), 30, worker.logs)
