"""A syphon that waits for its turn: of all processes of a machine, one brings home what only they can reach."""

from __future__ import annotations

import threading
from collections.abc import Callable

from kombu_paired.brokers.turn import Turn
from kombu_paired.syphon.patience import about
from kombu_paired.syphon.teller import Teller

__all__ = ("Standby",)

#: Seconds between two looks whether the turn is free, on average.
LOOK_INTERVAL = 1.0


class Standby:
    """Stands by until it has the turn, or is stopped.

    Arguments:
        then: what to do when it has it.
        stopping: it stops when this is set.
    """

    def __init__(self, turn: Turn, then: Callable[[], None], stopping: threading.Event, teller: Teller) -> None:
        self._turn = turn
        self._then = then
        self._stopping = stopping
        self._teller = teller
        self._trouble = ""

    def run(self) -> None:
        is_first = True
        while not self._stopping.is_set():
            if self._take():
                self._then()
                return
            if is_first and not self._trouble:
                self._teller.stands_by()
            is_first = False
            self._stopping.wait(about(LOOK_INTERVAL))

    def _take(self) -> bool:
        try:
            return self._turn.take()
        except Exception as exc:  # the disk is away: it may come back
            if str(exc) != self._trouble:
                self._trouble = str(exc)
                self._teller.tries_again("cannot know whether it is its turn, and asks again", exc)
            return False
