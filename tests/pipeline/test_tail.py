"""Journals that grow: every whole line once, whatever becomes of its file. No Spark here."""

from __future__ import annotations

import gzip
import json
import os
import tempfile
import time
from pathlib import Path

import pyarrow
import pytest
from hypothesis import given
from hypothesis import strategies as st

from kombu_paired.journal.format import ORPHANED
from kombu_paired.pipeline.live import folders as of_folders
from kombu_paired.pipeline.live import tail
from kombu_paired.pipeline.live.folders import SETTLED, Folders
from kombu_paired.pipeline.live.tail import JournalReader, Piece, advanced, lines_within, pieces_between
from tests.pipeline.writing import write

NAME = "20260302T10-web-1-4711-1772359261034127.jsonl"


class Tail:
    """Follows the journals of a folder, as Spark would have it done."""

    def __init__(self, folder: Path, limit: int | None = None):
        self.now = time.time
        self.folders = Folders([str(folder)], folder.parent / f"{folder.name}.seen", clock=lambda: self.now())
        self.offsets: tail.Offsets = {}
        self.limit = limit
        self.problems: dict[str, str] = {}

    def look(self):
        found = self.folders.look()
        self.problems = {Path(path).name: problem for path, problem in found.problems}
        return json.loads(json.dumps(found.target))

    def next(self) -> list[str]:
        """The lines that are new, batch after batch."""
        target, lines = self.look(), []
        while (end := advanced(self.offsets, target, self.limit)) is not self.offsets:
            lines += read(self.offsets, end)
            self.offsets = end
        return lines


def read(start, end):
    pieces = [piece for task in pieces_between(start, end) for piece in task]
    return [line.decode() for piece in pieces for line in (lines_within(piece) or (None, []))[1]]


def add(file: Path, text: str) -> Path:
    file.parent.mkdir(parents=True, exist_ok=True)
    with file.open("a") as content:
        content.write(text)
    return file


def compressed(file: Path) -> Path:
    """As the journal does it at the hour."""
    target = file.with_name(file.name.removesuffix(".part") + ".gz")
    unfinished = target.with_name(target.name + ".tmp")
    unfinished.write_bytes(gzip.compress(file.read_bytes()))
    unfinished.replace(target)
    file.unlink()
    return target


@pytest.fixture
def folder(tmp_path):
    return tmp_path / "journals"


@pytest.fixture
def part(folder):
    return folder / f"{NAME}.part"


# -- whole lines, once ------------------------------------------------------------------------------------------------


def test_a_file_that_grows_is_read_by_whole_lines(folder, part):
    follower = Tail(folder)
    add(part, "a\nb\nc")
    assert follower.next() == ["a", "b"]
    assert follower.next() == []
    add(part, "c\n\n  \t\r\nd\n")
    assert follower.next() == ["cc", "d"]


def test_a_file_that_is_renamed_and_compressed_goes_on_where_it_was(folder, part):
    follower = Tail(folder)
    add(part, "a\nb\n")
    assert follower.next() == ["a", "b"]
    add(part, "c\nd")
    assert follower.next() == ["c"]
    add(part, "d\ne\n")
    compressed(part)
    assert follower.next() == ["dd", "e"]
    assert follower.next() == []


def test_a_file_that_only_loses_its_part_goes_on_too(folder, part):
    follower = Tail(folder)
    add(part, "a\n")
    assert follower.next() == ["a"]
    add(part, "b\n").rename(folder / NAME)
    assert follower.next() == ["b"]


LINES = st.lists(st.text("ab ", max_size=6), max_size=12)


@given(st.lists(LINES, min_size=1, max_size=3), st.integers(1, 40), st.integers(1, 30), st.data())
def test_every_line_is_read_once_whatever_the_size_of_a_batch_and_of_a_task(files, limit, task, data):
    with tempfile.TemporaryDirectory() as place, pytest.MonkeyPatch.context() as patch:
        patch.setattr(tail, "TASK", task)
        folder = Path(place, "journals")
        follower, found = Tail(folder, limit), []
        contents = [add(folder / f"{number}.jsonl.part", "") for number, _ in enumerate(files)]
        for _ in range(3):
            for file, lines in zip(contents, files, strict=True):
                if file.exists():
                    text = "".join(f"{line}\n" for line in lines)
                    cut = data.draw(st.integers(file.stat().st_size, len(text)))
                    file.write_text(text[:cut])
                    if cut == len(text) and data.draw(st.booleans()):
                        compressed(file)
            found += follower.next()
        for file, lines in zip(contents, files, strict=True):
            if file.exists():
                file.write_text("".join(f"{line}\n" for line in lines))
        found += follower.next()
        assert sorted(found) == sorted(line for lines in files for line in lines if line.strip())


def test_a_batch_is_about_as_large_as_it_may_be(folder, part):
    add(part, "12345678\n" * 1000)
    follower = Tail(folder, 90)
    target = follower.look()
    end = advanced({}, target, 90)
    assert end == {str(folder): {NAME: [90, 0]}}
    assert advanced(end, target, None) == target
    assert advanced(target, target, 90) is target


def test_a_large_file_is_shared_by_tasks(monkeypatch):
    monkeypatch.setattr(tail, "TASK", 100)
    tasks = pieces_between({"f": {"a": [50, 0]}}, {"f": {"a": [320, 5], "b": [10, 0], "c": [20, 0]}})
    assert [[(each.name, each.start, each.end) for each in task] for task in tasks] == [
        [("a", 50, 150)],
        [("a", 150, 250)],
        [("a", 250, 325), ("b", 0, 10), ("c", 0, 20)],
    ]


# -- the end of a file ------------------------------------------------------------------------------------------------


def test_a_torn_line_counts_when_its_process_is_dead(folder, part):
    follower = Tail(folder)
    add(part, "a\nb")
    assert follower.next() == ["a"]
    follower.now = lambda: time.time() + ORPHANED + 1
    assert follower.next() == ["b"]
    assert follower.next() == []


def test_a_torn_line_of_a_closed_file_counts_when_nobody_copies_it_any_more(folder):
    follower = Tail(folder)
    add(folder / NAME, "a\nb")
    assert follower.next() == ["a"]
    follower.now = lambda: time.time() + SETTLED + 1
    assert follower.next() == ["b"]


def test_a_compressed_file_is_whole_and_so_its_last_line_counts(folder):
    write(folder / f"{NAME}.gz", b"a\nb")
    assert Tail(folder).next() == ["a", "b"]


def test_a_line_that_was_taken_for_torn_and_goes_on_is_read_again_whole(folder, part):
    follower = Tail(folder)
    follower.now = lambda: time.time() + ORPHANED + 1
    add(part, "a\nb")
    assert follower.next() == ["a", "b"]
    follower.now = time.time
    add(part, "c\nd\n")
    assert follower.next() == ["bc", "d"]


# -- again, after a kill ----------------------------------------------------------------------------------------------


def test_what_was_planned_is_read_again_from_whatever_its_file_has_become(folder, part):
    add(part, "a\nb\nc\n")
    target = Tail(folder).look()
    assert read({}, target) == ["a", "b", "c"]
    compressed(part)
    assert read({}, target) == ["a", "b", "c"]
    (folder / f"{NAME}.gz").unlink()
    assert read({}, target) == []


def test_what_is_planned_is_no_more_than_what_was_there(folder, part):
    add(part, "a\n")
    target = Tail(folder).look()
    add(part, "b\n")
    assert read({}, target) == ["a"]


def test_a_file_that_has_gone_leaves_the_offsets_with_the_next_batch(folder, part):
    follower = Tail(folder)
    old = add(folder / "old.jsonl", "x\n")
    add(part, "a\n")
    assert sorted(follower.next()) == ["a", "x"]
    old.unlink()
    before = follower.offsets
    assert follower.next() == []
    assert follower.offsets is before
    add(part, "b\n")
    assert follower.next() == ["b"]
    assert list(follower.offsets[str(folder)]) == [NAME]


def test_a_file_that_became_shorter_is_not_read_again(folder, part):
    follower = Tail(folder)
    add(part, "a\nb\n")
    follower.next()
    part.write_text("a\n")
    assert follower.next() == []
    add(part, "b\nc\n")
    assert follower.next() == ["c"]


def test_a_file_renamed_while_the_folder_is_listed_is_not_taken_for_a_new_one(folder, part, monkeypatch):
    follower = Tail(folder)
    add(part, "a\n")
    follower.next()
    walked = follower.folders._walked
    looks = []

    def miss():
        looks.append(1)
        found = dict(walked())
        if len(looks) == 1:
            found.clear()
        return iter(found.items())

    monkeypatch.setattr(follower.folders, "_walked", miss)
    add(part, "b\n")
    assert follower.next() == ["b"]


# -- damage, copies, and permission -----------------------------------------------------------------------------------


def test_a_damaged_file_gives_no_line_until_it_is_whole(folder):
    whole = gzip.compress(b"".join(os.urandom(20).hex().encode() + b"\n" for _ in range(2000)))
    file = write(folder / "a.jsonl.gz", "")
    follower = Tail(folder)
    for content in (whole[: len(whole) // 2], b"no gzip", whole[:40] + bytes(40) + whole[80:]):
        file.write_bytes(content)
        assert follower.next() == []
        assert follower.problems == {"a.jsonl.gz": "unreadable"}
    file.write_bytes(whole)
    assert len(follower.next()) == 2000
    assert follower.problems == {}


def test_a_damaged_file_is_not_read_by_halves_when_a_batch_is_repeated(folder):
    file = write(folder / "a.jsonl.gz", *(os.urandom(20).hex() for _ in range(2000)))
    target = Tail(folder).look()
    file.write_bytes(file.read_bytes()[:-500])
    assert read({}, target) == []


def test_empty_files_are_told(folder):
    write(folder / "empty.jsonl")
    (folder / "empty.jsonl.gz").touch()
    write(folder / "blank.jsonl.gz", "", "  ", "\t\r")
    write(folder / "fine.jsonl", "a")
    follower = Tail(folder)
    assert follower.next() == ["a"]
    assert follower.problems == dict.fromkeys(("empty.jsonl", "empty.jsonl.gz", "blank.jsonl.gz"), "empty")


def test_a_copy_beside_the_file_is_read_too_as_a_report_does(folder, monkeypatch):
    monkeypatch.setattr(of_folders, "SETTLED", -1.0)
    write(folder / f"{NAME}.gz", "a", "b")
    follower = Tail(folder)
    assert follower.next() == ["a", "b"]
    add(folder / NAME, "a\nb"[:-1])
    assert follower.next() == ["a"]
    assert follower.next() == []


def test_a_part_beside_its_compressed_form_is_no_copy_while_it_may_be_deleted(folder, part):
    add(part, "a\nb\n")
    write(folder / f"{NAME}.gz", "a", "b")
    assert Tail(folder).next() == ["a", "b"]


def test_a_file_that_may_not_be_read_is_told_and_read_when_it_may(folder, monkeypatch):
    write(folder / "a.jsonl", "a")
    follower = Tail(folder)
    end = of_folders._end_of_lines

    def forbidden(path, size):
        raise PermissionError(13, "Permission denied")

    monkeypatch.setattr(of_folders, "_end_of_lines", forbidden)
    assert follower.next() == []
    assert follower.problems == {"a.jsonl": "unreadable"}
    monkeypatch.setattr(of_folders, "_end_of_lines", end)
    assert follower.next() == ["a"]


def test_a_folder_that_may_not_be_listed_for_a_while_has_not_lost_its_files(folder, monkeypatch):
    file = write(folder / "deep" / "a.jsonl", "a")
    write(folder / "b.jsonl", "b")
    follower = Tail(folder)
    assert sorted(follower.next()) == ["a", "b"]
    listed = os.scandir

    def scandir(path):
        if os.path.basename(os.fspath(path)) == "deep":
            raise PermissionError(13, "Permission denied", os.fspath(path))
        return listed(path)

    monkeypatch.setattr(os, "scandir", scandir)
    monkeypatch.setattr(of_folders, "_is_somewhere", lambda path: False)
    add(folder / "b.jsonl", "c\n")
    assert follower.next() == ["c"]
    monkeypatch.setattr(os, "scandir", listed)
    add(file, "d\n")
    assert follower.next() == ["d"]


def test_a_dangling_link_is_unreadable_and_a_binary_file_is_lines(folder):
    write(folder / "binary.jsonl", b"\x00\xff\n\x01")
    (folder / "dangling.jsonl").symlink_to("/nowhere/at/all")
    follower = Tail(folder)
    target = follower.look()
    assert follower.problems == {"dangling.jsonl": "unreadable"}
    [[piece]] = pieces_between({}, target)
    assert lines_within(piece) == (folder / "binary.jsonl", [b"\x00\xff"])


def test_zstd_is_read_too(folder):
    folder.mkdir()
    with pyarrow.output_stream(folder / f"{NAME}.zst", compression="zstd") as file:
        file.write(b"a\nb\n")
    follower = Tail(folder, 2)
    assert follower.next() == ["a", "b"]


# -- looking ----------------------------------------------------------------------------------------------------------


def test_only_what_is_new_or_has_changed_is_opened(folder, part, monkeypatch):
    opened = []
    examined = of_folders._examined
    monkeypatch.setattr(of_folders, "_examined", lambda path, *rest: opened.append(path.name) or examined(path, *rest))
    write(folder / "a.jsonl.gz", "a")
    add(part, "b\n")
    follower = Tail(folder)
    follower.next()
    follower.next()
    assert sorted(opened) == sorted(["a.jsonl.gz", part.name])
    add(part, "c\n")
    follower.next()
    assert opened[2:] == [part.name]
    Tail(folder).look()  # another process
    assert len(opened) == 3
    follower.folders._memory.write_text("garbage")
    Tail(folder).look()
    assert len(opened) == 5


def test_a_large_past_is_looked_at_in_parts_and_nothing_is_forgotten_meanwhile(folder):
    for number in range(5):
        write(folder / f"{number}.jsonl", "1234567")
    folders = Folders([str(folder)], folder.parent / "seen")
    looks = [folders.look(16) for _ in range(3)]
    assert [each.is_all for each in looks] == [False, False, True]
    assert [each.bytes for each in looks] == [16, 32, 40]
    assert {len(each.target[str(folder)]) for each in looks} == {5}


def test_a_path_that_is_not_there_is_told(folder):
    assert Folders([str(folder)], folder.parent / "seen").missing() == [folder]


# -- what Spark calls -------------------------------------------------------------------------------------------------


def test_the_reader_hands_over_the_file_and_its_lines(folder, tmp_path):
    write(folder / "odd +%20é.jsonl", "a", "é")
    target = tmp_path / "target.json"
    target.write_text(json.dumps(Tail(folder).look()))
    reader = JournalReader({"target": str(target), "batch": "3"})
    start = reader.initialOffset()
    middle = reader.latestOffset(start, reader.getDefaultReadLimit())
    end = reader.latestOffset(middle, reader.getDefaultReadLimit())
    assert reader.latestOffset(end, reader.getDefaultReadLimit()) is end
    rows = [
        row
        for first, last in ((start, middle), (middle, end))
        for task in reader.partitions(first, last)
        for batch in reader.read(task)
        for row in batch.to_pylist()
    ]
    url = (folder / "odd +%20é.jsonl").as_uri()
    assert rows == [{"file": url, "line": b"a"}, {"file": url, "line": "é".encode()}]


def test_a_piece_of_a_file_that_has_gone_is_nothing(tmp_path):
    assert lines_within(Piece(str(tmp_path), "a.jsonl", 0, 10)) is None
