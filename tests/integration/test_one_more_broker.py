"""A broker that is none of the product's, and whose scheme Kombu does not know, is paired as every other one is."""

from __future__ import annotations

import time
from contextlib import closing

import kombu
import pytest
from kombu import Connection, Queue

from kombu_paired.brokers.drivers import DRIVERS
from kombu_paired.syphon import Syphon
from kombu_paired.transport import pairing_of
from tests.support.toy.driver import Toy
from tests.support.toy.local import LocalToy

ORDERS = Queue("orders")


@pytest.fixture
def brokers(tmp_path, monkeypatch):
    monkeypatch.setitem(DRIVERS, "toy", Toy())
    with LocalToy(tmp_path / "primary") as primary, LocalToy(tmp_path / "secondary") as secondary:
        yield primary, secondary


def publish(connection, n):
    with connection.channel() as channel:
        kombu.Producer(channel).publish(n, declare=[ORDERS], routing_key="orders", retry=False, delivery_mode=2)


def size(broker, queue):
    with closing(broker.line()) as line:
        return line.ask("size", queue=queue)


def consumed(connection, count, timeout=20):
    """So many bodies, and nothing is left of them."""
    got, deadline = [], time.monotonic() + timeout

    def take(body, message):
        got.append(body)
        message.ack()

    with connection.channel() as channel, kombu.Consumer(channel, [ORDERS], callbacks=[take]):
        while len(got) < count:
            assert time.monotonic() < deadline, got
            connection.drain_events(timeout=timeout)
    return got


def test_its_messages_are_diverted_and_come_home_and_are_consumed(brokers):
    primary, secondary = brokers
    options = {"secondary": secondary.url, "send_timeout": 5, "failover_interval": 0, "backlog_queue_count": 1}
    with Connection(f"paired+{primary.url}", transport_options=options) as connection:
        pairing = pairing_of(connection)
        syphon = Syphon(pairing)
        try:
            publish(connection, 1)
            primary.kill()
            publish(connection, 2)
            [backlog_queue] = pairing.backlog_queue_names
            assert size(secondary, backlog_queue) == 1

            primary.restart()
            syphon.start()

            assert sorted(consumed(connection, 2)) == [1, 2]
        finally:
            syphon.stop()
            pairing.close()
    assert (size(primary, "orders"), size(secondary, backlog_queue)) == (0, 0)
    assert backlog_queue.startswith(f"127.0.0.1-{primary.port}/")
