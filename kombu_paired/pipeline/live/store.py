"""Where the stream keeps its events: a folder for each batch, ten of which become one, over and over.

A folder is named by its first and last batch: ``7-7``, ``70-79``, ``0-99``. It appears whole, under its name, or not
at all; where one contains another, the other is what a merge that was killed has left, and says nothing more.
"""

from __future__ import annotations

import json
import os
import shutil
from collections.abc import Callable, Iterable
from dataclasses import dataclass
from pathlib import Path

from pyspark.sql import DataFrame, SparkSession

from kombu_paired.pipeline.parquet import write_table
from kombu_paired.pipeline.schema import accepted_schema

__all__ = ("EventStore", "Segment", "mergeable", "visible")

#: Segments that become one.
TOGETHER = 10
#: Bytes of the files of a merged segment at most: larger ones are read well as they are.
LARGEST = 256 << 20
#: About so many bytes are in each file of a merged segment.
FILE_SIZE = 32 << 20
#: What is known of a segment, in a file of it that Spark does not look at.
ABOUT = "_about.json"


@dataclass(frozen=True, order=True)
class Segment:
    """The rows of the batches from the first to the last."""

    first: int
    last: int

    def __str__(self) -> str:
        return f"{self.first}-{self.last}"

    @classmethod
    def named(cls, name: str) -> Segment | None:
        """None if it is no segment's name."""
        first, _, last = name.partition("-")
        return cls(int(first), int(last)) if first.isdecimal() and last.isdecimal() else None

    def contains(self, other: Segment) -> bool:
        return self.first <= other.first and other.last <= self.last


# -- pure: which to read, and which to merge --------------------------------------------------------------------------


def visible(segments: Iterable[Segment]) -> list[Segment]:
    """Those that no other contains, in order."""
    found: list[Segment] = []
    for each in sorted(segments, key=lambda each: (each.first, -each.last)):
        if not found or not found[-1].contains(each):
            found.append(each)
    return found


def mergeable(
    segments: Iterable[Segment], fit: Callable[[list[Segment]], bool] = lambda group: True
) -> list[tuple[Segment, list[Segment]]]:
    """Segments to make, and of which: ten of one size are one of the next, once there is a later one.

    Of these ten some may be missing, since what is old is deleted. But all that are there are merged, or none: what is
    left out would be hidden by the one that is made.

    Arguments:
        fit: whether a group is small enough to be one.
    """
    seen = visible(segments)
    size = TOGETHER
    while seen and size <= seen[-1].last + 1:
        groups: dict[int, list[Segment]] = {}
        for each in seen:
            if each.last - each.first < size - 1:
                groups.setdefault(each.first // size, []).append(each)
        ended = {number: group for number, group in groups.items() if (number + 1) * size <= seen[-1].last + 1}
        ripe = [
            (Segment(number * size, (number + 1) * size - 1), group)
            for number, group in ended.items()
            if group[1:] and fit(group)
        ]
        if ripe:
            return ripe
        size *= TOGETHER
    return []


# -- on the disk ------------------------------------------------------------------------------------------------------


class EventStore:
    """The events that were read.

    Arguments:
        folder: where; made when there is something to keep.
    """

    def __init__(self, spark: SparkSession, folder: Path) -> None:
        self._spark = spark
        self._folder = folder

    def segments(self) -> list[Segment]:
        """Those to read."""
        return visible(self._all())

    def has(self, batch: int) -> bool:
        return any(each.contains(Segment(batch, batch)) for each in self._all())

    def add(self, batch: int, write: Callable[[str], int | None]) -> None:
        """Keep a batch, unless it is kept already.

        Arguments:
            write: writes its rows into a folder, and returns the time of the latest event (microseconds).
        """
        if not self.has(batch):
            self._make(Segment(batch, batch), write)

    def read(self) -> DataFrame:
        """All that is kept, as :func:`kombu_paired.pipeline.reading.read_events` has it."""
        paths = [str(self._folder / str(each)) for each in self.segments()]
        if not paths:
            return self._spark.createDataFrame([], accepted_schema())
        return self._spark.read.schema(accepted_schema()).parquet(*paths)

    def latest(self) -> int | None:
        """When the latest event happened, in microseconds."""
        return max((time for each in self.segments() if (time := self._latest(each)) is not None), default=None)

    def tidy(self, since: int) -> None:
        """Delete what nobody reads: segments without an event since then, what is merged, and what is half written."""
        if not self._folder.exists():
            return
        kept = self.segments()
        old = {each for each in kept[:-1] if self._age(each) < since}
        for path in self._folder.iterdir():
            segment = Segment.named(path.name)
            if segment is None or segment not in kept or segment in old:
                shutil.rmtree(path)

    def merge(self) -> bool:
        """Merge what is ripe; whether there was anything."""
        merged = False
        for whole, parts in mergeable(self._all(), lambda group: self._size(group) <= LARGEST):
            self._make(whole, lambda place, parts=parts: self._write_together(parts, place))  # type: ignore[misc]
            for part in parts:
                shutil.rmtree(self._folder / str(part))
            merged = True
        return merged

    def _all(self) -> list[Segment]:
        names = (path.name for path in self._folder.iterdir()) if self._folder.exists() else ()
        return [segment for name in names if (segment := Segment.named(name)) is not None]

    def _write_together(self, parts: list[Segment], place: str) -> int | None:
        rows = self._spark.read.schema(accepted_schema()).parquet(*(str(self._folder / str(each)) for each in parts))
        # By kind of event: a table that asks for some kinds skips the rest of a file.
        rows = rows.coalesce(1 + self._size(parts) // FILE_SIZE).sortWithinPartitions("event", "time")
        write_table(rows, place)
        return max((time for each in parts if (time := self._latest(each)) is not None), default=None)

    def _size(self, segments: list[Segment]) -> int:
        return sum(file.stat().st_size for each in segments for file in (self._folder / str(each)).glob("*.parquet"))

    def _latest(self, segment: Segment) -> int | None:
        about: dict[str, int | None] = json.loads((self._folder / str(segment) / ABOUT).read_text())
        return about["latest"]

    def _age(self, segment: Segment) -> int:
        """When its latest event happened; without one, when it was written. In microseconds."""
        latest = self._latest(segment)
        return (self._folder / str(segment) / ABOUT).stat().st_mtime_ns // 1000 if latest is None else latest

    def _make(self, segment: Segment, write: Callable[[str], int | None]) -> None:
        beside = self._folder / f"{segment}.{os.getpid()}.new"  # what a killed watch had begun may live a moment longer
        latest = write(str(beside))
        (beside / ABOUT).write_text(json.dumps({"latest": latest}))
        beside.rename(self._folder / str(segment))
