"""The journal: what it writes, where, and that it is never in the way of whoever sends."""

from __future__ import annotations

import errno
import gzip
import json
import logging
import math
import multiprocessing
import os
import subprocess
import sys
import textwrap
import threading
import time
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from kombu_paired import events
from kombu_paired.errors import ConfigurationError
from kombu_paired.events import Event, EventKind, EventStream
from kombu_paired.journal import Journal, files, keep, kinds_of, line_of
from kombu_paired.journal import writer as journal
from kombu_paired.journal.format import JOURNAL_FIELDS, JOURNAL_VERSION
from kombu_paired.journal.lines import LONGEST_DETAIL
from kombu_paired.options import PairedNamespaceOptions
from kombu_paired.secrets import shown_options
from tests.docs.reading import DOCS, code, section, table

TEN = 1_772_359_200.0  # 2026-03-01T10:00:00Z


class Clock:
    def __init__(self, now: float = TEN) -> None:
        self.now = now

    def __call__(self) -> float:
        return self.now


@pytest.fixture
def clock():
    return Clock()


@pytest.fixture
def folder(tmp_path):
    return tmp_path / "journal"


@pytest.fixture
def kept(folder, clock):
    made = Journal(str(folder), wall_clock=clock)
    yield made
    made.close()


def happening(kind=EventKind.SENT, time=TEN, **facts):
    return Event(kind, time=time, pairing="main", **facts)


def names(folder):
    return sorted(path.name for path in folder.iterdir())


def lines(folder):
    """The lines of all files, in the order of the files' names."""
    found = []
    for path in sorted(folder.iterdir()):
        text = gzip.decompress(path.read_bytes()) if path.suffix == ".gz" else path.read_bytes()
        found += [json.loads(line) for line in text.splitlines()]
    return found


def written(folder):
    """How many whole lines there are, while somebody writes."""
    return sum(path.read_bytes().count(b"\n") for path in folder.iterdir()) if folder.exists() else 0


def wait_for(condition, timeout=30.0):
    deadline = time.monotonic() + timeout
    while not condition():
        assert time.monotonic() < deadline
        time.sleep(0.01)


def run(program, *arguments, timeout=20):
    return subprocess.run(
        [sys.executable, "-c", textwrap.dedent(program), *map(str, arguments)],
        capture_output=True,
        text=True,
        timeout=timeout,
    )


# -- a line -----------------------------------------------------------------------------------------------------------

EVERYTHING = Event(
    EventKind.DIVERTED,
    time=TEN + 0.25,
    pairing="main",
    entity="orders",
    message_id="6f9",
    route="backlog/3",
    size=812,
    failure="unreachable",
    seconds=1.5,
    first_attempt=TEN - 0.5,
    maybe_duplicate=True,
    detail="refused",
)


def test_a_line_says_what_happened_in_the_fields_of_the_contract():
    assert json.loads(line_of(EVERYTHING, "web-1", 77, 9)) == {
        "v": JOURNAL_VERSION,
        "time": 1_772_359_200_250_000,
        "first_attempt": 1_772_359_199_500_000,
        "host": "web-1",
        "pid": 77,
        "seq": 9,
        "event": "diverted",
        "pairing": "main",
        "entity": "orders",
        "message_id": "6f9",
        "route": "backlog/3",
        "bytes": 812,
        "failure": "unreachable",
        "ms": 1500.0,
        "maybe_duplicate": True,
        "detail": "refused",
    }


def test_a_line_has_every_field_in_its_order():
    assert list(json.loads(line_of(EVERYTHING, "web-1", 77, 9))) == [field.name for field in JOURNAL_FIELDS]


def test_a_line_with_nothing_to_say_has_the_required_fields_alone():
    line = json.loads(line_of(happening(), "web-1", 77, 1))
    assert list(line) == [field.name for field in JOURNAL_FIELDS if field.required]


TYPES = {"integer": int, "number": float, "text": str, "boolean": bool}
anything = st.builds(
    Event,
    kind=st.sampled_from(EventKind),
    time=st.floats(0, 4e9),
    pairing=st.text(),
    entity=st.text(),
    message_id=st.none() | st.text(),
    route=st.text(),
    size=st.none() | st.integers(0, 2**62),
    failure=st.none() | st.text(),
    seconds=st.none() | st.floats(),
    first_attempt=st.none() | st.floats(),
    maybe_duplicate=st.booleans(),
    detail=st.text(),
)


@given(event=anything, host=st.text())
def test_any_event_is_one_line_of_the_contract(event, host):
    line = line_of(event, host, 7, 1)
    assert "\n" not in line
    assert line.isascii()
    read = json.loads(line, parse_constant=pytest.fail)
    types = {field.name: TYPES[field.type] for field in JOURNAL_FIELDS}
    assert all(type(value) is types[name] for name, value in read.items())
    assert all(abs(value) < 2**63 for value in read.values() if type(value) is int)
    assert (read.get("entity", ""), read.get("message_id"), read["host"]) == (event.entity, event.message_id, host)


@pytest.mark.parametrize("seconds", [math.nan, math.inf, 1e306])
def test_a_time_that_is_none_is_left_out(seconds):
    assert "ms" not in json.loads(line_of(happening(seconds=seconds), "h", 1, 1))
    assert "first_attempt" not in json.loads(line_of(happening(first_attempt=seconds), "h", 1, 1))


def test_a_password_in_an_errors_text_is_not_written():
    detail = "no route to amqp://shop:s3cret@main-broker:5672//, nor to redis://:hunter2@10.0.0.7:6379/0"
    line = line_of(happening(detail=detail), "h", 1, 1)
    assert "s3cret" not in line
    assert "hunter2" not in line
    assert "main-broker:5672" in line


def test_a_long_detail_is_cut():
    assert len(json.loads(line_of(happening(detail="x" * 10_000), "h", 1, 1))["detail"]) == LONGEST_DETAIL


# -- levels and settings ----------------------------------------------------------------------------------------------


def test_level_messages_writes_every_event():
    assert kinds_of("messages") == set(EventKind)


def test_level_transitions_leaves_out_what_happens_to_each_message_but_not_what_an_operator_wants():
    left_out = set(EventKind) - kinds_of("transitions")
    assert {kind.value for kind in left_out} == {
        *(
            "sent",
            "send_failed",
            "diverted",
            "received_from_backlog",
            "syphoned",
            "handed_out",
            "abandoned",
            "consumed",
        ),
    }


def test_at_level_transitions_nobody_asks_for_an_event_per_message(folder):
    stream = EventStream()
    keep(str(folder), "transitions", stream).close()
    assert not stream.wants(EventKind.SENT)
    assert stream.wants(EventKind.FAILED_OVER)


def parsed(**options):
    return PairedNamespaceOptions.parse({"secondary": "amqp://spare-broker//", **options})


def test_the_folder_is_made_absolute(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("HOME", "/home/shop")
    assert parsed().journal is None
    assert parsed(journal="logs").journal == str(tmp_path / "logs")
    assert parsed(journal=Path("logs")).journal == str(tmp_path / "logs")
    assert parsed(journal="~/logs").journal == "/home/shop/logs"


@pytest.mark.parametrize("options", [{"journal": 1}, {"journal": ""}, {"journal": True}, {"journal_level": "all"}])
def test_other_settings_are_refused(options):
    [name] = options
    with pytest.raises(ConfigurationError, match=name):
        parsed(**options)


# -- the file ---------------------------------------------------------------------------------------------------------


def test_lines_are_numbered_from_one_without_holes(kept, folder):
    for _ in range(3):
        kept.hear(happening())
    kept.flush()
    assert [line["seq"] for line in lines(folder)] == [1, 2, 3]
    assert {line["pid"] for line in lines(folder)} == {os.getpid()}


def test_lines_of_many_threads_are_whole_and_numbered_without_holes(kept, folder):
    def tell():
        for n in range(2000):
            kept.hear(happening(message_id=str(n)))

    threads = [threading.Thread(target=tell) for _ in range(8)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    kept.close(5)
    assert sorted(line["seq"] for line in lines(folder)) == list(range(1, 16001))


def test_no_event_makes_no_file(kept, folder):
    kept.flush()
    assert not folder.exists()


def test_what_is_heard_is_written_soon_by_a_daemon_thread(kept, folder):
    kept.hear(happening())
    wait_for(lambda: written(folder))
    [writer] = [each for each in threading.enumerate() if each is kept._writer]
    assert writer.daemon


def test_a_file_has_another_name_while_it_is_written_and_is_compressed_then(kept, folder):
    kept.hear(happening())
    kept.flush()
    [name] = names(folder)
    kept.close(5)
    [closed] = names(folder)
    assert name.startswith("20260301T10-")
    assert name.endswith(".jsonl.part")
    assert closed == name.removesuffix(".part") + ".gz"
    assert [line["seq"] for line in lines(folder)] == [1]


def test_an_event_after_closing_begins_another_file_and_goes_on_counting(kept, folder):
    kept.hear(happening())
    kept.close(5)
    kept.close(5)
    kept.hear(happening())
    wait_for(lambda: len(names(folder)) == 2)
    kept.close(5)
    assert len(names(folder)) == 2
    assert [line["seq"] for line in lines(folder)] == [1, 2]


def test_every_hour_has_a_file_and_the_names_sort_by_time(kept, folder, clock):
    for hour in range(12):
        for minute in (0, 30):
            clock.now = TEN + 3600 * hour + 60 * minute
            kept.hear(happening(time=clock.now))
    kept.close(5)
    assert [name[:11] for name in names(folder)] == [f"20260301T{hour}" for hour in range(10, 22)]
    assert [line["seq"] for line in lines(folder)] == list(range(1, 25))


def test_an_event_that_was_overtaken_at_the_full_hour_makes_no_file_of_its_own(kept, folder, clock):
    for moment in (3599.0, 3600.001, 3599.999, 3601.0):
        clock.now = TEN + moment
        kept.hear(happening(time=clock.now))
        kept.flush()
    kept.close(5)
    assert [name[9:11] for name in names(folder)] == ["10", "11"]
    assert len(lines(folder)) == 4


def test_the_file_of_a_past_hour_is_closed_though_nothing_happens(kept, folder, clock, monkeypatch):
    monkeypatch.setattr(journal, "WRITE_EVERY", 0.01)
    rests, seconds_to_rest = threading.Event(), kept._seconds_to_rest

    def rest():
        seconds = seconds_to_rest()
        if kept._file is not None:
            rests.set()
        return seconds

    monkeypatch.setattr(kept, "_seconds_to_rest", rest)
    clock.now = TEN + 3599.9
    kept.hear(happening(time=clock.now))
    assert rests.wait(30)
    clock.now = TEN + 3600.1
    wait_for(lambda: [Path(name).suffix for name in names(folder)] == [".gz"])


def test_a_large_hour_is_parted(kept, folder, monkeypatch):
    monkeypatch.setattr(journal, "FILE_LIMIT", 100_000)
    for _ in range(3000):
        kept.hear(happening(detail="x" * 100))
    kept.flush()
    assert len(names(folder)) > 3
    assert max(path.stat().st_size for path in folder.iterdir()) < 100_000 + journal.BATCH * 300
    kept.close(5)
    assert sorted(line["seq"] for line in lines(folder)) == list(range(1, 3001))


def test_two_journals_of_the_same_process_and_moment_never_share_a_file(folder, monkeypatch):
    monkeypatch.setattr(journal.time, "time_ns", lambda: 1_772_359_200_000_000_000)
    both = [Journal(str(folder)) for _ in range(2)]
    for each in both:
        each.hear(happening())
        each.flush()
    assert len(names(folder)) == 2
    for each in both:
        each.close()


def test_a_host_whose_name_is_no_file_name(kept, folder):
    kept._host = "web/1 ü"
    kept.hear(happening())
    kept.flush()
    [name] = names(folder)
    assert name.startswith("20260301T10-web-1-")
    assert lines(folder)[0]["host"] == "web/1 ü"


def test_closing_is_quick_whatever_the_size(kept, folder, monkeypatch):
    monkeypatch.setattr(files, "QUICK_TO_COMPRESS", 1000)
    for _ in range(1000):
        kept.hear(happening())
    started = time.monotonic()
    kept.close()
    assert time.monotonic() - started < journal.GOODBYE + 5
    [name] = names(folder)
    assert name.endswith(".jsonl")
    assert len(lines(folder)) == 1000


def test_the_end_of_a_pairing_is_on_disk_when_the_call_returns(kept, folder):
    kept.hear(happening())
    kept.hear(happening(EventKind.CLOSED))
    assert [line["event"] for line in lines(folder)] == ["sent", "closed"]


# -- the bound --------------------------------------------------------------------------------------------------------


def a_file(folder, name, size, age=0.0):
    folder.mkdir(exist_ok=True)
    path = folder / name
    path.write_bytes(b"x" * size)
    os.utime(path, (TEN - age, TEN - age))


def test_the_oldest_closed_files_are_given_up_and_that_is_written(kept, folder, clock, monkeypatch):
    monkeypatch.setattr(journal, "FOLDER_LIMIT", 2500)
    a_file(folder, "20260301T08-zeus-1-300.jsonl.gz", 1000)
    a_file(folder, "20260301T08-argo-2-400.jsonl", 1000)
    a_file(folder, "20260301T09-argo-3-500.jsonl.gz", 1000)
    a_file(folder, "20260301T10-argo-4-600.jsonl.part", 1000)
    a_file(folder, "notes.txt", 9000)
    heard = []
    events.everywhere.listen(heard.append, [EventKind.JOURNAL_TRIMMED])
    kept.hear(happening())
    wait_for(lambda: heard)
    kept.close(5)
    events.everywhere.silence(heard.append)

    left = [name for name in names(folder) if f"-{os.getpid()}-" not in name]
    assert left == ["20260301T09-argo-3-500.jsonl.gz", "20260301T10-argo-4-600.jsonl.part", "notes.txt"]
    [own] = [name for name in names(folder) if f"-{os.getpid()}-" in name]
    *_, last = [json.loads(line) for line in gzip.decompress((folder / own).read_bytes()).splitlines()]
    assert (last["event"], last["pairing"]) == ("journal_trimmed", "main")
    assert "2 files of 2000 bytes" in last["detail"]
    assert "from 20260301T08-zeus-1-300.jsonl.gz to 20260301T08-argo-2-400.jsonl:" in last["detail"]
    assert [event.detail for event in heard] == [last["detail"]]


def test_what_killed_processes_left_is_given_up_too_and_what_is_written_never(kept, folder, monkeypatch):
    monkeypatch.setattr(journal, "FOLDER_LIMIT", 1)
    a_file(folder, "20260301T03-argo-1-1.jsonl.part", 1000, age=7 * 3600)
    a_file(folder, "20260301T03-argo-1-1.jsonl.gz.tmp", 1000, age=7 * 3600)
    a_file(folder, "20260301T04-argo-2-2.jsonl.part", 1000, age=60)  # of a process whose clock is wrong: it is alive
    a_file(folder, "20260301T10-argo-3-3.jsonl.part", 1000, age=7 * 3600)
    kept.hear(happening())
    wait_for(lambda: len(names(folder)) == 3)
    kept.flush()
    assert names(folder)[:2] == ["20260301T04-argo-2-2.jsonl.part", "20260301T10-argo-3-3.jsonl.part"]


def test_within_the_bound_nothing_is_given_up(kept, folder):
    a_file(folder, "20260301T08-zeus-1-300.jsonl.gz", 1000)
    kept.hear(happening())
    kept.close(5)
    assert len(names(folder)) == 2


# -- in nobody's way --------------------------------------------------------------------------------------------------


class Disk:
    """Takes so many bytes, and no more."""

    def __init__(self, monkeypatch, room):
        self.room = room
        self._write = os.write
        monkeypatch.setattr(journal.os, "write", self.write)

    def write(self, descriptor, data):
        if self.room <= 0:
            raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))
        taken = self._write(descriptor, data[: self.room])
        self.room -= taken
        return taken


@pytest.fixture
def impatient(monkeypatch):
    monkeypatch.setattr(journal, "RETRY_AFTER", 0.05)
    monkeypatch.setattr(journal, "WRITE_EVERY", 0.01)


def test_a_full_disk_stops_the_journal_says_so_once_and_goes_on_when_there_is_room(
    kept, folder, monkeypatch, caplog, impatient
):
    disk = Disk(monkeypatch, room=1000)  # ends in the middle of a line
    with caplog.at_level(logging.WARNING, "kombu_paired.journal"):
        for _ in range(50):
            kept.hear(happening())
        wait_for(lambda: caplog.records)
        time.sleep(0.2)  # some tries more
        assert len(caplog.records) == 1
        assert lines(folder) == []  # no half of a line, nor of a batch
        disk.room = 1 << 30
        wait_for(lambda: len(caplog.records) == 2)
    stopped, goes_on = caplog.records
    assert (stopped.levelname, goes_on.levelname) == ("ERROR", "WARNING")
    assert str(folder) in stopped.getMessage()
    assert "No space left" in stopped.getMessage()
    assert "0 events are missing" in goes_on.getMessage()
    kept.close(5)
    assert [line["seq"] for line in lines(folder)] == list(range(1, 51))


def test_what_does_not_fit_in_memory_leaves_a_hole_in_the_numbers_and_is_counted(
    kept, folder, monkeypatch, caplog, impatient
):
    monkeypatch.setattr(journal, "QUEUE_LIMIT", 100)
    disk = Disk(monkeypatch, room=0)
    kept.hear(happening())
    wait_for(lambda: kept._has_failed)
    for _ in range(150):
        kept.hear(happening())
    with caplog.at_level(logging.WARNING, "kombu_paired.journal"):
        disk.room = 1 << 30
        wait_for(lambda: "are missing" in caplog.text)
        wait_for(lambda: not kept._queue)
        kept.hear(happening())
    kept.close(5)
    assert [line["seq"] for line in lines(folder)] == [*range(1, 102), 152]
    assert "50 events are missing" in caplog.text


def test_a_folder_that_cannot_be_made_is_one_line_in_the_log(tmp_path, caplog, impatient):
    (tmp_path / "file").write_text("not a folder")
    kept = Journal(str(tmp_path / "file"))
    with caplog.at_level(logging.INFO, "kombu_paired.journal"):
        for _ in range(10):
            kept.hear(happening())
            time.sleep(0.02)
        kept.close(5)
    assert len(caplog.records) == 1
    assert "file" in caplog.text


@pytest.mark.skipif(os.getuid() != 0, reason="only root may mount a small disk")
def test_a_disk_that_is_really_full(tmp_path, caplog, impatient):
    place = tmp_path / "small"
    place.mkdir()
    if subprocess.run(["mount", "-t", "tmpfs", "-o", "size=64k", "tmpfs", place], capture_output=True).returncode:
        pytest.skip("mounting is not allowed here")
    try:
        (place / "other").write_bytes(b"x" * 16_384)
        kept = Journal(str(place / "journal"))
        for _ in range(2000):
            kept.hear(happening(detail="x" * 100))
        wait_for(lambda: "No space left" in caplog.text)
        assert all(line["detail"] for line in lines(place / "journal"))  # every line is whole
        (place / "other").unlink()
        subprocess.run(["mount", "-o", "remount,size=4m", place], check=True)
        wait_for(lambda: "are missing" in caplog.text)
        kept.close(5)
        assert [line["seq"] for line in lines(place / "journal")] == list(range(1, 2001))
    finally:
        subprocess.run(["umount", "-l", place], check=True)


def test_a_disk_that_does_not_answer_holds_up_nobody_who_sends(kept, folder, monkeypatch):
    answers = threading.Event()
    write = os.write
    monkeypatch.setattr(journal.os, "write", lambda *args: (answers.wait(), write(*args))[1])
    kept.hear(happening())
    wait_for(kept._writing.locked)
    started = time.monotonic()
    for _ in range(1000):
        kept.hear(happening())
    assert time.monotonic() - started < 5  # for ever, if it waited for the disk
    started = time.monotonic()
    kept.hear(happening(EventKind.CLOSED))
    assert time.monotonic() - started < journal.GOODBYE + 5
    answers.set()
    wait_for(lambda: written(folder) == 1002)


def test_no_thread_to_be_had_harms_nobody_and_closing_writes(kept, folder, monkeypatch):
    def refuse(self):
        raise RuntimeError("can't start new thread")

    monkeypatch.setattr(threading.Thread, "start", refuse)
    kept.hear(happening())
    kept.hear(happening())
    kept.close(5)
    assert [line["seq"] for line in lines(folder)] == [1, 2]


def test_an_event_that_cannot_be_written_stops_nothing(kept, folder, caplog):
    kept.hear(happening(entity="orders", message_id=7))  # type: ignore[arg-type]
    kept.flush()
    kept.hear(happening())
    kept.flush()
    assert [line["seq"] for line in lines(folder)] == [2]
    assert "1 events are not written" in caplog.text


# -- forks and exits --------------------------------------------------------------------------------------------------


@pytest.fixture
def shared(folder):
    """A journal that forked children know of."""
    kept = keep(str(folder), "messages", EventStream())
    yield kept
    kept.close(5)
    journal._journals.pop(str(folder))


def test_a_forked_child_writes_a_file_of_its_own_and_counts_from_one(shared, folder):
    for _ in range(3):
        shared.hear(happening(message_id="parent"))
    shared.flush()
    shared.hear(happening(message_id="parent"))  # waits in memory while the fork happens
    with shared._writing:  # as does a batch under way
        child = os.fork()
        if child == 0:
            shared.hear(happening(message_id="child"))
            shared.close()
            os._exit(0)
    assert os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) == 0
    shared.flush()
    by_process = {pid: [] for pid in (os.getpid(), child)}
    for line in lines(folder):
        by_process[line["pid"]].append((line["seq"], line["message_id"]))
    assert by_process == {os.getpid(): [(n, "parent") for n in range(1, 5)], child: [(1, "child")]}
    assert sorted(int(name.split("-")[-2]) for name in names(folder)) == sorted(by_process)


def test_a_child_of_multiprocessing_leaves_nothing_in_memory(shared, folder):
    child = multiprocessing.get_context("fork").Process(target=shared.hear, args=(happening(),))
    child.start()
    child.join()
    [name] = names(folder)
    assert (child.exitcode, Path(name).suffix) == (0, ".gz")
    assert [(line["pid"], line["seq"]) for line in lines(folder)] == [(child.pid, 1)]


EXITING = """
    import sys, time
    from kombu_paired.events import Event, EventKind, EventStream
    from kombu_paired.journal import keep

    stream = EventStream()
    keep(sys.argv[1], "messages", stream)
    for number in range(5000):
        stream.emit(Event(EventKind.SENT, time.time(), "main", entity="orders", message_id=str(number)))
    print(time.time())
    {end}
"""


@pytest.mark.parametrize("end", ["", "raise SystemExit(0)", "1 / 0"])
def test_what_is_queued_when_the_process_exits_is_written_promptly(folder, end):
    done = run(EXITING.format(end=end), folder)
    assert time.time() - float(done.stdout) < 5
    [name] = names(folder)
    assert name.endswith((".jsonl.gz", ".jsonl"))
    assert len(lines(folder)) == 5000


KILLED = """
    import glob, os
    while sum(open(name).read().count("\\n") for name in glob.glob(sys.argv[1] + "/*")) < 5000: time.sleep(0.01)
    os.kill(os.getpid(), 9)
"""


def test_a_killed_process_leaves_whole_lines(folder):
    done = run(EXITING.format(end=KILLED), folder)
    assert done.returncode == -9, done.stderr
    [name] = names(folder)
    assert name.endswith(".jsonl.part")
    *whole, rest = (folder / name).read_bytes().split(b"\n")
    assert [json.loads(line)["seq"] for line in whole] == list(range(1, 5001))
    assert rest == b""


GREEN = """
    {patch}
    import glob, sys, threading, time
    from kombu_paired.events import Event, EventKind
    from kombu_paired import journal

    kept = journal.Journal(sys.argv[1])
    done = []

    def tell(name):
        for number in range(500):
            kept.hear(Event(EventKind.SENT, time.time(), "main", message_id=name))
            time.sleep(0)
        done.append(name)

    threads = [threading.Thread(target=tell, args=(str(n),)) for n in range(4)]
    for thread in threads: thread.start()
    for thread in threads: thread.join()
    written, until = 0, time.time() + 10
    while written < 2000 and time.time() < until:
        time.sleep(0.01)  # the writer is one of them
        written = sum(len(open(name).readlines()) for name in glob.glob(sys.argv[1] + "/*"))
    kept.close(5)
    print(len(done), written)
"""


@pytest.mark.parametrize(
    "patch", ["from gevent import monkey; monkey.patch_all()", "import eventlet; eventlet.monkey_patch()"]
)
def test_greenlets(folder, patch):
    pytest.importorskip("gevent" if "gevent" in patch else "eventlet")
    done = run(GREEN.format(patch=patch), folder)
    assert done.stdout.split() == ["4", "2000"], done.stderr
    assert sorted(line["seq"] for line in lines(folder)) == list(range(1, 2001))


# -- around it --------------------------------------------------------------------------------------------------------


def test_a_path_in_the_settings_is_no_trouble_for_remote_control():
    shown = shown_options({"secondary": "amqp://spare-broker//", "journal": Path("/var/journal")})
    assert shown["journal"] == "/var/journal"


PAGE = DOCS / "journal.md"


def test_the_page_has_the_fields_of_the_contract():
    rows = table(section(PAGE, "What is in a line"))
    assert [name for row in rows for name in code(row["field"])] == [field.name for field in JOURNAL_FIELDS]


def test_the_page_has_the_version():
    [version, *_] = table(section(PAGE, "What is in a line"))
    assert version == {"field": "`v`", "says": f"version of the format: {JOURNAL_VERSION}"}


def test_the_page_has_every_event_and_its_level():
    rows = table(section(PAGE, "What is written"))
    written = {name: row["level `transitions`"] == "yes" for row in rows for name in code(row["event"])}
    assert written == {kind.value: kind in kinds_of("transitions") for kind in EventKind}


def test_the_page_has_the_true_limits():
    text = " ".join(PAGE.read_text().split())
    assert f"An hour of more than {journal.FILE_LIMIT >> 20} MiB" in text
    assert f"kept below {journal.FOLDER_LIMIT >> 30} GiB" in text
    assert f"up to {journal.QUEUE_LIMIT:,} events" in text
    assert f"tries again every {journal.RETRY_AFTER:g} seconds" in text
    assert f"its last {journal.WRITE_EVERY:g} seconds" in text
    assert journal.GOODBYE == 0.5
