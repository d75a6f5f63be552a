"""One row per outage of an entity, and of a namespace: from when to when, who saw it, and what it did to messages.

An outage is read from evidence. Pings are heartbeats of a failed-over entity, so that a lost line does no harm.
"""

from __future__ import annotations

from pyspark.sql import Column, DataFrame, Window, WindowSpec
from pyspark.sql import functions as F

from kombu_paired.pipeline.schema import ENTITY, PROCESS

__all__ = ("OUTAGE_COLUMNS", "intervals", "is_failure", "outages")

#: Failures that count towards failover (docs/architecture.md, rule 5).
COUNTED = ("unreachable", "timeout", "fault")
#: Microseconds after which evidence tells of another outage: longer than the longest ping interval.
GAP = 3600 * 1_000_000
#: Microseconds between two outages of an entity, as two processes see them, that are still one. Clocks differ.
JOIN = 10 * 1_000_000
HOUR, MINUTE = 3600 * 1_000_000, 60 * 1_000_000
#: A span that is longer than ten years has a broken clock in it.
LONGEST = 10 * 366 * 24 * HOUR

#: What names an outage in the making: ``named`` is the entity, and empty for a namespace.
OUTAGE = ("scope", "pairing", "named", "outage")

#: What is counted of the messages of an outage.
COUNTS = ("diverted", "recovered", "stood_in", "dead", "waiting", "ran_meanwhile")

#: Of :func:`intervals`.
INTERVAL_COLUMNS = (
    *PROCESS,
    *ENTITY,
    "start",
    "end",
    "last_bad",
    "good",
    "failed_over",
    "kinds",
    "trapped",
    "trapped_ms",
    "wait_ms",
    "ping_ms",
    "charged",
)
#: Column -> type.
OUTAGE_COLUMNS = {
    "scope": "string",
    "pairing": "string",
    "entity": "string",
    "entities": "bigint",
    "first_failure_at": "timestamp",
    "failed_over_at": "timestamp",
    "restored_at": "timestamp",
    "ended_at": "timestamp",
    "drained_at": "timestamp",
    "detect_s": "double",
    "restore_s": "double",
    "drain_s": "double",
    "failure_kinds": "array<string>",
    "messages_diverted": "bigint",
    "messages_recovered": "bigint",
    "messages_stood_in": "bigint",
    "messages_dead_lettered": "bigint",
    "messages_waiting": "bigint",
    "messages_ran_meanwhile": "bigint",
    "late_median_s": "double",
    "late_p95_s": "double",
    "processes_saw": "bigint",
    "processes_unrestored": "bigint",
    "processes_unaffected": "bigint",
    "day": "date",
}


def outages(intervals: DataFrame, events: DataFrame, messages: DataFrame) -> DataFrame:
    """The outages, and what each did.

    Arguments:
        intervals: of :func:`intervals`.
        events: the journal's fields, without copies.
        messages: of :func:`kombu_paired.pipeline.tables.messages.messages`.

    Returns:
        ======================  =============  ========================================================================
        scope                   string         ``entity``, or ``namespace``: its entities' outages that overlap
        pairing, entity         string         entity is null for a namespace
        entities                bigint         entities that were out
        first_failure_at        timestamp
        failed_over_at          timestamp      null when it was suspect only
        restored_at             timestamp      when the last process had it back; null when none saw that
        ended_at                timestamp      restored, or the last that is known of it
        drained_at              timestamp      when the last of its messages had left the backlog; null if one waits
        detect_s, restore_s     double         seconds from the first failure to failover, and to restoration
        drain_s                 double         seconds from restoration until drained
        failure_kinds           array<string>  sorted
        messages_diverted       bigint         and of these those that were syphoned, were handed out and stayed
                                               there, were dead-lettered, or wait: messages_recovered,
                                               messages_stood_in, messages_dead_lettered, messages_waiting
        messages_ran_meanwhile  bigint         of those diverted, how many workers that stood in ran
        late_median_s           double         of these, seconds from their first send until they had run: the
        late_p95_s              double         median, and what 95 of 100 were within; null where there are none
        processes_saw           bigint         (host, pid) that the entity failed for
        processes_unrestored    bigint         of these those that never saw it work again
        processes_unaffected    bigint         (host, pid) that sent to it meanwhile, and never saw it fail
        day                     date           UTC, of the first failure
        ======================  =============  ========================================================================
    """
    seen = intervals.transform(_joined, ENTITY, "start", "end", "number")
    whole = seen.transform(_of_entities).transform(_joined, ("pairing",), "first_failure", "ended", "group")
    scopes = whole.transform(_scopes)
    processes = _saw(seen, scopes).unionByName(_sent(events, scopes)).transform(_counted)
    summed = whole.join(scopes.select(*OUTAGE, *ENTITY[1:], "number"), [*ENTITY, "number"], "inner").transform(_summed)
    counted = _of_messages(messages, scopes)
    known = summed.join(counted, list(OUTAGE), "left").fillna(0, list(COUNTS))
    return known.join(processes, list(OUTAGE), "left").transform(_told)


# -- evidence and intervals -------------------------------------------------------------------------------------------


def is_failure() -> Column:
    """Whether an event tells that its entity fails."""
    event, failure = F.col("event"), F.col("failure")
    return (
        event.isin("suspect", "failed_over")
        | ((event == "send_failed") & F.coalesce(failure.isin(*COUNTED), F.lit(False)))
        | ((event == "ping") & failure.isNotNull())
    )


def _evidence(events: DataFrame) -> DataFrame:
    """Who saw what: host, pid, pairing, entity, time, seq, event, failure, first_attempt, ms, is_bad."""
    event, failure, is_bad = F.col("event"), F.col("failure"), is_failure()
    is_good = (event == "restored") | ((event == "ping") & failure.isNull())
    found = events.where(event.isin("send_failed", "suspect", "failed_over", "ping", "restored"))
    return found.where(F.col("entity").isNotNull() & (is_bad | is_good)).select(
        *PROCESS, *ENTITY, "time", "seq", "event", "failure", "first_attempt", "ms", is_bad.alias("is_bad")
    )


def intervals(events: DataFrame) -> DataFrame:
    """For how long each process saw an entity fail.

    Arguments:
        events: the journal's fields, without copies.

    Returns:
        One row per process, entity, and time for which it failed.

        ============================  =============  ==================================================================
        host, pid, pairing, entity                   as in the events
        start, end, last_bad          bigint         of the first failure, of the first success (of the last failure,
                                                     where nobody saw one), and of the last failure; as all times here,
                                                     microseconds since 1970, UTC
        good, failed_over             bigint         of the first success, and of the failover; null where there is none
        kinds                         array<string>  of the failures
        trapped, trapped_ms           bigint,        callers that were waiting when the first failure showed, and their
                                      double         milliseconds
        wait_ms, ping_ms              double         milliseconds that a caller waits for the primary to fail, and that
                                                     a ping does, on average
        charged                       double         share of the failed pings that reached the namespace
        ============================  =============  ==================================================================
    """
    of_one = Window.partitionBy(*PROCESS, *ENTITY).orderBy("time", "seq")
    bad = F.col("is_bad")
    was_bad, before = F.lag("is_bad").over(of_one), F.lag("time").over(of_one)
    opens = bad & (was_bad.isNull() | ~was_bad | (F.col("time") - before > GAP))
    start = F.last(F.when(F.col("opens"), F.col("time")), ignorenulls=True).over(_so_far(of_one))
    numbered = (
        events.transform(_evidence)
        .withColumn("opens", opens)
        .withColumns({"interval": _running_count(F.col("opens"), of_one), "start": start})
    )
    return (
        numbered.where(F.col("interval") > 0)
        .groupBy(*PROCESS, *ENTITY, "interval", "start")
        .agg(
            F.max(F.when(bad, F.col("time"))).alias("last_bad"),
            F.min(F.when(~bad, F.col("time"))).alias("good"),
            F.min(F.when(F.col("event") == "failed_over", F.col("time"))).alias("failed_over"),
            F.collect_set(F.when(bad, F.col("failure"))).alias("kinds"),
            *_of_failures(),
        )
        .withColumn("end", F.coalesce("good", "last_bad"))
        .select(*INTERVAL_COLUMNS)
    )


def _of_failures() -> list[Column]:
    """What a replay needs to know of an interval's failures."""
    is_send, is_failed_ping = F.col("event") == "send_failed", (F.col("event") == "ping") & F.col("is_bad")
    is_trapped, ms = is_send & (F.col("first_attempt") <= F.col("start")), F.col("ms")
    is_charged = F.when(is_failed_ping, (F.col("failure") != "unreachable").cast("double"))
    return [
        F.count_if(is_trapped).alias("trapped"),
        F.coalesce(F.sum(F.when(is_trapped, ms)), F.lit(0.0)).alias("trapped_ms"),
        F.coalesce(F.avg(F.when(is_send, ms)), F.lit(0.0)).alias("wait_ms"),
        F.coalesce(F.avg(F.when(is_failed_ping, ms)), F.lit(0.0)).alias("ping_ms"),
        F.coalesce(F.avg(is_charged), F.lit(1.0)).alias("charged"),
    ]


def _so_far(window: WindowSpec) -> WindowSpec:
    return window.rowsBetween(Window.unboundedPreceding, Window.currentRow)


def _running_count(condition: Column, window: WindowSpec) -> Column:
    return F.sum(F.when(condition, 1).otherwise(0)).over(_so_far(window))


def _joined(spans: DataFrame, keys: tuple[str, ...], start: str, end: str, name: str) -> DataFrame:
    """Number the spans of each key, those that overlap or nearly do alike, in the column ``name``."""
    in_order = Window.partitionBy(*keys).orderBy(start, end)
    before = F.max(end).over(in_order.rowsBetween(Window.unboundedPreceding, -1))
    opens = F.coalesce(F.col(start) > before + JOIN, F.lit(True))
    return spans.withColumn("opens", opens).withColumn(name, _running_count(F.col("opens"), in_order)).drop("opens")


# -- outages ----------------------------------------------------------------------------------------------------------


def _of_entities(seen: DataFrame) -> DataFrame:
    """pairing, entity, number, first_failure, failed_over, restored, ended (microseconds), kinds."""
    return seen.groupBy(*ENTITY, "number").agg(
        F.min("start").alias("first_failure"),
        F.min("failed_over").alias("failed_over"),
        F.max("good").alias("restored"),
        F.max("end").alias("ended"),
        F.flatten(F.collect_set("kinds")).alias("kinds"),
    )


def _scopes(whole: DataFrame) -> DataFrame:
    """Each entity's outage twice: as itself, and as a part of its namespace's.

    Returns:
        pairing, entity, number: the entity's outage; a message that is diverted from claim to claim_end is its own.
        scope, named, outage: the one that it belongs to, with first and last, its microseconds. ``named`` is the
        entity, and empty for a namespace.
    """
    together = Window.partitionBy("pairing", "group")
    following = F.lead("first_failure").over(Window.partitionBy(*ENTITY).orderBy("first_failure"))
    claim = (F.col("first_failure").alias("claim"), "claim_end")

    def scope(name: str, named: Column, outage: str, first: Column, last: Column) -> Column:
        values = {"scope": F.lit(name), "named": named, "outage": F.col(outage), "first": first, "last": last}
        return F.struct(*(value.alias(key) for key, value in values.items()))

    as_itself = scope("entity", F.col("entity"), "number", F.col("first_failure"), F.col("ended"))
    as_part = scope("namespace", F.lit(""), "group", F.col("first_together"), F.col("last_together"))
    return (
        whole.withColumn("claim_end", F.least(F.col("ended") + GAP, following - 1))
        .withColumn("first_together", F.min("first_failure").over(together))
        .withColumn("last_together", F.max("ended").over(together))
        .select(*ENTITY, "number", *claim, F.explode(F.array(as_itself, as_part)).alias("of"))
        .select(*ENTITY, "number", "claim", "claim_end", "of.*")
    )


def _of_messages(messages: DataFrame, scopes: DataFrame) -> DataFrame:
    """The outage's key, :data:`COUNTS`, when the last message had ``left``, late_median_s, late_p95_s."""
    at, gone = F.col("diverted_time"), F.coalesce("syphoned_time", "dead_time", "handed_out_time")
    is_dead = F.col("syphoned_time").isNull() & F.col("dead_time").isNotNull()
    stood_in = F.coalesce("syphoned_time", "dead_time").isNull() & F.col("handed_out_time").isNotNull()
    return (
        messages.where(F.col("diverted_at").isNotNull())
        .select(
            *ENTITY,
            F.unix_micros("diverted_at").alias("diverted_time"),
            F.unix_micros("syphoned_at").alias("syphoned_time"),
            F.unix_micros("handed_out_at").alias("handed_out_time"),
            F.unix_micros("dead_lettered_at").alias("dead_time"),
            "late_s",
        )
        .withColumn("hour", _begin(at, HOUR))
        .join(scopes.transform(_by_hour, "claim", "claim_end"), [*ENTITY, "hour"], "inner")
        .where(at.between(F.col("claim"), F.col("claim_end")))
        .groupBy(*OUTAGE)
        .agg(
            F.count("*").alias("diverted"),
            F.count("syphoned_time").alias("recovered"),
            F.count_if(stood_in).alias("stood_in"),
            F.count_if(is_dead).alias("dead"),
            F.count_if(gone.isNull()).alias("waiting"),
            F.count("late_s").alias("ran_meanwhile"),
            F.max(gone).alias("left"),
            F.percentile_approx("late_s", 0.5).alias("late_median_s"),
            F.percentile_approx("late_s", 0.95).alias("late_p95_s"),
        )
    )


def _summed(outages: DataFrame) -> DataFrame:
    """One row for each outage of a scope, of what its entities' outages say."""
    return outages.groupBy(*OUTAGE).agg(
        F.count_distinct("entity").alias("entities"),
        F.min("first_failure").alias("first_failure"),
        F.min("failed_over").alias("failed_over"),
        F.max("restored").alias("restored"),
        F.max("ended").alias("ended"),
        F.array_sort(F.array_distinct(F.flatten(F.collect_list("kinds")))).alias("failure_kinds"),
    )


# -- processes --------------------------------------------------------------------------------------------------------


def _saw(seen: DataFrame, scopes: DataFrame) -> DataFrame:
    """The outage's key, host, pid, saw, is_unrestored (0 or 1) of the processes for which an entity failed."""
    return seen.join(scopes, [*ENTITY, "number"], "inner").select(
        *OUTAGE, *PROCESS, F.lit(1).alias("saw"), F.col("good").isNull().cast("int").alias("is_unrestored")
    )


def _sent(events: DataFrame, scopes: DataFrame) -> DataFrame:
    """The same of the processes that sent to an entity within the outage, seen by the minute."""
    minute, time = _begin(F.col("time"), MINUTE), F.col("time")
    watched = scopes.drop("number", "claim", "claim_end").transform(_by_hour, "first", "last")
    return (
        events.where(F.col("event") == "sent")
        .select(*PROCESS, *ENTITY, "time", _begin(time, HOUR).alias("hour"), minute.alias("minute"))
        .join(F.broadcast(watched), [*ENTITY, "hour"], "inner")
        .where((F.col("minute") + MINUTE > F.col("first")) & (F.col("minute") <= F.col("last")))
        .groupBy(*OUTAGE, "entity", *PROCESS, "minute", "first", "last")
        .agg(F.min("time").alias("earliest"), F.max("time").alias("latest"))
        .where((F.col("latest") >= F.col("first")) & (F.col("earliest") <= F.col("last")))
        .select(*OUTAGE, *PROCESS, F.lit(0).alias("saw"), F.lit(0).alias("is_unrestored"))
    )


def _counted(processes: DataFrame) -> DataFrame:
    """The outage's key, and processes_saw, processes_unrestored, processes_unaffected."""
    each = processes.groupBy(*OUTAGE, *PROCESS).agg(
        F.max("saw").alias("saw"), F.max("is_unrestored").alias("is_unrestored")
    )
    return each.groupBy(*OUTAGE).agg(
        F.sum("saw").alias("processes_saw"),
        F.sum("is_unrestored").alias("processes_unrestored"),
        F.count_if(F.col("saw") == 0).alias("processes_unaffected"),
    )


# -- in the end -------------------------------------------------------------------------------------------------------


def _told(outages: DataFrame) -> DataFrame:
    drained = F.when(F.col("waiting") == 0, F.col("left"))

    def seconds(start: str, end: Column) -> Column:
        return (end - F.col(start)) / 1e6

    values = {
        "entity": F.when(F.col("scope") == "entity", F.col("named")),
        "first_failure_at": F.timestamp_micros("first_failure"),
        "failed_over_at": F.timestamp_micros("failed_over"),
        "restored_at": F.timestamp_micros("restored"),
        "ended_at": F.timestamp_micros("ended"),
        "drained_at": F.timestamp_micros(drained),
        "detect_s": seconds("first_failure", F.col("failed_over")),
        "restore_s": seconds("first_failure", F.col("restored")),
        "drain_s": F.when(
            drained.isNotNull() & F.col("restored").isNotNull(), F.greatest(F.lit(0.0), seconds("restored", drained))
        ),
        "messages_diverted": F.col("diverted"),
        "messages_recovered": F.col("recovered"),
        "messages_stood_in": F.col("stood_in"),
        "messages_dead_lettered": F.col("dead"),
        "messages_waiting": F.col("waiting"),
        "messages_ran_meanwhile": F.col("ran_meanwhile"),
        "day": F.to_date(F.timestamp_micros("first_failure")),
    }
    return outages.withColumns(values).select(*OUTAGE_COLUMNS)


def _by_hour(spans: DataFrame, start: str, end: str) -> DataFrame:
    """A row for each ``hour`` that a span touches: what falls into it is then found by equality."""
    last = F.least(F.col(end), F.col(start) + LONGEST)
    hours = F.sequence(_begin(F.col(start), HOUR), _begin(last, HOUR), F.lit(HOUR))
    return spans.withColumn("hour", F.explode(hours))


def _begin(time: Column, size: int) -> Column:
    """Of the hour or minute."""
    return time - time % size
