"""Service Bus: ours against Kombu's stock transport, on the same emulator, in one run.

    python -m tests.bench.bench_servicebus [--tasks N]

``worker``: tasks a second of ``celery worker --pool prefork -c 2``, from the times that the tasks themselves wrote,
without the first and last tenth: ours (paired, with its syphon), ours with a second queue that is empty, and stock.
``failover``: the longest call when the primary is killed. What a call costs while it works: ``bench_delay``.
"""

from __future__ import annotations

import argparse
import json
import os
import tempfile
from pathlib import Path
from typing import Any

from kombu_paired.emulator import Emulator
from tests.bench.bench_delay import make_app, seconds_of
from tests.support import shop, stock
from tests.support.ledger import Ledger
from tests.support.nodes import LocalTestWorker

SEND_TIMEOUT = 10.0


def url_of(emulator: Emulator) -> str:
    return f"azureservicebus://RootManageSharedAccessKey:SAS_KEY_VALUE@127.0.0.1:{emulator.port}"


def worker_rate(folder: Path, url: str, options: dict[str, Any], tasks: int, **worker: Any) -> dict[str, float]:
    """Publish tasks, run them, stop."""
    folder.mkdir()
    ledger = Ledger(folder / "ledger")
    environment = shop.shop_environment(url, options, ledger=ledger, setup=url.startswith("paired+"))
    record = shop.make_app(environment).record
    for number in range(tasks):
        record.delay(number)
    running = LocalTestWorker(folder, concurrency=2, env=environment, **worker)
    ledger.wait_for(tasks, timeout=120)
    times = sorted(at for _, at, _ in ledger.entries())
    first, last = tasks // 10, tasks - tasks // 10
    _, seconds = running.stop()
    return {
        "tasks_per_second": round((last - first) / (times[last - 1] - times[first])),
        "shutdown_s": round(seconds, 1),
    }


def bench_workers(folder: Path, tasks: int) -> dict[str, Any]:
    with Emulator(process=True) as primary, Emulator(process=True) as secondary:
        plain, options = url_of(primary), {"secondary": url_of(secondary)}
        one = worker_rate(folder / "one", "paired+" + plain, options, tasks)
        two = worker_rate(folder / "two", "paired+" + plain, options, tasks, queue="celery,empty")
        old = worker_rate(folder / "stock", stock.stock_url(plain), {}, tasks // 10, module="tests.support.stock")
    return {
        "ours": one,
        "ours_with_an_empty_queue": two,
        "stock": old,
        "times_stock": round(one["tasks_per_second"] / old["tasks_per_second"], 1),
        "load": os.getloadavg()[0],
    }


def bench_failover() -> dict[str, Any]:
    with Emulator(process=True) as primary, Emulator(process=True) as secondary:
        options = {"secondary": url_of(secondary), "send_timeout": SEND_TIMEOUT}
        ours = make_app("paired+" + url_of(primary), options)
        seconds_of(ours, 100)
        primary.kill()
        longest = max(seconds_of(ours, 1) for _ in range(50))
    return {"longest_call_when_killed_s": round(longest, 2), "load": os.getloadavg()[0]}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--tasks", type=int, default=4000)
    options = parser.parse_args()
    print(json.dumps({"failover": bench_failover()}), flush=True)
    with tempfile.TemporaryDirectory() as folder:
        print(json.dumps({"worker": bench_workers(Path(folder), options.tasks)}), flush=True)


if __name__ == "__main__":
    main()
