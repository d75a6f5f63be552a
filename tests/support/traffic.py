"""Traffic of an application, what it looked like from there, and waiting for what must come of it."""

from __future__ import annotations

import os
import subprocess
import sys
import time
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import Any

from kombu_paired import events
from kombu_paired.events import Event, EventKind
from tests.support.brokers import BrokerNode
from tests.support.ledger import Ledger
from tests.support.nodes import ROOT
from tests.support.noise import Stopwatch


@dataclass
class Traffic:
    """What publishing looked like to the application."""

    errors: list[Exception] = field(default_factory=list)
    #: Seconds of the slowest call, without those in which the machine stood still.
    longest: float = 0.0

    def publish(self, send: Callable[[int], Any], numbers: Iterable[int], pace: float = 0.0) -> None:
        for number in numbers:
            watch = Stopwatch()
            try:
                send(number)
            except Exception as exc:
                self.errors.append(exc)
            self.longest = max(self.longest, watch.seconds)
            time.sleep(pace)


@contextmanager
def heard(*kinds: EventKind) -> Iterator[list[Event]]:
    """The events of these kinds, of all pairings in this process."""
    found: list[Event] = []
    listener = found.append
    events.everywhere.listen(listener, kinds)
    try:
        yield found
    finally:
        events.everywhere.silence(listener)


def wait_for(condition: Callable[[], Any], timeout: float, failure: str | Callable[[], str]) -> None:
    deadline = time.monotonic() + timeout
    while not condition():
        if time.monotonic() > deadline:
            raise AssertionError(failure if isinstance(failure, str) else failure())
        time.sleep(0.02)


def assert_backlog_empties(node: BrokerNode, timeout: float = 30.0) -> None:
    wait_for(lambda: node.backlog() == 0, timeout, lambda: f"the backlog does not empty: {node.depths()}")


def publish_through_an_outage(
    shop: Any, primary: BrokerNode, secondary: BrokerNode, ledger: Ledger
) -> tuple[dict[str, int], Traffic]:
    """600 messages, the primary dead for most of them; returns when all have run, with each number by its task's id."""
    published: dict[str, int] = {}
    traffic = Traffic()

    def send(n: int) -> None:
        published[shop.record.delay(n).id] = n

    traffic.publish(send, range(200))
    ledger.wait_for(200, timeout=60)
    primary.kill()
    traffic.publish(send, range(200, 600), pace=0.005)
    primary.restart()
    ledger.wait_for(600, timeout=60)
    assert_backlog_empties(secondary)
    return published, traffic


def produce_in_a_new_process(environment: dict[str, str], program: str) -> subprocess.CompletedProcess[str]:
    """Run a program with the shop as ``app``."""
    return subprocess.run(
        [sys.executable, "-c", f"from tests.support.shop import app\n{program}"],
        env=os.environ | environment | {"PYTHONPATH": str(ROOT)},
        capture_output=True,
        text=True,
        timeout=60,
    )
