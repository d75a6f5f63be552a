"""A file that is damaged: sends go on, what is whole comes home, and nothing that is not whole is delivered."""

from __future__ import annotations

import logging
import sqlite3
import subprocess
import sys

import pytest
from hypothesis import HealthCheck, example, given, settings
from hypothesis import strategies as st

from kombu_paired.brokers.kombu import KombuNamespace
from kombu_paired.brokers.roles import DEAD_LETTER_SUFFIX
from kombu_paired.brokers.spool import receiving, saving
from kombu_paired.errors import NamespaceFailure
from kombu_paired.message import Message
from tests.unit.brokers.spool.conftest import QUEUE

COUNT = 400
LONG = 30.0


def message(n):
    return Message(f"body {n} ".encode() * 20, routing_key=QUEUE, properties={"message_id": f"m-{n}"})


@pytest.fixture(autouse=True)
def at_once(monkeypatch):
    """What a receiver does in rounds it does at once, and ids that a damaged file does not have are given up sooner."""
    monkeypatch.setattr(receiving, "ROUNDS", 0.0)
    monkeypatch.setattr(receiving, "SHORT_ROUND", 0.0)
    monkeypatch.setattr(saving, "GIVE_UP", 300)


def fill(folder, count=COUNT):
    namespace = KombuNamespace("secondary", [f"spool://{folder}"], {}, send_timeout=LONG)
    sender = namespace.sender()
    assert sender.send_batch([message(n) for n in range(count)], LONG) == [None] * count
    sender.close()
    [file] = folder.glob("messages-*.sqlite")
    return namespace, file


def receive_all(namespace, queue=QUEUE):
    """All that comes; a receiver that fails is replaced, as a pump does."""
    got = []
    quiet = 0
    receiver = namespace.receiver([queue], 100, LONG)
    while quiet < 5:
        try:
            batch = receiver.receive(100, 0.01)
            receiver.complete(batch)
        except NamespaceFailure:
            receiver.close()
            receiver = namespace.receiver([queue], 100, LONG)
            continue
        got += batch
        quiet = 0 if batch or list(receiver.store.folder.damaged()) else quiet + 1
    receiver.close()
    return got


def flip(file, *places):
    with open(file, "r+b") as raw:
        for place, value in places:
            raw.seek(place)
            raw.write(bytes([value]))


def test_a_page_that_is_gone_costs_what_is_in_it_and_no_more(folder, caplog):
    namespace, file = fill(folder)
    size = file.stat().st_size
    with open(file, "r+b") as raw:
        raw.seek(size // 2 // 4096 * 4096)
        raw.write(bytes(4096))

    with caplog.at_level(logging.WARNING):
        got = receive_all(namespace)
        sender = namespace.sender()
        sender.send(message(COUNT), LONG)
        sender.close()
    [later] = receive_all(namespace)

    assert later.message.message_id == f"m-{COUNT}"
    assert COUNT - 40 < len({each.message.message_id for each in got}) < COUNT
    assert all(each.message.body == message(int(each.message.message_id[2:])).body for each in got)
    assert "is damaged" in caplog.text
    assert "is saved" in caplog.text
    assert [each.name.partition("sqlite")[2].partition("-")[0] for each in folder.glob("messages-1*")] == [".damaged"]
    assert [each.name[-6:] for each in folder.glob("messages-1*")] == [".saved"]
    assert (folder / "messages-2.sqlite").exists()


def test_what_is_saved_may_have_been_held_by_somebody(folder):
    namespace, file = fill(folder, 100)
    flip(file, *((place, 0xFF) for place in range(3 * 4096, 3 * 4096 + 8)))
    got = receive_all(namespace)
    assert got
    assert {each.again for each in got if each.message.message_id not in ("m-0",)} == {True}


@pytest.mark.parametrize("content", [b"this was a disk once" * 1000, b"", b"SQLite format 3\0" + bytes(5000)])
def test_a_file_that_is_none_is_set_aside(folder, content):
    namespace, file = fill(folder, 5)
    file.write_bytes(content)
    sender = namespace.sender()
    sender.send(message(1), LONG)
    sender.close()
    assert [each.message.message_id for each in receive_all(namespace)] == ["m-1"]


def test_a_body_that_the_disk_has_changed_is_a_dead_letter(folder, caplog):
    namespace, file = fill(folder, 5)
    raw = file.read_bytes()
    flip(file, (raw.index(b"body 3 body 3"), ord("B")))

    got = receive_all(namespace)

    assert [each.message.message_id for each in got] == ["m-0", "m-1", "m-2", "m-4"]
    assert "are dead letters now" in caplog.text
    [dead] = receive_all(namespace, QUEUE + DEAD_LETTER_SUFFIX)
    assert dead.message.headers["DeadLetterReason"] == "Damaged"
    assert dead.message.body.startswith(b"Body 3")


def in_schema(word, letter=0):
    """Where a word of the schema is in a file, and how to damage it."""
    return lambda raw: [(raw.index(word), letter)]


@pytest.mark.parametrize(
    "damage",
    [
        pytest.param(in_schema(b"CREATE TABLE messages", 0xFF), id="no-text"),
        pytest.param(in_schema(b"checksum INTEGER", ord("k")), id="another-column"),
        pytest.param(in_schema(b"held (id", ord("b")), id="another-table"),
        pytest.param(lambda raw: [(103, 0), (104, 0)], id="no-tables"),
    ],
)
def test_a_schema_that_is_damaged_keeps_no_send_and_no_syphon_from_going_on(folder, damage, caplog):
    namespace, file = fill(folder, 5)
    flip(file, *damage(file.read_bytes()))
    sender = namespace.sender()
    sender.send(message(1000), LONG)
    sender.close()
    assert "m-1000" in [each.message.message_id for each in receive_all(namespace)]
    assert "is damaged" in caplog.text


@example(places=[(0.9544614365046957, 0)])  # a later message went where nobody could find it
@settings(max_examples=15, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(places=st.lists(st.tuples(st.floats(0, 1), st.integers(0, 255)), min_size=1, max_size=40))
def test_wherever_bytes_are_wrong_sends_go_on_and_nothing_wrong_is_delivered(tmp_path_factory, places):
    folder = tmp_path_factory.mktemp("damage") / "spool"
    namespace, file = fill(folder, 60)
    size = file.stat().st_size
    damaged = [(min(int(place * size), size - 1), value) for place, value in places]
    # A version of the file that is newer than this package is believed.
    flip(file, *((place, value) for place, value in damaged if place not in range(60, 64)))

    sender = namespace.sender()
    for n in range(1000, 1003):
        try:
            sender.send(message(n), LONG)
        except NamespaceFailure:
            sender.send(message(n), LONG)  # the file was found out and set aside
    sender.close()
    got = receive_all(namespace)

    ids = [each.message.message_id for each in got]
    assert {"m-1000", "m-1001", "m-1002"} <= set(ids)
    for each in got:
        assert each.message == Message(
            message(int(each.message.message_id[2:])).body, properties={"message_id": each.message.message_id}
        )


def test_a_process_that_has_the_damaged_file_open_goes_on_in_the_new_one(folder):
    namespace, _ = fill(folder, 3)
    program = (
        "import sys\n"
        "from kombu_paired.brokers.kombu import KombuNamespace\n"
        "from kombu_paired.message import Message\n"
        "sender = KombuNamespace('secondary', [sys.argv[1]], {}, send_timeout=30).sender()\n"
        "for line in sys.stdin:\n"
        "    properties = {'message_id': line.strip()}\n"
        f"    sender.send(Message(b'x', routing_key={QUEUE!r}, properties=properties), 30)\n"
        "    print('sent', flush=True)\n"
    )
    command = [sys.executable, "-c", program, f"spool://{folder}"]
    with subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True) as process:

        def send_there(name):
            process.stdin.write(f"{name}\n")
            process.stdin.flush()
            assert process.stdout.readline() == "sent\n"

        send_there("before")
        receiver = namespace.receiver([QUEUE], 100, LONG)
        receiver.store._set_aside(ValueError("as if it were damaged"), _deadline())
        send_there("after")
        got = []
        while len(got) < 5:
            got += receiver.receive(100, LONG)
        receiver.close()
        process.stdin.close()
    assert sorted(each.message.message_id for each in got) == ["after", "before", "m-0", "m-1", "m-2"]
    assert (folder / "messages-2.sqlite").exists()


def _deadline():
    from kombu_paired.deadline import Deadline

    return Deadline(LONG)


def test_what_was_held_of_a_file_that_is_set_aside_cannot_be_settled_and_comes_again(folder):
    namespace, _ = fill(folder, 2)
    receiver = namespace.receiver([QUEUE], 100, LONG)
    held = receiver.receive(1, LONG)
    receiver.store._set_aside(ValueError("as if it were damaged"), _deadline())
    with pytest.raises(NamespaceFailure, match="set aside while"):
        receiver.complete(held)
    receiver.close()
    got = receive_all(namespace)
    assert sorted((each.message.message_id, each.again) for each in got) == [("m-0", True), ("m-1", True)]


def test_who_was_killed_while_it_set_a_file_aside_has_lost_nothing(folder):
    namespace, file = fill(folder, 3)
    sender = namespace.sender()
    sender.send(message(3), LONG)  # it is in the log alone
    aside = sender.link.store.folder.set_aside(str(file))
    assert (folder / "messages-1.sqlite-wal").exists()
    sender.send(message(4), LONG)
    assert sorted(each.message.message_id for each in receive_all(namespace)) == [f"m-{n}" for n in range(5)]
    assert aside not in map(str, folder.iterdir())
    sender.close()


def test_saving_goes_on_where_it_was_cut_short(folder, monkeypatch):
    namespace, _ = fill(folder, 50)
    monkeypatch.setattr(saving, "PIECE", 20)
    receiver = namespace.receiver([QUEUE], 100, LONG)
    receiver.store._set_aside(ValueError("as if it were damaged"), _deadline())
    assert receiver.store.keep_house(_deadline())
    receiver.close()
    ids = [each.message.message_id for each in receive_all(namespace)]
    assert sorted(ids) == sorted(f"m-{n}" for n in range(50))


def test_what_two_save_at_once_is_saved_once(folder):
    namespace, _ = fill(folder, 10)
    receiver = namespace.receiver([QUEUE], 100, LONG)
    store = receiver.store
    store._set_aside(ValueError("as if it were damaged"), _deadline())
    store.open(_deadline())
    [name] = store.folder.damaged()
    piece = saving.read_piece(str(folder / name), 0)
    saved = [store.write(lambda connection: saving.save(connection, name, 0, piece), _deadline()) for _ in range(2)]
    assert saved == [True, False]
    receiver.close()
    assert len(receive_all(namespace)) == 10


def test_what_is_saved_into_a_file_that_is_set_aside_itself_is_saved_again(folder, monkeypatch):
    namespace, _ = fill(folder, 30)
    monkeypatch.setattr(saving, "PIECE", 20)
    receiver = namespace.receiver([QUEUE], 100, LONG)
    store = receiver.store
    store._set_aside(ValueError("as if it were damaged"), _deadline())
    assert store.keep_house(_deadline())
    real = saving.read_piece

    def read_last_piece_and_damage_the_other(path, after):
        piece = real(path, after)
        monkeypatch.setattr("kombu_paired.brokers.spool.store.read_piece", real)
        store._set_aside(ValueError("this one, too"), _deadline())
        return piece

    monkeypatch.setattr("kombu_paired.brokers.spool.store.read_piece", read_last_piece_and_damage_the_other)
    receiver.close()
    got = {each.message.message_id for each in receive_all(namespace)}
    assert got == {f"m-{n}" for n in range(30)}


def test_a_damaged_file_that_cannot_be_opened_now_is_read_later(folder, monkeypatch):
    namespace, _ = fill(folder, 3)
    receiver = namespace.receiver([QUEUE], 100, LONG)
    receiver.store._set_aside(ValueError("as if it were damaged"), _deadline())
    with monkeypatch.context() as patch:

        def fail(*_, **__):
            raise sqlite3.OperationalError("unable to open database file")

        patch.setattr(saving.sqlite3, "connect", fail)
        with pytest.raises(sqlite3.OperationalError):
            saving.read_piece(str(folder / "x"), 0)
    receiver.close()
    assert len(receive_all(namespace)) == 3
