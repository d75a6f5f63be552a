"""From journal files to events: finding them, reading them, and setting apart what is none.

Nothing stops a report but having no journal at all: what cannot be read, or is no event, is counted and kept.
"""

from __future__ import annotations

import functools
import gzip
import os
import re
import zlib
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass, field
from pathlib import Path

from pyspark.sql import Column, DataFrame, SparkSession
from pyspark.sql import functions as F

from kombu_paired.journal.format import ENDINGS, GZIP, JOURNAL_VERSION, known_events
from kombu_paired.pipeline.costs.charges import LOCK_MS
from kombu_paired.pipeline.parquet import write_table
from kombu_paired.pipeline.schema import (
    CORRUPT,
    EVENT_FIELDS,
    REJECTED,
    REQUIRED,
    accepted_schema,
    journal_schema,
    lines_schema,
)
from kombu_paired.pipeline.size import PARQUET, is_remote, journals_at, local

__all__ = ("Journals", "NoJournals", "accepted", "find_journals", "judged", "read_events", "rejected", "write_events")

#: A time outside of the years 1970 to 9999 is no time; sums of the others cannot overflow.
LATEST = 253_402_300_799_999_999
#: No message is so large.
LARGEST = 1 << 40


class NoJournals(Exception):
    """There is nothing to report on; the text says where was looked for what."""


@dataclass
class Journals:
    """Files, as Spark names them.

    Attributes:
        lines: JSON Lines, plain or compressed.
        parquet: the same fields as Parquet.
        empty: files without a line.
        unreadable: files that cannot be opened, or that end in the middle.
    """

    lines: list[str] = field(default_factory=list)
    parquet: list[str] = field(default_factory=list)
    empty: list[str] = field(default_factory=list)
    unreadable: list[str] = field(default_factory=list)

    @property
    def count(self) -> int:
        return sum(map(len, (self.lines, self.parquet, self.empty, self.unreadable)))

    def problems(self) -> list[tuple[str, str]]:
        """(path, problem) of the files that give no lines."""
        return [*((each, "empty") for each in self.empty), *((each, "unreadable") for each in self.unreadable)]


# -- finding ----------------------------------------------------------------------------------------------------------


def find_journals(spark: SparkSession, paths: Sequence[str], *, beside: str | None = None) -> Journals:
    """All journals at these paths.

    Arguments:
        paths: files, folders (searched to the bottom), or URLs of either that Spark can read. In storage that only
            Spark reads it does not list empty files, so that these are not counted.
        beside: a folder that is left out: the report's own output, which may lie in that of the journals.

    Raises:
        NoJournals: there is no such path, or no journal at any of them.
    """
    found = Journals()
    for path in paths:
        if is_remote(path):
            _sort_remote(spark, path, found)
            continue
        if not os.path.lexists(local(path)):
            raise NoJournals(f"there is no {local(path)}: name the journals' folder, or one of their files")
        for file in journals_at(local(path), Path(beside).absolute() if beside else None):
            _sort_local(file, found)
    if not found.count:
        raise NoJournals(
            f"no journal at {', '.join(paths)}: looked for files that end in {', '.join(ENDINGS + PARQUET)}. "
            "A process writes its journal to the folder that its transport option 'journal' names"
        )
    return found


def _sort_local(file: Path, found: Journals) -> None:
    place = str(file.absolute())
    try:
        is_empty = _is_empty(file)
    except (OSError, EOFError, zlib.error):
        found.unreadable.append(place)
        return
    if is_empty:
        found.empty.append(place)
    else:
        (found.parquet if file.name.endswith(PARQUET) else found.lines).append(place)


def _is_empty(file: Path) -> bool:
    opened = gzip.open if file.name.endswith(GZIP) and file.stat().st_size else open
    with opened(file, "rb") as content:
        return not any(chunk.strip(b" \t\r\n") for chunk in iter(lambda: content.read(4096), b""))


def _sort_remote(spark: SparkSession, path: str, found: Journals) -> None:
    listing = spark.read.format("binaryFile").option("recursiveFileLookup", "true").load(path).select("path")
    for (place,) in listing.orderBy("path").toLocalIterator():
        if place.endswith(PARQUET):
            found.parquet.append(place)
        elif place.endswith(ENDINGS):
            found.lines.append(place)


# -- reading ----------------------------------------------------------------------------------------------------------


def write_events(
    spark: SparkSession, journals: Journals, folder: str, *, since: int | None = None, until: int | None = None
) -> Journals:
    """Read every journal once, and write what is in it as Parquet.

    The events are those that happened from ``since`` to before ``until`` (microseconds since 1970, UTC); lines that
    are none are all kept. Files that turn out to be damaged give no lines, and are among the unreadable ones of what
    is returned: a damaged compressed file would else give an unknown part of its lines.
    """
    try:
        _write(_lines(spark, journals), folder, since, until)
        return journals
    except Exception as exc:
        if not _is_about_a_file(exc):
            raise
    sound = Journals(empty=journals.empty, unreadable=list(journals.unreadable))
    for kind in ("lines", "parquet"):
        files = getattr(journals, kind)
        damaged = set(_damaged(files, functools.partial(_can_read, spark, kind)))
        setattr(sound, kind, [each for each in files if each not in damaged])
        sound.unreadable += sorted(damaged)
    _write(_lines(spark, sound), folder, since, until)
    return sound


def _lines(spark: SparkSession, journals: Journals) -> DataFrame:
    read = []
    if journals.lines:
        reader = spark.read.schema(lines_schema()).options(mode="PERMISSIVE", lineSep="\n")
        read.append(reader.option("columnNameOfCorruptRecord", CORRUPT).json(_literal(journals.lines)))
    if journals.parquet:
        table = spark.read.schema(journal_schema()).parquet(*_literal(journals.parquet))
        read.append(table.withColumn(CORRUPT, F.lit(None).cast("string")))
    return functools.reduce(DataFrame.unionByName, read or [spark.createDataFrame([], lines_schema())])


def _literal(paths: Iterable[str]) -> list[str]:
    """Spark takes a path for a pattern."""
    return [re.sub(r"([][{}*?\\])", r"\\\1", each) for each in paths]


def _write(lines: DataFrame, folder: str, since: int | None, until: int | None) -> None:
    rows = lines.transform(judged)
    is_event = F.col("event") != REJECTED
    if since is not None:
        rows = rows.where(~is_event | (F.col("time") >= since))
    if until is not None:
        rows = rows.where(~is_event | (F.col("time") < until))
    write_table(rows, folder)


def judged(lines: DataFrame, file: Column | None = None) -> DataFrame:
    """Tell events from what is none.

    Arguments:
        lines: the journal's fields and ``_corrupt_record``, as they come from files.
        file: the URL of a line's file; by default it is the one that Spark reads.

    Returns:
        The fields of an event, with ``ms`` where a table asks for it. Of a line that is none, ``event``
        is ``rejected``, and there are ``file`` (a URL), ``problem`` (``truncated``, ``malformed`` or, where a later
        version of the package wrote it, ``unknown_version``) and ``line``, its text.
    """
    text = F.trim(CORRUPT)
    is_torn = text.startswith("{") & ~text.endswith("}")
    is_incomplete = functools.reduce(Column.__or__, (F.col(name).isNull() for name in REQUIRED))
    is_absurd = ~(
        (F.col("v") >= 1)
        & F.col("time").between(0, LATEST)
        & F.coalesce("first_attempt", F.lit(0)).between(0, LATEST)
        & (F.col("seq") >= 1)
        & F.coalesce("bytes", F.lit(0)).between(0, LARGEST)
    )
    problem = (
        F.when(F.col("v") > JOURNAL_VERSION, "unknown_version")  # whatever else is in it, nobody here can judge it
        .when(F.col(CORRUPT).isNotNull(), F.when(is_torn, "truncated").otherwise("malformed"))
        .when(is_incomplete | is_absurd | ~F.col("event").isin(*known_events()), "malformed")
    )
    is_event = F.col("problem").isNull()
    place = F.input_file_name() if file is None else file
    whole = F.to_json(F.struct(*(each.name for each in journal_schema().fields)))
    own = {
        "event": F.when(is_event, F.col("event")).otherwise(REJECTED),
        "ms": F.when(~F.col("event").isin("sent", "consumed") | (F.col("ms") >= LOCK_MS), F.col("ms")),
    }
    return lines.withColumn("problem", problem).select(
        *(own.get(name, F.col(name)).alias(name) for name in EVENT_FIELDS),
        F.when(~is_event, place).alias("file"),  # asked for each line, it would cost a tenth of the time
        "problem",
        F.when(~is_event, F.coalesce(CORRUPT, whole)).alias("line"),
    )


def read_events(spark: SparkSession, folder: str) -> DataFrame:
    """What :func:`write_events` wrote."""
    return spark.read.schema(accepted_schema()).parquet(folder)


def accepted(rows: DataFrame) -> DataFrame:
    """The events among what was written: a journal's fields."""
    return rows.where(F.col("event") != REJECTED).select(*EVENT_FIELDS)


def rejected(rows: DataFrame) -> DataFrame:
    """The lines that are no events: file, problem, line."""
    return rows.where(F.col("event") == REJECTED).select("file", "problem", "line")


# -- damaged files ----------------------------------------------------------------------------------------------------


def _is_about_a_file(error: Exception) -> bool:
    return any(each in str(error) for each in ("FAILED_READ_FILE", "PATH_NOT_FOUND", "FileNotFoundException"))


def _can_read(spark: SparkSession, kind: str, files: Sequence[str]) -> bool:
    paths = _literal(files)
    try:
        content = spark.read.text(paths) if kind == "lines" else spark.read.schema(journal_schema()).parquet(*paths)
        content.write.format("noop").mode("overwrite").save()
    except Exception as exc:
        if not _is_about_a_file(exc):
            raise
        return False
    return True


def _damaged(files: Sequence[str], can_read: Callable[[Sequence[str]], bool]) -> Iterator[str]:
    """Which of them cannot be read, by halving: Spark does not say which it was, nor all of them."""
    if not files or can_read(files):
        return
    if len(files) == 1:
        yield files[0]
        return
    middle = len(files) // 2
    yield from _damaged(files[:middle], can_read)
    yield from _damaged(files[middle:], can_read)
