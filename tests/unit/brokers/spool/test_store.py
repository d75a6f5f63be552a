"""One spool of a process: transactions that threads share, files and their rights, and what a fork inherits."""

from __future__ import annotations

import os
import sqlite3
import stat
import subprocess
import sys
import threading

import pytest

from kombu_paired.brokers.spool import database, rows, sharing
from kombu_paired.brokers.spool.address import SpoolAddress
from kombu_paired.brokers.spool.kinds import NewerSpool, NotSynced, SpoolBusy, SpoolFull
from kombu_paired.brokers.spool.locks import WRITING
from kombu_paired.brokers.spool.sharing import borrow, give_back
from kombu_paired.deadline import Deadline
from kombu_paired.message import Message
from tests.unit.brokers.spool.conftest import QUEUE, in_child

LONG = 30.0


def put(store, text="x", max_size=None):
    row = rows.row_of(Message(text.encode(), properties={"message_id": text}), QUEUE)
    address = SpoolAddress(store.folder.path, max_size)
    store.write(lambda connection: rows.put(connection, [row], address), Deadline(LONG), rings=True)


def count(store):
    return store.read(lambda connection: rows.count(connection, QUEUE), Deadline(LONG))


@pytest.fixture
def syncs(monkeypatch):
    """What is synced; each one waits until it may go on."""
    made = []
    go_on = threading.Semaphore(0)
    real = database._sync

    def sync(fd):
        made.append(fd)
        assert go_on.acquire(timeout=LONG)
        real(fd)

    monkeypatch.setattr(database, "_sync", sync)
    return made, go_on


def until(condition):
    deadline = Deadline(LONG)
    while not condition():
        assert not deadline.is_over
        threading.Event().wait(0.005)


def test_a_send_returns_when_the_disk_has_it_and_not_before(store, syncs):
    made, go_on = syncs
    store.open(Deadline(LONG))
    thread = threading.Thread(target=put, args=(store,))
    thread.start()
    until(lambda: made)
    thread.join(0.1)
    assert thread.is_alive()
    go_on.release()
    thread.join(LONG)
    assert not thread.is_alive()
    assert len(made) == 1


def test_those_that_come_during_a_sync_share_the_next_one(store, syncs):
    made, go_on = syncs
    threads = [threading.Thread(target=put, args=(store, f"m-{n}")) for n in range(20)]
    threads[0].start()
    until(lambda: made)
    for thread in threads[1:]:
        thread.start()
    until(lambda: len(store._together.waiting) == 19)
    go_on.release(2)
    for thread in threads:
        thread.join(LONG)
    assert len(made) == 2
    assert count(store) == 20


def test_what_does_not_fit_fails_alone(store, syncs):
    made, go_on = syncs
    failures = []

    def put_too_much():
        try:
            put(store, "x" * 2_000_000, max_size=1_000_000)
        except SpoolFull as exc:
            failures.append(str(exc))

    threads = [threading.Thread(target=put, args=(store, "first"))]
    threads += [threading.Thread(target=put_too_much), threading.Thread(target=put, args=(store, "other"))]
    threads[0].start()
    until(lambda: made)
    for thread in threads[1:]:
        thread.start()
    until(lambda: len(store._together.waiting) == 2)
    go_on.release(2)
    for thread in threads:
        thread.join(LONG)
    assert count(store) == 2
    [text] = failures
    assert "of the 1 MB that its 'max_size' allows" in text
    assert str(store.folder.path) in text


def test_who_has_waited_long_enough_was_not_stored_and_the_others_are(store, syncs):
    made, go_on = syncs
    first = threading.Thread(target=put, args=(store, "first"))
    first.start()
    until(lambda: made)
    with pytest.raises(SpoolBusy) as caught:
        store.write(lambda connection: pytest.fail("it was done"), Deadline(0.1))
    assert not caught.value.is_under_way
    go_on.release()
    first.join(LONG)
    assert count(store) == 1


def test_who_has_waited_for_a_sync_that_does_not_end_does_not_know(store, syncs):
    made, go_on = syncs
    first = threading.Thread(target=put, args=(store, "first"))
    first.start()
    until(lambda: made)
    outcome = []

    class Impatient(Deadline):
        """Its time is over once the transaction has begun."""

        @property
        def left(self):
            until(lambda: len(made) == 2)
            return 0.01

    def put_impatiently():
        row = rows.row_of(Message(b"second"), QUEUE)
        address = SpoolAddress(store.folder.path)
        try:
            store.write(lambda connection: rows.put(connection, [row], address), Impatient())
        except SpoolBusy as exc:
            outcome.append(exc)

    leader = threading.Thread(target=put, args=(store, "leader"))
    leader.start()
    until(lambda: len(store._together.waiting) == 1)
    impatient = threading.Thread(target=put_impatiently)
    impatient.start()
    until(lambda: len(store._together.waiting) == 2)
    go_on.release()  # the leader writes both, and hangs in the sync
    impatient.join(LONG)
    go_on.release(10)
    for thread in (first, leader):
        thread.join(LONG)
    assert [each.is_under_way for each in outcome] == [True]
    assert count(store) == 3


class Interrupted(BaseException):
    """As a task's time limit does, or a greenlet's end."""


def test_who_is_interrupted_while_it_waits_leaves_nobody_waiting(store, syncs, monkeypatch):
    made, go_on = syncs
    first = threading.Thread(target=put, args=(store, "first"))
    first.start()
    until(lambda: made)

    def interrupt(self, timeout):
        raise Interrupted

    with monkeypatch.context() as patch:
        patch.setattr(threading.Event, "wait", interrupt)
        with pytest.raises(Interrupted):
            put(store, "second")
    third = threading.Thread(target=put, args=(store, "third"))
    third.start()
    until(lambda: len(store._together.waiting) == 1)
    go_on.release(10)
    for thread in (first, third):
        thread.join(LONG)
    put(store, "fourth")
    assert count(store) == 3


def test_who_is_interrupted_while_it_writes_for_all_leaves_them_unsure_and_the_next_one_goes_on(store, monkeypatch):
    real, hit = database._sync, threading.Event()
    waiting = threading.Semaphore(0)

    def interrupt(fd):
        if not hit.is_set():
            hit.set()
            assert waiting.acquire(timeout=LONG)
            return real(fd)
        monkeypatch.setattr(database, "_sync", real)
        raise Interrupted

    store.open(Deadline(LONG))
    monkeypatch.setattr(database, "_sync", interrupt)
    outcomes = {}

    def put_and_note(name):
        try:
            put(store, name)
            outcomes[name] = "stored"
        except BaseException as exc:
            outcomes[name] = type(exc).__name__, getattr(exc, "is_under_way", None)

    threads = [threading.Thread(target=put_and_note, args=("first",))]
    threads[0].start()
    assert hit.wait(LONG)
    for n, name in enumerate(("leader", "follower"), 1):
        threads.append(threading.Thread(target=put_and_note, args=(name,)))
        threads[-1].start()
        until(lambda wanted=n: len(store._together.waiting) == wanted)
    waiting.release()
    for thread in threads:
        thread.join(LONG)
    put(store, "later")
    assert outcomes == {"first": "stored", "leader": ("Interrupted", None), "follower": ("SpoolBusy", True)}


def test_a_disk_that_does_not_take_it_is_no_success(store, monkeypatch):
    def fail(fd):
        raise OSError(5, "Input/output error")

    store.open(Deadline(LONG))
    monkeypatch.setattr(database, "_sync", fail)
    with pytest.raises(NotSynced, match="does not take what was written"):
        put(store)


def test_the_sync_is_that_of_the_log_that_sqlite_writes(store, folder, monkeypatch):
    synced = []
    monkeypatch.setattr(database, "_sync", lambda fd: synced.append(os.fstat(fd).st_ino))
    put(store)
    [log] = folder.glob("*-wal")
    assert synced == [log.stat().st_ino]


def test_a_transaction_that_changes_nothing_costs_no_sync(store, syncs):
    made, _ = syncs
    store.write(lambda connection: rows.complete(connection, [1, 2], 7), Deadline(LONG))
    assert made == []


# -- files ----------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("umask", [0o000, 0o022, 0o077, 0o177])
def test_files_are_for_owner_and_group_whatever_the_umask(folder, umask):
    before = os.umask(umask)
    try:
        store = borrow(str(folder))
        put(store)
        modes = {each.name.rpartition("-")[2]: stat.S_IMODE(each.stat().st_mode) for each in folder.iterdir()}
        give_back(store)
    finally:
        os.umask(before)
    assert stat.S_IMODE(folder.stat().st_mode) == 0o2770
    assert modes == dict.fromkeys(["locks", "reserve", "1.sqlite", "wal", "shm"], 0o660)


def test_a_folder_that_is_there_is_left_as_its_owner_made_it(folder):
    folder.mkdir(mode=0o750)
    store = borrow(str(folder))
    put(store)
    give_back(store)
    assert stat.S_IMODE(folder.stat().st_mode) == 0o750


def test_what_it_is_to_be_in_is_not_made(tmp_path):
    store = borrow(str(tmp_path / "not mounted" / "spool"))
    with pytest.raises(FileNotFoundError, match="the one that it is to be in is missing"):
        put(store)
    give_back(store)


def test_the_last_one_to_let_go_leaves_one_whole_file(store, folder):
    put(store)
    store.close()
    assert sorted(each.name for each in folder.iterdir()) == ["locks", "messages-1.sqlite", "reserve"]


def test_a_newer_file_is_refused(store, folder):
    put(store)
    store.close()
    connection = sqlite3.connect(folder / "messages-1.sqlite")
    connection.execute("PRAGMA user_version = 2")
    connection.close()
    with pytest.raises(NewerSpool, match="update kombu-paired here"):
        put(store)


def test_a_file_whose_making_was_cut_short_is_made(store, folder):
    folder.mkdir()
    (folder / "messages-1.sqlite").touch()
    put(store)
    assert count(store) == 1
    assert len(list(folder.glob("*.sqlite"))) == 1


def test_one_that_was_moved_away_is_written_to_no_more(store, folder):
    put(store, "old")
    (folder / "messages-1.sqlite").rename(folder / "messages-1.sqlite.aside")
    put(store, "new")
    assert count(store) == 1
    assert (folder / "messages-2.sqlite").exists()


def test_a_folder_that_is_gone_is_not_made_again_by_who_has_it_open(store, folder):
    put(store)
    folder.rename(folder.with_name("elsewhere"))
    with pytest.raises(FileNotFoundError, match=r"is gone: make it again, or mount it"):
        put(store)
    folder.with_name("elsewhere").rename(folder)
    put(store)
    assert count(store) == 2


def test_while_it_is_being_mended_a_send_waits_and_no_longer_than_it_may(store, folder):
    put(store)
    mender = (
        "import fcntl, sys\n"
        "file = open(sys.argv[1], 'r+')\n"
        f"fcntl.lockf(file, fcntl.LOCK_EX, 1, {WRITING})\n"
        "print('mine', flush=True)\n"
        "sys.stdin.read()\n"
    )
    command = [sys.executable, "-c", mender, str(folder / "locks")]
    with subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE) as process:
        assert process.stdout.readline() == b"mine\n"
        with pytest.raises(SpoolBusy, match="mending"):
            store.write(lambda connection: pytest.fail("it was done"), Deadline(0.2))
        process.stdin.close()
    put(store)
    assert count(store) == 2


# -- processes ------------------------------------------------------------------------------------------------------


def test_all_of_a_process_share_one(folder, tmp_path):
    (tmp_path / "link").symlink_to(folder)
    folder.mkdir()
    one, other = borrow(str(folder)), borrow(str(tmp_path / "link"))
    assert one is other
    give_back(one)
    put(other)
    give_back(other)
    again = borrow(str(folder))
    assert again is not one
    give_back(again)


def test_a_child_touches_nothing_of_its_parents_and_has_its_own(store, folder):
    put(store, "parent's")
    descriptors = [store._locks._fd, store._database._log]

    def work():
        with pytest.raises(RuntimeError, match="parent"):
            put(store, "stolen")
        store.close()
        for fd in descriptors:
            os.fstat(fd)  # still open
        own = borrow(str(folder))
        put(own, "child's")
        found = own is not store, count(own)
        give_back(own)
        return found

    assert in_child(work) == "(True, 2)"
    put(store, "later")
    assert count(store) == 3


def test_a_fork_waits_for_a_transaction_so_that_its_child_can_write(store, folder, syncs):
    made, go_on = syncs
    thread = threading.Thread(target=put, args=(store,))
    thread.start()
    until(lambda: made)
    threading.Timer(0.2, go_on.release, [10]).start()

    def work():
        own = borrow(str(folder))
        put(own)
        return count(own)

    assert in_child(work) == "2"
    thread.join(LONG)


def test_a_reader_lives_as_long_as_its_process(store, folder):
    child = (
        "import sys\n"
        "from kombu_paired.brokers.bell import Bell\n"
        "from kombu_paired.brokers.spool.sharing import borrow\n"
        "from kombu_paired.deadline import Deadline\n"
        "print(borrow(sys.argv[1]).new_reader(Bell(), Deadline(30)), flush=True)\n"
        "sys.stdin.read()\n"
    )
    command = [sys.executable, "-c", child, str(folder)]
    with subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE) as process:
        reader = int(process.stdout.readline())
        assert store.dead([reader], Deadline(LONG)) == []
        process.kill()
        process.wait(LONG)
        assert store.dead([reader], Deadline(LONG)) == [reader]


def test_a_reader_of_ones_own_is_alive_until_it_is_forgotten(store):
    from kombu_paired.brokers.bell import Bell

    bell = Bell()
    one, other = (store.new_reader(bell, Deadline(LONG)) for _ in range(2))
    assert store.dead([one, other], Deadline(LONG)) == []
    assert in_child(lambda: store._locks.is_dead(one)) == "False"
    store.forget_reader(one, bell)
    assert store.dead([one, other], Deadline(LONG)) == [one]
    bell.close()


def test_when_the_locks_are_removed_readers_live_on_in_the_new_ones(store, folder):
    from kombu_paired.brokers.bell import Bell

    bell = Bell()
    put(store)
    reader = store.new_reader(bell, Deadline(LONG))
    (folder / "locks").unlink()
    put(store)

    def is_dead_for_others():
        own = borrow(str(folder))
        return own.dead([reader], Deadline(LONG)) == [reader]

    assert in_child(is_dead_for_others) == "False"
    store.forget_reader(reader, bell)
    assert in_child(is_dead_for_others) == "True"
    bell.close()


def test_a_folder_that_is_another_one_now_has_locks_of_its_own(store, folder):
    put(store, "old")
    folder.rename(folder.with_name("elsewhere"))
    folder.mkdir()
    put(store, "new")
    assert count(store) == 1
    assert store._locks.is_at(str(folder / "locks"))


def test_a_fork_that_waits_in_vain_lets_go_of_nothing_that_others_hold(store, folder, monkeypatch):
    monkeypatch.setattr(sharing, "FORK_PATIENCE", 0.01)
    put(store)
    with store._in_use(Deadline(LONG)):
        assert in_child(lambda: "child") == "'child'"
        assert store.using.locked()
    put(store)
    assert count(store) == 2


def test_closing_waits_no_longer_than_a_moment_for_a_disk_that_hangs(folder, syncs, monkeypatch):
    made, go_on = syncs
    monkeypatch.setattr("kombu_paired.brokers.spool.store.CLOSING", 0.05)
    store = borrow(str(folder))
    thread = threading.Thread(target=put, args=(store,))
    thread.start()
    until(lambda: made)
    give_back(store)
    again = borrow(str(folder))
    assert again is store  # to have its files open twice would be to lose its locks
    go_on.release(10)
    thread.join(LONG)
    assert count(again) == 1
    give_back(again)
    assert store._locks is None
