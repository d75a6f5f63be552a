"""One open file of a spool: a database of SQLite, with a log beside it that is written first (WAL).

What is committed is made durable by a sync of the log, by whoever committed, and *after* it has let go of the right to
write. With ``synchronous=FULL`` SQLite does that before. Then eight processes that send wait for each other's syncs,
one after the other: 250 commits a second in all were measured, and one process that waited for 4.5 seconds. Syncs of
one log that wait at once are one for the disk: 2,900. It is as durable as FULL:

* What is committed is in the log, behind all that was committed before. A sync of the log makes all of that durable,
  since recovery reads it from its beginning up to the last commit that is whole.
* The log begins anew only when all of it was copied into the database (a checkpoint). With ``synchronous=NORMAL``
  SQLite syncs the log before it copies, and the database after it, before anybody may overwrite the log. So a commit
  that is no longer in the log when that is synced is in the synced database.
* The log is removed only by the last process that has the database open, after a checkpoint. Whoever has committed has
  it open.
* A new log is synced with its name when SQLite begins it, and the folder once more when the file is opened here.

A commit can be seen by others before it is durable. A syphon that delivers such a message, and loses the power, has
delivered one that its sender had not been told of yet.
"""

from __future__ import annotations

import fcntl
import os
import sqlite3
from collections.abc import Callable
from urllib.parse import quote

from kombu_paired.brokers.spool import rows
from kombu_paired.brokers.spool.folder import require_rights
from kombu_paired.brokers.spool.kinds import MALFORMED, NewerSpool, NotSynced, SpoolError, code_of, is_busy
from kombu_paired.brokers.spool.locks import patiently
from kombu_paired.deadline import Deadline

__all__ = ("SCHEMA_VERSION", "Database")

#: ``PRAGMA user_version`` of the file.
SCHEMA_VERSION = 1

_TABLES = (
    # In the order of ids, the oldest first. The head is all of a message but its body, as JSON.
    "CREATE TABLE messages (id INTEGER PRIMARY KEY, queue TEXT NOT NULL, head BLOB NOT NULL, body BLOB NOT NULL, "
    "checksum INTEGER NOT NULL)",
    "CREATE INDEX by_queue ON messages (queue)",
    # By which reader; 0: by one that is dead. Apart, so that holding a message does not write it again.
    "CREATE TABLE held (id INTEGER PRIMARY KEY, reader INTEGER NOT NULL, again INTEGER NOT NULL)",
    # Up to which id a file that was damaged has been brought into this one.
    "CREATE TABLE saving (file TEXT PRIMARY KEY, upto INTEGER NOT NULL)",
)

_SETTINGS = (
    "PRAGMA synchronous = NORMAL",  # see above
    "PRAGMA checkpoint_fullfsync = ON",  # where a plain one does not reach the disk: macOS
    "PRAGMA secure_delete = OFF",  # to remove a message must not take the space to write it once more
    "PRAGMA temp_store = MEMORY",
)


class Database:
    """One file, open; for one thread at a time.

    Arguments:
        path: of the file, which is there.
        deadline: opening it takes no longer.
        pause: sleeps so many seconds.
        sync_folder: lets the names in the folder be on the disk.

    Raises:
        sqlite3.Error, OSError: it cannot be opened.
        NewerSpool: it can, but not be read.
    """

    def __init__(
        self, path: str, deadline: Deadline, pause: Callable[[float], None], sync_folder: Callable[[], None]
    ) -> None:
        self.path = path
        self._pause = pause
        require_rights(path)
        found = os.stat(path)
        self._identity = (found.st_dev, found.st_ino)
        # It must not make a file that is gone.
        place = f"file:{quote(os.fsencode(path))}?mode=rw"
        self.connection = sqlite3.connect(place, uri=True, timeout=0, isolation_level=None, check_same_thread=False)
        try:
            self._patiently(self._set_up, deadline)
            self._patiently(self._require_sound, deadline)
            self._log = os.open(f"{path}-wal", os.O_RDONLY | os.O_CLOEXEC)
        except UnicodeDecodeError as exc:  # of Python, which reads SQLite's error
            self.connection.close()
            raise sqlite3.DatabaseError(f"{MALFORMED}: its schema is no text") from exc
        except BaseException:
            self.connection.close()
            raise
        sync_folder()

    def _set_up(self) -> None:
        ask = self.connection.execute
        [version] = ask("PRAGMA user_version").fetchone()
        if version > SCHEMA_VERSION:
            raise NewerSpool(
                f"{self.path} is of version {version}, which a newer kombu-paired has made, and this one knows "
                f"{SCHEMA_VERSION}: update kombu-paired here, or use another folder"
            )
        if version == 0:
            ask("PRAGMA auto_vacuum = INCREMENTAL")
        [mode] = ask("PRAGMA journal_mode = WAL").fetchone()
        if mode != "wal":
            raise SpoolError(f"the file system of {self.path} does not let processes share memory: use a local disk")
        for setting in _SETTINGS:
            ask(setting).fetchone()
        if version == 0:
            self._make_tables()
        ask("SELECT 1 FROM sqlite_master").fetchone()  # now the log is there

    def _require_sound(self) -> None:
        """Damage may leave a schema that can be read, and is another one; and an end to which nothing may be added."""
        found = {text for [text] in self.connection.execute("SELECT CAST(sql AS BLOB) FROM sqlite_master")}
        if not found.issuperset(each.encode() for each in _TABLES):
            raise sqlite3.DatabaseError(f"{MALFORMED}: its tables are others")
        rows.require_sound_end(self.connection)

    def _make_tables(self) -> None:
        self.connection.execute("BEGIN IMMEDIATE")
        try:
            for statement in (*_TABLES, f"PRAGMA user_version = {SCHEMA_VERSION}"):
                self.connection.execute(statement)
            self.connection.execute("COMMIT")
        except BaseException:
            self.rollback()
            raise

    def close(self) -> None:
        """Let go. The last process to do so leaves one whole file."""
        os.close(self._log)
        self.connection.close()

    @property
    def is_current(self) -> bool:
        """Whether this is what lies there under its name: nobody has set it aside, or removed it."""
        try:
            found = os.stat(self.path)
        except (FileNotFoundError, NotADirectoryError):
            return False
        return (found.st_dev, found.st_ino) == self._identity and os.fstat(self._log).st_nlink > 0

    @property
    def version(self) -> int:
        """Another one whenever another process has changed something."""
        [version] = self.connection.execute("PRAGMA data_version").fetchone()
        return int(version)

    # -- a transaction ------------------------------------------------------------------------------------------

    def begin(self, deadline: Deadline) -> None:
        """Get the right to write, which one process has at a time.

        Raises:
            SpoolBusy: others had it until the deadline.
        """
        self._patiently(lambda: self.connection.execute("BEGIN IMMEDIATE"), deadline)

    def read(self, job: Callable[[sqlite3.Connection], object], deadline: Deadline) -> None:
        """Do something that changes nothing, as soon as it can be done.

        Raises:
            SpoolBusy: the file was being recovered until the deadline.
        """
        self._patiently(lambda: job(self.connection), deadline)

    def commit(self) -> None:
        """Make what was written since :meth:`begin` part of the file, for all, and the disk know of it.

        Raises:
            NotSynced: it may be lost when the power is.
        """
        try:
            self.connection.execute("COMMIT")
        except sqlite3.OperationalError as exc:
            if code_of(exc) == "SQLITE_IOERR":
                raise NotSynced(f"what was written to {self.path} may be there, or not: {exc}") from exc
            raise
        try:
            _sync(self._log)
        except OSError as exc:
            raise NotSynced(f"the disk does not take what was written to {self.path}: {exc}") from exc

    def rollback(self) -> None:
        """As if nothing had been written; SQLite may have done it already."""
        if self.connection.in_transaction:
            self.connection.execute("ROLLBACK")

    # -- keeping house ------------------------------------------------------------------------------------------

    def checkpoint(self) -> None:
        """Copy what is in the log, so that it can begin anew."""
        self.connection.execute("PRAGMA wal_checkpoint(RESTART)").fetchall()

    def shrink(self, deadline: Deadline) -> None:
        """Give back some of the room that no message needs. If the power is lost, it was not given back."""
        # A script, since a statement that gives no columns is left after its first step.
        self._patiently(lambda: self.connection.executescript(f"PRAGMA incremental_vacuum({rows.SPARE})"), deadline)
        self.connection.execute("PRAGMA wal_checkpoint(PASSIVE)").fetchall()  # the file is smaller after it

    def _patiently(self, step: Callable[[], object], deadline: Deadline) -> None:
        def try_it() -> bool:
            try:
                step()
            except sqlite3.OperationalError as exc:
                if is_busy(exc):
                    return False
                raise
            return True

        patiently(try_it, deadline, self._pause, "other processes were writing to the spool")


def _sync(fd: int) -> None:
    if hasattr(fcntl, "F_FULLFSYNC"):  # macOS, where the others do not reach the disk
        fcntl.fcntl(fd, fcntl.F_FULLFSYNC)
    else:
        os.fdatasync(fd)
