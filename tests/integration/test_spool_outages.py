"""Outages with one broker and a spool: as other pairs have them, and a way that is cut again and again."""

from __future__ import annotations

import itertools
import threading
import time
from collections import Counter

import pytest

from kombu_paired.events import EventKind
from tests.integration import test_outages as outages
from tests.integration.conftest import GRACE, SEND_TIMEOUT
from tests.support.spool import SpoolNode
from tests.support.traffic import Traffic, assert_backlog_empties, heard, wait_for


@pytest.fixture(params=["redis", "amqp"])
def broker_kind(request):
    return request.param


@pytest.fixture
def secondary(tmp_path):
    return SpoolNode(tmp_path / "spool")


test_pending = outages.test_all_run_that_waited_in_a_killed_primary_or_were_published_after
test_freeze = outages.test_a_frozen_primary_delays_a_publish_a_little_and_doubles_only_what_is_marked
test_start_down = outages.test_a_process_that_starts_while_the_primary_is_down_publishes


def test_a_primary_that_producers_lose_again_and_again_loses_nothing_and_doubles_only_what_is_marked(
    primary, secondary, paired_shop, paired_worker, ledger
):
    paired_worker()
    shop, traffic, sent = paired_shop(primary.proxied_url), Traffic(), []
    enough = threading.Event()

    def send(n: int) -> None:
        shop.tell_marks.delay(4 * n, 0)
        sent.append(n)

    def send_until_told() -> None:
        numbers = itertools.takewhile(lambda _: not enough.is_set(), itertools.count())
        traffic.publish(send, numbers, pace=0.002)

    def ran() -> set[int]:
        return {number // 4 for number in ledger.counts()}

    with heard(EventKind.DIVERTED) as diverted:
        producer = threading.Thread(target=send_until_told)
        producer.start()
        for turn in range(5):
            upto, stored = len(sent), len(diverted)
            wait_for(lambda upto=upto: len(sent) > upto + 20, 30, "nothing is published")
            primary.cut()
            wait_for(lambda stored=stored: len(diverted) > stored + 20, 30, "nothing is diverted")
            if turn == 0:  # the worker, and its syphon, are not cut off
                upto = len(sent)
                wait_for(lambda upto=upto: ran() >= set(range(upto)), 60, "nothing comes home")
            primary.heal()
            time.sleep(0.3)  # sometimes the ping has found it before it goes again, and sometimes not
        enough.set()
        producer.join(30)

    wait_for(lambda: ran() >= set(sent), 60, lambda: f"{sorted(set(sent) - ran())} did not run")
    assert_backlog_empties(secondary)
    runs = Counter(number // 4 for number in ledger.wait_until_quiet(1, timeout=20).elements())
    unmarked = Counter(number // 4 for number in ledger.executed() if not number % 2)
    assert traffic.errors == []
    assert traffic.longest < 2 * SEND_TIMEOUT + GRACE
    assert set(runs) == set(sent)
    assert {n: count for n, count in unmarked.items() if count > 1} == {}
