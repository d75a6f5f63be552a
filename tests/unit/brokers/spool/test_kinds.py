"""Which kind of failure an error of a spool is: the exceptions are made by what makes them."""

from __future__ import annotations

import errno
import os
import sqlite3

import pytest

from kombu_paired.brokers.drivers import DRIVERS
from kombu_paired.brokers.spool import kinds
from kombu_paired.brokers.spool.kinds import code_of, concerns_all, is_broken, is_busy, is_full, kind_of
from kombu_paired.failures import FailureKind


class OfPython310(sqlite3.OperationalError):
    """An error of SQLite's before Python gave its code."""


def raised(call):
    with pytest.raises(sqlite3.Error) as caught:
        call()
    return caught.value


def not_a_database(tmp_path):
    (tmp_path / "x").write_bytes(b"no database " * 100)
    return raised(lambda: sqlite3.connect(tmp_path / "x").execute("PRAGMA user_version"))


def locked(tmp_path):
    one, other = (sqlite3.connect(tmp_path / "x", timeout=0, isolation_level=None) for _ in range(2))
    one.execute("BEGIN IMMEDIATE")
    try:
        return raised(lambda: other.execute("BEGIN IMMEDIATE"))
    finally:
        one.close()
        other.close()


def full(tmp_path):
    database = sqlite3.connect(tmp_path / "x")
    database.execute("PRAGMA max_page_count = 2")
    database.execute("CREATE TABLE t (x)")
    return raised(lambda: database.execute("INSERT INTO t VALUES (zeroblob(100000))"))


def missing(tmp_path):
    return raised(lambda: sqlite3.connect(f"file:{tmp_path}/gone?mode=rw", uri=True))


def read_only(tmp_path):
    sqlite3.connect(tmp_path / "x").execute("CREATE TABLE t (x)")
    database = sqlite3.connect(f"file:{tmp_path}/x?mode=ro", uri=True)
    return raised(lambda: database.execute("INSERT INTO t VALUES (1)"))


def too_big(tmp_path):
    database = sqlite3.connect(":memory:")
    return raised(lambda: database.execute("SELECT length(zeroblob(2000000000) || zeroblob(2000000000))"))


MADE = [
    (not_a_database, "SQLITE_NOTADB", FailureKind.FAULT),
    (locked, "SQLITE_BUSY", FailureKind.TIMEOUT),
    (full, "SQLITE_FULL", FailureKind.FAULT),
    (missing, "SQLITE_CANTOPEN", FailureKind.UNREACHABLE),
    (read_only, "SQLITE_READONLY", FailureKind.FAULT),
    (too_big, "SQLITE_TOOBIG", FailureKind.REJECTED),
]


@pytest.mark.parametrize(("make", "code", "kind"), MADE)
@pytest.mark.parametrize("with_code", [True, False])
def test_errors_of_sqlite_with_and_without_a_code(tmp_path, make, code, kind, with_code):
    exc = make(tmp_path)
    if not with_code:
        exc = OfPython310(str(exc))
    assert (code_of(exc), kind_of(exc)) == (code, kind)
    assert concerns_all(exc) is (kind is not FailureKind.REJECTED)
    assert (is_broken(exc), is_busy(exc), is_full(exc)) == (
        code == "SQLITE_NOTADB",
        code == "SQLITE_BUSY",
        code == "SQLITE_FULL",
    )


def test_each_code_is_known_by_its_text_too():
    assert set(kinds._TEXTS.values()) == set(kinds._CODES)


def test_a_longer_code_is_that_of_its_family():
    exc = sqlite3.OperationalError("disk I/O error")
    exc.sqlite_errorname = "SQLITE_IOERR_WRITE"
    assert (code_of(exc), kind_of(exc)) == ("SQLITE_IOERR", FailureKind.FAULT)


@pytest.mark.parametrize("exc", [sqlite3.OperationalError("no such table: messages"), sqlite3.ProgrammingError("x")])
def test_any_other_error_of_sqlite_is_a_fault(exc):
    assert kind_of(exc) is FailureKind.FAULT


@pytest.mark.parametrize(("name", "kind"), kinds._ERRORS.items())
def test_errors_of_the_system(name, kind):
    number = getattr(errno, name)
    assert kind_of(OSError(number, os.strerror(number))) is kind


@pytest.mark.parametrize("exc", [ValueError("x"), OSError("x"), OSError(errno.ECONNRESET, "x"), TypeError("x")])
def test_what_is_not_of_a_spool_goes_by_its_family(exc):
    assert kind_of(exc) is None
    assert not concerns_all(exc)


def test_each_of_ours_has_a_kind():
    for error in kinds.SpoolError.__subclasses__():
        assert DRIVERS["spool"].kind_of(error("x")) is kinds._OURS[error]
