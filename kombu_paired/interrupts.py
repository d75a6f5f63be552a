"""What signals do to a program that has to clean up when it is interrupted."""

from __future__ import annotations

import signal
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

__all__ = ("interruptible", "uninterrupted")


@contextmanager
def interruptible() -> Iterator[None]:
    """SIGTERM and SIGHUP interrupt the block as SIGINT does: a raised interrupt ends any waiting, in any library."""
    with _handling(signal.default_int_handler):
        yield


@contextmanager
def uninterrupted() -> Iterator[None]:
    """No second signal ends the cleaning up that the first one began."""
    with _handling(signal.SIG_IGN):
        yield


@contextmanager
def _handling(handler: Any) -> Iterator[None]:
    before = {each: signal.signal(each, handler) for each in (signal.SIGINT, signal.SIGTERM, signal.SIGHUP)}
    try:
        yield
    finally:
        for each, old in before.items():
            signal.signal(each, old)
