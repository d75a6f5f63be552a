"""What can be read of a damaged file is brought into the one that is in use, a piece at a time."""

from __future__ import annotations

import logging
import os
import sqlite3
from collections.abc import Iterator
from typing import NamedTuple
from urllib.parse import quote

from kombu_paired.brokers.letting_go import letting_go
from kombu_paired.brokers.spool import rows
from kombu_paired.brokers.spool.kinds import is_broken

__all__ = ("Piece", "read_piece", "save")

logger = logging.getLogger(__name__)

#: Messages of one piece, and their bytes.
PIECE = 200
PIECE_BYTES = 16_000_000
#: Ids of which none has a message, once they are tried one by one: there are no more.
GIVE_UP = 20_000

_COLUMNS = "SELECT id, queue, head, body, checksum FROM messages"


class Piece(NamedTuple):
    """A part of a damaged file.

    Attributes:
        rows: what could be read; those that are not whole are dead letters.
        upto: the id up to which it was read.
        is_last: there is nothing after it.
    """

    rows: list[rows.Row]
    upto: int
    is_last: bool


def read_piece(path: str, after: int) -> Piece:
    """What can be read of a damaged file behind an id.

    Raises:
        sqlite3.Error: it is not the file's fault that nothing can be read now.
    """
    connection = None
    try:
        connection = sqlite3.connect(f"file:{quote(os.fsencode(path))}?mode=rw", uri=True, timeout=1)
        connection.text_factory = bytes
        return _read(connection, after)
    except (sqlite3.Error, UnicodeDecodeError) as exc:  # the latter of Python, which reads SQLite's error
        if isinstance(exc, sqlite3.Error) and not is_broken(exc):
            raise
        logger.warning("nothing more can be read of %s: %s", path, exc)
        return Piece([], after, True)
    finally:
        if connection is not None:
            with letting_go(path):
                connection.close()


def _read(connection: sqlite3.Connection, after: int) -> Piece:
    found: list[rows.Row] = []
    size = 0
    for number, row in _readable(connection, after):
        after = number
        if row is not None:
            found.append(row)
            size += row.size
        if len(found) >= PIECE or size >= PIECE_BYTES:
            return Piece(found, after, False)
    return Piece(found, after, True)


def _readable(connection: sqlite3.Connection, after: int) -> Iterator[tuple[int, rows.Row | None]]:
    """Each message behind an id: in order while that works, then by one id after the other until it works again."""
    missed = 0
    while missed < GIVE_UP:
        try:
            for number, *facts in connection.execute(f"{_COLUMNS} WHERE id > ? ORDER BY id", [after]):
                yield number, rows.as_saved(*facts)
                after, missed = number, 0
            return
        except sqlite3.Error as exc:
            if not is_broken(exc):
                raise
            for number in range(after + 1, after + 1 + GIVE_UP - missed):
                after, missed = number, missed + 1
                try:
                    found = connection.execute(f"{_COLUMNS} WHERE id = ?", [number]).fetchone()
                except sqlite3.DatabaseError as exc:
                    if not is_broken(exc):
                        raise
                    continue
                yield number, rows.as_saved(*found[1:]) if found else None
                break


def save(connection: sqlite3.Connection, name: str, after: int, piece: Piece) -> bool:
    """Store a piece of a damaged file that was read behind an id, and that it was.

    Returns:
        Whether it was stored. It was not if another process has done it, or if this is another file by now, which has
        nothing of what was saved before.
    """
    if rows.saved_upto(connection, name) != after:
        return False
    for row in piece.rows:
        rows.put_as_held_before(connection, row)
    connection.execute("INSERT OR REPLACE INTO saving (file, upto) VALUES (?, ?)", [name, piece.upto])
    return True
