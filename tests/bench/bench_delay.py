"""What does ``delay()`` cost through ``paired+X``, against plain ``X``, side by side in one run?

    python -m tests.bench.bench_delay [amqp|redis …] [--blocks N] [--calls N]

Both applications live in one process and publish to the same broker in short blocks, in turn, so that whatever the
machine does it does to both. RabbitMQ confirms on both sides. The overhead is the median of the pairs' ratios.
"""

from __future__ import annotations

import argparse
import json
import os
import statistics
import time
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


def measure(kind: str, blocks: int, calls: int) -> dict[str, Any]:
    with local_broker(kind) as primary, local_broker(kind) as secondary:
        plain = make_app(primary.url, {"confirm_publish": True} if kind == "amqp" else {})
        paired = make_app("paired+" + primary.url, {"secondary": secondary.url})
        for task in (plain, paired):
            seconds_of(task, calls)
        ratios, plain_best, paired_best = [], float("inf"), float("inf")
        for block in range(blocks):
            if block % 2:
                a, b = seconds_of(plain, calls), seconds_of(paired, calls)
            else:
                b, a = seconds_of(paired, calls), seconds_of(plain, calls)
            ratios.append(b / a)
            plain_best, paired_best = min(plain_best, a), min(paired_best, b)
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
        "load": os.getloadavg()[0],
    }


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("kinds", nargs="*", default=["amqp", "redis"])
    parser.add_argument("--blocks", type=int, default=60)
    parser.add_argument("--calls", type=int, default=100)
    options = parser.parse_args()
    for kind in options.kinds or ["amqp", "redis"]:
        print(json.dumps(measure(kind, options.blocks, options.calls)), flush=True)


if __name__ == "__main__":
    main()
