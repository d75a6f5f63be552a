"""Episodes side by side: each lane is a process with brokers of its own."""

from __future__ import annotations

import multiprocessing
import os
import signal
import threading
import time
import traceback
from collections.abc import Iterator
from concurrent.futures import FIRST_COMPLETED, Future, ProcessPoolExecutor, wait
from multiprocessing import util
from pathlib import Path
from typing import Any

from tests.battle.arena import Arena
from tests.battle.episode import Outcome, play
from tests.battle.plan import Plan


def play_all(
    plans: Iterator[Plan], folder: Path, *, lanes: int, until: float, limit: float, keep: bool
) -> Iterator[Outcome | str]:
    """Outcomes as they come; a text for an episode that could not be played.

    Arguments:
        until: begin none later (:func:`time.monotonic`).
        limit: begin none once so many faults are played.
    """
    context = multiprocessing.get_context("spawn")
    running: dict[Future[Outcome], Plan] = {}
    with ProcessPoolExecutor(lanes, context, _begin_lane, (str(folder), context.Value("i", 0))) as pool:
        while True:
            while len(running) < lanes and time.monotonic() < until and limit > 0:
                plan = next(plans, None)
                if plan is None:
                    break
                limit -= len(plan.faults)
                running[pool.submit(_play_one, plan, str(folder), keep)] = plan
            if not running:
                return
            for done in wait(running, return_when=FIRST_COMPLETED).done:
                plan = running.pop(done)
                error = done.exception()
                yield f"FAIL {plan.arguments}: could not be played: {error}" if error else done.result()


_arena: Arena | None = None


def _begin_lane(folder: str, count: Any) -> None:
    global _arena
    with count.get_lock():
        count.value += 1
        number = count.value
    signal.signal(signal.SIGUSR1, signal.SIG_IGN)  # inherited: a producer told to fork before it can does not die of it
    threading.Thread(target=_end_with, args=(os.getppid(),), daemon=True).start()
    _arena = Arena(Path(folder) / f"brokers-{number}")
    util.Finalize(None, _arena.close, exitpriority=10)


def _end_with(parent: int) -> None:
    """However the parent ended: what this lane has started dies with it."""
    while os.getppid() == parent:
        time.sleep(0.5)
    os._exit(1)


def _play_one(plan: Plan, folder: str, keep: bool) -> Outcome:
    assert _arena is not None
    name = f"{plan.seed}-{plan.pair.name.replace('/', '-')}-{plan.pool}"
    try:
        return play(plan, _arena, Path(folder) / name, keep=keep)
    except BaseException:
        _arena.close()  # nobody knows what state the brokers are in
        raise RuntimeError(traceback.format_exc()) from None
