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

from dataclasses import dataclass

from pyspark.sql import Column, DataFrame, SparkSession, Window
from pyspark.sql import functions as F

from kombu_paired.pipeline.costs.charges import STEP
from kombu_paired.pipeline.schema import ENTITY, PROCESS
from kombu_paired.pipeline.tables.replay import replayed

__all__ = ("GRID", "WHAT_IF_COLUMNS", "Grid", "what_if")

SECOND = 1_000_000
#: Backlog queues that a process pulls within so long have failed together.
TOGETHER = 300 * SECOND
#: What is to be small.
AIMS = ("messages_diverted", "waited_s", "notice_s", "drain_s", "operations")
#: Two figures that differ by less than so much are taken for the same: the replays are no more exact.
NOISE = 0.05

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
    replays = replayed(spans, arrivals, grid.failover_intervals, grid.ping_intervals).transform(_one_per_span)
    placed = replays.join(spans.transform(_of_namespaces, outages), "number", "inner")
    facts = _facts(spans, events, messages, cost)
    return (
        placed.transform(_by_outage)
        .crossJoin(F.broadcast(_counts(spans.sparkSession, grid)))
        .crossJoin(F.broadcast(facts))
        .transform(_by_setting)
        .transform(_judged)
        .select(*WHAT_IF_COLUMNS)
    )


# -- sums -------------------------------------------------------------------------------------------------------------


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


def _of_namespaces(spans: DataFrame, outages: DataFrame) -> DataFrame:
    """number, pairing, outage: the namespace's outage of a span."""
    whole = outages.where(F.col("scope") == "namespace").select(
        "pairing",
        F.unix_micros("first_failure_at").alias("outage"),
        F.unix_micros("ended_at").alias("ended"),
    )
    return (
        spans.join(F.broadcast(whole), "pairing", "inner")
        .where(F.col("start").between(F.col("outage"), F.col("ended")))
        .select("number", "pairing", "outage")
    )


def _by_outage(placed: DataFrame) -> DataFrame:
    """pairing, outage, failover_interval, ping_interval; sums."""
    sums = ("diverted", "waiting", "waited_s", "pings", "charged_pings")
    bounds = ("diverted_least", "diverted_most", "pings_least", "pings_most", "late", "late_least", "late_most")
    return placed.groupBy("pairing", "outage", "failover_interval", "ping_interval").agg(
        *(F.sum(name).alias(name) for name in (*sums, *bounds)), F.count("late").alias("noticed")
    )


def _counts(spark: SparkSession, grid: Grid) -> DataFrame:
    return spark.createDataFrame([(each,) for each in grid.backlog_queues], "backlog_queues int")


def _by_setting(tried: DataFrame) -> DataFrame:
    queues = F.col("backlog_queues")
    summed = tried.withColumn("drain", F.col("diverted") / F.col("pace"))
    facts = ("detour", "pace", "queues", "idle", "failed_together", "rate", "set_failover", "set_ping")
    summed = summed.groupBy("failover_interval", "ping_interval", "backlog_queues").agg(
        F.sum("diverted").alias("messages_diverted"),
        F.sum("diverted_least").alias("messages_diverted_least"),
        F.sum("diverted_most").alias("messages_diverted_most"),
        F.sum("waiting").alias("callers_waiting"),
        F.round(F.sum("waited_s"), 3).alias("waited_s"),
        *(F.sum(name).cast("bigint").alias(name) for name in ("pings", "pings_least", "pings_most")),
        *(
            F.try_divide(F.sum(name), F.sum("noticed")).alias(f"{name.replace('late', 'notice')}_s")
            for name in ("late", "late_least", "late_most")
        ),
        F.max("drain").alias("drain_s"),
        F.sum("charged_pings").alias("charged_pings"),
        *(F.first(name).alias(name) for name in facts),
    )
    operations = F.ceil(F.col("messages_diverted") * F.col("detour") + F.col("charged_pings") + queues * F.col("idle"))
    return summed.withColumns(
        {
            "operations": operations,
            "money": operations * F.col("rate"),
            "backlog_queues_left": queues - F.col("failed_together"),
        }
    )


# -- what is known of the record --------------------------------------------------------------------------------------


def _facts(spans: DataFrame, events: DataFrame, messages: DataFrame, cost: DataFrame) -> DataFrame:
    """One row.

    Returns:
        detour (operations that a diverted message takes more than another), pace (messages per second that come home),
        queues, idle (receives per backlog queue), failed_together (backlog queues), rate (money per operation),
        set_failover and set_ping (seconds, as far as they show).
    """
    carried = F.greatest(F.ceil(F.col("bytes") / STEP), F.lit(1))
    detour = messages.where(F.col("diverted_at").isNotNull()).agg(
        F.coalesce(F.avg(2 * carried + 1), F.lit(3.0)).alias("detour")
    )
    idle = cost.where(F.col("stage") == "idle_receive").groupBy("pairing")
    polled = idle.agg(F.sum("operations").alias("receives"), F.count_distinct("entity").alias("queues"))
    polls = polled.agg(
        F.max("queues").alias("queues"),
        F.coalesce(F.sum(F.col("receives") / F.col("queues")), F.lit(0.0)).alias("idle"),
    )
    rate = cost.agg(F.try_divide(F.sum("money"), F.sum("operations")).alias("rate"))
    # The quickest show it: a failover waits for a message.
    set_failover = spans.agg(
        (F.percentile_approx(F.col("failed_over") - F.col("start"), 0.01) / SECOND).alias("set_failover")
    )
    facts = detour
    for other in (polls, rate, set_failover, _pace(events), _failed_together(events), _set_ping(events)):
        facts = facts.crossJoin(other)
    return facts


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
    return together.agg(F.coalesce(F.max("failed"), F.lit(0)).alias("failed_together"))


def _set_ping(events: DataFrame) -> DataFrame:
    of_one = Window.partitionBy(*PROCESS, *ENTITY).orderBy("time", "seq")
    pings = events.where(F.col("event") == "ping")
    waited = F.col("time") - F.lag("time").over(of_one) - F.coalesce("ms", F.lit(0.0)) * 1000
    had_failed = F.lag("failure").over(of_one).isNotNull()
    between = pings.select(F.when(had_failed, waited / SECOND).alias("waited"))
    return between.agg(F.percentile_approx("waited", 0.5).alias("set_ping"))


# -- which is best ----------------------------------------------------------------------------------------------------


def _judged(settings: DataFrame) -> DataFrame:
    """With what tells which one to choose. All of a grid are compared with all, some hundred rows."""
    everything = Window.partitionBy(F.lit(1))
    is_sound = F.col("backlog_queues_left") > 0
    value = {aim: F.coalesce(F.col(aim).cast("double"), F.lit(0.0)) for aim in AIMS}
    levels = {f"level_{aim}": F.round(F.log1p(value[aim]) / NOISE) for aim in AIMS}
    sound = F.when(is_sound, F.struct(*levels))

    def is_better(other: Column) -> Column:
        as_good, better = F.lit(True), F.lit(False)
        for level in levels:
            as_good, better = as_good & (other[level] <= F.col(level)), better | (other[level] < F.col(level))
        return as_good & better

    return (
        settings.withColumns(levels)
        .withColumn("others", F.collect_list(sound).over(everything))
        .withColumn("is_on_front", is_sound & ~F.exists("others", is_better))
        .drop("others")
        .withColumns({f"best_{aim}": F.min(F.when(is_sound, value[aim])).over(everything) for aim in AIMS})
        .withColumn("front", F.count_if("is_on_front").over(everything))
        .withColumns({"distance": _distance(), "from_recorded": _from_recorded()})
        .transform(_chosen)
    )


def _distance() -> Column:
    """How many times worse than the best it is where it is worst, as a logarithm."""
    return F.greatest(*(F.coalesce(F.log1p(aim) - F.log1p(f"best_{aim}"), F.lit(0.0)) for aim in AIMS))


def _from_recorded() -> Column:
    """How far from what was set; what does not show in the record counts nothing."""
    total = F.lit(0.0)
    for name, known in (
        ("failover_interval", "set_failover"),
        ("ping_interval", "set_ping"),
        ("backlog_queues", "queues"),
    ):
        total += F.coalesce(F.abs(F.log1p(name) - F.log1p(known)), F.lit(0.0))
    return total


def _chosen(judged: DataFrame) -> DataFrame:
    settings = ("failover_interval", "ping_interval", "backlog_queues")
    closest = F.row_number().over(Window.orderBy("from_recorded", *settings))
    best = F.row_number().over(Window.orderBy(F.desc("is_on_front"), "distance", *settings))
    is_recommended = F.col("is_on_front") & (F.col("place") == 1)
    return (
        judged.withColumn("is_recorded", closest == 1)
        .withColumn("place", best)
        .withColumns({"is_recommended": is_recommended, "reason": F.when(is_recommended, _reason())})
    )


def _reason() -> Column:
    def both(aim: str, digits: int = 0) -> tuple[Column, str, Column, str]:
        best = F.format_number(f"best_{aim}", digits)
        return F.format_number(F.coalesce(F.col(aim), F.lit(0)), digits), " (", F.coalesce(best, F.lit("0")), ")"

    parts: tuple[Column | str, ...] = (
        "Of ",
        F.format_number("front", 0),
        " settings that no other one beats in everything, this one comes closest to the best in its weakest point. "
        "In brackets is the best that any one reaches: ",
        *both("messages_diverted"),
        " messages diverted, callers wait ",
        *both("waited_s", 1),
        " s together, ",
        *both("notice_s", 1),
        " s to notice a recovery, ",
        *both("drain_s", 1),
        " s to drain the worst backlog, ",
        *both("operations"),
        " operations.",
    )
    return F.concat(*(F.lit(part) if isinstance(part, str) else part for part in parts))
