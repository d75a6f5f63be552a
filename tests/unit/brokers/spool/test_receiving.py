"""Receivers of a spool: what the conformance suite cannot see."""

from __future__ import annotations

import sqlite3
import threading
from time import monotonic

from kombu_paired.brokers.spool import receiving
from kombu_paired.message import Message
from tests.unit.brokers.spool.conftest import QUEUE


def message(n):
    return Message(b"x", routing_key=QUEUE, properties={"message_id": f"m-{n}"})


def ids(batch):
    return [each.message.message_id for each in batch]


def die(receiver):
    """As a process does that is killed: it settles nothing, and its locks are gone."""
    receiver.store.forget_reader(receiver._reader, receiver._bell)


def test_what_a_dead_reader_held_comes_again_at_its_place_and_says_so(namespace, sender, receiver):
    dead = namespace.receiver([QUEUE], 100, 10)
    sender.send_batch([message(n) for n in range(4)], 10)
    assert ids(dead.receive(2, 5)) == ["m-0", "m-1"]
    die(dead)
    got = receiver.receive(10, 5)
    while len(got) < 4:
        got += receiver.receive(10, 5)
    assert sorted((each.message.message_id, each.again) for each in got) == [
        ("m-0", True),
        ("m-1", True),
        ("m-2", False),
        ("m-3", False),
    ]


def test_that_it_was_held_before_is_known_until_it_is_settled(namespace, sender, receiver):
    dead = namespace.receiver([QUEUE], 100, 10)
    sender.send(message(1), 10)
    dead.receive(1, 5)
    die(dead)
    second = namespace.receiver([QUEUE], 100, 10)
    assert [each.again for each in second.receive(1, 5)] == [True]
    second.close()
    assert [each.again for each in receiver.receive(1, 5)] == [True]


def test_what_was_given_back_was_not_held_before(namespace, sender, receiver):
    other = namespace.receiver([QUEUE], 100, 10)
    sender.send(message(1), 10)
    assert len(other.receive(1, 5)) == 1
    other.close()
    assert [each.again for each in receiver.receive(1, 5)] == [False]


def test_nobody_settles_what_another_one_holds(namespace, sender, receiver):
    dead = namespace.receiver([QUEUE], 100, 10)
    sender.send(message(1), 10)
    held = dead.receive(1, 5)
    die(dead)
    again = receiver.receive(1, 5)

    dead.complete(held)
    dead.abandon(held)

    assert namespace.backlog_depths([QUEUE], 10)[0].messages == 1
    receiver.complete(again)
    assert namespace.backlog_depths([QUEUE], 10)[0].messages == 0


def test_a_message_of_this_process_is_taken_at_once(receiver, sender, monkeypatch):
    monkeypatch.setattr(receiving, "PAUSE", 20.0)
    assert receiver.receive(1, 0.01) == []
    threading.Timer(0.2, sender.send, (message(1), 10)).start()
    started = monotonic()
    assert ids(receiver.receive(1, 20)) == ["m-1"]
    assert monotonic() - started < 15


def test_an_idle_receiver_reads_no_message(receiver, sender, monkeypatch):
    looks = []
    monkeypatch.setattr(receiving, "PAUSE", 0.01)
    real = receiving.rows.is_waiting
    monkeypatch.setattr(receiving.rows, "is_waiting", lambda *args, **more: looks.append(args) or real(*args, **more))
    assert receiver.receive(1, 0.5) == []
    assert len(looks) == 1
    sender.send(message(1), 10)
    assert len(receiver.receive(1, 5)) == 1
    assert len(looks) == 2


def test_a_batch_has_no_more_bytes_than_fit(receiver, sender, monkeypatch):
    monkeypatch.setattr(receiving.rows, "LARGEST_TAKE", 3)
    sender.send_batch([message(n) for n in range(8)], 10)
    assert [len(receiver.receive(100, 5)) for _ in range(3)] == [3, 3, 2]


def test_a_file_keeps_no_trace_of_what_was_settled(folder, namespace, sender, receiver):
    sender.send_batch([message(n) for n in range(100)], 10)
    receiver.complete(receiver.receive(100, 5))
    receiver.close()
    sender.close()
    with sqlite3.connect(next(folder.glob("*.sqlite"))) as connection:
        counts = [connection.execute(f"SELECT count(*) FROM {table}").fetchone() for table in ("messages", "held")]
    assert counts == [(0,), (0,)]
