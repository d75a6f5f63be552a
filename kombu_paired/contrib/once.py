"""An outage is one error in the log of a worker, and not one a minute: error trackers make an event of each.

Celery's consumer says that it cannot connect each time it has waited in vain. The first time of an outage stays an
error, and the others become warnings.
"""

from __future__ import annotations

import logging
import time
from collections.abc import Callable

from kombu_paired.urls import PREFIX

__all__ = ("OncePerOutage", "watch_consumers")

#: How Celery's line begins, and the logger that says it.
CANNOT_CONNECT, LOGGER = "consumer: Cannot connect to %s", "celery.worker.consumer.consumer"
#: Seconds without such a line after which the next one is of another outage. A worker waits for a minute, and Celery
#: for half a minute more at most.
QUIET = 180.0


class OncePerOutage(logging.Filter):
    """Lets the first error of an outage pass as that, and the others as warnings.

    Arguments:
        clock: monotonic seconds.
    """

    def __init__(self, clock: Callable[[], float] = time.monotonic) -> None:
        super().__init__()
        self._clock = clock
        self._last: dict[str, float] = {}  # the broker's URL -> when it was said last

    def filter(self, record: logging.LogRecord) -> bool:
        if record.levelno == logging.ERROR and str(record.msg).startswith(CANNOT_CONNECT):
            url = str(record.args[0]) if isinstance(record.args, tuple) and record.args else ""
            if url.startswith(PREFIX):
                now, last = self._clock(), self._last.get(url)
                self._last[url] = now
                if last is not None and now - last < QUIET:
                    record.levelno, record.levelname = logging.WARNING, logging.getLevelName(logging.WARNING)
        return True


def watch_consumers() -> None:
    """Of this process, from now on; twice changes nothing."""
    logger = logging.getLogger(LOGGER)
    if not any(isinstance(each, OncePerOutage) for each in logger.filters):
        logger.addFilter(OncePerOutage())
