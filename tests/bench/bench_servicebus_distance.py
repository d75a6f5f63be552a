"""Service Bus from afar: what 30 ms to the namespace leave of a worker's rate; ours, Kombu's stock transport, the SDK.

    python -m tests.bench.bench_servicebus_distance [--blocks N] [--tasks N] [--round-trip SECONDS]

``celery worker --pool prefork -c 2`` empties a queue that was filled before; its rate is that of the times that the
tasks wrote, without the first and last tenth. ``sdk`` is a process that receives in batches of a hundred and completes
each, and does nothing besides: no worker can be as fast. Each block measures each side near and far, in turn. ``start``
is how long the first tenth of the tasks took, and ``shutdown`` how long the worker took to stop after the last one.
"""

from __future__ import annotations

import argparse
import json
import os
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import kombu
from azure.servicebus import ServiceBusClient

from kombu_paired.emulator import Emulator
from tests.bench.bench_servicebus import url_of
from tests.support import shop, stock
from tests.support.filling import filling
from tests.support.ledger import Ledger
from tests.support.nodes import LocalTestWorker

QUEUE = "celery"
AT_ONCE = 100
PATIENCE = 300.0

Found = dict[str, float]


def fill(emulator: Emulator, tasks: int) -> None:
    """Have so many tasks wait in the queue, each as Celery sends it."""
    record = shop.make_app({"SHOP_BROKER_URL": "memory://"}).record
    with filling(emulator, QUEUE) as connection:
        producer = connection.Producer()
        for number in range(tasks):
            record.apply_async((number,), producer=producer, queue=kombu.Queue(QUEUE), routing_key=QUEUE)


def worker(url: str, options: dict[str, Any], folder: Path, tasks: int, module: str = "tests.support.shop") -> Found:
    """A worker that empties the queue and stops."""
    ledger = Ledger(folder / "ledger")
    environment = shop.shop_environment(url, options, ledger=ledger, setup=url.startswith("paired+"))
    running = LocalTestWorker(folder, module=module, env=environment, concurrency=2, log_level="WARNING")
    try:
        ledger.wait_for(tasks, timeout=PATIENCE)
        _, seconds = running.stop()
    finally:
        running.kill()
    times = sorted(at for _, at, _ in ledger.entries())
    first, last = tasks // 10, tasks - tasks // 10
    return {
        "rate": (last - first) / (times[last - 1] - times[first]),
        "start": times[first] - times[0],
        "shutdown": seconds,
        "twice": len(ledger.duplicates()),
    }


def ours(primary: Emulator, secondary: Emulator, folder: Path, tasks: int) -> Found:
    return worker("paired+" + url_of(primary), {"secondary": url_of(secondary)}, folder, tasks)


def stocks(primary: Emulator, secondary: Emulator, folder: Path, tasks: int) -> Found:
    return worker(stock.stock_url(url_of(primary)), {}, folder, tasks, "tests.support.stock")


def sdk(primary: Emulator, secondary: Emulator, folder: Path, tasks: int) -> Found:
    command = [sys.executable, "-m", __name__ if __name__ != "__main__" else "tests.bench.bench_servicebus_distance"]
    done = subprocess.run(
        [*command, "--empty", primary.connection_string, "--tasks", str(tasks)], capture_output=True, check=True
    )
    return {"rate": float(done.stdout)}


def empty(connection_string: str, tasks: int) -> float:
    """Messages a second of the SDK alone, without the first and last tenth."""
    times: list[float] = []
    with (
        ServiceBusClient.from_connection_string(connection_string) as client,
        client.get_queue_receiver(QUEUE) as receiver,
    ):
        while len(times) < tasks:
            for message in receiver.receive_messages(AT_ONCE, max_wait_time=5):
                receiver.complete_message(message)
                times.append(time.perf_counter())
    first, last = tasks // 10, tasks - tasks // 10
    return (last - first) / (times[last - 1] - times[first])


#: Who -> how it empties the queue, and how many tasks it is given of those that we are, near and far.
SIDES: dict[str, tuple[Callable[[Emulator, Emulator, Path, int], Found], float, float]] = {
    "ours": (ours, 1.0, 1.0),
    "stock": (stocks, 0.1, 0.05),
    "sdk": (sdk, 1.0, 0.05),
}


def measure(blocks: int, tasks: int, round_trip: float, sides: list[str]) -> dict[str, Any]:
    found: dict[str, list[Found]] = {f"{side}_{where}": [] for side in sides for where in ("near", "far")}
    for block in range(blocks):
        for side in sides if block % 2 == 0 else reversed(sides):
            empties, *shares = SIDES[side]
            for where, latency, share in zip(("near", "far"), (0.0, round_trip / 2), shares, strict=True):
                with (
                    tempfile.TemporaryDirectory() as folder,
                    Emulator(latency=latency, process=True) as primary,
                    Emulator(latency=latency, process=True) as secondary,
                ):
                    count = int(tasks * share)
                    fill(primary, count)
                    found[f"{side}_{where}"].append(empties(primary, secondary, Path(folder), count))
                    print(f"{side}_{where} {found[f'{side}_{where}'][-1]}", file=sys.stderr)
    answer: dict[str, Any] = {}
    for name, runs in found.items():
        answer[name] = {key: round(statistics.median(run[key] for run in runs), 1) for key in runs[0]}
    for side in sides:
        far_to_near = [
            far["rate"] / near["rate"] for far, near in zip(found[side + "_far"], found[side + "_near"], strict=True)
        ]
        answer[f"{side}_far_to_near"] = round(statistics.median(far_to_near), 3)
    if {"ours", "sdk"} <= set(sides):
        answer["ours_to_sdk_near"] = round(answer["ours_near"]["rate"] / answer["sdk_near"]["rate"], 3)
    return {**answer, "round_trip": round_trip, "blocks": blocks, "tasks": tasks, "load": os.getloadavg()[0]}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--blocks", type=int, default=3)
    parser.add_argument("--tasks", type=int, default=4000)
    parser.add_argument("--round-trip", type=float, default=0.03)
    parser.add_argument("--sides", default=",".join(SIDES))
    parser.add_argument("--empty", metavar="CONNECTION_STRING", help=argparse.SUPPRESS)
    options = parser.parse_args()
    if options.empty:
        print(empty(options.empty, options.tasks))
        return
    found = measure(options.blocks, options.tasks, options.round_trip, options.sides.split(","))
    print(json.dumps(found, indent=1))


if __name__ == "__main__":
    main()
