"""Whether it is a Celery worker that waits, and whether it was told to stop, so that nothing keeps it waiting."""

from __future__ import annotations

import sys
import time

__all__ = (
    "STOP_CHECK",
    "is_worker_itself",
    "seconds_since_wait",
    "sleep_unless_worker_stops",
    "tags_that_run",
    "worker_is_told_to_stop",
)

#: Seconds between two looks.
STOP_CHECK = 0.2

_waited_at = float("-inf")


def worker_is_told_to_stop() -> bool:
    """Whether this is a Celery worker that was told to stop.

    Kombu hands its waiting loop a callback for this; a transport gets none, so it looks where the callback would.
    """
    state = sys.modules.get("celery.worker.state")
    flags = (getattr(state, "should_stop", None), getattr(state, "should_terminate", None))
    return any(flag is not None and flag is not False for flag in flags)


def tags_that_run(channel: object) -> set[object]:
    """The delivery tags of the messages of a channel whose tasks this Celery worker runs at the moment."""
    state = sys.modules.get("celery.worker.state")
    running = getattr(state, "active_requests", ())
    messages = [getattr(request, "message", None) for request in tuple(running)]
    return {each.delivery_tag for each in messages if each is not None and each.channel is channel}


def sleep_unless_worker_stops(seconds: float) -> None:
    """Sleep; a stop ends it."""
    global _waited_at
    until = time.monotonic() + seconds
    while (left := until - time.monotonic()) > 0 and not worker_is_told_to_stop():
        time.sleep(min(left, STOP_CHECK))
        _waited_at = time.monotonic()


def seconds_since_wait() -> float:
    """Seconds since a worker of this process last waited in :func:`sleep_unless_worker_stops`; infinite if none did."""
    return time.monotonic() - _waited_at


def is_worker_itself() -> bool:
    """Whether a Celery worker calls, on its own account: not a task in it, nor a program that looks at one.

    A worker is there to wait for its broker; whoever else asks for something wants an answer. Celery tells a transport
    no more than any other program does, so its frames are looked for on the stack, after a failure and not before.
    Its heart beats in a thread or greenlet of its own, unless the pool has an event loop.
    """
    worker, pidbox, heart = (sys.modules.get(f"celery.worker.{name}") for name in ("worker", "pidbox", "heartbeat"))
    if worker is None or pidbox is None or heart is None or sys.modules["celery"].current_task:
        return False
    own = {worker.WorkController.start.__code__, pidbox.gPidbox.loop.__code__, heart.Heart._send.__code__}
    frame = sys._getframe(1)
    while frame is not None and frame.f_code.co_name != "_bootstrap":  # a pool's process has its worker's stack below
        if frame.f_code in own:
            return True
        frame = frame.f_back  # type: ignore[assignment]
    return False
