"""What a consumer on Service Bus has done is done, whatever happens to the settlement, and to its link."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator
from typing import Any

import kombu
import pytest

from kombu_paired.emulator import Emulator
from tests.support.filling import filling

pytest.importorskip("azure.servicebus")


@pytest.fixture
def emulator() -> Iterator[Emulator]:
    with Emulator(process=True) as running:
        yield running


class Consumer:
    """Takes messages of some queues, and acknowledges when it is told to."""

    def __init__(self, emulator: Emulator, *queues: str, prefetch: int = 10) -> None:
        url = f"azureservicebus://RootManageSharedAccessKey:any@{emulator.host}"
        transport = "kombu_paired.brokers.servicebus.transport:Transport"
        self.connection = kombu.Connection(url, transport=transport, transport_options={"peek_lock_seconds": 5})
        self.taken: list[Any] = []
        self.producer = self.connection.Producer()
        declared = [kombu.Queue(name) for name in queues]
        self.consumer = self.connection.Consumer(declared, callbacks=[self._take], prefetch_count=prefetch)
        self.consumer.consume()

    def _take(self, body: Any, message: Any) -> None:
        self.taken.append(message)

    def publish(self, queue: str, *bodies: int) -> None:
        for body in bodies:
            self.producer.publish(body, routing_key=queue)

    def until(self, is_so: Callable[[], bool], seconds: float = 30) -> None:
        deadline = time.monotonic() + seconds
        while not is_so():
            assert time.monotonic() < deadline
            try:
                self.connection.drain_events(timeout=0.1)
            except TimeoutError:
                continue

    def close(self) -> None:
        self.connection.close()


@pytest.fixture
def consume(emulator) -> Iterator[Callable[..., Consumer]]:
    made: list[Consumer] = []

    def make(*queues: str, **options: Any) -> Consumer:
        made.append(Consumer(emulator, *queues, **options))
        return made[-1]

    yield make
    for each in made:
        each.close()


def left(emulator: Emulator, queue: str) -> int:
    return sum(emulator.status()["queues"][queue].values())


@pytest.mark.parametrize("refusal", ["server-busy", "internal-error"])
def test_a_completion_that_is_refused_is_tried_again_while_the_lock_lasts(emulator, consume, refusal):
    consumer = consume("orders")
    consumer.publish("orders", 1)
    consumer.until(lambda: len(consumer.taken) == 1)
    emulator.fault(refusal, "orders", on=["settle"], times=1)
    consumer.taken[0].ack()
    consumer.until(lambda: left(emulator, "orders") == 0)
    assert len(consumer.taken) == 1


def test_a_completion_whose_link_is_gone_is_made_over_the_next_one(emulator, consume):
    consumer = consume("orders")
    consumer.publish("orders", 1)
    consumer.until(lambda: len(consumer.taken) == 1)
    emulator.fault("detach", "orders", on=["receive"], times=1)
    consumer.until(lambda: emulator.status()["faults"] == [])
    consumer.taken[0].ack()
    consumer.until(lambda: left(emulator, "orders") == 0)
    consumer.publish("orders", 2)
    consumer.until(lambda: len(consumer.taken) == 2)
    assert [each.payload for each in consumer.taken] == [1, 2]


def test_what_waits_for_a_consumer_that_is_full_is_kept_or_left_and_comes_once(emulator, consume):
    """The credit of a queue where nothing happens must not fetch what nobody has room for."""
    consumer = consume("busy", "idle", prefetch=4)
    consumer.publish("busy", 1, 2, 3, 4)
    consumer.until(lambda: len(consumer.taken) == 4)
    consumer.publish("idle", 5)
    ends = time.monotonic() + 7  # longer than a lock
    consumer.until(lambda: time.monotonic() > ends)
    for each in consumer.taken:
        each.ack()
    consumer.until(lambda: 5 in [each.payload for each in consumer.taken])
    for each in consumer.taken:
        if not each.acknowledged:
            each.ack()
    consumer.until(lambda: left(emulator, "busy") == left(emulator, "idle") == 0)
    assert sorted(each.payload for each in consumer.taken) == [1, 2, 3, 4, 5]


def test_a_consumer_that_is_far_away_does_not_wait_for_each_of_the_few_that_it_may_hold():
    """Four messages in 0.2 s would be 10 seconds for these; and those that were fetched ahead at the end are there."""
    with Emulator(latency=0.1, process=True) as emulator:
        with filling(emulator, "orders") as connection:
            producer = connection.Producer()
            for body in range(200):
                producer.publish(body, routing_key="orders")
        consumer = Consumer(emulator, "orders", prefetch=4)
        most_held = 0

        def all_but_twenty_are_settled() -> bool:
            nonlocal most_held
            waiting = [each for each in consumer.taken if not each.acknowledged]
            most_held = max(most_held, len(waiting))
            for each in waiting:
                each.ack()
            return len(consumer.taken) >= 180

        consumer.until(lambda: len(consumer.taken) > 0)
        started = time.monotonic()
        consumer.until(all_but_twenty_are_settled)
        assert time.monotonic() - started < 8
        assert most_held <= 4
        assert len({each.payload for each in consumer.taken}) == len(consumer.taken)
        consumer.close()
        assert left(emulator, "orders") == 200 - len(consumer.taken)


def test_what_a_consumer_gives_back_when_it_stops_does_not_count_as_a_delivery(emulator, consume):
    for turn in range(12):
        consumer = consume("orders")
        if turn == 0:
            consumer.publish("orders", 1)
        consumer.until(lambda: len(consumer.taken) == 1)  # noqa: B023
        assert not consumer.taken[0].delivery_info["redelivered"]
        consumer.close()
