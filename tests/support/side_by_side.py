"""Several calls at once, where a test would wait for each of them."""

from __future__ import annotations

from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from typing import TypeVar

T = TypeVar("T")


def side_by_side(*calls: Callable[[], T]) -> list[T]:
    """What they return, in this order, once all have ended; the first one's exception, if any raised."""
    with ThreadPoolExecutor(len(calls)) as threads:
        return [done.result() for done in [threads.submit(call) for call in calls]]
