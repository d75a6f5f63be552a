"""What a worker lives through: its syphon, its consumer, its log and its end, on real brokers."""

from __future__ import annotations

import os
import threading
import time

import pytest

from kombu_paired.message import BACKLOG_MARK
from tests.support.nodes import ROOT
from tests.support.side_by_side import side_by_side
from tests.support.traffic import Traffic, assert_backlog_empties, wait_for

RECORD = r"^\[\d{4}-"  # the first line of a log record
OUTAGE = 10.0


def test_a_worker_killed_in_mid_syphon_loses_nothing(
    primary, secondary, options, paired_shop, paired_worker, ledger, tmp_path
):
    backlog_queues = [f"{options['primary_name']}{BACKLOG_MARK}{i}" for i in range(options["backlog_queue_count"])]
    (tmp_path / "short_locks.py").write_text(secondary.shorten_locks(backlog_queues))
    arguments = {
        "conf": {"imports": ["short_locks"]},
        "env": {"PYTHONPATH": os.pathsep.join([str(ROOT), str(tmp_path)])},
    }
    shop, traffic = paired_shop(), Traffic()
    primary.kill()
    shares = [range(start, start + 500) for start in range(0, 3000, 500)]
    producers = [threading.Thread(target=traffic.publish, args=(shop.record.delay, share)) for share in shares]
    for producer in producers:
        producer.start()
    for producer in producers:
        producer.join()
    assert (traffic.errors, secondary.backlog()) == ([], 3000)
    primary.restart()

    # It syphons, and consumes something else.
    victim = paired_worker(queue="other", wait=False, **arguments)
    wait_for(lambda: primary.depths().get("celery", 0) > 100, 30, victim.logs)
    victim.freeze()
    moved, left = primary.depths()["celery"], secondary.backlog()
    victim.container.kill()  # the node itself kills nothing that is frozen
    assert not victim.alive()
    assert moved > 100
    assert left > 100

    paired_worker(**arguments)
    ledger.wait_for(3000, timeout=120)
    assert ledger.missing(range(3000)) == set()
    assert_backlog_empties(secondary)


def test_a_plain_worker_outlives_its_primary_quietly_and_consumes_again(primary, paired_shop, paired_worker, ledger):
    worker = paired_worker(setup=False)
    shop, traffic = paired_shop(), Traffic()
    traffic.publish(shop.record.delay, range(10))
    ledger.wait_for(10, timeout=60)
    before = worker.count_in_log(RECORD)

    primary.kill()
    time.sleep(OUTAGE)  # the outage itself
    said = worker.count_in_log(RECORD) - before
    worker.wait_for_log("is away")
    primary.restart()
    traffic.publish(shop.record.delay, range(10, 60))

    ledger.wait_for(60, timeout=60)
    assert worker.alive()
    assert traffic.errors == []
    assert 1 <= said <= 10  # and not one line for each of some dozen tries


@pytest.mark.parametrize("pool", ["prefork", "threads"])
def test_workers_empty_a_full_primary(primary, paired_shop, paired_worker, ledger, pool):
    """Those that were there before, and those that start only then."""
    shop = paired_shop()
    early = paired_worker(pool=pool)
    for number in range(60):
        shop.slow_record.delay(number, 0.2)
    ledger.wait_for(5, timeout=60)
    primary.fill()
    left = 60 - len(ledger.counts())
    late = paired_worker(pool=pool)

    ledger.wait_for(60, timeout=60)
    assert left > 20
    assert early.alive()
    assert late.alive()


def test_a_plain_worker_waits_for_a_primary_that_is_down_from_the_start(primary, paired_shop, paired_worker, ledger):
    primary.kill()
    worker = paired_worker(setup=False, wait=False)
    worker.wait_for_log("is away")
    before = worker.count_in_log(RECORD)
    time.sleep(OUTAGE / 2)
    said = worker.count_in_log(RECORD) - before

    primary.restart()
    worker.ready()
    paired_shop().record.delay(1)

    ledger.wait_for(1, timeout=60)
    assert said <= 1


@pytest.mark.parametrize("state", ["healthy", "killed", "frozen", "never_there"])
def test_a_worker_stops_promptly(primary, paired_shop, paired_worker, ledger, state):
    """One that syphons, and a plain one."""
    if state == "never_there":
        primary.kill()
    workers = [paired_worker(setup=setup, wait=False) for setup in (True, False)]
    if state != "never_there":
        for worker in workers:
            worker.ready()
        shop = paired_shop()
        shop.record.delay(1)
        ledger.wait_for(1, timeout=60)
        # All their consumers are there.
        wait_for(lambda: len(shop.control.ping(timeout=5, limit=2)) == 2, 30, lambda: "\n".join(map(str, workers)))
    if state == "killed":
        primary.kill()
    if state in ("killed", "never_there"):
        for worker in workers:
            worker.wait_for_log("is away")
        time.sleep(1)  # they are in the middle of their waiting
    if state == "frozen":
        primary.freeze()

    # Celery's own part is some 3 s on a quiet machine. A silent primary is waited for in several places, each bounded.
    limit = 22 if state == "frozen" else 15
    for code, seconds in side_by_side(*(worker.stop for worker in workers)):
        assert code == 0
        assert seconds < limit


def test_remote_control_works_after_an_outage_and_shows_no_password(
    primary, secondary, options, paired_shop, paired_worker, ledger
):
    for node in (primary, secondary):
        node.set_password(f"s3cret-{node.port}")
    options["secondary"] = secondary.url
    worker = paired_worker()
    shop = paired_shop()
    assert shop.control.ping(timeout=20, limit=1) == [{worker.hostname(): {"ok": "pong"}}]

    primary.kill()
    shop.record.delay(1)
    primary.restart()
    ledger.wait_for(1, timeout=60)

    wait_for(lambda: shop.control.ping(timeout=5, limit=1) == [{worker.hostname(): {"ok": "pong"}}], 30, worker.logs)
    stats = shop.control.inspect(timeout=20, limit=1).stats()[worker.hostname()]
    assert stats["broker"]["transport_options"]["primary_name"] == options["primary_name"]
    assert stats["syphon"] == {"running": True}
    assert "s3cret" not in str(stats)
    assert "s3cret" not in worker.logs()
