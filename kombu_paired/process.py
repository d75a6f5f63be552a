"""What a process does once: it shares its pairings, starts clean after a fork, and closes what is open at its end.

Everything that has something to do then says so here, so that the order is one order.
"""

from __future__ import annotations

import atexit
import logging
import os
import threading
from collections.abc import Callable, Iterable
from typing import Any, Protocol, TypeVar

__all__ = ("at_exit", "at_fork", "inherit", "shared")

logger = logging.getLogger(__name__)

Step = Callable[[], object]


class Closable(Protocol):
    """What is shared: a pairing."""

    closed: bool

    def close(self) -> None: ...


Shared = TypeVar("Shared", bound=Closable)

_before_fork: list[Step] = []
_in_parent: list[Step] = []
_in_child: list[Step] = []
_at_exit: list[Step] = []

_shared: dict[Any, Any] = {}
_lock = threading.Lock()
#: What a child process inherited and must not touch: closing it would close the parent's connections.
_inherited: list[Any] = []


def at_fork(*, in_child: Step, before: Step | None = None, in_parent: Step | None = None) -> None:
    """Take part in every fork from now on: before it the last to come is the first, and after it the first.

    Arguments:
        in_child: lets a child process start clean. It touches no socket, thread or lock of the parent.
        before, in_parent: what it needs around the fork, in the process that forks.
    """
    _in_child.append(in_child)
    if before is not None:
        _before_fork.append(before)
    if in_parent is not None:
        _in_parent.append(in_parent)


def at_exit(step: Step) -> None:
    """Do something when the process exits, after its pairings were closed; the last to come is the first."""
    _at_exit.append(step)


def shared(key: Any, make: Callable[[], Shared]) -> Shared:
    """The pairing of this process for a key; made on first use, and again after a fork or when it was closed."""
    found: Shared | None = _shared.get(key)
    if found is not None and not found.closed:
        return found
    with _lock:
        found = _shared.get(key)
        if found is None or found.closed:
            found = _shared[key] = make()
        return found


def inherit(thing: Any) -> None:
    """Keep something of the parent process alive and untouched in this child."""
    _inherited.append(thing)


def _forget_shared() -> None:
    global _lock
    _lock = threading.Lock()
    _inherited.extend(_shared.values())
    _shared.clear()


def _do_all(steps: Iterable[Step]) -> None:
    """Each of them, whatever becomes of the others."""
    for step in steps:
        try:
            step()
        except Exception:
            logger.exception("a step at a fork or at the exit of the process failed: %r", step)


def _exit() -> None:
    _do_all([*(each.close for each in list(_shared.values())), *reversed(_at_exit)])


os.register_at_fork(
    before=lambda: _do_all(reversed(_before_fork)),
    after_in_parent=lambda: _do_all(_in_parent),
    after_in_child=lambda: _do_all([_forget_shared, *_in_child]),
)
atexit.register(_exit)
