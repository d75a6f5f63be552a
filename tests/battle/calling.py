"""A call of ``delay()``, written down before and after, with how much of its time was the machine's."""

from __future__ import annotations

import time
from collections.abc import Callable
from typing import Any

from tests.battle.ledger import Pen
from tests.support.noise import noise


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
