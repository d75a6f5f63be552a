"""A call of ``delay()``, written down before and after, with how much of its time was the machine's."""

from __future__ import annotations

import os
import threading
import time
from collections.abc import Callable
from typing import Any

from tests.battle.ledger import Pen

#: Seconds between two looks at the machine.
TICK = 0.01


class Noise:
    """How much of the time was the machine's: a thread sleeps, and sees by how much it overslept."""

    def __init__(self) -> None:
        self.total = 0.0
        threading.Thread(target=self._run, name="noise", daemon=True).start()

    def _run(self) -> None:
        while True:
            began = time.monotonic()
            time.sleep(TICK)
            self.total += max(time.monotonic() - began - 2 * TICK, 0.0)


_noises: dict[int, Noise] = {}


def noise() -> Noise:
    """That of this process: a thread of its parent does not run in a forked one."""
    if os.getpid() not in _noises:
        _noises[os.getpid()] = Noise()
    return _noises[os.getpid()]


def call(pen: Pen, id: str, publish: Callable[[], Any]) -> None:
    """Whatever comes of it is written down, and raised no further."""
    machine = noise()
    pen.write("called", id=id)
    wasted, began = machine.total, time.monotonic()

    def took() -> dict[str, float]:
        return {"seconds": time.monotonic() - began, "noise": machine.total - wasted}

    try:
        publish()
    except Exception as error:
        pen.write(
            "raised", id=id, error=f"{type(error).__module__}.{type(error).__name__}({str(error)[:300]})", **took()
        )
    else:
        pen.write("returned", id=id, **took())
