"""Trying until it works: what a syphon needs may be away for hours, and a whole fleet of syphons waits for it."""

from __future__ import annotations

import random
import threading
from collections.abc import Callable
from typing import TypeVar

from tenacity import RetryCallState, Retrying, retry_if_exception_type, stop_when_event_set, wait_random_exponential
from tenacity.nap import sleep_using_event

from kombu_paired.errors import NamespaceFailure

__all__ = ("FIRST_WAIT", "LONGEST_WAIT", "about", "patiently")

#: Seconds between tries on a namespace that is away: at first, and at most.
FIRST_WAIT, LONGEST_WAIT = 0.5, 5.0

Answer = TypeVar("Answer")


def about(seconds: float) -> float:
    """So many seconds on average: what a fleet lost in the same second it does not ask for in the same second."""
    return random.uniform(0, 2 * seconds)


def patiently(
    operation: Callable[[], Answer], stopping: threading.Event, tell: Callable[[BaseException | None], None]
) -> Answer:
    """Try until it works, with growing pauses.

    Arguments:
        stopping: when it is set, the last failure is raised.
        tell: is called once, with the first failure.
    """

    def tell_once(state: RetryCallState) -> None:
        if state.attempt_number == 1 and state.outcome is not None:
            tell(state.outcome.exception())

    retrying = Retrying(
        retry=retry_if_exception_type(NamespaceFailure),
        wait=wait_random_exponential(multiplier=FIRST_WAIT, max=LONGEST_WAIT),
        sleep=sleep_using_event(stopping),
        stop=stop_when_event_set(stopping),
        before_sleep=tell_once,
        reraise=True,
    )
    return retrying(operation)
