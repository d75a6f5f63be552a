"""How much slower is ``delay()`` on a healthy entity while a backlog drains into it?

    python -m tests.bench.bench_priority [amqp|redis …] [--messages N] [--rounds N] [--seconds N]

Two local brokers of a kind. A backlog of 20,000 messages comes home to the queue to which ``delay()`` sends meanwhile:
once by a syphon of the same process, once by one beside it. Calls are timed one by one, in a quiet time, while the
backlog drains, and in a quiet time again, so that whatever the machine does it does to both. A drain is watched for
some seconds at most. How many messages came home in one is printed with nobody sending, and with somebody. Percentages
are medians over the rounds, of mean and of median calls; those of median calls stand there round by round, too.
"""

from __future__ import annotations

import argparse
import contextlib
import json
import os
import statistics
import subprocess
import sys
import time
import uuid
from collections.abc import Callable, Iterator
from typing import Any

from celery import Celery
from kombu import Connection

from kombu_paired import Syphon, pairing_of
from kombu_paired.message import Diversion, Message, to_backlog
from kombu_paired.pairing import Pairing
from kombu_paired.testing import local_broker

TARGET = "celery"
BODY = json.dumps("x" * 598)
#: Seconds of a quiet time, and between two looks at how much has come home.
QUIET, LOOK = 2.0, 0.25
#: Seconds that a syphon may take to begin.
PATIENCE = 120.0


def a_message() -> Message:
    task_id = str(uuid.uuid4())
    headers = {
        "lang": "py",
        "task": "bench.nothing",
        "id": task_id,
        "root_id": task_id,
        "retries": 0,
        "origin": "bench",
    }
    properties = {"delivery_mode": 2, "correlation_id": task_id, "message_id": task_id}
    return Message(BODY, "", TARGET, 0, "application/json", "utf-8", headers=headers, properties=properties)


def fill(pairing: Pairing, messages: int) -> None:
    """Put so many messages into the backlog queues, in turn."""
    queues, sender = pairing.backlog_queue_names, pairing.secondary.sender()
    why = Diversion(time.time(), time.time(), "bench/1", "unreachable: bench")
    for start in range(0, messages, 1000):
        numbers = range(start, min(start + 1000, messages))
        batch = [to_backlog(a_message(), queues[number % len(queues)], why) for number in numbers]
        failures = [each for each in sender.send_batch(batch, 60) if each is not None]
        assert not failures, failures[0]
    sender.close()


@contextlib.contextmanager
def in_process(pairing: Pairing, primary: str, secondary: str) -> Iterator[None]:
    syphon = Syphon(pairing)
    syphon.start()
    try:
        yield
    finally:
        syphon.stop()


@contextlib.contextmanager
def beside(pairing: Pairing, primary: str, secondary: str) -> Iterator[None]:
    program = [sys.executable, "-m", "kombu_paired.cli", "syphon", "--primary", primary, "--secondary", secondary]
    child = subprocess.Popen(program, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)
    try:
        yield
    finally:
        child.terminate()
        child.wait(30)


def make_task(app: Celery) -> Any:
    @app.task(name="bench.nothing", shared=False)
    def nothing(number: int, text: str) -> None:
        """The task that is published and never run."""

    return nothing


class Scene:
    """Two brokers, an application that sends, and a look at what is there."""

    def __init__(self, primary: str, secondary: str) -> None:
        self.urls = (primary, secondary)
        app = Celery("bench", broker="paired+" + primary, set_as_current=False)
        app.conf.update(broker_transport_options={"secondary": secondary}, task_ignore_result=True)
        self.task = make_task(app)
        self.task.delay(0, "opens the pairing")
        with app.connection_for_write() as connection:
            connection.connect()
            self.pairing = pairing_of(connection)
        self._plain = Connection(primary)
        self.purge()

    def count(self) -> int:
        return int(self._plain.default_channel.queue_declare(TARGET, durable=True, auto_delete=False).message_count)

    def purge(self) -> None:
        self._plain.default_channel.queue_declare(TARGET, durable=True, auto_delete=False)
        self._plain.default_channel.queue_purge(TARGET)

    def send_until(self, is_over: Callable[[int], bool]) -> list[float]:
        """Seconds of each call, until it is over after so many of them."""
        took: list[float] = []
        looked = time.perf_counter()
        while True:
            began = time.perf_counter()
            self.task.delay(len(took), "a text of an ordinary length")
            took.append(time.perf_counter() - began)
            if began - looked > LOOK:
                if is_over(len(took)):
                    return took
                looked = time.perf_counter()

    def quiet(self) -> list[float]:
        until = time.perf_counter() + QUIET
        return self.send_until(lambda calls: time.perf_counter() > until)

    def fill(self, messages: int) -> None:
        """Let nothing be there but a backlog of so many."""
        self.purge()
        with Connection(self.urls[1]) as plain:
            for queue in self.pairing.backlog_queue_names:
                plain.default_channel.queue_purge(queue)
        fill(self.pairing, messages)

    def wait_for_the_first(self) -> float:
        """When it came: a program takes its time to start."""
        began = time.perf_counter()
        while not self.count():
            assert time.perf_counter() - began < PATIENCE
            time.sleep(0.01)
        return time.perf_counter()

    def drain_alone(self, run: Any, messages: int, seconds: float) -> float:
        """Messages per second that come home with nobody else there."""
        self.fill(messages)
        with run(self.pairing, *self.urls):
            moving = self.wait_for_the_first()
            while (home := self.count()) < messages and time.perf_counter() - moving < seconds:
                time.sleep(0.05)
            return home / (time.perf_counter() - moving)

    def drain_under_calls(self, run: Any, messages: int, seconds: float) -> tuple[float, list[float], list[float]]:
        """Messages per second that come home; seconds of the calls in quiet; of those meanwhile."""
        self.fill(messages)
        quiet = self.quiet()
        self.purge()
        with run(self.pairing, *self.urls):
            moving = self.wait_for_the_first()
            busy = self.send_until(
                lambda calls: self.count() - calls >= messages or time.perf_counter() - moving > seconds
            )
            rate = (self.count() - len(busy)) / (time.perf_counter() - moving)
        return rate, quiet + self.quiet(), busy


def measure(kind: Any, where: str, messages: int, rounds: int, seconds: float) -> dict[str, Any]:
    run = {"in process": in_process, "beside": beside}[where]
    alone, together, ratios, medians = [], [], [], []
    all_quiet: list[float] = []
    all_busy: list[float] = []
    with local_broker(kind) as primary, local_broker(kind) as secondary:
        scene = Scene(primary.url, secondary.url)
        for _ in range(rounds):
            alone.append(scene.drain_alone(run, messages, seconds))
            rate, quiet, busy = scene.drain_under_calls(run, messages, seconds)
            together.append(rate)
            all_quiet += quiet
            all_busy += busy
            ratios.append(statistics.fmean(busy) / statistics.fmean(quiet))
            medians.append(statistics.median(busy) / statistics.median(quiet))
        scene.pairing.close()
    return {
        "broker": kind,
        "syphon": where,
        "slower_percent": round(100 * (statistics.median(ratios) - 1)),
        "slower_percent_median_call": round(100 * (statistics.median(medians) - 1)),
        "of_rounds": [round(100 * (each - 1)) for each in sorted(medians)],
        "quiet_us": _quantiles(all_quiet),
        "draining_us": _quantiles(all_busy),
        "alone_per_s": round(statistics.median(alone)),
        "under_calls_per_s": round(statistics.median(together)),
        "load": round(os.getloadavg()[0], 1),
    }


def _quantiles(seconds: list[float]) -> dict[str, int]:
    """In microseconds."""
    cuts = statistics.quantiles(seconds, n=100)
    found = {"mean": statistics.fmean(seconds), "p50": cuts[49], "p95": cuts[94], "p99": cuts[98], "most": max(seconds)}
    return {name: round(1e6 * each) for name, each in found.items()}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("kinds", nargs="*", default=["amqp", "redis"])
    parser.add_argument("--messages", type=int, default=20_000)
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--seconds", type=float, default=20, help="for which a drain is watched")
    parser.add_argument("--where", nargs="*", default=["in process", "beside"])
    options = parser.parse_args()
    for kind in options.kinds:
        for where in options.where:
            print(json.dumps(measure(kind, where, options.messages, options.rounds, options.seconds)), flush=True)


if __name__ == "__main__":
    main()
