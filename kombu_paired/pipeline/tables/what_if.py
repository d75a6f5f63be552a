"""One row per setting: what the recorded outages would have done under it, what it would have cost, and which is best.

The failures are replayed by :mod:`kombu_paired.pipeline.tables.replay`, for each failover interval and ping interval.
What the replays do not say is worked out here:

* **To drain**: the pump of a syphon moves what is in any backlog queue (docs/architecture.md, rule 17), so their number
  makes no difference. All syphons of a pairing together move what they moved in the record: messages per second in
  which they moved any.
* **Idle receives**: the recorded ones, per backlog queue.
* **Left**: the queues that are left if as many fail together as did in the record.

Operations are those that a setting causes: the detour of a diverted message (two carries and a complete more than
without, :func:`kombu_paired.pipeline.costs.charges.of_message`), pings, and idle receives.
"""

from __future__ import annotations

import functools
from dataclasses import dataclass, fields

from pyspark.sql import Column, DataFrame, Window
from pyspark.sql import functions as F

from kombu_paired.pipeline.costs.charges import STEP
from kombu_paired.pipeline.jobs import side_by_side
from kombu_paired.pipeline.schema import ENTITY, PROCESS
from kombu_paired.pipeline.tables.choice import Record, Replay, judged, settings
from kombu_paired.pipeline.tables.few import (
    ARRIVALS_NEEDED,
    MOST_ARRIVALS,
    MOST_SPANS,
    SPANS_NEEDED,
    WHOLE_NEEDED,
    replayed_in_memory,
)
from kombu_paired.pipeline.tables.replay import SECOND, replayed

__all__ = ("GRID", "WHAT_IF_COLUMNS", "Grid", "what_if")

#: Backlog queues that a process pulls within so long have failed together.
TOGETHER = 300 * SECOND

#: Column -> type.
WHAT_IF_COLUMNS = {
    "failover_interval": "double",
    "ping_interval": "double",
    "backlog_queues": "int",
    "messages_diverted": "bigint",
    "messages_diverted_least": "bigint",
    "messages_diverted_most": "bigint",
    "callers_waiting": "bigint",
    "waited_s": "double",
    "pings": "bigint",
    "pings_least": "bigint",
    "pings_most": "bigint",
    "notice_s": "double",
    "notice_least_s": "double",
    "notice_most_s": "double",
    "drain_s": "double",
    "backlog_queues_left": "bigint",
    "operations": "bigint",
    "money": "double",
    "is_recorded": "boolean",
    "is_on_front": "boolean",
    "is_recommended": "boolean",
    "reason": "string",
}


@dataclass(frozen=True)
class Grid:
    """The settings that are tried, each with each.

    Attributes:
        failover_intervals, ping_intervals: seconds.
        backlog_queues: how many.
    """

    failover_intervals: tuple[float, ...] = (0.0, 5.0, 10.0, 30.0, 60.0)
    ping_intervals: tuple[float, ...] = (5.0, 15.0, 30.0, 60.0, 120.0, 300.0)
    backlog_queues: tuple[int, ...] = (1, 2, 5, 10, 20)


GRID = Grid()


def what_if(
    spans: DataFrame,
    arrivals: DataFrame,
    events: DataFrame,
    messages: DataFrame,
    outages: DataFrame,
    cost: DataFrame,
    grid: Grid = GRID,
) -> DataFrame:
    """Each setting of the grid, over all recorded outages together. No row where nothing failed.

    It is worked out at once: the replays in memory, where there are few spans and arrivals, and by Spark else, with the
    same result.

    Arguments:
        spans, arrivals: of :mod:`kombu_paired.pipeline.tables.replay`, made for a grid that reaches as far.
        events: the journal's fields, without copies.
        messages, outages, cost: the tables.

    Returns:
        ==================================  =======  ===================================================================
        failover_interval, ping_interval    double   seconds
        backlog_queues                      int
        messages_diverted                   bigint   and at least and most, since the recovery is not known exactly
        callers_waiting, waited_s           bigint,  sends that waited for the primary to fail, and all their seconds
                                            double   together
        pings                               bigint   and at least and most
        notice_s                            double   seconds from recovery to the ping that notices it, on average over
                                                     processes and entities; and at least and most
        drain_s                             double   seconds that the backlog of the worst outage takes to empty; null
                                                     when nothing ever came home
        backlog_queues_left                 bigint   0 or less: callers would have got errors
        operations                          bigint   that the setting causes
        money                               double   for them, at what an operation of the record cost; null without
                                                     prices
        is_recorded                         boolean  of the grid this is the closest to what was set
        is_on_front                         boolean  no other one is as good in everything and better in something, of
                                                     :data:`AIMS`, by steps of a twentieth
        is_recommended, reason              boolean, of one on the front, with the reason in a sentence
                                            string
        ==================================  =======  ===================================================================
    """
    whole = outages.transform(_of_namespaces)
    known = side_by_side(
        spans.sparkSession,
        {
            "replays": lambda: _replays(spans, arrivals, whole, grid),
            "record": lambda: _record(spans, events, messages, cost),
        },
    )
    rows = judged(settings(known["replays"], grid.backlog_queues, known["record"]), known["record"])
    schema = ", ".join(f"{name} {type_}" for name, type_ in WHAT_IF_COLUMNS.items())
    return spans.sparkSession.createDataFrame([tuple(row[name] for name in WHAT_IF_COLUMNS) for row in rows], schema)


# -- replays ----------------------------------------------------------------------------------------------------------


def _replays(spans: DataFrame, arrivals: DataFrame, whole: DataFrame, grid: Grid) -> list[Replay]:
    replays = _in_memory(spans, arrivals, whole, grid)
    return _by_spark(spans, arrivals, whole, grid) if replays is None else replays


def _of_namespaces(outages: DataFrame) -> DataFrame:
    """pairing; outage and ended, when it begins and ends, in microseconds."""
    first, ended = F.unix_micros("first_failure_at").alias("outage"), F.unix_micros("ended_at").alias("ended")
    return outages.where(F.col("scope") == "namespace").select("pairing", first, ended)


def _in_memory(spans: DataFrame, arrivals: DataFrame, whole: DataFrame, grid: Grid) -> list[Replay] | None:
    """The replays, worked out here; None when they are too many for that."""
    few_spans = spans.select(*SPANS_NEEDED).limit(MOST_SPANS + 1).toArrow()
    if len(few_spans) > MOST_SPANS:
        return None
    few_arrivals = arrivals.select(*ARRIVALS_NEEDED).limit(MOST_ARRIVALS + 1).toArrow()
    if len(few_arrivals) > MOST_ARRIVALS:
        return None
    outages = whole.select(*WHOLE_NEEDED).toArrow()
    return replayed_in_memory(few_spans, few_arrivals, outages, grid.failover_intervals, grid.ping_intervals)


def _by_spark(spans: DataFrame, arrivals: DataFrame, whole: DataFrame, grid: Grid) -> list[Replay]:
    replays = replayed(spans, arrivals, grid.failover_intervals, grid.ping_intervals).transform(_one_per_span)
    placed = spans.select("number", "pairing", "start").join(F.broadcast(whole), "pairing", "inner")
    within = placed.where(F.col("start").between(F.col("outage"), F.col("ended"))).drop("start", "ended")
    summed = replays.join(within, "number", "inner").transform(_by_outage).transform(_by_pair)
    return [Replay(**row.asDict()) for row in summed.collect()]


def _one_per_span(replays: DataFrame) -> DataFrame:
    """number, failover_interval, ping_interval; what was replayed, likely, at least and at most."""

    def of(recovery: str, name: str) -> Column:
        return F.max(F.when(F.col("recovery") == recovery, F.col(name)))

    pivoted = replays.groupBy("number", "failover_interval", "ping_interval").agg(
        *(of("likely", name).alias(name) for name in ("diverted", "waiting", "waited_s", "pings", "charged_pings")),
        *(
            of(recovery, name).alias(f"{name}_{recovery}")
            for name in ("diverted", "pings")
            for recovery in ("least", "most")
        ),
        *(of(recovery, "late_s").alias(f"late_{recovery}") for recovery in ("least", "likely", "most")),
    )
    # With the recovery somewhere in a time in which there is a ping, it may have been just before it, or just after.
    has_ping = F.col("pings_most") > F.col("pings_least")
    longest = F.greatest("late_least", "late_most", F.when(has_ping, F.col("ping_interval")))
    shortest = F.least("late_least", "late_most", F.when(has_ping, F.lit(0.0)))
    return pivoted.withColumns({"late": F.col("late_likely"), "late_least": shortest, "late_most": longest})


def _by_outage(placed: DataFrame) -> DataFrame:
    """pairing, outage, failover_interval, ping_interval; sums, of whole numbers, whatever their order."""

    def millionths(name: str) -> Column:
        return F.sum(F.floor(F.col(name) * SECOND + 0.5))

    whole = ("diverted", "diverted_least", "diverted_most", "waiting", "pings", "pings_least", "pings_most")
    return placed.groupBy("pairing", "outage", "failover_interval", "ping_interval").agg(
        *(F.sum(name).alias(name) for name in whole),
        millionths("charged_pings").alias("charged"),
        millionths("waited_s").alias("waited_us"),
        *(millionths(name).alias(f"{name}_us") for name in ("late", "late_least", "late_most")),
        F.count("late").alias("noticed"),
    )


def _by_pair(outages: DataFrame) -> DataFrame:
    """The fields of :class:`~kombu_paired.pipeline.tables.choice.Replay`."""
    pair = ("failover_interval", "ping_interval")
    sums = [each.name for each in fields(Replay) if each.name not in (*pair, "worst")]
    return outages.groupBy(*pair).agg(F.max("diverted").alias("worst"), *(F.sum(name).alias(name) for name in sums))


# -- what is known of the record --------------------------------------------------------------------------------------


def _record(spans: DataFrame, events: DataFrame, messages: DataFrame, cost: DataFrame) -> Record:
    carried = F.greatest(F.ceil(F.col("bytes") / STEP), F.lit(1))
    detour = messages.where(F.col("diverted_at").isNotNull()).agg(F.avg(2 * carried + 1).alias("detour"))
    polled = F.col("stage") == "idle_receive"
    by_pairing = cost.groupBy("pairing").agg(
        F.sum(F.when(polled, F.col("operations"))).alias("receives"),
        F.count_distinct(F.when(polled, F.col("entity"))).alias("queues"),
        F.sum("money").alias("money"),
        F.sum("operations").alias("operations"),
    )
    charged = by_pairing.agg(
        F.max(F.nullif("queues", F.lit(0))).alias("queues"),
        F.sum(F.try_divide("receives", "queues")).alias("idle"),
        F.try_divide(F.sum("money"), F.sum("operations")).alias("rate"),
    )
    # The quickest show it: a failover waits for a message.
    set_failover = spans.agg(
        (F.percentile_approx(F.col("failed_over") - F.col("start"), 0.01) / SECOND).alias("set_failover")
    )
    known = [detour, charged, set_failover, _pace(events), _failed_together(events), _set_ping(events)]
    # One query for all: joined side by side, they would be one after the other.
    whole = functools.reduce(DataFrame.unionByName, (each.select(_as_map(each)) for each in known))
    found = [item for row in whole.collect() for item in row.known.items()]
    return Record(**{name: value for name, value in found if value is not None})


def _as_map(row: DataFrame) -> Column:
    items = ((F.lit(name), F.col(name).cast("double")) for name in row.columns)
    return F.create_map(*(each for item in items for each in item)).alias("known")


def _pace(events: DataFrame) -> DataFrame:
    moved = events.where(F.col("event") == "syphoned")
    second = F.floor(F.col("time") / SECOND)
    busy = moved.groupBy("pairing", second.alias("second")).agg(F.count("*").alias("moved"))
    return busy.agg(F.avg("moved").alias("pace"))


def _failed_together(events: DataFrame) -> DataFrame:
    pulled = events.where(F.col("event") == "backlog_pulled")
    while_ = F.floor(F.col("time") / TOGETHER)
    together = pulled.groupBy(*PROCESS, "pairing", while_.alias("while")).agg(
        F.count_distinct("entity").alias("failed")
    )
    return together.agg(F.max("failed").alias("failed_together"))


def _set_ping(events: DataFrame) -> DataFrame:
    of_one = Window.partitionBy(*PROCESS, *ENTITY).orderBy("time", "seq")
    pings = events.where(F.col("event") == "ping")
    waited = F.col("time") - F.lag("time").over(of_one) - F.coalesce("ms", F.lit(0.0)) * 1000
    had_failed = F.lag("failure").over(of_one).isNotNull()
    between = pings.select(F.when(had_failed, waited / SECOND).alias("waited"))
    return between.agg(F.percentile_approx("waited", 0.5).alias("set_ping"))
