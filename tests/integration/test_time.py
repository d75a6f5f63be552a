"""What a task says about time, through an outage."""

from __future__ import annotations

import time

import pytest

from kombu_paired import Syphon
from kombu_paired.transport import pairing_of
from tests.support.traffic import assert_backlog_empties, wait_for

QUORUM = {"task_default_queue_type": "quorum", "task_default_exchange_type": "topic"}


@pytest.mark.parametrize("broker_kind", ["amqp"], indirect=True)
def test_a_native_delay_counts_from_the_send(primary, secondary, paired_shop, paired_worker, ledger):
    # Cut off, and not killed: RabbitMQ takes longer to start than the delays are.
    shop = paired_shop(primary.proxied_url, conf=QUORUM)
    worker = paired_worker(conf=QUORUM, setup=False)
    wait_for(lambda: "celery_delayed_27" in primary.depths(), 30, worker.logs)
    primary.cut()
    sent = time.time()
    shop.record.apply_async((1,), countdown=8)
    shop.record.apply_async((2,), countdown=3)
    time.sleep(max(0.0, sent + 4 - time.time()))

    primary.heal()
    with shop.connection_for_write() as connection:
        Syphon(pairing_of(connection)).start()
    assert_backlog_empties(secondary)
    at_home = time.time()

    ledger.wait_for(2, timeout=60)
    ran = {n: at for n, at, _ in ledger.entries()}
    assert 8 <= ran[1] - sent < 8 + 3.5  # from when it came home: 12 and more
    assert ran[2] < at_home + 2.5  # it ran out; from when it came home: 3 and more
