"""Which kind of failure an error of a spool is: SQLite's, the system's, and our own."""

from __future__ import annotations

import errno
import sqlite3

from kombu_paired.failures import FailureKind

__all__ = (
    "MALFORMED",
    "NewerSpool",
    "NotSynced",
    "SetAside",
    "SpoolBusy",
    "SpoolError",
    "SpoolFull",
    "code_of",
    "concerns_all",
    "is_broken",
    "is_busy",
    "is_full",
    "kind_of",
)


class SpoolError(Exception):
    """Base of what a spool itself says."""


class SpoolFull(SpoolError):
    """There is no room for the message: by the spool's own limit, or on the disk."""


class SpoolBusy(SpoolError):
    """Others had the spool for all of the time that the call had.

    Attributes:
        is_under_way: the transaction is being written by another thread, and may yet succeed.
    """

    def __init__(self, text: str, *, is_under_way: bool = False) -> None:
        super().__init__(text)
        self.is_under_way = is_under_way


class NotSynced(SpoolError):
    """It is written, and the disk does not say that it has it."""


class SetAside(SpoolError):
    """The file was damaged and is not in use any more; what could be read of it comes again."""


class NewerSpool(SpoolError):
    """A newer version of this package has made the file, and this one cannot read it."""


#: Result codes of SQLite (its documentation, "Result and Error Codes"); any other one is a fault.
_CODES = {
    "SQLITE_FULL": FailureKind.FAULT,
    "SQLITE_IOERR": FailureKind.FAULT,
    "SQLITE_READONLY": FailureKind.FAULT,
    "SQLITE_CORRUPT": FailureKind.FAULT,
    "SQLITE_NOTADB": FailureKind.FAULT,
    "SQLITE_NOMEM": FailureKind.FAULT,
    "SQLITE_CANTOPEN": FailureKind.UNREACHABLE,
    "SQLITE_BUSY": FailureKind.TIMEOUT,
    "SQLITE_LOCKED": FailureKind.TIMEOUT,
    "SQLITE_PROTOCOL": FailureKind.TIMEOUT,
    "SQLITE_PERM": FailureKind.UNAUTHORIZED,
    "SQLITE_AUTH": FailureKind.UNAUTHORIZED,
    "SQLITE_TOOBIG": FailureKind.REJECTED,
}

#: What SQLite says of a file that is damaged, and we, where SQLite does not notice it.
MALFORMED = "database disk image is malformed"

#: What it says of a schema that is damaged, and can be read: our statements name what every file of ours has.
_OTHER_TABLES = ("no such table", "no such column", "has no column named", "already exists")

#: Before Python 3.11 an exception has no code, and SQLite's text for it alone.
_TEXTS = {
    "database or disk is full": "SQLITE_FULL",
    "disk I/O error": "SQLITE_IOERR",
    "attempt to write a readonly database": "SQLITE_READONLY",
    MALFORMED: "SQLITE_CORRUPT",
    "file is not a database": "SQLITE_NOTADB",
    "out of memory": "SQLITE_NOMEM",
    "unable to open database file": "SQLITE_CANTOPEN",
    "database is locked": "SQLITE_BUSY",
    "database table is locked": "SQLITE_LOCKED",
    "locking protocol": "SQLITE_PROTOCOL",
    "access permission denied": "SQLITE_PERM",
    "authorization denied": "SQLITE_AUTH",
    "string or blob too big": "SQLITE_TOOBIG",
}

#: Of the system, by the names that ``errno`` has for them; others go by their family.
_ERRORS = {
    "ENOENT": FailureKind.UNREACHABLE,
    "ENOTDIR": FailureKind.UNREACHABLE,
    "ESTALE": FailureKind.UNREACHABLE,
    "EACCES": FailureKind.UNAUTHORIZED,
    "EPERM": FailureKind.UNAUTHORIZED,
    "ENOSPC": FailureKind.FAULT,
    "EDQUOT": FailureKind.FAULT,
    "EFBIG": FailureKind.FAULT,
    "EROFS": FailureKind.FAULT,
    "EIO": FailureKind.FAULT,
    "EMFILE": FailureKind.FAULT,
    "ENFILE": FailureKind.FAULT,
    "ENOLCK": FailureKind.FAULT,
}

_OURS = {
    SpoolBusy: FailureKind.TIMEOUT,
    SpoolFull: FailureKind.FAULT,
    NotSynced: FailureKind.FAULT,
    NewerSpool: FailureKind.FAULT,
    SetAside: FailureKind.FAULT,
}


def code_of(exc: BaseException) -> str | None:
    """SQLite's result code of an exception, without what is added to it; None for others."""
    if not isinstance(exc, sqlite3.Error):
        return None
    name: str | None = getattr(exc, "sqlite_errorname", None)
    if name is not None:
        return "_".join(name.split("_")[:2])
    return next((code for text, code in _TEXTS.items() if str(exc).startswith(text)), None)


def kind_of(exc: BaseException) -> FailureKind | None:
    """The kind of an error of SQLite, of the system, or of ours; None for others."""
    for family, kind in _OURS.items():
        if isinstance(exc, family):
            return kind
    if isinstance(exc, sqlite3.DataError):
        return FailureKind.REJECTED
    if isinstance(exc, sqlite3.Error):
        return _CODES.get(code_of(exc) or "", FailureKind.FAULT)
    if isinstance(exc, OSError) and exc.errno is not None:
        return _ERRORS.get(errno.errorcode.get(exc.errno, ""))
    return None


def concerns_all(exc: BaseException) -> bool:
    """Whether it tells of the whole spool: there is one file, and nothing in it fails alone but a message."""
    return kind_of(exc) not in (None, FailureKind.REJECTED)


def is_broken(exc: BaseException) -> bool:
    """Whether the file is damaged."""
    if isinstance(exc, sqlite3.OperationalError) and any(text in str(exc) for text in _OTHER_TABLES):
        return True
    return code_of(exc) in ("SQLITE_CORRUPT", "SQLITE_NOTADB")


def is_full(exc: BaseException) -> bool:
    """Whether the disk has no room, or a file may not be larger."""
    return code_of(exc) == "SQLITE_FULL" or (isinstance(exc, OSError) and exc.errno in (errno.ENOSPC, errno.EDQUOT))


def is_busy(exc: BaseException) -> bool:
    """Whether another process is at it, so that a moment later it may work."""
    return code_of(exc) in ("SQLITE_BUSY", "SQLITE_LOCKED", "SQLITE_PROTOCOL")
