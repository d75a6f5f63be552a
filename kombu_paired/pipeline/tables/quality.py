"""What is wrong with the journals: counted, by file, by process, and over all. Nothing is dropped silently."""

from __future__ import annotations

from pyspark.sql import Column, DataFrame, Window
from pyspark.sql import functions as F

from kombu_paired.pipeline.schema import EVENT_FIELDS, PROCESS

__all__ = ("QUALITY_COLUMNS", "doubled", "once", "plain", "processes", "quality", "special", "without_copies")

QUALITY_COLUMNS = ("file", "host", "pid", "problem", "count", "seconds")

#: What makes two lines the same event. The time tells processes apart that had the same pid one after the other.
IDENTITY = (*PROCESS, "seq", "time")
#: What happens to every message on a good day: most of all events.
PLAIN = ("sent", "consumed")
#: A bigint keeps so many sequence numbers, a bit for each: 2 to the power of ...
BLOCK_BITS = 6
#: By how much a thread may be late with its line: the first of a process need not have the earliest time.
LATE = 1_000_000


def processes(events: DataFrame) -> DataFrame:
    """What there is of each process.

    Arguments:
        events: the journal's fields.

    Returns:
        host, pid; lines, numbers (different sequence numbers), first and last (of them).
    """
    return _numbered(events, *PROCESS)


def _numbered(events: DataFrame, *process: str) -> DataFrame:
    # A set of 64 numbers is one number with a bit for each: small where a set of them all would not be, and exact.
    place = F.col("seq").bitwiseAND(F.lit(2**BLOCK_BITS - 1)).cast("int")
    bit = F.call_function("shiftleft", F.lit(1).cast("bigint"), place)
    blocks = events.groupBy(*process, F.shiftright("seq", BLOCK_BITS).alias("block")).agg(
        F.bit_or(bit).alias("bits"),
        F.count("*").alias("lines"),
        F.min("seq").alias("first"),
        F.max("seq").alias("last"),
    )
    return blocks.groupBy(*process).agg(
        F.sum("lines").alias("lines"),
        F.sum(F.bit_count("bits")).alias("numbers"),
        F.min("first").alias("first"),
        F.max("last").alias("last"),
    )


def doubled(processes: DataFrame) -> DataFrame:
    """host, pid of those with more lines than sequence numbers: a file is there twice, or the pid came again."""
    return processes.where(F.col("lines") > F.col("numbers")).select(*PROCESS)


def special(events: DataFrame, processes: DataFrame) -> DataFrame:
    """The few events that most tables ask for, so that these need not look through all.

    Arguments:
        events: the journal's fields.
        processes: of :func:`processes`.

    Returns:
        The events that are not plain, and all of the doubled processes; with ``is_doubled``.
    """
    known = doubled(processes).withColumn("is_doubled", F.lit(True))
    marked = events.join(F.broadcast(known), list(PROCESS), "left").fillna(False, "is_doubled")
    return marked.where(F.col("is_doubled") | ~F.col("event").isin(*PLAIN)).select(*EVENT_FIELDS, "is_doubled")


def plain(events: DataFrame, processes: DataFrame) -> DataFrame:
    """The events that are not in :func:`special`: plain ones, of which there is no copy."""
    found = events.where(F.col("event").isin(*PLAIN)).select(*EVENT_FIELDS)
    return found.join(F.broadcast(doubled(processes)), list(PROCESS), "left_anti")


def once(special: DataFrame) -> DataFrame:
    """Each event of the doubled processes once, with ``copies``, those beyond the first."""
    same = Window.partitionBy(*IDENTITY)
    return (
        special.where("is_doubled")
        .withColumn("copies", F.count("*").over(same) - 1)
        .withColumn("which", F.row_number().over(same.orderBy("event")))
        .where(F.col("which") == 1)
        .drop("which", "is_doubled")
    )


def without_copies(special: DataFrame, once: DataFrame) -> DataFrame:
    """The special events, each once: only those of doubled processes are compared, since a fleet has few."""
    single = special.where(~F.col("is_doubled"))
    return single.select(*EVENT_FIELDS).unionByName(once.select(*EVENT_FIELDS))


def quality(
    rejected: DataFrame, files: DataFrame, processes: DataFrame, suspects: DataFrame, messages: DataFrame
) -> DataFrame:
    """What is wrong, one row for each file or process and problem.

    Arguments:
        rejected: file (a URL), problem: the lines that are no events.
        files: file (a path or URL), problem: the files without lines.
        processes: of :func:`processes`.
        suspects: of :func:`once`.
        messages: of :func:`kombu_paired.pipeline.tables.messages.messages`.

    Returns:
        =========  ======  =============================================================================================
        file       string  base name of the file, for its problems ``truncated``, ``malformed`` and ``unknown_version``
                           (lines), ``empty`` and ``unreadable`` (1); else null
        host, pid  string, the process, for its problems ``missing_events`` (sequence numbers that are not there) and
                   bigint  ``duplicate_events`` (extra copies); else null
        problem    string  one of these, or ``clock_skew``: messages whose effect is before its cause
        count      bigint  how many, more than 0
        seconds    double  of ``clock_skew``: the largest
        =========  ======  =============================================================================================
    """
    single = processes.where(F.col("lines") == F.col("numbers")).withColumn("life", F.lit(0).cast("bigint"))
    parts = (
        _of_files(rejected, files),
        _missing(single.unionByName(_lives(suspects))),
        _duplicates(suspects),
        _skew(messages),
    )
    whole = parts[0]
    for part in parts[1:]:
        whole = whole.unionByName(part)
    return whole.where(F.col("count") > 0).orderBy("file", "host", "pid", "problem")


def _row(problem: Column, count: Column, **columns: Column) -> list[Column]:
    types = {"file": "string", "host": "string", "pid": "bigint", "seconds": "double"}
    values = {name: columns.get(name, F.lit(None)).cast(kind) for name, kind in types.items()}
    values |= {"problem": problem, "count": count.cast("bigint")}
    return [values[name].alias(name) for name in QUALITY_COLUMNS]


def _of_files(rejected: DataFrame, files: DataFrame) -> DataFrame:
    # Spark writes a file's name as a URL.
    lines = rejected.groupBy("file", "problem").agg(F.count("*").alias("count"))
    lines = lines.withColumn("file", F.url_decode(F.replace("file", F.lit("+"), F.lit("%2B"))))
    both = lines.unionByName(files.withColumn("count", F.lit(1).cast("bigint")))
    named = both.withColumn("file", F.substring_index("file", "/", -1)).groupBy("file", "problem")
    counted = named.agg(F.sum("count").alias("count"))
    return counted.select(*_row(F.col("problem"), F.col("count"), file=F.col("file")))


def _lives(suspects: DataFrame) -> DataFrame:
    """As :func:`processes`, with ``life``, a number, for those that may have started again with the same pid.

    A life begins with the line that has number 1.
    """
    until_then = Window.partitionBy(*PROCESS).orderBy("time").rangeBetween(Window.unboundedPreceding, LATE)
    life = F.sum(F.when(F.col("seq") == 1, 1).otherwise(0)).over(until_then)
    return _numbered(suspects.withColumn("life", life), *PROCESS, "life")


def _missing(lives: DataFrame) -> DataFrame:
    missing = F.col("last") - F.col("first") + 1 - F.col("numbers")
    summed = lives.groupBy(*PROCESS).agg(F.try_sum(missing).alias("missing"))
    return summed.select(*_row(F.lit("missing_events"), F.col("missing"), host=F.col("host"), pid=F.col("pid")))


def _duplicates(suspects: DataFrame) -> DataFrame:
    extra = suspects.groupBy(*PROCESS).agg(F.sum("copies").alias("copies"))
    return extra.select(*_row(F.lit("duplicate_events"), F.col("copies"), host=F.col("host"), pid=F.col("pid")))


def _skew(messages: DataFrame) -> DataFrame:
    skewed = messages.where(F.col("skew_s") > 0).agg(F.count("*").alias("count"), F.max("skew_s").alias("seconds"))
    return skewed.select(*_row(F.lit("clock_skew"), F.col("count"), seconds=F.col("seconds")))
