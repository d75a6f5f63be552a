"""A disk that loses its power: what of a recorded folder is there afterwards.

Synced is synced. Of what was not, each write may have reached the disk or not, in any order, and in part: sectors
of 512 bytes do. A name is there for sure once its folder was synced.
"""

from __future__ import annotations

import random
import shutil
import subprocess
from collections.abc import Iterator
from dataclasses import dataclass, field
from functools import cache
from pathlib import Path

import pytest

__all__ = ("Disk", "Record", "compiled", "read_records")

HERE = Path(__file__).parent
SECTOR = 512


@cache
def compiled(into: Path) -> Path:
    """The recorder, for ``LD_PRELOAD``; skips the test where there is no compiler."""
    compiler = shutil.which("cc")
    if compiler is None:
        pytest.skip("no C compiler")
    library = into / "recorder.so"
    source = str(HERE / "recorder.c")
    subprocess.run([compiler, "-shared", "-fPIC", "-O1", "-o", str(library), source, "-ldl"], check=True)
    return library


@dataclass(frozen=True)
class Record:
    """Something that a process asked of the disk."""

    kind: str
    offset: int
    path: str
    data: bytes = field(repr=False)


def read_records(file: Path) -> Iterator[Record]:
    """All that was recorded, in order."""
    with file.open("rb") as lines:
        while head := lines.readline():
            kind, offset, length, path = head.decode().rstrip("\n").split(" ", 3)
            yield Record(kind, int(offset), path, lines.read(int(length)))


class File:
    """The content of one file: what is synced, and what may be there besides."""

    def __init__(self) -> None:
        self.synced = bytearray()
        self.pending: list[Record] = []

    def sync(self) -> None:
        for record in self.pending:
            _apply(self.synced, record)
        self.pending.clear()

    def after_the_loss(self, chance: random.Random) -> bytes:
        content = bytearray(self.synced)
        likely = chance.choice((0.0, 0.5, 0.95))
        for record in self.pending:
            if chance.random() < likely:
                _apply(content, _torn(record, chance))
        return bytes(content)


def _apply(content: bytearray, record: Record) -> None:
    if record.kind == "cut":
        del content[record.offset :]
        content.extend(bytes(record.offset - len(content)))
        return
    content.extend(bytes(max(record.offset - len(content), 0)))
    content[record.offset : record.offset + len(record.data)] = record.data


def _torn(record: Record, chance: random.Random) -> Record:
    if record.kind == "cut" or chance.random() < 0.7:
        return record
    sectors = range(0, len(record.data), SECTOR)
    return Record(record.kind, record.offset, record.path, record.data[: chance.choice(sectors) or SECTOR])


class Disk:
    """What was recorded up to some moment.

    Arguments:
        root: the folder that was recorded.
    """

    def __init__(self, root: Path) -> None:
        self._root = root
        #: Names as processes see them, and as they are on the disk for sure.
        self._seen: dict[str, File] = {}
        self._named: dict[str, File] = {}

    def take(self, record: Record) -> None:
        path = record.path
        if record.kind == "made":
            self._seen.setdefault(path, File())  # two processes may have found that it was not there
        elif record.kind == "gone":
            self._seen.pop(path, None)
        elif record.kind == "moved":
            self._seen[record.data.decode()] = self._seen.pop(path)
        elif record.kind == "sync" and path in self._seen:
            self._seen[path].sync()
        elif record.kind == "sync":
            self._sync_folder(path)
        elif path in self._seen:
            self._seen[path].pending.append(record)

    def _sync_folder(self, folder: str) -> None:
        for names in (self._named, self._seen):
            for path in [each for each in names if str(Path(each).parent) == folder]:
                if path in self._seen:
                    self._named[path] = self._seen[path]
                else:
                    del self._named[path]

    def lose_power(self, into: Path, chance: random.Random) -> None:
        """Write what is left of it into an empty folder."""
        for path in sorted({*self._seen, *self._named}):
            names = self._named if chance.random() < 0.5 else self._seen
            if path in names:
                target = into / Path(path).relative_to(self._root)
                target.parent.mkdir(parents=True, exist_ok=True)
                target.write_bytes(names[path].after_the_loss(chance))
