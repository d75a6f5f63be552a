"""Records that lie in the future of the simulation: in memory while they are few, on disk else."""

from __future__ import annotations

import marshal
import tempfile
from collections.abc import Iterator
from pathlib import Path

__all__ = ("Record", "Spool")

#: Slot, time by the clock of its host, first attempt as a piece of JSON or nothing, and the rest of the line; None for
#: a line that was lost.
Record = tuple[int, int, str, "str | None"]

#: Records kept in memory.
LIMIT = 100_000


class Spool:
    """Keeps records by the slice of time to which they belong. A context manager: leaving it removes the files."""

    def __init__(self, limit: int = LIMIT) -> None:
        self._limit = limit
        self._slices: dict[int, list[Record]] = {}
        self._count = 0
        self._folder = tempfile.TemporaryDirectory(prefix="kombu-paired-simulation-")
        self._on_disk: set[int] = set()

    def __enter__(self) -> Spool:
        return self

    def __exit__(self, *exc: object) -> None:
        self._folder.cleanup()

    def add(self, number: int, record: Record) -> None:
        """Keep a record for the slice with this number."""
        self._slices.setdefault(number, []).append(record)
        self._count += 1
        if self._count > self._limit:
            self._write_out()

    def take(self, number: int) -> Iterator[Record]:
        """The records of a slice, in the order in which they were added, once."""
        if number in self._on_disk:
            self._on_disk.remove(number)
            yield from self._read_back(self._path(number))
        found = self._slices.pop(number, [])
        self._count -= len(found)
        yield from found

    def _path(self, number: int) -> Path:
        return Path(self._folder.name) / str(number)

    def _write_out(self) -> None:
        for number, records in self._slices.items():
            with self._path(number).open("ab") as file:
                marshal.dump(records, file)
            self._on_disk.add(number)
        self._slices.clear()
        self._count = 0

    def _read_back(self, path: Path) -> Iterator[Record]:
        with path.open("rb") as file:
            size = path.stat().st_size
            while file.tell() < size:
                yield from marshal.load(file)
        path.unlink()
