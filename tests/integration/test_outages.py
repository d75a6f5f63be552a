"""What a Celery application lives through when its broker is killed, cut off, frozen, full, or gone from the start.

Real brokers, real workers, and the ledger alone says what ran.
"""

from __future__ import annotations

import itertools
import os
import signal
import sys
import threading
import time
from typing import Any

import pytest
from kombu.exceptions import OperationalError

from kombu_paired.errors import BacklogUnavailable, NamespaceUnauthorized
from kombu_paired.events import EventKind
from kombu_paired.testing import spawn, stop_tree
from tests.integration.conftest import GRACE, SEND_TIMEOUT
from tests.support.brokers import BrokerNode
from tests.support.nodes import ROOT
from tests.support.noise import Stopwatch
from tests.support.shop import shop_environment
from tests.support.side_by_side import side_by_side
from tests.support.traffic import Traffic, assert_backlog_empties, heard, produce_in_a_new_process, wait_for

# -- rows 1 to 4, and 6: nobody notices, nothing is lost -----------------------------------------------------------


def test_all_run_that_waited_in_a_killed_primary_or_were_published_after(
    primary, secondary, paired_shop, paired_worker, ledger
):
    shop, traffic = paired_shop(), Traffic()
    traffic.publish(lambda n: shop.slow_record.delay(n, 0.02), range(300))
    paired_worker(conf={"worker_prefetch_multiplier": 1})
    ledger.wait_for(5, timeout=60)

    primary.kill()
    waiting = 300 - len(ledger.counts())
    traffic.publish(shop.record.delay, range(300, 700))
    assert secondary.backlog() == 400  # the worker's syphon has nowhere to move them
    primary.restart()

    ledger.wait_for(700, timeout=60)
    assert traffic.errors == []
    assert traffic.longest < 2 * SEND_TIMEOUT + GRACE
    assert waiting > 20  # of 300, a hundred of which would run in each second that this process was late
    assert_backlog_empties(secondary)


def test_all_run_when_only_producers_are_cut_off(primary, secondary, paired_shop, paired_worker, ledger):
    paired_worker()
    shop, traffic = paired_shop(primary.proxied_url), Traffic()

    traffic.publish(shop.record.delay, range(100))
    primary.cut()
    with heard(EventKind.DIVERTED) as diverted:
        traffic.publish(shop.record.delay, range(100, 600), pace=0.004)
        ledger.wait_for(600, timeout=60)  # the workers, and their syphon, are not cut off
    with heard(EventKind.RESTORED) as restored:
        primary.heal()
        wait_for(lambda: restored, 30, "the healed primary is not found again")
    with heard(EventKind.DIVERTED) as diverted_after:
        traffic.publish(shop.record.delay, range(600, 700))

    ledger.wait_for(700, timeout=60)
    assert traffic.errors == []
    assert traffic.longest < 2 * SEND_TIMEOUT + GRACE
    assert (len(diverted), len(diverted_after)) == (500, 0)
    assert_backlog_empties(secondary)


def test_a_frozen_primary_delays_a_publish_a_little_and_doubles_only_what_is_marked(
    primary, secondary, options, paired_shop, paired_worker, ledger
):
    options["primary_options"] = {}  # the worker lives: nothing is given back, however long the freeze
    paired_worker()
    shop, traffic = paired_shop(), Traffic()
    numbers = itertools.count()
    ids: dict[int, str] = {}
    enough = threading.Event()

    def send(n: int) -> None:
        ids[n] = shop.record.delay(n).id

    def send_until_told() -> None:
        traffic.publish(send, itertools.takewhile(lambda _: not enough.is_set(), numbers), pace=0.002)

    with heard(EventKind.DIVERTED) as diverted:
        producer = threading.Thread(target=send_until_told)
        producer.start()
        wait_for(lambda: len(ids) > 200, 30, "nothing is published")
        primary.freeze()
        wait_for(lambda: len(diverted) > 200, 30, "nothing is diverted")
        primary.thaw()
        thawed = len(ids)
        wait_for(lambda: len(ids) > thawed + 300, 30, "nothing is published after the thaw")
        enough.set()
        producer.join(20)

    counts = ledger.wait_for(len(ids), timeout=60)
    assert_backlog_empties(secondary)
    counts = ledger.wait_until_quiet(1, timeout=20)
    assert traffic.errors == []
    assert traffic.longest < SEND_TIMEOUT + GRACE
    assert ledger.missing(ids) == set()
    marked = {event.message_id for event in diverted if event.maybe_duplicate}
    assert 1 <= len(marked) < 5
    assert {ids[n] for n, count in counts.items() if count > 1} <= marked


def test_all_run_that_was_published_while_the_primary_was_full(primary, secondary, paired_shop, paired_worker, ledger):
    worker = paired_worker()
    shop, traffic = paired_shop(), Traffic()
    traffic.publish(shop.record.delay, range(50))
    ledger.wait_for(50, timeout=60)

    primary.fill()
    traffic.publish(shop.record.delay, range(50, 350), pace=0.005)
    assert len(ledger.counts()) < 100  # it is full indeed: nothing comes through it
    primary.unfill()

    ledger.wait_for(350, timeout=60)
    assert traffic.errors == []
    assert worker.alive()
    assert_backlog_empties(secondary)


def test_a_process_that_starts_while_the_primary_is_down_publishes(primary, secondary, options, paired_worker, ledger):
    primary.kill()

    done = produce_in_a_new_process(
        shop_environment(f"paired+{primary.url}", options, ledger=ledger, setup=False),
        "for n in range(200): app.record.delay(n)",
    )

    assert (done.returncode, done.stdout) == (0, ""), done.stderr
    assert secondary.backlog() == 200
    worker = paired_worker(wait=False)  # so does a worker
    primary.restart()
    worker.ready()
    ledger.wait_for(200, timeout=60)
    assert_backlog_empties(secondary)


# -- row 5: configured wrongly ----------------------------------------------------------------------------------------


def test_a_wrong_password_on_the_primary_is_raised_at_once_and_nothing_is_diverted(primary, secondary, paired_shop):
    primary.set_password("the-right-one")
    shop, traffic = paired_shop(primary.url.replace("the-right-one", "s3cret-but-wrong")), Traffic()

    traffic.publish(shop.record.delay, range(3))

    assert [type(error) for error in traffic.errors] == [NamespaceUnauthorized] * 3
    assert traffic.longest < SEND_TIMEOUT + GRACE
    assert secondary.backlog() == 0
    for error in traffic.errors:
        assert isinstance(error, OperationalError)
        assert f"primary namespace {primary.kind}://" in str(error)
        assert str(primary.port) in str(error)
        assert "s3cret" not in str(error)


# -- row 7: both are down ---------------------------------------------------------------------------------------------


def take_away(node: BrokerNode, how: str) -> None:
    {"killed": node.kill, "frozen": node.freeze}[how]()


@pytest.mark.parametrize(
    ("one", "other"),
    [("killed", "killed"), ("frozen", "frozen"), ("frozen", "killed"), ("killed", "frozen")],
)
def test_both_away_is_told_within_two_send_timeouts(primary, secondary, options, paired_shop, one, other):
    warm = paired_shop()
    warm.record.delay(0)
    # Links that are still to be opened are bounded one by one, whatever becomes of the other side.
    options["primary_name"] += "-cold"
    cold = paired_shop()
    take_away(primary, one)
    take_away(secondary, other)

    def assert_is_told(shop: Any) -> None:
        for n in range(1, 4):
            watch = Stopwatch()
            with pytest.raises(BacklogUnavailable) as raised:
                shop.record.apply_async((n,), retry=False)
            assert watch.seconds < 2 * SEND_TIMEOUT + GRACE
            assert f"primary namespace {primary.kind}://" in str(raised.value)
            assert f"secondary namespace {secondary.kind}://" in str(raised.value)
            assert isinstance(raised.value, OperationalError)

    side_by_side(lambda: assert_is_told(warm), lambda: assert_is_told(cold))


def test_celerys_own_retry_policy_applies_while_both_are_away(primary, secondary, paired_shop):
    pauses: list[float] = []
    policy = {"max_retries": 3, "interval_start": 0.4, "interval_step": 0, "interval_max": 0.4}
    policy["errback"] = lambda exc, pause: pauses.append(pause)
    shop = paired_shop()
    primary.kill()
    secondary.kill()

    started = time.monotonic()
    with pytest.raises(BacklogUnavailable):
        shop.record.apply_async((1,), retry=True, retry_policy=policy)
    took = time.monotonic() - started

    assert pauses.count(0.4) == 3
    assert 1.2 <= took < 1.2 + 2 * SEND_TIMEOUT


@pytest.mark.parametrize("how", ["killed", "frozen"])
def test_a_retry_finds_the_secondary_that_came_back(primary, secondary, paired_shop, how):
    # For a minute: on a busy machine RabbitMQ takes a while to start.
    policy = {"max_retries": 120, "interval_start": 0.5, "interval_step": 0, "interval_max": 0.5}
    shop = paired_shop(conf={"task_publish_retry_policy": policy})
    shop.record.delay(0)
    take_away(primary, how)
    take_away(secondary, how)
    bring_back = secondary.broker.restart if how == "killed" else secondary.thaw
    timer = threading.Timer(3, bring_back)
    timer.start()

    shop.record.delay(1)

    timer.join()
    assert secondary.backlog() >= 1  # a try whose answer came too late is stored as well


# -- row 12: when due, and not when expired ----------------------------------------------------------------------------


def test_countdown_and_expires_through_an_outage(primary, secondary, paired_shop, paired_worker, ledger):
    shop, due = paired_shop(), {}
    worker = paired_worker()

    def send(n: int, countdown: float, **options: Any) -> None:
        due[n] = time.time() + countdown
        shop.record.apply_async((n,), countdown=countdown, **options)

    send(1, 6)  # the worker has it when the primary dies
    send(2, 2)
    wait_for(lambda: worker.count_in_log("received") == 2, 30, "the worker does not hold them")
    primary.kill()
    send(3, 10)
    send(4, 1)
    send(5, 1, expires=300)
    shop.record.apply_async((90,), expires=2)
    shop.record.apply_async((91,), countdown=1, expires=2)
    shop.record.apply_async((92,), expiration=2)
    shop.record.apply_async((6,), expiration=300)
    time.sleep(2.1)  # the outage outlasts what expires
    primary.restart()
    assert_backlog_empties(secondary, timeout=30)
    at_home = time.time()

    ledger.wait_for(6, timeout=60)
    counts = ledger.wait_until_quiet(1, timeout=10)
    assert set(counts) == {1, 2, 3, 4, 5, 6}
    for n, ran_at, _ in ledger.entries():
        assert ran_at >= due.get(n, 0) - 0.01
        if n == 3:
            assert ran_at < at_home + 9  # its ten seconds did not begin again at home
    assert secondary.dead_letters() == 1  # a time to live that Celery knows nothing of
    assert worker.count_in_log("Discarding revoked task") == 2  # Celery's own expires: whoever waits is told


def test_beat_goes_on_through_an_outage(primary, secondary, options, paired_worker, ledger, tmp_path):
    schedule = {
        "tick": {"task": "shop.record", "schedule": 0.5, "args": [1]},
        "fleeting": {"task": "shop.record", "schedule": 0.5, "args": [2], "options": {"expires": 1.0}},
    }
    environment = shop_environment(
        f"paired+{primary.url}", options, ledger=ledger, setup=False, conf={"beat_schedule": schedule}
    )
    log = tmp_path / "beat.log"
    command = [sys.executable, "-m", "celery", "-A", "tests.support.shop", "beat", "--loglevel", "INFO"]
    command += ["--schedule", str(tmp_path / "schedule")]
    paired_worker()
    beat = spawn(command, env=os.environ | environment | {"PYTHONPATH": str(ROOT)}, log=log, cwd=tmp_path)
    try:

        def sent(entry: str) -> int:
            return log.read_text().count(f"Sending due task {entry} ")

        wait_for(lambda: len(ledger.executed()) > 4, 30, log.read_text)
        primary.kill()
        before = sent("tick")
        wait_for(lambda: sent("tick") >= before + 8, 30, log.read_text)
        assert beat.poll() is None
        primary.restart()
        returned = time.time()
        wait_for(lambda: sum(at > returned + 3 for _, at, _ in ledger.entries()) > 4, 30, log.read_text)
        beat.send_signal(signal.SIGTERM)
        beat.wait(30)
    finally:
        stop_tree(beat)

    assert_backlog_empties(secondary)
    ledger.wait_until_quiet(1, timeout=20)
    ids = {n: {task_id for number, _, task_id in ledger.entries() if number == n} for n in (1, 2)}
    assert len(ids[1]) == sent("tick")
    assert 0 < len(ids[2]) <= sent("fleeting") - 3  # what expired in the outage does not run after it
    assert "Traceback" not in log.read_text()  # beat itself saw no outage
