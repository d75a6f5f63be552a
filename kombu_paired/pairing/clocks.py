"""Time as a pairing sees it: injected, so that tests turn the clock themselves."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable
from dataclasses import dataclass

from kombu_paired.pairing.reach import Wait

__all__ = ("Clocks",)


@dataclass(frozen=True)
class Clocks:
    """How time is read, and how it is spent.

    Attributes:
        monotonic: seconds that never go back.
        wall: seconds since 1970, UTC.
        sleep: waits while a namespace is busy.
        wait: waits on a condition for what another thread finds out.
    """

    monotonic: Callable[[], float] = time.monotonic
    wall: Callable[[], float] = time.time
    sleep: Callable[[float], None] = time.sleep
    wait: Wait = threading.Condition.wait
