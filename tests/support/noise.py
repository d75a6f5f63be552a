"""How much of the time was the machine's, so that a test can hold a limit against the rest of it."""

from __future__ import annotations

import os
import threading
import time

#: Seconds between two looks at the machine.
TICK = 0.01


class Noise:
    """A thread sleeps, and sees by how much it overslept."""

    def __init__(self) -> None:
        self._state = (0.0, time.monotonic())  # what was overslept, and when the nap began: one never without the other
        threading.Thread(target=self._run, name="noise", daemon=True).start()

    @property
    def total(self) -> float:
        """Seconds so far, with those of a nap that should be over."""
        overslept, began = self._state
        return overslept + max(time.monotonic() - began - 2 * TICK, 0.0)

    def _run(self) -> None:
        while True:
            time.sleep(TICK)
            self._state = (self.total, time.monotonic())


_noises: dict[int, Noise] = {}


def noise() -> Noise:
    """That of this process: a thread of its parent does not run in a forked one."""
    if os.getpid() not in _noises:
        _noises[os.getpid()] = Noise()
    return _noises[os.getpid()]


class Stopwatch:
    """Runs from when it is made, and stands still while the machine does."""

    def __init__(self) -> None:
        self._noise = noise()
        self._wasted, self._began = self._noise.total, time.monotonic()

    @property
    def seconds(self) -> float:
        return max(time.monotonic() - self._began - (self._noise.total - self._wasted), 0.0)
