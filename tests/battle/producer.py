"""The program of a producer: threads that call ``delay()``, and write down each call before and after it.

SIGTERM: make no further call, and exit. SIGUSR1: fork in the midst of it; the child calls for some seconds, too.
"""

from __future__ import annotations

import os
import random
import signal
import threading
import time
from typing import Any

from tests.battle.app import pen, work

THREADS = 2
#: Seconds between two looks at the machine, and for which a forked child calls.
TICK, CHILD_CALLS = 0.01, 3.0


class Noise:
    """How much of the time was the machine's: a thread sleeps, and sees by how much it overslept."""

    def __init__(self) -> None:
        self.total = 0.0
        self.is_over = False
        threading.Thread(target=self._run, name="noise", daemon=True).start()

    def _run(self) -> None:
        while not self.is_over:
            began = time.monotonic()
            time.sleep(TICK)
            self.total += max(time.monotonic() - began - 2 * TICK, 0.0)


class Caller(threading.Thread):
    def __init__(self, number: int, noise: Noise, stop: threading.Event, pause: float, task_seconds: float) -> None:
        super().__init__(name=f"caller{number}")
        self._prefix = f"{os.environ['BATTLE_ACTOR']}-{os.getpid()}-{number}"
        self._noise, self._stop_calling = noise, stop
        self._pause, self._task_seconds = pause, task_seconds

    def run(self) -> None:
        count = 0
        while not self._stop_calling.is_set():
            count += 1
            self._call(f"{self._prefix}-{count}")
            self._stop_calling.wait(random.uniform(0.5, 1.5) * self._pause)

    def _call(self, id: str) -> None:
        pen.write("called", id=id)
        noise, began = self._noise.total, time.monotonic()

        def took() -> dict[str, float]:
            return {"seconds": time.monotonic() - began, "noise": self._noise.total - noise}

        try:
            work.apply_async((random.uniform(0.0, self._task_seconds),), task_id=id)
        except Exception as error:
            text = f"{type(error).__module__}.{type(error).__name__}({str(error)[:300]})"
            pen.write("raised", id=id, error=text, **took())
        else:
            pen.write("returned", id=id, **took())


def call(stop: threading.Event) -> list[Caller]:
    """Threads that call until they are stopped; new ones, after a fork."""
    noise = Noise()
    pause, task_seconds = (float(os.environ[name]) for name in ("BATTLE_PAUSE", "BATTLE_TASK_SECONDS"))
    callers = [Caller(i, noise, stop, THREADS * pause, task_seconds) for i in range(THREADS)]
    for caller in callers:
        caller.start()
    return callers


def main() -> None:
    stop, must_fork = threading.Event(), threading.Event()
    signal.signal(signal.SIGTERM, lambda *_: stop.set())
    signal.signal(signal.SIGUSR1, lambda *_: must_fork.set())
    callers = call(stop)
    pen.write("started")
    children: list[Any] = []
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
    callers = call(stop)
    stop.wait(CHILD_CALLS)
    stop.set()
    for caller in callers:
        caller.join()
    pen.write("done")


if __name__ == "__main__":
    main()
