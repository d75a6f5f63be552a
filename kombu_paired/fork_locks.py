"""Locks of Kombu and Celery that a process which forks hands to its child as they are: held by a thread it has not.

Kombu takes a lock for each look at a ``cached_property``, one for all objects of a class, and Celery uses Kombu's. In
a worker the syphon connects in threads of its own while the pool forks its processes, and plain Celery has no such
threads: one such fork in thousands left a child that waited for good each time it connected.
"""

from __future__ import annotations

import os
import sys
from collections.abc import Iterator
from functools import cached_property
from threading import RLock
from typing import Any

OWNERS = {"kombu", "celery"}


def _cached_properties() -> Iterator[Any]:
    for name, module in list(sys.modules.items()):
        if name.partition(".")[0] in OWNERS:
            # Not isinstance: a proxy of Celery's says that it is what it stands for, and finds that out first.
            for owner in (each for each in list(vars(module).values()) if issubclass(type(each), type)):
                yield from (each for each in vars(owner).values() if issubclass(type(each), cached_property))


def _renew_locks() -> None:
    for each in _cached_properties():
        if hasattr(each, "lock"):  # those of functools have none from Python 3.12 on
            each.lock = RLock()


os.register_at_fork(after_in_child=_renew_locks)
