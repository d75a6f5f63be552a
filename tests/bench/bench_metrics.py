"""What do metrics cost a healthy ``delay()``, with them and without, side by side in one run?

    python -m tests.bench.bench_metrics [amqp|redis …] [--blocks N] [--calls N]
    PROMETHEUS_MULTIPROC_DIR=$(mktemp -d) python -m tests.bench.bench_metrics …

One application publishes in short blocks, every other one with metrics, so that whatever the machine does it does to
both. The overhead is the median of the pairs' ratios; ``computed_us_more`` is what the process computes more for a
call, which is steady on a machine that is busy with other things.
"""

from __future__ import annotations

import argparse
import json
import os
import statistics
import time
from typing import Any

from kombu import Connection

from kombu_paired.contrib.measuring import Measuring
from kombu_paired.contrib.prometheus import Metrics
from kombu_paired.testing import local_broker
from tests.bench.bench_delay import make_app, seconds_of


def new_measuring() -> Measuring:
    return Measuring(Metrics(), hands_on=bool(os.environ.get("PROMETHEUS_MULTIPROC_DIR")))


def block(task: Any, calls: int) -> tuple[float, float]:
    """Seconds of so many calls, and of computing."""
    computed = time.process_time()
    seconds = seconds_of(task, calls)
    return seconds, time.process_time() - computed


def measure(kind: str, measuring: Measuring, blocks: int, calls: int) -> dict[str, Any]:
    with local_broker(kind) as primary, local_broker(kind) as secondary:
        task = make_app("paired+" + primary.url, {"secondary": secondary.url})
        seconds_of(task, calls)
        pairs = []
        for number in range(blocks):
            taken = {}
            for is_on in (True, False) if number % 2 else (False, True):
                (measuring.start if is_on else measuring.stop)()
                taken[is_on] = block(task, calls)
            measuring.stop()
            pairs.append((taken[True], taken[False]))
            with Connection(primary.url) as connection:
                connection.default_channel.queue_purge("celery")
    ratios = [with_it[0] / without[0] for with_it, without in pairs]
    computed = [with_it[1] - without[1] for with_it, without in pairs]
    return {
        "broker": kind,
        "multiprocess": bool(os.environ.get("PROMETHEUS_MULTIPROC_DIR")),
        "overhead_percent": round(100 * (statistics.median(ratios) - 1), 1),
        "quartiles_percent": [round(100 * (q - 1), 1) for q in statistics.quantiles(ratios, n=4)],
        "without_us": round(1e6 * min(without[0] for _, without in pairs) / calls),
        "with_us": round(1e6 * min(with_it[0] for with_it, _ in pairs) / calls),
        "computed_us_more": round(1e6 * statistics.median(computed) / calls, 1),
        "blocks": blocks,
        "calls": calls,
        "load": os.getloadavg()[0],
    }


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("kinds", nargs="*", default=["amqp", "redis"])
    parser.add_argument("--blocks", type=int, default=150)
    parser.add_argument("--calls", type=int, default=100)
    options = parser.parse_args()
    for kind in options.kinds or ["amqp", "redis"]:
        print(json.dumps(measure(kind, new_measuring(), options.blocks, options.calls)), flush=True)


if __name__ == "__main__":
    main()
