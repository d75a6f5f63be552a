"""What does ``delay()`` cost through ``paired+X``, against plain ``X``, side by side in one run?

    python -m tests.bench.bench_delay [amqp|redis|azureservicebus …] [--blocks N] [--calls N]
                                      [--threads N | --gevent | --batches]

Plain Service Bus is Kombu's stock transport, on the same emulator. Both applications live in one process and publish to
the same broker in short blocks, in turn, so that whatever the machine does it does to both. RabbitMQ confirms on both
sides. The overhead is the median of the pairs' ratios. ``--threads`` divides each block's calls among so many,
``--gevent`` among eight greenlets. ``--batches`` asks something else: how many times faster a publish batch of a
block's calls is than the same messages sent one by one, both paired.
"""

from __future__ import annotations

import sys

if __name__ == "__main__" and "--gevent" in sys.argv:
    from gevent import monkey

    monkey.patch_all()

import argparse
import json
import os
import statistics
import threading
import time
from contextlib import closing
from typing import Any

from celery import Celery
from kombu import Connection

from kombu_paired.testing import local_broker


def make_app(url: str, transport_options: dict[str, Any]) -> Any:
    app = Celery("bench", broker=url, set_as_current=False)
    app.conf.update(broker_transport_options=transport_options, task_ignore_result=True)

    @app.task(name="bench.nothing", shared=False)
    def nothing(number: int, text: str) -> None:
        """The task that is published and never run."""

    return nothing


def seconds_of(task: Any, calls: int) -> float:
    started = time.perf_counter()
    for number in range(calls):
        task.delay(number, "a text of an ordinary length")
    return time.perf_counter() - started


def seconds_of_many(task: Any, calls: int, threads: int) -> float:
    if threads == 1:
        return seconds_of(task, calls)
    senders = [threading.Thread(target=seconds_of, args=(task, calls // threads)) for _ in range(threads)]
    started = time.perf_counter()
    for sender in senders:
        sender.start()
    for sender in senders:
        sender.join()
    return time.perf_counter() - started


def plain_url(url: str) -> str:
    """The broker without us; the stock transport of Service Bus has to be told of a local one."""
    if not url.startswith("azureservicebus:"):
        return url
    from tests.support.stock import stock_url

    return stock_url(url)


def measure(kind: str, blocks: int, calls: int, threads: int) -> dict[str, Any]:
    with local_broker(kind) as primary, local_broker(kind) as secondary:
        plain = make_app(plain_url(primary.url), {"confirm_publish": True} if kind == "amqp" else {})
        paired = make_app("paired+" + primary.url, {"secondary": secondary.url})
        for task in (plain, paired):
            seconds_of_many(task, calls, threads)
        ratios, plain_best, paired_best = [], float("inf"), float("inf")
        for block in range(blocks):
            if block % 2:
                a, b = seconds_of_many(plain, calls, threads), seconds_of_many(paired, calls, threads)
            else:
                b, a = seconds_of_many(paired, calls, threads), seconds_of_many(plain, calls, threads)
            ratios.append(b / a)
            plain_best, paired_best = min(plain_best, a), min(paired_best, b)
            if kind != "azureservicebus":  # which would receive them one by one
                with Connection(primary.url) as connection:
                    connection.default_channel.queue_purge("celery")
    return {
        "broker": kind,
        "overhead_percent": round(100 * (statistics.median(ratios) - 1), 1),
        "quartiles_percent": [round(100 * (q - 1), 1) for q in statistics.quantiles(ratios, n=4)],
        "plain_us": round(1e6 * plain_best / calls),
        "paired_us": round(1e6 * paired_best / calls),
        "blocks": blocks,
        "calls": calls,
        "threads": threads,
        "gevent": "gevent.monkey" in sys.modules,
        "load": os.getloadavg()[0],
    }


def measure_batches(kind: str, blocks: int, calls: int) -> dict[str, Any]:
    ratios = []
    with local_broker(kind) as primary, local_broker(kind) as secondary:
        url, options = "paired+" + primary.url, {"secondary": secondary.url}
        with Connection(url, transport_options=options) as connection:
            channel = connection.default_channel
            channel.queue_declare(queue="celery", durable=True, auto_delete=False)
            for block in range(blocks):
                seconds = [0.0, 0.0]
                for batched in (block % 2, 1 - block % 2):
                    seconds[batched] = seconds_of_messages(channel, calls, bool(batched))
                ratios.append(seconds[0] / seconds[1])
                channel.queue_purge("celery")
    return {
        "broker": kind,
        "batch_times_single": round(statistics.median(ratios), 2),
        "quartiles": [round(q, 2) for q in statistics.quantiles(ratios, n=4)],
        "blocks": blocks,
        "messages": calls,
        "load": os.getloadavg()[0],
    }


def message_of(channel: Any) -> Any:
    return channel.prepare_message(
        "x" * 600, content_type="text/plain", content_encoding="utf-8", properties={"delivery_mode": 2}
    )


def seconds_of_messages(channel: Any, calls: int, batched: bool) -> float:
    messages = [message_of(channel) for _ in range(calls)]
    started = time.perf_counter()
    if batched:
        with closing(channel.create_publish_batch(calls)) as batch:
            for message in messages:
                batch.publish(message, exchange="", routing_key="celery")
    else:
        for message in messages:
            channel.basic_publish(message, exchange="", routing_key="celery")
    return time.perf_counter() - started


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("kinds", nargs="*", default=["amqp", "redis"])
    parser.add_argument("--blocks", type=int, default=60)
    parser.add_argument("--calls", type=int, default=100)
    parser.add_argument("--threads", type=int, default=1)
    parser.add_argument("--gevent", action="store_true")
    parser.add_argument("--batches", action="store_true")
    options = parser.parse_args()
    threads = 8 if options.gevent else options.threads
    for kind in options.kinds or ["amqp", "redis"]:
        if options.batches:
            found = measure_batches(kind, options.blocks, options.calls)
        else:
            found = measure(kind, options.blocks, options.calls, threads)
        print(json.dumps(found), flush=True)


if __name__ == "__main__":
    main()
