"""Messages on disk, in sqlite: what was acknowledged is there after SIGKILL. Locks are not: nobody has them then."""

from __future__ import annotations

import json
import sqlite3
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from kombu_paired.emulator.broker.entities import (
    QueueOptions,
    SubscriptionOptions,
    TopicOptions,
    from_record,
    to_record,
)
from kombu_paired.emulator.broker.messages import Message, State
from kombu_paired.emulator.broker.namespace import Namespace
from kombu_paired.emulator.broker.queues import Queue
from kombu_paired.emulator.broker.rules import Rule
from kombu_paired.emulator.wire.envelope import Envelope, write_delivery

__all__ = ("Store",)

_SCHEMA = """
CREATE TABLE IF NOT EXISTS entities (
    path TEXT PRIMARY KEY COLLATE NOCASE, kind TEXT NOT NULL, options TEXT NOT NULL, rules TEXT);
CREATE TABLE IF NOT EXISTS messages (
    path TEXT NOT NULL, sequence INTEGER NOT NULL, payload BLOB NOT NULL, size INTEGER NOT NULL, enqueued REAL NOT NULL,
    enqueued_sequence INTEGER NOT NULL, expires REAL, scheduled REAL, delivery_count INTEGER NOT NULL,
    state INTEGER NOT NULL, dead_letter_source TEXT, PRIMARY KEY (path, sequence)) WITHOUT ROWID;
CREATE TABLE IF NOT EXISTS sessions (
    path TEXT NOT NULL, session TEXT NOT NULL, state BLOB, PRIMARY KEY (path, session)) WITHOUT ROWID;
CREATE TABLE IF NOT EXISTS duplicates (
    path TEXT NOT NULL, message_id TEXT NOT NULL, until REAL NOT NULL, PRIMARY KEY (path, message_id)) WITHOUT ROWID;
CREATE TABLE IF NOT EXISTS sequences (path TEXT PRIMARY KEY, reserved INTEGER NOT NULL);
"""
_KINDS: dict[str, type[QueueOptions] | type[TopicOptions] | type[SubscriptionOptions]] = {
    "queue": QueueOptions,
    "topic": TopicOptions,
    "subscription": SubscriptionOptions,
}
_FILE = "servicebus.sqlite"


class Store:
    """A journal of a namespace, and what it is loaded from."""

    def __init__(self, database: sqlite3.Connection) -> None:
        self._database = database
        self._run = database.execute

    @classmethod
    def open(cls, folder: str) -> Store:
        """The store of this folder, which is made when it is not there."""
        Path(folder).mkdir(parents=True, exist_ok=True)
        path = Path(folder) / _FILE
        database = sqlite3.connect(path, timeout=0.5, isolation_level=None, check_same_thread=False)
        try:
            database.execute("PRAGMA locking_mode=EXCLUSIVE")
            database.execute("PRAGMA journal_mode=WAL")
            database.execute("PRAGMA synchronous=NORMAL")
            database.executescript(_SCHEMA)
            database.execute("BEGIN EXCLUSIVE")  # two emulators on one folder would overwrite each other
            database.execute("COMMIT")
        except sqlite3.Error as error:
            database.close()
            raise OSError(f"{path} cannot be used, maybe another emulator has it: {error}") from error
        return cls(database)

    def close(self) -> None:
        """Write out and close."""
        self._database.close()

    @contextmanager
    def together(self) -> Iterator[None]:
        """All that happens inside is kept, or none of it."""
        self._run("BEGIN")
        try:
            yield
        except BaseException:
            self._run("ROLLBACK")
            raise
        self._run("COMMIT")

    # ------------------------------------------------------------------------------------------------------- journal

    def message_saved(self, path: str, message: Message) -> None:
        """A message is new, or changed."""
        self._run(
            "INSERT OR REPLACE INTO messages VALUES (?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?)",
            (
                path,
                message.sequence,
                write_delivery(message.envelope, 0, {}),
                message.size,
                message.enqueued,
                message.enqueued_sequence,
                message.expires,
                message.scheduled,
                message.delivery_count,
                int(message.state),
                message.dead_letter_source,
            ),
        )

    def message_removed(self, path: str, sequence: int) -> None:
        """A message is gone."""
        self._run("DELETE FROM messages WHERE path = ? AND sequence = ?", (path, sequence))

    def session_saved(self, path: str, session: str, state: bytes | None) -> None:
        """A session has another state."""
        self._run("INSERT OR REPLACE INTO sessions VALUES (?, ?, ?)", (path, session, state))

    def duplicate_saved(self, path: str, message_id: str, until: float) -> None:
        """A message id must not come again for a while."""
        self._run("INSERT OR REPLACE INTO duplicates VALUES (?, ?, ?)", (path, message_id, until))

    def sequence_reserved(self, path: str, sequence: int) -> None:
        """Sequence numbers up to this one may be in use."""
        self._run("INSERT OR REPLACE INTO sequences VALUES (?, ?)", (path, sequence))

    def entity_saved(self, path: str, options: QueueOptions | TopicOptions | SubscriptionOptions) -> None:
        """An entity is new, or changed."""
        kind = next(name for name, each in _KINDS.items() if isinstance(options, each))
        self._run(
            "INSERT INTO entities (path, kind, options) VALUES (?, ?, ?) "
            "ON CONFLICT (path) DO UPDATE SET options = excluded.options",
            (path, kind, json.dumps(to_record(options))),
        )

    def entity_removed(self, path: str) -> None:
        """An entity is gone, with everything that belongs to it."""
        self._run("DELETE FROM entities WHERE path = ?", (path,))
        for table in ("messages", "sessions", "duplicates", "sequences"):
            self._run(f"DELETE FROM {table} WHERE path IN (?, ?)", (path, path + "/$DeadLetterQueue"))

    def rules_saved(self, path: str, rules: dict[str, Rule]) -> None:
        """A subscription has other rules."""
        records = {name: rule.to_record() for name, rule in rules.items()}
        self._run("UPDATE entities SET rules = ? WHERE path = ?", (json.dumps(records), path))

    # ------------------------------------------------------------------------------------------------------- loading

    def load(self, namespace: Namespace) -> None:
        """Put back everything into a namespace that is empty."""
        order = "CASE kind WHEN 'subscription' THEN 1 ELSE 0 END"
        for path, kind, options, rules in self._run(
            f"SELECT path, kind, options, rules FROM entities ORDER BY {order}, path"
        ).fetchall():
            namespace.restore(path, _read_options(kind, options), _read_rules(rules))
        self._run("DELETE FROM duplicates WHERE until <= ?", (namespace.clock(),))
        for queue in list(namespace.all_queues()):
            self._load_queue(queue)

    def _load_queue(self, queue: Queue) -> None:
        reserved = self._run("SELECT reserved FROM sequences WHERE path = ?", (queue.path,)).fetchone()
        sessions = self._run("SELECT session, state FROM sessions WHERE path = ?", (queue.path,)).fetchall()
        duplicates = self._run("SELECT message_id, until FROM duplicates WHERE path = ?", (queue.path,)).fetchall()
        queue.restore_facts(reserved[0] if reserved else 0, duplicates)
        for session, state in sessions:
            queue.restore_session_state(session, state)
        rows = self._run(
            "SELECT payload, size, sequence, enqueued, enqueued_sequence, expires, scheduled, delivery_count, state, "
            "dead_letter_source FROM messages WHERE path = ? ORDER BY sequence",
            (queue.path,),
        )
        for payload, size, sequence, enqueued, first, expires, scheduled, count, state, source in rows.fetchall():
            queue.restore(
                Message(
                    envelope=Envelope.read(payload),
                    size=size,
                    sequence=sequence,
                    enqueued=enqueued,
                    enqueued_sequence=first,
                    expires=expires,
                    scheduled=scheduled,
                    delivery_count=count,
                    state=State(state),
                    dead_letter_source=source,
                )
            )


def _read_rules(rules: str | None) -> dict[str, Rule] | None:
    return None if rules is None else {name: Rule.from_record(record) for name, record in json.loads(rules).items()}


def _read_options(kind: str, options: str) -> QueueOptions | TopicOptions | SubscriptionOptions:
    record = json.loads(options)
    if kind == "topic":
        return from_record(TopicOptions, record)
    return from_record(QueueOptions, record) if kind == "queue" else from_record(SubscriptionOptions, record)
