"""The transport of Kombu's that stands for a spool: its errors, and exchanges as all virtual transports have them.

Nobody consumes from it: a spool is no primary, and workers do not stand in there.
"""

from __future__ import annotations

import sqlite3
from typing import Any

from kombu.transport import virtual

from kombu_paired.brokers.spool import rows
from kombu_paired.brokers.spool.kinds import SpoolError
from kombu_paired.brokers.spool.store import Store
from kombu_paired.deadline import Deadline

__all__ = ("Channel", "Transport")


class Channel(virtual.Channel):  # type: ignore[misc]
    """A channel over which things are declared. A queue is there as soon as something is put into it.

    Attributes:
        until: when the call that is under way must have ended.
    """

    do_restore = False
    supports_fanout = False
    deadletter_queue = None

    def __init__(self, connection: Any, **kwargs: Any) -> None:
        super().__init__(connection, **kwargs)
        self.store: Store = connection.store
        self.until = Deadline()

    def _new_queue(self, queue: str, **kwargs: Any) -> None:
        """Nothing is to be made."""

    def _has_queue(self, queue: str, **kwargs: Any) -> bool:
        return True

    def _size(self, queue: str) -> int:
        return self.store.read(lambda connection: rows.count(connection, queue), self.until)

    def _purge(self, queue: str) -> int:
        return self.store.write(lambda connection: rows.purge(connection, queue), self.until)


class Transport(virtual.Transport):  # type: ignore[misc]
    """The transport."""

    Channel = Channel
    driver_type = driver_name = "spool"
    connection_errors = (OSError, SpoolError, sqlite3.OperationalError, *virtual.Transport.connection_errors)
    channel_errors = (sqlite3.Error, *virtual.Transport.channel_errors)
    store: Store

    def driver_version(self) -> str:
        return sqlite3.sqlite_version
