"""The program of a producer: threads that call ``delay()``, and write down each call before and after it.

SIGTERM: make no further call, and exit. SIGUSR1: fork in the midst of it; the child calls for some seconds, too.
"""

from __future__ import annotations

import os
import random
import signal
import threading
import time

from tests.battle.app import pen, work
from tests.battle.calling import call

THREADS = 2
#: Which part of the tasks calls another one.
RELAYED = 0.1
#: Seconds for which a forked child calls.
CHILD_CALLS = 3.0


class Caller(threading.Thread):
    def __init__(self, number: int, stop: threading.Event, pause: float, task_seconds: float) -> None:
        super().__init__(name=f"caller{number}")
        self._prefix = f"{os.environ['BATTLE_ACTOR']}-{os.getpid()}-{number}"
        self._stop_calling = stop
        self._pause, self._task_seconds = pause, task_seconds

    def run(self) -> None:
        count = 0
        while not self._stop_calling.is_set():
            count += 1
            self._call(f"{self._prefix}-{count}", random.uniform(0.0, self._task_seconds))
            self._stop_calling.wait(random.uniform(0.5, 1.5) * self._pause)

    def _call(self, id: str, seconds: float) -> None:
        call(pen, id, lambda: work.apply_async((seconds, random.random() < RELAYED), task_id=id))


def start_calling(stop: threading.Event) -> list[Caller]:
    """Threads that call until they are stopped; new ones, after a fork."""
    pause, task_seconds = (float(os.environ[name]) for name in ("BATTLE_PAUSE", "BATTLE_TASK_SECONDS"))
    callers = [Caller(i, stop, THREADS * pause, task_seconds) for i in range(THREADS)]
    for caller in callers:
        caller.start()
    return callers


def main() -> None:
    stop, must_fork = threading.Event(), threading.Event()
    signal.signal(signal.SIGTERM, lambda *_: stop.set())
    signal.signal(signal.SIGUSR1, lambda *_: must_fork.set())
    callers = start_calling(stop)
    pen.write("started")
    children: list[int] = []
    while not stop.is_set():
        if must_fork.is_set():
            must_fork.clear()
            pid = os.fork()
            if pid == 0:
                return child()
            children.append(pid)
        time.sleep(0.02)
    for caller in callers:
        caller.join()
    for pid in children:
        os.waitpid(pid, 0)
    pen.write("done")


def child() -> None:
    stop = threading.Event()
    signal.signal(signal.SIGTERM, lambda *_: stop.set())
    pen.write("started")
    callers = start_calling(stop)
    stop.wait(CHILD_CALLS)
    stop.set()
    for caller in callers:
        caller.join()
    pen.write("done")


if __name__ == "__main__":
    main()
