"""The spools of this process: who needs one borrows it, since a process may have its files open only once."""

from __future__ import annotations

import os
import threading

from kombu_paired.brokers.spool.store import Store
from kombu_paired.process import at_fork, inherit

__all__ = ("borrow", "give_back")

#: Seconds that a fork waits for a transaction that is under way.
FORK_PATIENCE = 5.0

_stores: dict[str, Store] = {}
_lock = threading.Lock()
_held_for_fork: list[threading.Lock] = []


def borrow(path: str) -> Store:
    """The spool in a folder. All of the process share it, whatever they call the folder."""
    place = os.path.realpath(path)
    with _lock:
        store = _stores.setdefault(place, Store(place))
        store.users += 1
        return store


def give_back(store: Store) -> None:
    """It is not needed by who borrowed it; the last one lets it go."""
    with _lock:
        store.users -= 1
        if store.users == 0 and _stores.get(store.folder.path) is store and store.close():
            del _stores[store.folder.path]


def _before_fork() -> None:
    """A child must not find SQLite's own locks taken by a thread that it does not have."""
    for lock in (_lock, *(store.using for store in list(_stores.values()))):
        if lock.acquire(timeout=FORK_PATIENCE):
            _held_for_fork.append(lock)


def _in_parent() -> None:
    while _held_for_fork:
        _held_for_fork.pop().release()


def _in_child() -> None:
    """Nothing of them is touched: to close a file would be to let go of locks, or to remove what the parent uses."""
    global _lock
    _held_for_fork.clear()
    _lock = threading.Lock()
    for store in _stores.values():
        inherit(store)
    _stores.clear()


at_fork(before=_before_fork, in_parent=_in_parent, in_child=_in_child)
