"""The toy broker: queues in a SQLite file, for as many connections as come. A line of JSON asks, another one answers.

.. code-block::

    {"do": "hello", "password": "…"}                {"answer": null}
    {"do": "put", "queue": "q", "message": {…}}     {"answer": null}
    {"do": "take", "queue": "q"}                    {"answer": [7, {…}]}
    {"do": "complete", "number": 7}                 {"answer": null}
    {"do": "take", "queue": "another"}              {"refusal": "missing", "text": "…"}

A message that was taken belongs to its connection until that completes it, gives it back, or ends.
"""

from __future__ import annotations

import json
import os
import socketserver
import sqlite3
import sys
import threading
from typing import Any

TABLES = """
    create table if not exists queues (name text primary key);
    create table if not exists messages (number integer primary key, queue text, message text, holder integer);
    update messages set holder = null;
    pragma synchronous = off; -- its process may die at any moment; the machine is not asked to
"""


class Refused(Exception):
    """Arguments: the word for a reason, and a text for people."""


class Queues:
    """What connections may ask for, by name. Each is one step: it is done, or it is not."""

    def __init__(self, file: str) -> None:
        self._database = sqlite3.connect(file, check_same_thread=False)
        self._database.executescript(TABLES)
        self._lock = threading.Lock()
        self._is_full = False

    def do(self, holder: int, order: dict[str, Any]) -> Any:
        with self._lock, self._database:
            return getattr(self, f"do_{order.pop('do')}")(holder, **order)

    def give_back_all(self, holder: int) -> None:
        """Its connection has ended: what it held is back in its place."""
        with self._lock, self._database:
            self._sql("update messages set holder = null where holder = ?", holder)

    def do_hello(self, holder: int) -> None:
        pass

    def do_knock(self, holder: int) -> None:
        """Would a message be taken?"""
        self._require_room()

    def do_declare(self, holder: int, queue: str) -> None:
        self._sql("insert or ignore into queues values (?)", queue)

    def do_delete(self, holder: int, queue: str) -> None:
        self._sql("delete from queues where name = ?", queue)
        self._sql("delete from messages where queue = ?", queue)

    def do_size(self, holder: int, queue: str) -> int:
        self._require(queue)
        [[size]] = self._sql("select count(*) from messages where queue = ?", queue)
        return int(size)

    def do_put(self, holder: int, queue: str, message: Any) -> None:
        self._require(queue)
        self._require_room()
        self._sql("insert into messages (queue, message) values (?, ?)", queue, json.dumps(message))

    def do_look(self, holder: int, queue: str) -> list[Any] | None:
        """The number and the text of the oldest message that nobody holds; it stays where it is."""
        self._require(queue)
        oldest = "select number, message from messages where queue = ? and holder is null order by number limit 1"
        found = [[number, json.loads(text)] for number, text in self._sql(oldest, queue)]
        return found[0] if found else None

    def do_take(self, holder: int, queue: str) -> list[Any] | None:
        found = self.do_look(holder, queue)
        if found is not None:
            self._sql("update messages set holder = ? where number = ?", holder, found[0])
        return found

    def do_complete(self, holder: int, number: int) -> None:
        self._sql("delete from messages where number = ? and holder = ?", number, holder)

    def do_give_back(self, holder: int, number: int) -> None:
        """Behind the others."""
        last = "(select max(number) + 1 from messages)"
        self._sql(f"update messages set number = {last}, holder = null where number = ? and holder = ?", number, holder)

    def do_purge(self, holder: int, queue: str) -> int:
        self._require(queue)
        return self._database.execute("delete from messages where queue = ? and holder is null", [queue]).rowcount

    def do_be_full(self, holder: int, full: bool) -> None:
        self._is_full = full

    def _sql(self, statement: str, *values: Any) -> list[Any]:
        return self._database.execute(statement, values).fetchall()

    def _require(self, queue: str) -> None:
        if not self._sql("select 1 from queues where name = ?", queue):
            raise Refused("missing", f"there is no queue {queue!r}")

    def _require_room(self) -> None:
        if self._is_full:
            raise Refused("full", "no queue takes a message")


class Conversation(socketserver.StreamRequestHandler):
    """With one client, in a thread. Nothing is done for one who has not said hello with the password."""

    server: Server

    def handle(self) -> None:
        holder, is_known = id(self), False
        try:
            for line in self.rfile:
                order = json.loads(line)
                is_known = is_known or order.pop("password", None) == os.environ["TOY_PASSWORD"]
                self._answer(self._do(holder, order) if is_known else _refusal("denied", "wrong password"))
        except OSError:
            pass  # it is gone
        finally:
            self.server.queues.give_back_all(holder)

    def _do(self, holder: int, order: dict[str, Any]) -> dict[str, Any]:
        order.pop("password", None)
        try:
            return {"answer": self.server.queues.do(holder, order)}
        except Refused as refused:
            return _refusal(*refused.args)

    def _answer(self, answer: dict[str, Any]) -> None:
        self.wfile.write(json.dumps(answer).encode() + b"\n")


def _refusal(word: str, text: str) -> dict[str, Any]:
    return {"refusal": word, "text": text}


class Server(socketserver.ThreadingTCPServer):
    allow_reuse_address = daemon_threads = True
    request_queue_size = 128

    def __init__(self, port: int, file: str) -> None:
        self.queues = Queues(file)
        super().__init__(("127.0.0.1", port), Conversation)


if __name__ == "__main__":
    Server(int(sys.argv[1]), sys.argv[2]).serve_forever()
