"""One row per day, entity and stage: the operations that Azure Service Bus charged, as the journals tell them.

The rules are those of the pure model, :mod:`kombu_paired.pipeline.costs.charges`: every call is an operation, in steps
of 64 KB; an empty receive and a ping are operations, too. Here nothing is estimated that an event tells:

====================  ======================================================================================
send_to_primary       ``sent``, by its size; but heartbeats
send_to_backlog       ``diverted``, by its size in the backlog
receive_from_backlog  ``received_from_backlog``, by its size in the backlog
complete_in_backlog   ``syphoned``, ``handed_out``, ``dead_lettered``, ``abandoned``: each settles a message
send_home             ``syphoned``, or ``handed_out`` to workers that stand in, by its size in the backlog
receive_from_primary  ``consumed``, by the size of the message
complete_at_primary   ``consumed``
lock_renewal          ``consumed`` after more than one lock's duration: a renewal for each further one
ping                  ``ping``; one that did not reach the namespace (``unreachable``) is not charged
heartbeat             ``sent``, of a heartbeat of Celery's
idle_receive          ``polled`` that found no message
====================  ======================================================================================

A send that failed is not counted: most of them did not reach the namespace, and nobody knows it of the others. Nor are
receives of workers that found nothing, of which nothing tells.
"""

from __future__ import annotations

from pyspark.sql import Column, DataFrame
from pyspark.sql import functions as F

from kombu_paired.pipeline.costs.charges import HOURS_OF_MONTH, LOCK_MS, STEP
from kombu_paired.pipeline.costs.prices import PriceSheet

__all__ = ("COST_COLUMNS", "cost", "heavy")

COST_COLUMNS = ("day", "pairing", "entity", "stage", "operations", "money", "currency")

#: Events that tell of an operation.
TELLING = (
    "sent",
    "consumed",
    "diverted",
    "received_from_backlog",
    "syphoned",
    "handed_out",
    "abandoned",
    "dead_lettered",
    "polled",
    "ping",
)
#: How an entity ends that gets heartbeats of workers: Celery sends them to its exchange of events, whatever its name.
HEARTBEATS = "/worker.heartbeat"
#: A poll that found nothing.
EMPTY = "0 messages"
DAY = 24 * 3600 * 1_000_000
DAYS_OF_MONTH = HOURS_OF_MONTH / 24


def cost(events: DataFrame, heavy: DataFrame, sheet: PriceSheet | None = None) -> DataFrame:
    """What was charged.

    Arguments:
        events: the journal's fields, without copies.
        heavy: of :func:`heavy`.
        sheet: prices; None: no money.

    Returns:
        One row where there is at least one operation.

        ==========  ======  ============================================================================================
        day         date    UTC
        pairing     string
        entity      string  what the operation was on: a queue of the application, or a backlog queue
        stage       string  one of :data:`~kombu_paired.pipeline.costs.charges.STAGES`
        operations  bigint  in steps of 64 KB
        money       double  its share of what the month's operations cost, without the base fee; null without a sheet.
                            A month that the journals do not cover is taken to go on as on the days that they do, so
                            that what is included, and the tiers, count as they would on the bill
        currency    string  of the sheet; null without one
        ==========  ======  ============================================================================================
    """
    told = events.where(F.col("event").isin(*TELLING)).transform(_with_place)
    once = told.transform(_summed).transform(_by_stage)
    further = told.transform(_of_heavy, heavy)
    whole = once.unionByName(further).groupBy("begin", "pairing", "entity", "stage")
    total = whole.agg(F.sum("operations").alias("operations")).where(F.col("operations") > 0)
    day = F.to_date(F.timestamp_micros("begin"))
    return total.withColumn("day", day).transform(_priced, sheet).select(*COST_COLUMNS)


def heavy(events: DataFrame, messages: DataFrame) -> DataFrame:
    """Messages that take more than one step: who receives them does not write down their size.

    Arguments:
        events: the journal's fields.
        messages: of :func:`kombu_paired.pipeline.tables.messages.messages`.

    Returns:
        message_id; steps, those of the message as it was sent, and backlog_steps, those of its form in the backlog;
        each is 1 where it is not more or is not known.
    """
    is_large = _steps() > 1
    one = F.lit(1).cast("bigint")
    sent = messages.where(is_large).select("message_id", _steps().alias("steps"), one.alias("backlog_steps"))
    stored = events.where(
        F.col("event").isin("diverted", "syphoned", "handed_out") & F.col("message_id").isNotNull() & is_large
    )
    both = sent.unionByName(stored.select("message_id", one.alias("steps"), _steps().alias("backlog_steps")))
    return both.groupBy("message_id").agg(F.max("steps").alias("steps"), F.max("backlog_steps").alias("backlog_steps"))


def _steps() -> Column:
    """As :func:`kombu_paired.pipeline.costs.charges.steps`; of an unknown size it is one."""
    return F.greatest(F.ceil(F.col("bytes") / STEP), F.lit(1)).cast("bigint")


def _with_place(events: DataFrame) -> DataFrame:
    """With ``begin``, the day's first microsecond, and ``queue``, the number of the backlog queue."""
    queue = F.when(F.col("route").startswith("backlog/"), F.substring("route", len("backlog/") + 1, 10))
    return events.withColumn("begin", F.col("time") - F.col("time") % DAY).withColumn("queue", queue)


def _backlog_queue() -> Column:
    return F.coalesce(F.concat("pairing", F.lit("/x-servicebus-transfer/"), "queue"), "entity")


def _summed(events: DataFrame) -> DataFrame:
    """begin, pairing, entity, queue, event; calls, their steps, free (calls), renewals: few sums, since each costs."""
    event = F.col("event")
    is_free = ((event == "ping") & (F.col("failure") == "unreachable")) | (
        (event == "polled") & ~F.col("detail").eqNullSafe(EMPTY)
    )
    return events.groupBy("begin", "pairing", "entity", "queue", "event").agg(
        F.count("*").alias("calls"),
        F.sum(_steps()).alias("steps"),
        F.count_if(is_free).alias("free"),
        F.sum(F.coalesce(F.floor(F.col("ms") / LOCK_MS), F.lit(0))).alias("renewals"),
    )


def _by_stage(summed: DataFrame) -> DataFrame:
    """begin, pairing, entity, stage, operations: a row for each stage, at the entity that it was on."""
    calls, steps, paid = F.col("calls"), F.col("steps"), F.col("calls") - F.col("free")
    own, backlog = F.col("entity"), _backlog_queue()
    is_heartbeat = F.col("entity").endswith(HEARTBEATS)
    told: dict[str, tuple[tuple[str, ...], Column, Column]] = {
        "send_to_primary": (("sent",), F.when(~is_heartbeat, steps).otherwise(0), own),
        "send_to_backlog": (("diverted",), steps, backlog),
        "receive_from_backlog": (("received_from_backlog",), calls, backlog),
        "complete_in_backlog": (("syphoned", "handed_out", "dead_lettered", "abandoned"), calls, backlog),
        "send_home": (("syphoned", "handed_out"), steps, own),
        "receive_from_primary": (("consumed",), calls, own),
        "complete_at_primary": (("consumed",), calls, own),
        "lock_renewal": (("consumed",), F.col("renewals"), own),
        "ping": (("ping",), paid, own),
        "heartbeat": (("sent",), F.when(is_heartbeat, steps).otherwise(0), own),
        "idle_receive": (("polled",), paid, own),
    }
    rows = []
    for stage, (events, operations, entity) in told.items():
        counted = F.when(F.col("event").isin(*events), operations).otherwise(0)
        rows.append(F.struct(entity.alias("entity"), F.lit(stage).alias("stage"), counted.alias("operations")))
    return summed.select("begin", "pairing", F.explode(F.array(*rows)).alias("of")).select("begin", "pairing", "of.*")


def _of_heavy(events: DataFrame, heavy: DataFrame) -> DataFrame:
    """The same of the further steps that receives take."""
    is_home = F.col("event") == "consumed"
    received = events.where(F.col("event").isin("consumed", "received_from_backlog"))
    return received.join(heavy, "message_id", "inner").select(
        "begin",
        "pairing",
        F.when(is_home, F.col("entity")).otherwise(_backlog_queue()).alias("entity"),
        F.when(is_home, "receive_from_primary").otherwise("receive_from_backlog").alias("stage"),
        (F.when(is_home, F.col("steps")).otherwise(F.col("backlog_steps")) - 1).alias("operations"),
    )


def _priced(operations: DataFrame, sheet: PriceSheet | None) -> DataFrame:
    if sheet is None:
        nothing = {"money": F.lit(None).cast("double"), "currency": F.lit(None).cast("string")}
        return operations.withColumns(nothing)
    month = F.trunc("day", "month")
    months = operations.groupBy(month.alias("month")).agg(
        (F.sum("operations") * DAYS_OF_MONTH / F.count_distinct("day")).alias("of_month")
    )
    rate = (_price(F.col("of_month"), sheet) / F.col("of_month")).alias("rate")
    return (
        operations.withColumn("month", month)
        .join(F.broadcast(months.select("month", rate)), "month", "inner")
        .withColumns({"money": F.col("operations") * F.col("rate"), "currency": F.lit(sheet.currency)})
    )


def _price(operations: Column, sheet: PriceSheet) -> Column:
    """As :meth:`kombu_paired.pipeline.costs.prices.PriceSheet.of_operations`."""
    price, floor = F.lit(0.0), sheet.included_operations
    for tier in sheet.tiers:
        ceiling = operations if tier.up_to is None else F.least(operations, F.lit(tier.up_to))
        price += F.greatest(ceiling - floor, F.lit(0)) * (tier.per_million / 1e6)
        floor = tier.up_to if tier.up_to is not None else floor
    return price
