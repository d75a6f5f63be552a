"""The demo's book-keeping: the balance believes the producer's notes and the ledger, and no event."""

from __future__ import annotations

import io
import json

import pytest

from kombu_paired.demo.app import EVENTS, LEDGER, PUBLISHED, Settings, append
from kombu_paired.demo.producer import publish, task_id
from kombu_paired.demo.story import Balance, Fate, Story
from kombu_paired.demo.view import COLUMNS, LOOKS, ROWS, PlainLines, balance_lines, grid, legend, open_view


class Book:
    """Writes what the processes of a demo would write."""

    def __init__(self, folder, messages):
        self.folder = folder
        self.story = Story(folder, messages)

    def called(self, number, started, took=0.01, error=None):
        note = {"number": number, "started": started, "took": took, "error": error}
        append(self.folder / PUBLISHED, json.dumps(note))

    def ran(self, number, at):
        append(self.folder / LEDGER, f"{number} {at}")

    def happened(self, kind, number=None, at=0.0, **facts):
        event = {"kind": kind, "time": at, "id": None if number is None else task_id(number), **facts}
        append(self.folder / EVENTS, json.dumps(event))

    def read(self):
        self.story.read_on()
        return self.story


@pytest.fixture
def book(tmp_path):
    return Book(tmp_path, 6)


def test_nothing_written_is_an_even_balance_of_nothing(book):
    balance = book.read().balance(0)
    assert balance.is_even
    assert balance.as_json() == {
        "published": 0,
        "publish_errors": 0,
        "executed": 0,
        "lost": 0,
        "duplicates": 0,
        "stranded": 0,
        "longest_publish_s": 0.0,
        "failover_s": None,
        "drain_s": None,
        "ran_during_outage": None,
    }


def test_the_balance_adds_up(book):
    for number in range(5):
        book.called(number, started=10.0 + number, took=0.5 if number == 2 else 0.01)
    book.called(5, started=15.0, error="BacklogUnavailable: both away")
    for number in (0, 1, 1, 3):
        book.ran(number, at=20.0 + number)
    balance = book.read().balance(stranded=1)
    assert (balance.published, balance.publish_errors) == (5, 1)
    assert (balance.executed, balance.lost, balance.duplicates) == (3, 2, 1)
    assert (balance.stranded, balance.longest_publish_s) == (1, 0.5)
    assert not balance.is_even


def test_events_cannot_make_the_balance_better(book):
    book.called(0, started=1.0)
    for kind in ("diverted", "syphoned", "restored"):
        book.happened(kind, 0)
    assert book.read().balance(0).lost == 1


def test_a_failed_call_is_not_lost_even_if_its_task_did_not_run(book):
    book.called(0, started=1.0, error="x")
    assert book.read().balance(0).lost == 0


def test_failover_is_what_the_caller_sees(book):
    book.called(0, started=9.9, took=0.3)  # was under way when the primary died
    book.called(1, started=10.3, took=0.2, error="refused")
    book.called(2, started=10.6, took=0.25)
    book.called(3, started=11.0)
    story = book.read()
    story.times.killed = 10.0
    assert story.balance(0).failover_s == 0.85


def test_drain_ends_with_the_last_that_had_been_sent_when_the_primary_was_back(book):
    for number, started in enumerate((1.0, 2.0, 9.0)):
        book.called(number, started)
        book.ran(number, at=started + 5)
    book.ran(1, at=30.0)  # a duplicate is no progress
    story = book.read()
    story.times.restored = 3.0
    assert story.balance(0).drain_s == 4.0


def test_what_was_sent_and_run_while_the_primary_was_dead_is_counted_where_the_worker_stands_in(tmp_path):
    book = Book(tmp_path, 6)
    book.story = Story(tmp_path, 6, stand_in=True)
    book.story.times.killed, book.story.times.restored = 10.0, 16.0
    for number, (started, ran) in enumerate([(1.0, 2.0), (9.0, 10.5), (11.0, 12.0), (15.0, 15.9), (15.0, 17.0)]):
        book.called(number, started)
        book.ran(number, at=ran)
        if started > 10:
            book.happened("diverted", number)
            book.happened("handed_out", number)
    story = book.read()
    assert story.balance(0).ran_during_outage == 2, "one was fetched before the kill, and one waited for the restart"
    assert story.fates()[:5] == [
        Fate.RAN_DIRECT,
        Fate.RAN_DIRECT,
        Fate.RAN_MEANWHILE,
        Fate.RAN_MEANWHILE,
        Fate.RAN_FROM_BACKLOG,
    ]
    assert any("2  ran meanwhile" in _plain(line) for line in balance_lines(story.balance(0)))


def test_a_line_that_is_not_whole_yet_waits(book):
    with (book.folder / LEDGER).open("ab") as file:
        file.write(b"3 17")
        file.flush()
        assert book.read().balance(0).executed == 0
        file.write(b".5\n")
    assert book.read().balance(0).executed == 1


def test_each_message_has_one_fate(book):
    book.called(0, 1.0)
    book.ran(0, 2.0)
    for number in (1, 2, 3):
        book.happened("diverted", number)
    for number in (2, 3):
        book.happened("syphoned", number)
    book.ran(3, 5.0)
    book.called(4, 1.0, error="x")
    fates = book.read().fates()
    assert fates == [
        Fate.RAN_DIRECT,
        Fate.IN_BACKLOG,
        Fate.CAME_HOME,
        Fate.RAN_FROM_BACKLOG,
        Fate.ERROR,
        Fate.PLANNED,
    ]
    assert set(LOOKS) == set(Fate)


def test_what_happens_to_many_is_one_line_of_the_chronicle(book):
    book.happened("suspect", at=1.0, failure="unreachable")
    for number in (0, 1, 2):
        book.happened("diverted", number, at=1.1)
        book.happened("syphoned", number, at=1.2)
    story = book.read()
    assert [(each.kind, each.count) for each in story.chapters] == [("suspect", 1), ("diverted", 3), ("syphoned", 3)]
    assert story.settled_chapters == 1
    book.happened("restored", at=2.0)
    assert book.read().settled_chapters == 4


def test_plain_lines_are_complete_when_they_are_written(book):
    stream = io.StringIO()
    view = PlainLines(stream, with_balance=True)
    view.story, view.started = book.story, 0.0
    book.happened("failed_over", at=1.0, failure="unreachable")
    for number in range(6):
        book.happened("diverted", number, at=2.0)
        book.read()
        view.draw()
    view.draw(is_last=True)
    assert stream.getvalue().splitlines() == [
        "   1.0 s  failed_over: straight to the backlog from now on (unreachable)",
        "   2.0 s  diverted to the backlog, 6 times",
    ]


def test_without_a_terminal_there_are_plain_lines(capsys):
    assert isinstance(open_view(as_json=True), PlainLines)
    assert isinstance(open_view(as_json=False), PlainLines)


@pytest.mark.parametrize("messages", [20, 600, 5000])
def test_the_picture_fits_80_columns(messages):
    fates = [Fate(number % len(Fate)) for number in range(messages)]
    lines = grid(fates).plain.splitlines()
    assert len(lines) <= ROWS
    assert max(map(len, lines)) <= COLUMNS
    assert all(len(line.plain) <= COLUMNS for line in legend(fates))


@pytest.mark.parametrize("lost", [0, 3])
def test_the_balance_is_legible(lost):
    balance = Balance(600, 0, 600 - lost, lost, 1, 0, 0.1, None, 3.25)
    lines = balance_lines(balance)
    assert ("Nothing was lost" in lines[-1]) is (lost == 0)
    assert any("3.250 s  drain" in line for line in map(_plain, lines))
    assert max(len(_plain(line)) for line in lines) <= 80


def _plain(line):
    import click

    return click.unstyle(line)


def test_a_call_is_noted_with_what_it_raised(tmp_path):
    class Refusing:
        def apply_async(self, args, task_id):
            raise OSError(f"no {task_id}")

    publish(Refusing(), 7, tmp_path / PUBLISHED)
    note = json.loads((tmp_path / PUBLISHED).read_text())
    assert (note["number"], note["error"]) == (7, "OSError: no demo-7")


def test_settings_travel_by_the_environment(monkeypatch):
    settings = Settings("/tmp/x", "paired+redis://a", {"secondary": "redis://b"}, 10, 2.5)
    for name, value in settings.as_environment().items():
        monkeypatch.setenv(name, value)
    assert Settings.from_environment() == settings
