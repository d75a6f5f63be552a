"""An hour in the life of a worker on Service Bus, on a clock that runs faster.

In an hour the service ends links where nothing happens, closes silent connections, lets tokens expire, and is busy now
and then. Nothing of that may cost a task, run one twice, or end a worker. By hand, at a sixtieth:
``HOUR=60 pytest …``.
"""

from __future__ import annotations

import os
import time
from collections.abc import Iterator

import pytest

from kombu_paired.emulator import Emulator
from kombu_paired.testing.processes import wait_until
from tests.support.servicebus import left_in, url_of
from tests.support.shop import make_app, shop_environment

pytest.importorskip("azure.servicebus")

#: Seconds that the hour takes.
HOUR = float(os.environ.get("HOUR", "9"))
#: Seconds; the shortest that the service knows.
LOCK = 5
BUSY = "The request was terminated because the namespace is being throttled. Please wait 1 seconds and try again."
#: Each kind of call: a link, a message, credit, an outcome, a renewal, the management, a token.
CALLS = ("attach", "send", "receive", "settle", "request", "manage", "token")


@pytest.fixture
def primary() -> Iterator[Emulator]:
    queues = [f"{name}?lock_duration={LOCK}" for name in ("celery", "quiet")]
    # Consumers look after their connections each second, whatever the clock.
    clock = {"connection_idle": max(HOUR / 15, 4), "link_idle": max(HOUR / 6, 2), "token_life": HOUR / 4}
    with Emulator(process=True, queues=queues, **clock) as emulator:
        yield emulator


@pytest.fixture
def environment(primary, ledger) -> Iterator[dict[str, str]]:
    with Emulator(process=True) as secondary:
        options = {"secondary": url_of(secondary), "backlog_queue_count": 1, "ping_interval": 1}
        yield shop_environment(f"paired+{url_of(primary)}", options, ledger=ledger, conf={"task_acks_late": True})


def be_busy_at(call: str, emulator: Emulator) -> None:
    """Once, unless such a call is still to come."""
    if not any(call in fault["on"] for fault in emulator.status()["faults"]):
        emulator.fault("server-busy", on=[call], times=1, text=BUSY)


def test_an_hour_costs_no_task_and_doubles_none(primary, environment, start_worker, ledger):
    worker = start_worker(environment, queue="celery,quiet", concurrency=3)
    shop = make_app(environment)
    shop.slow_record.delay(1000, 1.5 * LOCK)
    ends, sent = time.monotonic() + HOUR, 0
    while time.monotonic() < ends:
        for _ in range(4):
            shop.record.apply_async((sent,), queue="quiet" if sent % 16 == 0 else "celery")
            sent += 1
        be_busy_at(CALLS[sent // 4 % len(CALLS)], primary)
        time.sleep(HOUR / 5 if sent % 64 == 0 else HOUR / 60)
    primary.clear_faults()

    wait_until(lambda: len(ledger.counts()) == sent + 1, 60, worker.logs)
    wait_until(lambda: left_in(primary, "celery") == left_in(primary, "quiet") == 0, 60, worker.logs)
    assert ledger.duplicates() == {}
    assert ledger.missing([*range(sent), 1000]) == set()
    assert worker.alive()
