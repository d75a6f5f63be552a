"""What the page of a report shows, from its tables: sums only, each with a bound, since they go to the driver."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from itertools import pairwise
from typing import Any

from pyspark.sql import Column, DataFrame
from pyspark.sql import functions as F
from pyspark.sql.types import TimestampType

from kombu_paired.pipeline.costs.prices import PriceSheet
from kombu_paired.pipeline.jobs import side_by_side
from kombu_paired.pipeline.tables.messages import balance

__all__ = ("BINS", "CURVE", "MOST_ENTITIES", "MOST_FILES", "MOST_OUTAGES", "Facts", "Outage", "gather")

Row = dict[str, Any]

#: Namespace outages that are shown one by one, those with the most messages; their entities; and files with problems.
MOST_OUTAGES, MOST_ENTITIES, MOST_FILES = 20, 8, 12
#: Settings of the what-if table that are looked at; a grid has fewer.
MOST_SETTINGS = 10_000
#: Upper ends of the bins of the time in the backlog, in seconds; one more is without end.
BINS = (1, 10, 60, 300, 900, 3600, 4 * 3600, 24 * 3600)
#: Points of the curve of a backlog.
CURVE = 60


@dataclass
class Outage:
    """An outage of a namespace.

    Attributes:
        row: of ``outages``; times in microseconds since 1970, UTC.
        entities: rows of the same, of its entities with the most messages.
        backlog: messages in the backlog from the first failure to the end, :data:`CURVE` points.
        until: the end of what is shown, in microseconds.
    """

    row: Row
    entities: list[Row] = field(default_factory=list)
    backlog: list[int] = field(default_factory=list)
    until: int = 0


@dataclass
class Facts:
    """All that the page shows.

    Attributes:
        balance: of :func:`kombu_paired.pipeline.tables.messages.balance`.
        since, until: microseconds since 1970, UTC, of the first and last thing that happened to a message.
        came_home: diverted messages that were syphoned.
        late_s: ``median``, ``p95`` and ``longest`` of the tasks that workers which stood in ran, in seconds; None where
            there are none. How many they are is ``ran_meanwhile`` of the balance.
        in_backlog: messages by their time in the backlog, one count for each of :data:`BINS` and one more.
        backlog_s: ``median``, ``p95`` and ``longest``, in seconds; None where nothing has left the backlog.
        outages: the largest, in order of time. outages_all, outages_of_entities: how many there are.
        stages: stage -> operations, and money or None.
        settings: rows of ``what_if``: those on the front, and the one that was set.
        settings_all: how many were tried.
        problems: problem -> count, rows (of files and processes), and seconds or None.
        files: rows of ``quality`` with a file, the most lines first.
        sheet: prices.
    """

    balance: dict[str, int] = field(default_factory=dict)
    since: int | None = None
    until: int | None = None
    came_home: int = 0
    in_backlog: list[int] = field(default_factory=lambda: [0] * (len(BINS) + 1))
    backlog_s: dict[str, float | None] = field(default_factory=dict)
    late_s: dict[str, float | None] = field(default_factory=dict)
    outages: list[Outage] = field(default_factory=list)
    outages_all: int = 0
    outages_of_entities: int = 0
    stages: dict[str, tuple[int, float | None]] = field(default_factory=dict)
    settings: list[Row] = field(default_factory=list)
    settings_all: int = 0
    problems: dict[str, tuple[int, int, float | None]] = field(default_factory=dict)
    files: list[Row] = field(default_factory=list)
    sheet: PriceSheet | None = None


def gather(tables: Mapping[str, DataFrame], sheet: PriceSheet | None = None) -> Facts:
    """The facts of a report.

    Arguments:
        tables: ``messages``, ``outages``, ``quality``, ``cost`` and ``what_if``.
        sheet: the prices that ``cost`` was made with.
    """
    facts = Facts(sheet=sheet)
    side_by_side(
        tables["messages"].sparkSession,
        {
            "messages": lambda: _take_messages(facts, tables["messages"]),
            "outages": lambda: _take_outages(facts, tables["outages"], tables["messages"]),
            "the rest": lambda: _take_the_rest(facts, tables),
        },
    )
    return facts


def _take_the_rest(facts: Facts, tables: Mapping[str, DataFrame]) -> None:
    for row in _rows(tables["cost"].groupBy("stage").agg(F.sum("operations").alias("n"), F.sum("money").alias("m"))):
        facts.stages[row["stage"]] = (row["n"], row["m"])
    _take_settings(facts, tables["what_if"])
    _take_quality(facts, tables["quality"])


def _rows(table: DataFrame) -> list[Row]:
    """The rows of a small table. Times are in microseconds: Python's own would be in the local time of this machine."""
    columns = [
        F.unix_micros(each.name).alias(each.name) if isinstance(each.dataType, TimestampType) else F.col(each.name)
        for each in table.schema.fields
    ]
    return [row.asDict() for row in table.select(*columns).collect()]


def _take_messages(facts: Facts, messages: DataFrame) -> None:
    """All of it in one query: messages are many, and each look at them costs."""
    moments = ("delivered_at", "consumed_at", "diverted_at", "syphoned_at", "handed_out_at", "dead_lettered_at")
    is_diverted, seconds = F.col("diverted_at").isNotNull(), F.col("backlog_s")
    bins = [(seconds >= since) & (seconds < until) for since, until in pairwise((float("-inf"), *BINS, float("inf")))]
    [row] = _rows(
        balance(
            messages,
            F.min("first_sent_at").alias("since"),
            F.max(F.greatest(*moments)).alias("until"),
            F.count(F.when(is_diverted, F.col("syphoned_at"))).alias("came_home"),
            *(F.count_if(is_in).alias(f"bin_{place}") for place, is_in in enumerate(bins)),
            *_middle_and_end("backlog_s"),
            *_middle_and_end("late_s"),
        )
    )
    facts.since, facts.until, facts.came_home = (row.pop(name) for name in ("since", "until", "came_home"))
    facts.in_backlog = [row.pop(f"bin_{place}") for place in range(len(bins))]
    facts.backlog_s, facts.late_s = (
        {part: row.pop(f"{name}_{part}") for part in ("median", "p95", "longest")} for name in ("backlog_s", "late_s")
    )
    facts.balance = row


def _middle_and_end(name: str) -> list[Column]:
    """Of the messages that were diverted."""
    value = F.when(F.col("diverted_at").isNotNull(), F.col(name))
    return [
        F.percentile_approx(value, 0.5).alias(f"{name}_median"),
        F.percentile_approx(value, 0.95).alias(f"{name}_p95"),
        F.max(value).alias(f"{name}_longest"),
    ]


# -- outages ----------------------------------------------------------------------------------------------------------


def _take_outages(facts: Facts, outages: DataFrame, messages: DataFrame) -> None:
    counts = {row["scope"]: row["count"] for row in _rows(outages.groupBy("scope").count())}
    facts.outages_all, facts.outages_of_entities = counts.get("namespace", 0), counts.get("entity", 0)
    largest = _largest(outages.where(F.col("scope") == "namespace"), MOST_OUTAGES)
    facts.outages = [Outage(row) for row in sorted(largest, key=lambda row: (row["first_failure_at"], row["pairing"]))]
    if not facts.outages:
        return
    for outage in facts.outages:
        row = outage.row
        outage.until = max(row["ended_at"], row["drained_at"] or 0, row["first_failure_at"] + 1_000_000)
    windows = _windows(outages, facts.outages)
    _take_entities(facts.outages, outages, windows)
    _take_curves(facts.outages, messages, windows)


def _largest(outages: DataFrame, count: int) -> list[Row]:
    length = F.col("ended_at") - F.col("first_failure_at")
    order = (F.desc("messages_diverted"), length.desc(), F.col("first_failure_at"), F.col("pairing"))
    return _rows(outages.orderBy(*order).limit(count))


def _windows(table: DataFrame, outages: Sequence[Outage]) -> DataFrame:
    rows = [
        (place, each.row["pairing"], each.row["first_failure_at"], each.row["ended_at"], each.until)
        for place, each in enumerate(outages)
    ]
    schema = "place int, pairing string, first bigint, ended bigint, until bigint"
    return F.broadcast(table.sparkSession.createDataFrame(rows, schema))


def _take_entities(shown: Sequence[Outage], outages: DataFrame, windows: DataFrame) -> None:
    parts = outages.where(F.col("scope") == "entity").join(windows, "pairing", "inner")
    within = parts.where(F.unix_micros("first_failure_at").between(F.col("first"), F.col("ended")))
    ranked = within.groupBy("place", "pairing", "entity").agg(
        F.min("first_failure_at").alias("first_failure_at"),
        F.min("failed_over_at").alias("failed_over_at"),
        F.max("restored_at").alias("restored_at"),
        F.max("ended_at").alias("ended_at"),
        F.max("drained_at").alias("drained_at"),
        F.sum("messages_diverted").alias("messages_diverted"),
    )
    largest = F.collect_list(F.struct(F.negative("messages_diverted").alias("order"), "entity"))
    first = ranked.groupBy("place").agg(F.slice(F.array_sort(largest), 1, MOST_ENTITIES).alias("largest"))
    named = first.select("place", F.explode("largest").alias("one")).select("place", "one.entity")
    for row in _rows(ranked.join(named, ["place", "entity"], "inner").orderBy("first_failure_at", "entity")):
        shown[row["place"]].entities.append(row)


def _take_curves(shown: Sequence[Outage], messages: DataFrame, windows: DataFrame) -> None:
    out = F.coalesce(F.least("syphoned_at", "handed_out_at"), "dead_lettered_at")
    at, left = F.unix_micros("diverted_at"), F.unix_micros(out)
    diverted = messages.where(F.col("diverted_at").isNotNull()).select("pairing", at.alias("at"), left.alias("left"))
    met = diverted.join(windows, "pairing", "inner").where(F.col("at").between(F.col("first"), F.col("until")))

    def place_of(time: Column) -> Column:
        return F.floor((time - F.col("first")) / (F.col("until") - F.col("first")) * CURVE).cast("int")

    changes = F.array(
        F.struct(place_of(F.col("at")).alias("point"), F.lit(1).alias("change")),
        F.struct(place_of(F.col("left")).alias("point"), F.lit(-1).alias("change")),
    )
    summed = (
        met.select("place", F.explode(changes).alias("one"))
        .select("place", "one.*")
        .where(F.col("point") <= CURVE)  # what waits, or leaves later, is still there at the end
        .groupBy("place", "point")
        .agg(F.sum("change").alias("change"))
    )
    of_outage: dict[int, dict[int, int]] = {}
    for row in _rows(summed):
        of_outage.setdefault(row["place"], {})[row["point"]] = row["change"]
    for place, outage in enumerate(shown):
        level, changed = 0, of_outage.get(place, {})
        for point in range(CURVE + 1):
            level += changed.get(point, 0)
            outage.backlog.append(max(level, 0))


# -- the other tables -------------------------------------------------------------------------------------------------


def _take_settings(facts: Facts, what_if: DataFrame) -> None:
    rows = _rows(what_if.limit(MOST_SETTINGS))
    facts.settings_all = len(rows)
    shown = [row for row in rows if row["is_on_front"] or row["is_recorded"]]
    facts.settings = sorted(
        shown, key=lambda row: (not row["is_recommended"], not row["is_recorded"], row["operations"])
    )


def _take_quality(facts: Facts, quality: DataFrame) -> None:
    summed = quality.groupBy("problem").agg(
        F.sum("count").alias("n"), F.count("*").alias("rows"), F.max("seconds").alias("seconds")
    )
    for row in _rows(summed):
        facts.problems[row["problem"]] = (row["n"], row["rows"], row["seconds"])
    named = quality.where(F.col("file").isNotNull())
    facts.files = _rows(named.orderBy(F.desc("count"), "file", "problem").limit(MOST_FILES))
