"""The application of producers and workers: the tests' shop, with a task that writes down when it begins and ends."""

from __future__ import annotations

import itertools
import os
import time
from typing import Any

from celery import signals

import kombu_paired.brokers.redis.receiving
from tests.battle.calling import call
from tests.battle.ledger import Pen
from tests.support.shop import app

assert hasattr(kombu_paired.brokers.redis.receiving, "LOCK_SECONDS")
kombu_paired.brokers.redis.receiving.LOCK_SECONDS = int(float(os.environ["BATTLE_LOCK_SECONDS"]))

_numbers = itertools.count(1)
pen = Pen(os.environ["BATTLE_FACTS"], os.environ["BATTLE_ACTOR"])


@app.task(
    name="battle.work",
    bind=True,
    acks_late=True,
    reject_on_worker_lost=True,
    ignore_result=not app.conf.result_backend,
)
def work(self: Any, seconds: float, calls: bool = False) -> None:
    """Take some time, and call another task first if told to."""
    pen.write("began", id=self.request.id)
    if calls:
        id = f"{pen.actor}-{os.getpid()}-{next(_numbers)}"
        call(pen, id, lambda: work.apply_async((seconds,), task_id=id))
    time.sleep(seconds)
    pen.write("ended", id=self.request.id)


@signals.task_received.connect
def _received(request: Any, **_: Any) -> None:
    pen.write("received", id=request.id)
