"""A worker on Service Bus runs what it should, once, and when it should: through deploys, and beside a busy queue.

By hand, as many restarts as a queue made by hand would not survive: ``WARM_RESTARTS=30 pytest …``.
"""

from __future__ import annotations

import os
import time
from collections.abc import Iterator
from datetime import datetime, timedelta, timezone

import pytest

from kombu_paired.emulator import Emulator
from kombu_paired.testing.processes import wait_until
from tests.support.servicebus import left_in, url_of
from tests.support.shop import make_app, shop_environment

pytest.importorskip("azure.servicebus")

RESTARTS = int(os.environ.get("WARM_RESTARTS", "3"))
#: Deliveries after which a message is a dead letter: the service's default where there are enough restarts for it.
DELIVERIES = min(10, RESTARTS - 1)
#: Seconds that a restart takes, roughly.
RESTART = 2.0
#: Seconds that a task may be late: Celery's timers, and a slow machine. A lock that had to end would take a minute.
LATE = 15.0


@pytest.fixture
def primary() -> Iterator[Emulator]:
    queues = [f"celery?max_delivery_count={DELIVERIES}", "busy?lock_duration=5", "quiet?lock_duration=5"]
    with Emulator(process=True, queues=queues) as emulator:
        yield emulator


@pytest.fixture
def environment(primary, ledger) -> Iterator[dict[str, str]]:
    with Emulator(process=True) as secondary:
        options = {"secondary": url_of(secondary), "backlog_queue_count": 1}
        yield shop_environment(f"paired+{url_of(primary)}", options, ledger=ledger)


def test_a_task_with_an_eta_outlives_warm_restarts(primary, environment, start_worker, ledger):
    """Each worker takes it, waits with it, and gives it back when it is told to stop."""
    eta = datetime.now(timezone.utc) + timedelta(seconds=3 + RESTARTS * RESTART)
    make_app(environment).record.apply_async((1,), eta=eta)
    for _ in range(RESTARTS):
        worker = start_worker(environment, pool="threads")
        wait_until(lambda: "received" in worker.logs() or ledger.executed(), 30, worker.logs)  # noqa: B023
        assert worker.stop()[0] == 0
    last = start_worker(environment, pool="threads")
    ready = time.time()

    wait_until(lambda: ledger.executed(), 30 + RESTARTS * RESTART, last.logs)
    wait_until(lambda: left_in(primary, "celery") == 0, 30, last.logs)

    [(_, ran, _)] = ledger.entries()
    assert eta.timestamp() <= ran < max(eta.timestamp(), ready) + LATE


def test_a_quiet_queue_is_served_beside_a_busy_one(primary, environment, start_worker, ledger):
    """The busy one fills all the room that the worker has for messages, for longer than they are locked."""
    shop = make_app(environment)
    for n in range(48):
        shop.slow_record.apply_async((n, 0.25), queue="busy")
    worker = start_worker(environment, queue="busy,quiet")
    sent = {}
    for n in range(100, 106):
        wait_until(lambda: len(ledger.executed()) >= 7 * len(sent), 60, worker.logs)
        shop.record.apply_async((n,), queue="quiet")
        sent[n] = time.time()  # from here on the worker alone may keep it waiting
    ledger.wait_for(48 + len(sent), 60)
    wait_until(lambda: left_in(primary, "busy") == left_in(primary, "quiet") == 0, 30, worker.logs)

    assert ledger.duplicates() == {}
    for number, ran, _ in ledger.entries():
        if number in sent:
            before = [each for each, at, _ in ledger.entries() if each < 100 and sent[number] < at < ran]
            assert len(before) <= 20, f"{number} waited for {len(before)} others"  # the worker holds eight
