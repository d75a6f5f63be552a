"""What is done in a transaction of a spool, and the form that a message has there. No step of it waits."""

from __future__ import annotations

import sqlite3
import zlib
from collections.abc import Iterable, Sequence
from dataclasses import replace
from itertools import pairwise
from typing import Any, NamedTuple

from kombu.utils import json

from kombu_paired.brokers.forms import as_dead_letter
from kombu_paired.brokers.roles import DEAD_LETTER_SUFFIX, DeadLetter
from kombu_paired.brokers.spool.address import SpoolAddress, shown_size
from kombu_paired.brokers.spool.disk import LEFT_FREE, free_bytes
from kombu_paired.brokers.spool.kinds import MALFORMED, SpoolFull
from kombu_paired.message import Message, marked_maybe_duplicate

__all__ = (
    "SPARE",
    "Row",
    "Taken",
    "abandon",
    "as_saved",
    "complete",
    "count",
    "dead_letter",
    "give_back",
    "holders",
    "is_empty",
    "is_too_large",
    "is_waiting",
    "message_in",
    "oldest",
    "purge",
    "put",
    "put_as_held_before",
    "release",
    "remove",
    "require_room",
    "require_sound_end",
    "row_of",
    "saved_upto",
    "take",
    "used",
)

#: Bytes of bodies that one receive gives out, unless a single one is larger.
LARGEST_TAKE = 16_000_000
#: Bytes that a message takes besides its head and its body: two rows, and its share of their pages.
_AROUND = 200

#: Messages at the end of a file that are looked at: about as many small ones as its last two pages have.
LAST = 50

#: Of those that wait: not held, or by a reader that is dead.
_IS_FREE = "NOT EXISTS (SELECT 1 FROM held WHERE held.id = messages.id AND held.reader != 0)"


class Row(NamedTuple):
    """A message as it is stored."""

    queue: str
    head: bytes
    body: bytes
    checksum: int

    @property
    def size(self) -> int:
        return len(self.head) + len(self.body) + 2 * len(self.queue) + _AROUND


class Taken(NamedTuple):
    """A message that a reader holds from now on.

    Attributes:
        file: the file that it is in.
        again: a reader that is dead held it before.
        is_whole: it is what was stored. If not, it has been made a dead letter, and nobody holds it.
    """

    file: str
    id: int
    queue: str
    head: bytes
    body: bytes
    again: bool
    is_whole: bool


def require_sound_end(connection: sqlite3.Connection) -> None:
    """See whether the place is sound where the next message will be.

    SQLite writes into a page whatever is wrong with the others' places there, and may find none of them afterwards.

    Raises:
        sqlite3.DatabaseError: it is damaged.
    """
    ids = [number for [number] in connection.execute("SELECT id FROM messages ORDER BY id DESC LIMIT ?", [LAST])]
    if any(later <= earlier for later, earlier in pairwise(ids)):
        raise sqlite3.DatabaseError(f"{MALFORMED}: its last messages are out of order")


# -- the form of a message ------------------------------------------------------------------------------------------


def row_of(message: Message, queue: str) -> Row:
    """A message as it is stored in a queue.

    Raises:
        TypeError, ValueError: it cannot be written down.
    """
    is_text = isinstance(message.body, str)
    body = message.body.encode() if isinstance(message.body, str) else bytes(message.body)
    facts = [message.content_type, message.content_encoding, message.priority, message.headers, message.properties]
    head = json.dumps([is_text, *facts]).encode()
    return Row(queue, head, body, _checksum(queue, head, body))


def message_in(head: bytes, body: bytes) -> Message:
    """The message of a row."""
    is_text, content_type, content_encoding, priority, headers, properties = json.loads(head)
    return Message(
        body=body.decode() if is_text else body,
        priority=priority,
        content_type=content_type,
        content_encoding=content_encoding,
        headers=headers,
        properties=properties,
    )


def _checksum(queue: str, head: bytes, body: bytes) -> int:
    """SQLite has none of its own for what is in the database."""
    return zlib.crc32(body, zlib.crc32(head, zlib.crc32(queue.encode(errors="surrogatepass"))))


def as_saved(queue: Any, head: Any, body: Any, checksum: Any) -> Row:
    """What was read of a damaged file, all of it as bytes if it is what it was; a dead letter if it is not whole."""
    queue, head, body = (each if isinstance(each, bytes) else str(each).encode() for each in (queue, head, body))
    name = queue.decode(errors="replace")
    if _checksum(name, head, body) == checksum:
        return Row(name, head, body, checksum)
    return _damaged(name, head, body)


def _damaged(queue: str, head: bytes, body: bytes) -> Row:
    """The dead letter that stands for a message which is not what was stored."""
    try:
        message = message_in(head, body)
        headers = dict(message.headers)
    except Exception:  # it is bytes, as they happen to be
        message, headers = Message(body), {"x-paired-damaged-head": head.decode(errors="replace")}
    headers["DeadLetterReason"] = "Damaged"
    headers["DeadLetterErrorDescription"] = "its checksum is wrong: the disk has changed it, and it is not delivered"
    dead = queue if queue.endswith(DEAD_LETTER_SUFFIX) else queue + DEAD_LETTER_SUFFIX
    return row_of(replace(message, headers=headers), dead)


# -- sending --------------------------------------------------------------------------------------------------------


def put(connection: sqlite3.Connection, rows: Sequence[Row], address: SpoolAddress) -> None:
    """Store messages behind all others.

    Raises:
        SpoolFull: they would make the spool larger than it may be; none is stored.
    """
    require_room(connection, address, sum(row.size for row in rows))
    connection.executemany("INSERT INTO messages (queue, head, body, checksum) VALUES (?, ?, ?, ?)", rows)


def require_room(connection: sqlite3.Connection, address: SpoolAddress, wanted: int = 0) -> None:
    """See that so many bytes more are allowed.

    Raises:
        SpoolFull: they are not, or the disk has no room for them.
    """
    free = free_bytes(address.folder)
    if free < wanted + LEFT_FREE:
        raise SpoolFull(
            f"the disk of the spool {address.folder} has {shown_size(free)} left, and {shown_size(LEFT_FREE)} have to "
            "stay free for removing messages: make room on this disk"
        )
    if address.max_size is None:
        return
    size = used(connection)
    if size + wanted > address.max_size:
        raise SpoolFull(
            f"the spool {address.folder} holds {shown_size(size)} of the {shown_size(address.max_size)} that its "
            f"'max_size' allows, and {shown_size(wanted)} more do not fit: it empties when the primary is back and a "
            "syphon runs on this machine; or let 'max_size' be larger"
        )


def used(connection: sqlite3.Connection) -> int:
    """Bytes of the file that are in use; what messages left behind is used again by others."""
    numbers = (connection.execute(f"PRAGMA {name}").fetchone()[0] for name in ("page_count", "freelist_count"))
    pages, free = numbers
    [size] = connection.execute("PRAGMA page_size").fetchone()
    return int((pages - free) * size)


# -- looking --------------------------------------------------------------------------------------------------------


def count(connection: sqlite3.Connection, queue: str) -> int:
    """How many messages are in a queue, with those that are held."""
    [found] = connection.execute("SELECT count(*) FROM messages WHERE queue = ?", [queue]).fetchone()
    return int(found)


def oldest(connection: sqlite3.Connection, queue: str, limit: int) -> dict[int, Message]:
    """The first messages of a queue, left where they are: id -> message."""
    query = "SELECT id, head, body FROM messages WHERE queue = ? ORDER BY id LIMIT ?"
    return {number: message_in(head, body) for number, head, body in connection.execute(query, [queue, limit])}


def remove(connection: sqlite3.Connection, ids: Iterable[int]) -> None:
    """Remove messages that nobody ever holds."""
    connection.executemany("DELETE FROM messages WHERE id = ?", [(each,) for each in ids])


def is_waiting(connection: sqlite3.Connection, queues: Iterable[str]) -> bool:
    """Whether one of these queues has a message that nobody holds."""
    query = f"SELECT 1 FROM messages WHERE queue = ? AND {_IS_FREE} LIMIT 1"
    return any(connection.execute(query, [queue]).fetchone() for queue in queues)


def is_empty(connection: sqlite3.Connection) -> bool:
    """Whether there is no message at all."""
    return connection.execute("SELECT 1 FROM messages LIMIT 1").fetchone() is None


def holders(connection: sqlite3.Connection) -> list[int]:
    """Readers that hold messages."""
    found = connection.execute("SELECT DISTINCT reader FROM held WHERE reader != 0").fetchall()
    return [reader for (reader,) in found]


# -- receiving ------------------------------------------------------------------------------------------------------


def take(connection: sqlite3.Connection, queues: Sequence[str], limit: int, reader: int, file: str) -> list[Taken]:
    """Messages that a reader holds from now on, the oldest of each queue first; each queue has its share of them."""
    taken: list[Taken] = []
    share = max(limit // max(len(queues), 1), 1)
    for most in (share, limit):  # what some queues do not need of theirs is for the others
        for queue in queues:
            if len(taken) < limit and sum(len(each.body) for each in taken) < LARGEST_TAKE:
                taken += _take_from(connection, queue, min(most, limit - len(taken)), reader, file)
    for each in taken:
        if not each.is_whole:
            _move(connection, each.id, reader, _damaged(each.queue, each.head, each.body))
    return taken


def _take_from(connection: sqlite3.Connection, queue: str, limit: int, reader: int, file: str) -> list[Taken]:
    query = (
        f"SELECT id, head, body, checksum, id IN (SELECT id FROM held) FROM messages WHERE queue = ? AND {_IS_FREE} "
        "ORDER BY id LIMIT ?"
    )
    taken: list[Taken] = []
    size = 0
    cursor = connection.execute(query, [queue, limit])
    for number, head, body, checksum, again in cursor:
        is_whole = isinstance(head, bytes) and isinstance(body, bytes) and _checksum(queue, head, body) == checksum
        head, body = (each if isinstance(each, bytes) else str(each).encode() for each in (head, body))
        taken.append(Taken(file, number, queue, head, body, bool(again), is_whole))
        size += len(body)
        if size >= LARGEST_TAKE:
            break
    cursor.close()
    held = [(each.id, reader, each.again) for each in taken]
    connection.executemany("INSERT OR REPLACE INTO held (id, reader, again) VALUES (?, ?, ?)", held)
    return taken


def complete(connection: sqlite3.Connection, ids: Iterable[int], reader: int) -> None:
    """Remove messages that this reader holds."""
    mine = [(each, each, reader) for each in ids]
    connection.executemany(
        "DELETE FROM messages WHERE id = ? AND EXISTS (SELECT 1 FROM held WHERE id = ? AND reader = ?)", mine
    )
    connection.executemany("DELETE FROM held WHERE id = ? AND reader = ?", [(each, reader) for each, _, _ in mine])


def abandon(connection: sqlite3.Connection, taken: Iterable[Taken], reader: int, maybe_duplicate: bool) -> None:
    """Put messages that this reader holds behind all others."""
    for each in taken:
        row = Row(each.queue, each.head, each.body, 0)
        if maybe_duplicate:
            row = row_of(marked_maybe_duplicate(message_in(each.head, each.body)), each.queue)
        _move(connection, each.id, reader, row)


def dead_letter(connection: sqlite3.Connection, letters: Iterable[DeadLetter], reader: int) -> None:
    """Move messages that this reader holds to the dead-letter queues of their queues."""
    for letter in letters:
        dead = as_dead_letter(letter)
        stands_for = letter.received.token
        row = row_of(replace(dead, exchange="", routing_key=""), dead.routing_key)
        _move(connection, stands_for.id, reader, row)


def _move(connection: sqlite3.Connection, number: int, reader: int, row: Row) -> None:
    """Let a message that this reader holds be another one, behind all others."""
    held = connection.execute("DELETE FROM held WHERE id = ? AND reader = ?", [number, reader])
    if held.rowcount != 1:
        return
    [last] = connection.execute("SELECT max(id) FROM messages").fetchone()
    if row.checksum:
        connection.execute(
            "UPDATE messages SET id = ?, queue = ?, head = ?, body = ?, checksum = ? WHERE id = ?",
            [last + 1, *row, number],
        )
    else:
        connection.execute("UPDATE messages SET id = ? WHERE id = ?", [last + 1, number])


def give_back(connection: sqlite3.Connection, ids: Iterable[int], reader: int) -> None:
    """Let messages that this reader holds lie where they are, as it found them."""
    mine = [(each, reader) for each in ids]
    connection.executemany("UPDATE held SET reader = 0 WHERE id = ? AND reader = ? AND again", mine)
    connection.executemany("DELETE FROM held WHERE id = ? AND reader = ?", mine)


def release(connection: sqlite3.Connection, readers: Iterable[int]) -> None:
    """These readers are dead: what they held may be had again, and says so."""
    connection.executemany("UPDATE held SET reader = 0 WHERE reader = ?", [(each,) for each in readers])


def purge(connection: sqlite3.Connection, queue: str) -> int:
    """Remove all messages of a queue; how many there were."""
    connection.execute("DELETE FROM held WHERE id IN (SELECT id FROM messages WHERE queue = ?)", [queue])
    return int(connection.execute("DELETE FROM messages WHERE queue = ?", [queue]).rowcount)


# -- keeping house --------------------------------------------------------------------------------------------------

#: Pages that the file may hold for nothing, before it is made smaller, and how many it gives back at a time.
SPARE = 256


def is_too_large(connection: sqlite3.Connection) -> bool:
    """Whether the file holds much room that no message needs."""
    [free] = connection.execute("PRAGMA freelist_count").fetchone()
    return bool(free > SPARE)


def put_as_held_before(connection: sqlite3.Connection, row: Row) -> None:
    """Store a message of a damaged file: whoever may have held it there is not known here."""
    stored = connection.execute("INSERT INTO messages (queue, head, body, checksum) VALUES (?, ?, ?, ?)", row)
    connection.execute("INSERT INTO held (id, reader, again) VALUES (?, 0, 1)", [stored.lastrowid])


def saved_upto(connection: sqlite3.Connection, name: str) -> int:
    """The id up to which a damaged file was brought into this one."""
    found = connection.execute("SELECT upto FROM saving WHERE file = ?", [name]).fetchone()
    return int(found[0]) if found else 0
