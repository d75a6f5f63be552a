"""What an application with results lives through when the server that keeps them dies: real servers, really killed."""

from __future__ import annotations

import logging
import os
import subprocess
import sys
import threading
import time
from typing import Any

import pytest
from celery import chord, group
from celery.exceptions import TimeoutError as CeleryTimeoutError
from kombu.exceptions import OperationalError

from kombu_paired.contrib import result_server
from tests.integration.conftest import GRACE, SEND_TIMEOUT
from tests.support.nodes import ROOT
from tests.support.shop import shop_environment
from tests.support.traffic import Traffic

on_redis = pytest.mark.parametrize("broker_kind", ["redis"])
on_rabbitmq = pytest.mark.parametrize("broker_kind", ["amqp"])

#: Seconds; a minute is for a look by hand.
OUTAGE = float(os.environ.get("RESULTS_OUTAGE", "10"))


def with_results(url: str) -> dict[str, Any]:
    return {"result_backend": url, "task_ignore_result": False}


@on_redis
def test_one_redis_for_broker_and_results_is_killed_under_traffic(primary, paired_shop, paired_worker, caplog):
    caplog.set_level(logging.INFO, logger=result_server.__name__)
    conf = with_results(primary.url)
    worker = paired_worker(conf=conf)
    shop, traffic = paired_shop(conf=conf, setup=True), Traffic()
    results: list[Any] = []
    calls = int((OUTAGE + 4) * 50)

    def outage() -> None:
        time.sleep(2)
        primary.kill()
        time.sleep(OUTAGE)
        primary.restart()

    thread = threading.Thread(target=outage)
    thread.start()
    traffic.publish(lambda n: results.append(shop.record.delay(n)), range(calls), pace=0.02)
    thread.join()

    assert [result.get(timeout=30) for result in results] == list(range(calls))
    assert traffic.errors == []
    assert traffic.longest < SEND_TIMEOUT + GRACE
    print(f"{calls} calls, an outage of {OUTAGE:g} s: the longest took {traffic.longest:.3f} s")
    assert [record.levelname for record in caplog.records if record.name == result_server.__name__] == [
        "WARNING",
        "INFO",
    ]
    assert worker.alive()


@on_redis
@pytest.mark.parametrize("how", ["killed", "frozen"])
def test_a_result_server_of_its_own_goes_away(primary, secondary, paired_shop, paired_worker, ledger, how):
    """The broker works: tasks run meanwhile, and those that have ended wait to store their results."""
    conf = with_results(secondary.url.removesuffix("/0") + "/1")
    paired_worker(conf=conf)
    shop = paired_shop(conf=conf, setup=True)
    assert shop.record.delay(1).get(timeout=30) == 1

    take_away, bring_back = {
        "killed": (secondary.kill, secondary.restart),
        "frozen": (secondary.freeze, secondary.thaw),
    }[how]
    take_away()
    traffic = Traffic()
    made: list[Any] = []
    traffic.publish(lambda n: made.append(shop.record.delay(n)), range(10, 20))
    started = time.monotonic()
    with pytest.raises(CeleryTimeoutError):
        made[0].get(timeout=0.5)
    assert time.monotonic() - started < 5
    members = group(shop.record.s(n) for n in range(20, 23)).apply_async()
    with pytest.raises(OperationalError) as raised:
        chord([shop.record.s(30), shop.record.s(31)])(shop.record.si(32))
    if how == "killed":
        ledger.wait_for(3, timeout=60)
    from_a_thread: list[Any] = []
    waiting = threading.Thread(target=lambda: from_a_thread.append(made[3].get(timeout=40)))
    waiting.start()
    bring_back()

    assert [result.get(timeout=40) for result in made] == list(range(10, 20))
    assert members.get(timeout=20) == [20, 21, 22]
    waiting.join()
    assert from_a_thread == [13]
    assert traffic.errors == []
    assert traffic.longest < SEND_TIMEOUT + GRACE
    assert "chord with the body shop.record" in str(raised.value)
    assert "/1 is away" in str(raised.value)
    counts = ledger.counts()
    assert {n: counts[n] for n in range(10, 23)} == dict.fromkeys(range(10, 23), 1)


@on_rabbitmq
def test_answers_of_rpc_find_their_queue_after_an_outage_that_was_there_first(
    primary, paired_shop, paired_worker, ledger
):
    """The producer never reached the broker: its queue for answers comes home with the tasks."""
    conf = with_results("rpc://")
    primary.kill()
    shop = paired_shop(conf=conf, setup=True)
    started = time.monotonic()
    made = [shop.record.delay(n) for n in range(10)]
    assert time.monotonic() - started < SEND_TIMEOUT + GRACE
    with pytest.raises(CeleryTimeoutError):
        made[0].get(timeout=0.5)
    members = group(shop.record.s(n) for n in range(10, 13)).apply_async()

    primary.restart()
    paired_worker(conf=conf)
    ledger.wait_for(13, timeout=60)

    assert [result.get(timeout=30) for result in made] == list(range(10))
    assert members.get(timeout=30) == [10, 11, 12]


@on_redis
def test_greenlets_wait_through_an_outage(primary, options, paired_worker, ledger):
    conf = with_results(primary.url)
    paired_worker(conf=conf)
    program = f"""
import gevent, sys, time
from tests.support.shop import app
assert app.record.delay(0).get(timeout=20) == 0
print("ready", flush=True)
sys.stdin.readline()
longest, made = 0, []
for n in range(1, 21):
    started = time.monotonic()
    made.append(app.record.delay(n))
    longest = max(longest, time.monotonic() - started)
waiting = [gevent.spawn(each.get, timeout=40) for each in made]
gevent.sleep(1)
print("waits", flush=True)
gevent.joinall(waiting)
print([each.value for each in waiting] == list(range(1, 21)), longest < {SEND_TIMEOUT + GRACE}, flush=True)
"""
    environment = shop_environment(f"paired+{primary.url}", options, ledger=ledger, conf=conf)
    with subprocess.Popen(
        [sys.executable, "-c", f"from gevent import monkey; monkey.patch_all()\n{program}"],
        env=os.environ | environment | {"PYTHONPATH": str(ROOT)},
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        text=True,
    ) as producer:
        try:
            assert producer.stdout.readline() == "ready\n"
            primary.kill()
            print(file=producer.stdin, flush=True)
            assert producer.stdout.readline() == "waits\n"
            primary.restart()
            assert producer.stdout.readline() == "True True\n"
        finally:
            producer.kill()
