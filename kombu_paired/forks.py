"""What a process that forks must not hand to its child: a lock that a thread holds which the child does not have.

* Python locks each module while it is imported. A process that forks in another thread's first call, which imports the
  broker's driver, leaves its child waiting for good when that needs the driver, too: so a fork waits for
  :data:`importing`, as it waits for the locks of the standard library's ``logging``.
* Kombu takes a lock for each look at a ``cached_property``, one for all objects of a class, and Celery uses Kombu's.
  In a worker the syphon connects in threads of its own while the pool forks its processes, and plain Celery has no
  such threads: one such fork in thousands left a child that could not connect. A child gets new ones.
"""

from __future__ import annotations

import sys
from collections.abc import Iterator
from functools import cached_property
from threading import RLock
from typing import Any

from kombu_paired.process import at_fork

__all__ = ("importing",)

#: Held by who imports a driver.
importing = RLock()

OWNERS = {"kombu", "celery"}


def _cached_properties() -> Iterator[Any]:
    for name, module in list(sys.modules.items()):
        if name.partition(".")[0] in OWNERS:
            # Not isinstance: a proxy of Celery's says that it is what it stands for, and finds that out first.
            for owner in (each for each in list(vars(module).values()) if issubclass(type(each), type)):
                yield from (each for each in vars(owner).values() if issubclass(type(each), cached_property))


def _renew_locks() -> None:
    importing.release()
    for each in _cached_properties():
        if hasattr(each, "lock"):  # those of functools have none from Python 3.12 on
            each.lock = RLock()


at_fork(before=importing.acquire, in_parent=importing.release, in_child=_renew_locks)
