"""Replays the recorded failures under other failover intervals and ping intervals, process by process.

What a process did is known from its journal; what it would have done follows from the rules of the circuit
(docs/architecture.md, rules 6 and 7):

* The first failure starts the clock of the entity. Until ``failover_interval`` later each message tries the primary,
  fails, and is diverted: its caller waits. A message that the primary takes meanwhile ends it.
* The first message after that fails the entity over. Messages are diverted without a try from then on.
* It is pinged ``ping_interval`` after the failover, and again ``ping_interval`` after each ping that has failed. The
  first good ping restores it, and has the other entities of the process pinged at once.

Two things are taken as they were: when each message came (``first_attempt``: a message comes when its caller first
tries to send it, however long that takes), and when the primary failed. When it recovered nobody knows: it did between
the last failed try and the first good one. So each replay is made three times: for the least, for the most, and for
what is likely, the middle.

A replay ends where the process next saw the entity fail. Callers do not slow each other down in it, as those of a
process do that sends one message after the other.
"""

from __future__ import annotations

from collections.abc import Sequence

from pyspark.sql import Column, DataFrame, Window
from pyspark.sql import functions as F

from kombu_paired.pipeline.schema import ENTITY, PROCESS

__all__ = ("ARRIVAL_COLUMNS", "SPAN_COLUMNS", "arrivals", "replayed", "spans")

SECOND = 1_000_000
HOUR = 3600 * SECOND
#: A window that is longer has a broken clock in it.
LONGEST = 366 * 24 * HOUR

#: When the primary may have recovered; columns of :func:`spans`.
RECOVERIES = ("least", "likely", "most")
#: What a send ends with: one of these each.
ENDS = ("sent", "diverted", "backlog_unavailable")
SO_FAR = (Window.unboundedPreceding, Window.currentRow)

#: Of :func:`spans` and :func:`arrivals`: column -> type.
SPAN_COLUMNS = {
    "number": "int",
    "together": "bigint",
    "host": "string",
    "pid": "bigint",
    "pairing": "string",
    "entity": "string",
    "start": "bigint",
    "failed_over": "bigint",
    "until": "bigint",
    "least": "bigint",
    "likely": "bigint",
    "most": "bigint",
    "trapped": "bigint",
    "trapped_ms": "double",
    "wait_ms": "double",
    "ping_ms": "double",
    "charged": "double",
}
ARRIVAL_COLUMNS = {"number": "int", "at": "bigint"}


# -- what was recorded ------------------------------------------------------------------------------------------------


def spans(intervals: DataFrame) -> DataFrame:
    """Each time for which an entity failed for a process, with what a replay needs to know of it.

    Arguments:
        intervals: of :func:`kombu_paired.pipeline.tables.outages.intervals`.

    Returns:
        ============================  ======  ==========================================================================
        number                        int     of the span
        together                      bigint  the same for spans of a process and pairing that overlap
        host, pid, pairing, entity            as in the events
        start                         bigint  of the first failure, and of the failover as recorded (null where there
        failed_over                           was none); as all times here, microseconds since 1970, UTC
        until                         bigint  start of the next span of this process and entity; null if none follows
        least, likely, most           bigint  when the primary recovered: at the last failure, at the first success
                                              (the last failure, where nobody saw one), and in the middle
        trapped, trapped_ms           bigint  callers that were waiting when the first failure showed, and their
                                      double  milliseconds: they wait under every setting
        wait_ms                       double  milliseconds that a caller waits for the primary to fail, on average
        ping_ms                       double  the same of a ping
        charged                       double  share of the failed pings that reached the namespace, and are charged
        ============================  ======  ==========================================================================
    """
    of_one = Window.partitionBy(*PROCESS, *ENTITY).orderBy("start")
    whole = intervals.withColumn("until", F.lead("start").over(of_one)).transform(_together)
    number = F.row_number().over(Window.orderBy(*PROCESS, *ENTITY, "start"))
    least, most = F.col("last_bad"), F.coalesce("good", "last_bad")
    when = {"least": least, "likely": F.floor((least + most) / 2), "most": most}
    return whole.withColumns({"number": number, **when}).select(*SPAN_COLUMNS)


def _together(intervals: DataFrame) -> DataFrame:
    in_order = Window.partitionBy(*PROCESS, "pairing").orderBy("start", "end", "entity")
    before = F.max("end").over(in_order.rowsBetween(Window.unboundedPreceding, -1))
    opens = F.when(F.col("start") <= before, None).otherwise(F.col("start"))
    first = F.last(opens, ignorenulls=True).over(in_order.rowsBetween(*SO_FAR))
    return intervals.withColumn("together", F.xxhash64(*PROCESS, "pairing", first))


def arrivals(events: DataFrame, spans: DataFrame, *, longest_failover: float, longest_ping: float) -> DataFrame:
    """The messages that came while an entity failed, and until the slowest replay has noticed that it works.

    Arguments:
        events: the journal's fields, without copies.
        spans: of :func:`spans`.
        longest_failover, longest_ping: seconds, of all settings that will be tried.

    Returns:
        number (of the span), at (microseconds since 1970, UTC): a row for each message that a process wanted to send
        after the first failure. What was on its way by then is in ``trapped``.
    """
    keys, at = [*PROCESS, *ENTITY], F.coalesce("first_attempt", "time")
    slowest = F.greatest(F.col("most"), F.col("start") + int(longest_failover * SECOND))
    end = F.least("until", slowest + F.ceil(longest_ping * SECOND + F.col("ping_ms") * 1000))
    last = F.least(end, F.col("start") + LONGEST)
    hours = F.sequence(_hour(F.col("start")), _hour(last), F.lit(HOUR))
    windows = spans.select(*keys, "number", "start", last.alias("last"), F.explode(hours).alias("hour"))
    sends = events.where(F.col("event").isin(*ENDS)).select(*keys, at.alias("at"), _hour(at).alias("hour"))
    met = sends.join(windows, [*keys, "hour"], "inner")
    return met.where((F.col("at") > F.col("start")) & (F.col("at") <= F.col("last"))).select(*ARRIVAL_COLUMNS)


def _hour(time: Column) -> Column:
    return time - time % HOUR


# -- what would have been ---------------------------------------------------------------------------------------------


def replayed(
    spans: DataFrame, arrivals: DataFrame, failover_intervals: Sequence[float], ping_intervals: Sequence[float]
) -> DataFrame:
    """Each span under each pair of settings.

    Arguments:
        spans, arrivals: of :func:`spans` and :func:`arrivals`.
        failover_intervals, ping_intervals: seconds.

    Returns:
        One row per span, failover interval, ping interval and recovery.

        =================================  ======  =====================================================================
        number                             int     of the span
        failover_interval, ping_interval   double  seconds
        recovery                           string  ``least``, ``likely`` or ``most``
        is_failed_over                     boolean
        waiting                            bigint  callers that waited for the primary to fail
        waited_s                           double  for how long, all together
        diverted                           bigint  messages
        pings                              bigint
        charged_pings                      double  of these
        late_s                             double  seconds from the recovery to the ping that noticed it; null when it
                                                   was not failed over
        =================================  ======  =====================================================================
    """
    tried = spans.transform(_met, arrivals, failover_intervals).transform(_tried, failover_intervals)
    return tried.transform(_circuits).transform(_pinged, ping_intervals).transform(_diverted, arrivals)


def _over_at(failover_interval: float) -> Column:
    """When it has run."""
    return F.col("start") + int(failover_interval * SECOND)


def _met(spans: DataFrame, arrivals: DataFrame, failover_intervals: Sequence[float]) -> DataFrame:
    """With ``before_<recovery>`` and ``before_<place of an interval>``, the number of arrivals before that time.

    And ``next_<place>``, the first arrival that is not before it. What is asked for is the same for all settings that
    a span is tried under, so that each arrival is looked at once, and not once for each.
    """
    at, known = F.col("at"), [each for each in spans.columns if each not in (*PROCESS, *ENTITY)]
    told = [F.count_if(at < F.col(name)).alias(f"before_{name}") for name in RECOVERIES]
    for place, interval in enumerate(failover_intervals):
        over = _over_at(interval)
        told += [F.count_if(at < over).alias(f"before_{place}"), F.min(F.when(at >= over, at)).alias(f"next_{place}")]
    return spans.select(*known).join(arrivals, "number", "left").groupBy(*known).agg(*told)


def _tried(met: DataFrame, failover_intervals: Sequence[float]) -> DataFrame:
    """A row for each recovery and failover interval.

    Returns:
        ``recovery``, ``recovery_at`` and ``before_recovery_at`` of the one, ``failover_interval``, ``over_at`` (when it
        has run), ``before_over_at`` and ``next_at`` of the other, instead of the columns for each of them.
    """
    recoveries = [
        F.struct(
            F.lit(name).alias("recovery"),
            F.col(name).alias("recovery_at"),
            F.col(f"before_{name}").alias("before_recovery_at"),
        )
        for name in RECOVERIES
    ]
    intervals = [
        F.struct(
            F.lit(float(interval)).alias("failover_interval"),
            _over_at(interval).alias("over_at"),
            F.col(f"before_{place}").alias("before_over_at"),
            F.col(f"next_{place}").alias("next_at"),
        )
        for place, interval in enumerate(failover_intervals)
    ]
    kept = ("number", "together", "failed_over", "start", "until", "trapped", "trapped_ms", "wait_ms")
    return (
        met.withColumn("recovery", F.explode(F.array(*recoveries)))
        .withColumn("interval", F.explode(F.array(*intervals)))
        .select(*kept, "ping_ms", "charged", "recovery.*", "interval.*")
    )


def _circuits(tried: DataFrame) -> DataFrame:
    """With ``failed_over_at``, null when it is only suspect, and ``waiting``."""
    start, over, recovery = F.col("start"), F.col("over_at"), F.col("recovery_at")
    works_again = (recovery < over) & (F.col("before_over_at") > F.col("before_recovery_at"))
    # A journal of transitions has no messages: there, one is taken to come in time.
    is_dark = F.col("failed_over").isNotNull() & (recovery > over) & (F.col("before_recovery_at") == 0)
    failed_over_at = F.when(F.col("failover_interval") == 0, start).when(
        ~works_again, F.coalesce("next_at", F.when(is_dark, over))
    )
    waiting = F.least("before_recovery_at", "before_over_at")
    return tried.withColumns(
        {
            "failed_over_at": failed_over_at,
            "waiting": F.col("trapped") + waiting,
            "waited_s": (F.col("trapped_ms") + waiting * F.col("wait_ms")) / 1000,
        }
    )


def _pinged(circuits: DataFrame, ping_intervals: Sequence[float]) -> DataFrame:
    """With ``ping_interval``, ``noticed_at``, ``pings``, ``charged_pings`` and ``late_s``."""
    failed_over, recovery = F.col("failed_over_at"), F.col("recovery_at")
    first, period = F.col("first_ping"), F.col("period")
    at_once, own = F.col("at_once"), F.col("own")
    is_told = (at_once >= recovery) & (at_once >= failed_over)
    noticed = F.when(is_told, at_once).otherwise(own)
    pings = F.greatest(F.ceil((noticed - first) / period), F.lit(0)) + 1
    counted = F.when(failed_over.isNotNull(), pings).otherwise(0)
    late = F.greatest(F.col("noticed_at") - recovery, F.lit(0)) / SECOND
    return (
        circuits.transform(_own_pings, ping_intervals)
        .withColumn("noticed_at", F.when(failed_over.isNotNull(), F.floor(F.least(noticed, F.col("until")))))
        .withColumn("pings", counted)
        .withColumn("charged_pings", F.when(counted > 0, (counted - 1) * F.col("charged") + 1).otherwise(0.0))
        .withColumn("late_s", F.when(failed_over.isNotNull(), late))
    )


def _own_pings(circuits: DataFrame, ping_intervals: Sequence[float]) -> DataFrame:
    """A row for each ``ping_interval``, with its pings.

    Returns:
        ``first_ping``, ``period``, ``own`` (the ping of its own that finds the entity back), and ``at_once``, the first
        such of the process. The rows of a process are brought together before they become as many as there are
        intervals.
    """
    of_process = Window.partitionBy("together", "recovery", "failover_interval")
    tried, firsts = [], {}
    for place, seconds in enumerate(ping_intervals):
        first = F.col("failed_over_at") + F.lit(float(seconds)) * SECOND
        period = F.lit(float(seconds)) * SECOND + F.col("ping_ms") * 1000
        own = first + F.greatest(F.ceil((F.col("recovery_at") - first) / period), F.lit(0)) * period
        firsts[f"at_once_{place}"] = F.min(own).over(of_process)
        values = {"ping_interval": F.lit(float(seconds)), "first_ping": first, "period": period, "own": own}
        values["at_once"] = F.col(f"at_once_{place}")
        tried.append(F.struct(*(value.alias(name) for name, value in values.items())))
    return circuits.withColumns(firsts).withColumn("tried", F.explode(F.array(*tried))).select("*", "tried.*")


def _diverted(pinged: DataFrame, arrivals: DataFrame) -> DataFrame:
    """With ``diverted``: what was trapped, and what came before it was noticed that the entity works.

    Rows and arrivals are sorted together, so that it is a running sum: a join would count each arrival for each row.
    """
    told = ("number", "failover_interval", "ping_interval", "recovery", "is_failed_over")
    counted = ("waiting", "waited_s", "pings", "charged_pings", "late_s")
    rows = pinged.withColumns(
        {
            "is_failed_over": F.col("failed_over_at").isNotNull(),
            "at": F.coalesce("noticed_at", "recovery_at"),
            "came": F.lit(0),
        }
    ).select(*told, *counted, "trapped", "at", "came")
    both = rows.unionByName(arrivals.withColumn("came", F.lit(1)), allowMissingColumns=True)
    in_order = Window.partitionBy("number").orderBy("at", "came").rowsBetween(*SO_FAR)
    return (
        both.withColumn("before", F.sum("came").over(in_order))
        .where(F.col("came") == 0)
        .withColumn("diverted", F.col("trapped") + F.col("before"))
        .select(*told, "waiting", "waited_s", "diverted", "pings", "charged_pings", "late_s")
    )
