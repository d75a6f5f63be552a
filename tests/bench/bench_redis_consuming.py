"""How fast does a consumer take messages out of Redis, on our consumers' transport and on Kombu's, side by side?

    python -m tests.bench.bench_redis_consuming [--blocks N] [--messages N]

Both consumers live in one process and empty the same queue in blocks, in turn, and acknowledge each message. The second
figure is what a consumer with nothing to do adds to one message: from before it is published until it is handed over.
"""

from __future__ import annotations

import argparse
import json
import os
import statistics
import time
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

from kombu import Connection, Consumer, Producer, Queue

from kombu_paired.brokers.kombu import KombuNamespace
from kombu_paired.testing import local_broker

QUEUE = "bench"
TEXT = 400 * "x"


@contextmanager
def consumer(side: str, url: str, received: list[float]) -> Iterator[Connection]:
    """A connection that consumes; each message is acknowledged, and its time of arrival noted."""
    connection = Connection(url)
    if side == "paired":
        connection = KombuNamespace("primary", [url], {}, send_timeout=10).consumer_client(None, None)

    def on_message(message: Any) -> None:
        received.append(time.perf_counter())
        message.ack()

    with connection, connection.channel() as channel:
        channel.basic_qos(0, 16, False)
        with Consumer(channel, [Queue(QUEUE, routing_key=QUEUE)], on_message=on_message):
            yield connection


def rate(side: str, url: str, producer: Producer, messages: int) -> tuple[float, float]:
    """Messages a second from a queue that is full of them, and the consumer's microseconds of CPU for one."""
    for number in range(messages):
        producer.publish({"number": number, "text": TEXT}, routing_key=QUEUE)
    received: list[float] = []
    with consumer(side, url, received) as connection:
        started, busy = time.perf_counter(), time.process_time()
        while len(received) < messages:
            connection.drain_events(timeout=5)
        return messages / (time.perf_counter() - started), 1e6 * (time.process_time() - busy) / messages


def microseconds_of_one(side: str, url: str, producer: Producer, messages: int) -> float:
    """Median time of a message to a consumer that waits."""
    received: list[float] = []
    published = []
    with consumer(side, url, received) as connection:
        for number in range(messages):
            try:
                connection.drain_events(timeout=0.005)  # finds nothing, and waits
            except TimeoutError:
                published.append(time.perf_counter())
            producer.publish({"number": number, "text": TEXT}, routing_key=QUEUE)
            connection.drain_events(timeout=5)
    return 1e6 * statistics.median(got - sent for sent, got in zip(published, received, strict=True))


def measure(url: str, blocks: int, messages: int) -> dict[str, Any]:
    sides = ("plain", "paired")
    rates: dict[str, list[float]] = {side: [] for side in sides}
    cpus: dict[str, list[float]] = {side: [] for side in sides}
    singles: dict[str, list[float]] = {side: [] for side in sides}
    with Connection(url) as connection:
        producer = Producer(connection.channel())
        for block in range(blocks):
            for side in sides if block % 2 else reversed(sides):
                a_second, cpu = rate(side, url, producer, messages)
                rates[side].append(a_second)
                cpus[side].append(cpu)
                singles[side].append(microseconds_of_one(side, url, producer, messages // 10))
    ratios = [ours / theirs for ours, theirs in zip(rates["paired"], rates["plain"], strict=True)]
    return {
        "plain_per_second": round(statistics.median(rates["plain"])),
        "paired_per_second": round(statistics.median(rates["paired"])),
        "ratio": round(statistics.median(ratios), 2),
        "ratio_quartiles": [round(each, 2) for each in statistics.quantiles(ratios, n=4)],
        "plain_cpu_us": round(statistics.median(cpus["plain"])),
        "paired_cpu_us": round(statistics.median(cpus["paired"])),
        "plain_us_of_one": round(statistics.median(singles["plain"])),
        "paired_us_of_one": round(statistics.median(singles["paired"])),
        "blocks": blocks,
        "messages": messages,
        "load": os.getloadavg()[0],
    }


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--blocks", type=int, default=12)
    parser.add_argument("--messages", type=int, default=2000)
    options = parser.parse_args()
    with local_broker("redis") as broker:
        broker.command("CONFIG", "SET", "appendfsync", "no")  # the disk is not what is measured
        print(json.dumps(measure(broker.url, options.blocks, options.messages)))


if __name__ == "__main__":
    main()
