"""Whether the Celery worker around us was told to stop, so that nothing keeps it waiting."""

from __future__ import annotations

import sys
import time

__all__ = ("STOP_CHECK", "sleep_unless_worker_stops", "worker_is_told_to_stop")

#: Seconds between two looks.
STOP_CHECK = 0.2


def worker_is_told_to_stop() -> bool:
    """Whether this is a Celery worker that was told to stop.

    Kombu hands its waiting loop a callback for this; a transport gets none, so it looks where the callback would.
    """
    state = sys.modules.get("celery.worker.state")
    flags = (getattr(state, "should_stop", None), getattr(state, "should_terminate", None))
    return any(flag is not None and flag is not False for flag in flags)


def sleep_unless_worker_stops(seconds: float) -> None:
    """Sleep; a stop ends it."""
    until = time.monotonic() + seconds
    while (left := until - time.monotonic()) > 0 and not worker_is_told_to_stop():
        time.sleep(min(left, STOP_CHECK))
