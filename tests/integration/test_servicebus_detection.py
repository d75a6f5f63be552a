"""Queues that detect duplicates: what is sent twice runs once, and another send with the same task id runs again."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import pytest

from kombu_paired.emulator import Emulator
from kombu_paired.testing.processes import wait_until
from tests.support.ledger import Ledger
from tests.support.servicebus import url_of
from tests.support.shop import make_app, shop_environment


@pytest.fixture
def primary() -> Iterator[Emulator]:
    with Emulator(process=True, queues=["celery?requires_duplicate_detection=true"]) as emulator:
        yield emulator


@pytest.fixture
def secondary() -> Iterator[Emulator]:
    """Its backlog queues detect duplicates as well."""
    queues = [f"shop/x-servicebus-transfer/{n}?requires_duplicate_detection=true" for n in range(2)]
    with Emulator(process=True, queues=queues) as emulator:
        yield emulator


@pytest.fixture
def environment(primary, secondary, ledger) -> dict[str, str]:
    options = {
        "secondary": url_of(secondary),
        "primary_name": "shop",
        "backlog_queue_count": 2,
        "failover_interval": 0,
        "ping_interval": 1,
    }
    return shop_environment(f"paired+{url_of(primary)}", options, ledger=ledger)


@pytest.fixture
def shop(environment) -> Iterator[Any]:
    app = make_app(environment)
    yield app
    app.close()


def waiting(emulator: Emulator) -> int:
    return sum(sum(counts.values()) for counts in emulator.status()["queues"].values())


def wait_for_runs(ledger: Ledger, count: int) -> None:
    """Wait for so many runs, and a while longer for more."""
    wait_until(lambda: len(ledger.executed()) >= count, 40, lambda: f"only {ledger.executed()} ran")
    ledger.wait_until_quiet(quiet=1.5, timeout=20)
    assert ledger.executed() == [1] * count


def test_a_task_that_retries_five_times_runs_six_times(shop, environment, start_worker, ledger):
    start_worker(environment)
    shop.retry.delay(1, 5)
    wait_for_runs(ledger, 6)


def test_a_task_that_is_replaced_by_itself_runs_each_time(shop, environment, start_worker, ledger):
    start_worker(environment)
    shop.replace.delay(1, 3)
    wait_for_runs(ledger, 4)


def test_a_send_that_was_stored_twice_runs_once(shop, environment, start_worker, primary, secondary, ledger):
    primary.fault("lost-acknowledgement", "celery", times=1)
    shop.record.delay(1)
    assert (waiting(primary), waiting(secondary)) == (1, 1)
    start_worker(environment)
    wait_until(lambda: waiting(secondary) == 0, 40, lambda: "the copy did not come home")
    wait_for_runs(ledger, 1)


def test_each_retry_is_a_message_of_its_own_in_the_backlog_too(
    shop, environment, start_worker, primary, secondary, ledger
):
    primary.fault("disabled", "celery")
    for retries in (0, 1, 1):
        shop.record.apply_async((1,), task_id="task-1", retries=retries)
    assert waiting(primary) == 0
    primary.clear_faults()
    start_worker(environment)
    wait_until(lambda: waiting(secondary) == 0, 40, lambda: "the backlog did not come home")
    wait_for_runs(ledger, 2)
