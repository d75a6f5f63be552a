"""Journals that grow, as a source of Spark Structured Streaming: whole lines, by their place in the file.

A file is known by its folder and its name without ``.part`` and ``.gz``, and a place in it is counted in bytes that
are not compressed: what is renamed and compressed at the hour goes on where it was. How far there is something to
read is found out by :mod:`kombu_paired.pipeline.live.folders`, which hands it over as a file.

This runs in Spark's Python workers, and knows nothing of the session.
"""

from __future__ import annotations

import gzip
import io
import json
import zlib
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import BinaryIO, NamedTuple, cast

import pyarrow
from pyspark.sql.datasource import DataSource, DataSourceStreamReader, InputPartition
from pyspark.sql.streaming.datasource import ReadAllAvailable, ReadLimit, ReadMaxBytes, SupportsTriggerAvailableNow
from pyspark.sql.types import StructType

from kombu_paired.journal.format import FORMS, GZIP, ZSTANDARD

__all__ = (
    "COPY",
    "DAMAGE",
    "JournalSource",
    "Offsets",
    "Place",
    "advanced",
    "lines_within",
    "opened",
    "pieces_between",
)

#: Bytes, not compressed, of one batch at most; and of what one task of it reads.
BATCH, TASK = 64 << 20, 16 << 20
#: Lines that are handed to Spark at a time.
AT_ONCE = 10_000
#: Bytes that are skipped at a time.
CHUNK = 1 << 20
#: What reading a damaged file raises.
DAMAGE = (OSError, EOFError, ValueError, zlib.error)
#: At the end of a name in the offsets: this very file, which is there beside another form of itself.
COPY = "/"


class Place(NamedTuple):
    """How far a file is read: bytes of whole lines, and of a last line without an end, where that counts as one."""

    lines: int = 0
    torn: int = 0


#: Folder -> name -> :class:`Place`; as JSON has it, a list.
Offsets = dict[str, dict[str, Sequence[int]]]


# -- pure: from offsets to offsets ------------------------------------------------------------------------------------


@dataclass(frozen=True)
class Piece:
    """Bytes of a file; a line belongs to the piece in which it begins."""

    folder: str
    name: str
    start: int
    end: int


def advanced(start: Offsets, target: Offsets, limit: int | None) -> Offsets:
    """The offsets after the next batch.

    Arguments:
        start: those before.
        target: how far there is something to read, of each file that is there.
        limit: bytes that the batch may have.

    Returns:
        ``start`` itself if there is nothing new. Else also without the files that have gone.
    """
    result: Offsets = {}
    left = limit
    for name, folder in sorted((name, folder) for folder, names in target.items() for name in names):
        before, goal = _place(start, folder, name), _place(target, folder, name)
        after = before if _is_behind(goal, before) else _towards(before, goal, left)
        if left is not None:
            left -= after.lines - before.lines
        if after != Place():
            result.setdefault(folder, {})[name] = list(after)
    return result if any(_is_new(start, *each) for each in _each(result)) else start


def _each(offsets: Offsets) -> Iterator[tuple[str, str, Place]]:
    for folder, names in offsets.items():
        yield from ((folder, name, Place(*place)) for name, place in names.items())


def _place(offsets: Offsets, folder: str, name: str) -> Place:
    return Place(*offsets.get(folder, {}).get(name, ()))


def _is_new(start: Offsets, folder: str, name: str, place: Place) -> bool:
    return place != _place(start, folder, name)


def _is_behind(goal: Place, before: Place) -> bool:
    """The file has become shorter, or its torn line is not known to be one any more."""
    return goal.lines < before.lines or (goal.lines == before.lines and goal.torn < before.torn)


def _towards(before: Place, goal: Place, limit: int | None) -> Place:
    if limit is None or goal.lines - before.lines <= limit:
        return goal
    return Place(before.lines + limit) if limit > 0 else before


def pieces_between(start: Offsets, end: Offsets) -> list[list[Piece]]:
    """What there is to read between two offsets, a list for each task."""
    tasks: list[list[Piece]] = []
    size = TASK
    for piece in _pieces(start, end):
        if size >= TASK:
            tasks.append([])
            size = 0
        tasks[-1].append(piece)
        size += piece.end - piece.start
    return tasks


def _pieces(start: Offsets, end: Offsets) -> Iterator[Piece]:
    for folder, name, after in sorted(_each(end)):
        before = _place(start, folder, name)
        if after != before:
            for begin in range(before.lines, sum(after), TASK):
                yield Piece(folder, name, begin, min(begin + TASK, sum(after)))


# -- reading ----------------------------------------------------------------------------------------------------------


def opened(path: Path) -> BinaryIO:
    """A file's content, not compressed."""
    if path.name.endswith(GZIP):
        return cast(BinaryIO, gzip.open(path, "rb"))
    if path.name.endswith(ZSTANDARD):
        return cast(BinaryIO, io.BufferedReader(pyarrow.input_stream(str(path), compression="zstd")))
    return path.open("rb")


def forms_of(folder: str, name: str) -> list[Path]:
    """The paths at which a file can be, the first that is there first."""
    if name.endswith(COPY):
        return [Path(folder, name.removesuffix(COPY))]
    # Twice: a file that is compressed between two looks was not there yet at the first, and not any more at the second.
    return [Path(folder, name + form) for form in reversed(FORMS)] * 2


def lines_within(piece: Piece) -> tuple[Path, list[bytes]] | None:
    """The lines of a piece, and where they were found; None where the file has gone.

    A compressed file that turns out to be damaged gives none: it is taken whole, or not at all.
    """
    for path in forms_of(piece.folder, piece.name):
        try:
            with opened(path) as file:
                content = _content(file, piece)
        except DAMAGE:
            continue
        if content is not None:
            return path, [line for line in content.split(b"\n") if line.strip(b" \t\r")]
    return None


def _content(file: BinaryIO, piece: Piece) -> bytes | None:
    """From the first line that begins in the piece to the end of the last; None where the file is too short."""
    begin = 0
    if piece.start:
        _skip(file, piece.start - 1)
        rest = file.readline()  # of a line that began before: its mere end, where a line begins with the piece
        begin = piece.start - 1 + len(rest)
    if begin >= piece.end:
        return b""
    content = file.read(piece.end - begin)
    if len(content) < piece.end - begin:
        return None
    return content if content.endswith(b"\n") else content + file.readline()


def _skip(file: BinaryIO, size: int) -> None:
    if file.seekable():
        file.seek(size)
        return
    while size > 0:
        skipped = len(file.read(min(size, CHUNK)))
        if not skipped:
            return
        size -= skipped


# -- what Spark calls -------------------------------------------------------------------------------------------------


@dataclass
class Task(InputPartition):
    """What one task reads."""

    pieces: list[Piece]


class JournalSource(DataSource):
    """The format ``kombu-paired-journal``: a row for each line, with ``file``, a URL, and ``line``, its bytes.

    Options: ``target``, the path of a file with the offsets up to which there is something to read; ``batch``, bytes.
    """

    @classmethod
    def name(cls) -> str:
        return "kombu-paired-journal"

    def schema(self) -> str:
        return "file string, line binary"

    def streamReader(self, schema: StructType) -> JournalReader:
        return JournalReader(self.options)


class JournalReader(DataSourceStreamReader, SupportsTriggerAvailableNow):
    def __init__(self, options: Mapping[str, str]) -> None:
        self._target = Path(options["target"])
        self._batch = int(options.get("batch", BATCH))

    def initialOffset(self) -> Offsets:
        return {}

    def prepareForTriggerAvailableNow(self) -> None:
        """What is available is in the file already, and nobody changes it while a query runs."""

    def getDefaultReadLimit(self) -> ReadLimit:
        return ReadMaxBytes(self._batch)

    def latestOffset(self, start: Offsets, limit: ReadLimit) -> Offsets:
        size = None if isinstance(limit, ReadAllAvailable) else self._batch
        return advanced(start, json.loads(self._target.read_text()), size)

    def partitions(self, start: Offsets, end: Offsets) -> Sequence[Task]:
        return [Task(pieces) for pieces in pieces_between(start, end)]

    def read(self, partition: InputPartition) -> Iterator[pyarrow.RecordBatch]:
        for piece in cast(Task, partition).pieces:
            path, lines = lines_within(piece) or (Path(), [])
            url = pyarrow.scalar(path.as_uri() if lines else "")
            for first in range(0, len(lines), AT_ONCE):
                some = pyarrow.array(lines[first : first + AT_ONCE], pyarrow.binary())
                yield pyarrow.RecordBatch.from_arrays([pyarrow.repeat(url, len(some)), some], names=["file", "line"])
