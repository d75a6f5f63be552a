"""One row per message: where it went, when, and what became of it.

Clocks of different hosts differ, so order follows causes: a message is not syphoned before it was diverted, whatever
two clocks say. All that is gathered of a message are numbers, since Spark aggregates texts many times more slowly.
"""

from __future__ import annotations

from pyspark.sql import Column, DataFrame, Window
from pyspark.sql import functions as F

__all__ = ("FATES", "MESSAGE_COLUMNS", "SPARK_SETTINGS", "balance", "messages", "places")

#: Spark's settings under which this table is made. No two events of a message are in one file as a rule, so that
#: gathering what belongs together before the shuffle finds nothing to gather.
SPARK_SETTINGS = {"spark.sql.execution.bypassPartialAggregation": "true"}

#: Events that name the message's destination.
TO_DESTINATION = ("sent", "send_failed", "diverted", "backlog_unavailable", "syphoned")
#: Events that know the message's size as the application sent it.
AS_SENT = ("sent", "send_failed", "backlog_unavailable")
#: Why a message is dead-lettered whose time ran out.
EXPIRED = "TTLExpiredException"

#: What is counted of a message. ``dead_lettered`` are those that did not expire; ``expired`` are the others.
KINDS = (
    "sent",
    "consumed",
    "diverted",
    "syphoned",
    "dead_lettered",
    "expired",
    "send_failed",
    "backlog_unavailable",
    "received_from_backlog",
    "abandoned",
)
#: Of which the first time is asked for, too.
TIMED = ("sent", "consumed", "diverted", "syphoned", "dead_lettered")
#: Each number that Spark sums costs as much as three counts of up to two million in the digits of one.
DIGIT, PER_NUMBER = 21, 3
#: Added to what counts only where there is nothing better: the least is then the best. No size reaches it.
SECOND_CHOICE = 1 << 48

#: What can have become of a message.
FATES = ("direct", "recovered", "waiting", "dead-lettered", "expired", "duplicated", "unknown")

MESSAGE_COLUMNS = (
    "message_id",
    "pairing",
    "entity",
    "first_sent_at",
    "bytes",
    "route",
    "backlog_queue",
    "diverted_at",
    "syphoned_at",
    "dead_lettered_at",
    "delivered_at",
    "consumed_at",
    "backlog_s",
    "sends",
    "copies_delivered",
    "failed_tries",
    "caller_errors",
    "maybe_duplicate",
    "skew_s",
    "fate",
    "day",
)


def messages(events: DataFrame, known_places: DataFrame | None = None) -> DataFrame:
    """What became of each message.

    Arguments:
        events: the journal's fields, without copies.
        known_places: of :func:`places`, where that is at hand already: it is asked for twice.

    Returns:
        One row per message id.

        =================  =========  ==================================================================================
        message_id         string
        pairing, entity    string     where it was to go; null where nobody says
        first_sent_at      timestamp  when the application sent it for the first time
        bytes              bigint     its size
        route              string     ``primary``, ``backlog``, ``both``; null for neither
        backlog_queue      int        the first of the backlog queues that it was in
        diverted_at        timestamp  when it was stored in a backlog queue
        syphoned_at        timestamp  when the syphon had delivered it
        dead_lettered_at   timestamp
        delivered_at       timestamp  when the primary had it
        consumed_at        timestamp  when a worker had finished it
        backlog_s          double     seconds in the backlog
        sends              bigint     times that a namespace took it from the application
        copies_delivered   bigint     times that the primary got it, or that it was consumed, whichever is more
        failed_tries       bigint     sends to the primary that failed
        caller_errors      bigint     sends of which the caller got an error
        maybe_duplicate    boolean    the primary may have it besides
        skew_s             double     seconds by which the clock of a cause ran before that of its effect
        fate               string     one of :data:`FATES`
        day                date       UTC, of its first event
        =================  =========  ==================================================================================
    """
    known = events.where(F.col("message_id").isNotNull())
    numbered = places(known) if known_places is None else known_places
    return (
        known.transform(_as_numbers, numbered)
        .transform(_gathered)
        .transform(_in_order_of_causes)
        .transform(_with_fate)
        .join(F.broadcast(numbered), "place", "left")
        .select(*MESSAGE_COLUMNS)
    )


def places(events: DataFrame) -> DataFrame:
    """Where messages go, and where they are consumed from.

    Arguments:
        events: the journal's fields; copies do no harm.

    Returns:
        place (a number, in the order of the names), pairing, entity.
    """
    is_named = F.col("message_id").isNotNull() & F.col("event").isin(*TO_DESTINATION, "consumed")
    named = events.where(is_named).select("pairing", "entity").distinct()
    return named.select("pairing", "entity", F.row_number().over(Window.orderBy("pairing", "entity")).alias("place"))


def _as_numbers(events: DataFrame, places: DataFrame) -> DataFrame:
    """message_id, and for the rest numbers; ``kind`` is an index of :data:`KINDS`."""
    event = F.col("event")
    is_expired = (event == "dead_lettered") & F.col("detail").eqNullSafe(EXPIRED)
    kind = F.when(is_expired, KINDS.index("expired"))
    for number, name in enumerate(KINDS):
        kind = kind.when(event == name, number)
    queue = F.when(F.col("route").startswith("backlog/"), F.substring("route", len("backlog/") + 1, 10).try_cast("int"))
    place, size = F.col("place").cast("bigint"), F.col("bytes")
    return events.join(F.broadcast(places), ["pairing", "entity"], "left").select(
        "message_id",
        kind.alias("kind"),
        "time",
        "first_attempt",
        F.when(event.isin(*TO_DESTINATION), place).when(event == "consumed", place + SECOND_CHOICE).alias("place"),
        F.when(event.isin(*AS_SENT), size)
        .when(event.isin("diverted", "syphoned"), size + SECOND_CHOICE)
        .alias("bytes"),
        queue.alias("queue"),
        F.coalesce("maybe_duplicate", F.lit(False)).alias("maybe_duplicate"),
    )


def _gathered(events: DataFrame) -> DataFrame:
    kind = F.col("kind")

    def counts(first: int) -> Column:
        """How many there are of each of three kinds, in the digits of one number."""
        three = [F.when(kind == first + place, 1 << (DIGIT * place)) for place in range(PER_NUMBER)]
        return F.sum(F.coalesce(*three, F.lit(0)))

    numbers = range(0, len(KINDS), PER_NUMBER)
    gathered = events.groupBy("message_id").agg(
        F.min("place").alias("place"),
        F.min("bytes").alias("bytes"),
        F.min("first_attempt").alias("first_sent"),
        F.min("time").alias("first_event"),
        F.min("queue").alias("backlog_queue"),
        F.max("maybe_duplicate").alias("maybe_duplicate"),
        *(F.min(F.when(kind == KINDS.index(name), F.col("time"))).alias(f"{name}_time") for name in TIMED),
        F.min(F.when(kind == KINDS.index("expired"), F.col("time"))).alias("expired_time"),
        *(counts(first).alias(f"counts_{first}") for first in numbers),
    )
    counted = {
        f"n_{name}": F.shiftright(f"counts_{first}", DIGIT * place).bitwiseAND(F.lit((1 << DIGIT) - 1))
        for first in numbers
        for place, name in enumerate(KINDS[first : first + PER_NUMBER])
    }
    return gathered.withColumns(
        counted
        | {name: F.col(name) % SECOND_CHOICE for name in ("place", "bytes")}
        | {"dead_lettered_time": F.least("dead_lettered_time", "expired_time")}
    )


def _in_order_of_causes(gathered: DataFrame) -> DataFrame:
    """Times, none before its cause."""
    diverted, first = F.col("diverted_time"), F.col("first_sent")

    def after_causes(kind: str) -> Column:
        at = F.col(f"{kind}_time")
        return F.when(at.isNotNull(), F.greatest(at, diverted, first))

    syphoned, dead = F.col("syphoned_end"), F.col("dead_lettered_end")
    cause = F.when(~F.col("maybe_duplicate"), F.col("delivered_end"))
    consumed = F.when(F.col("consumed_time").isNotNull(), F.greatest("consumed_time", "first_sent", cause))
    skew = F.greatest(
        F.lit(0),
        diverted - F.col("syphoned_time"),
        diverted - F.col("dead_lettered_time"),
        first - F.col("consumed_time"),
    )
    return (
        gathered.withColumns({f"{kind}_end": after_causes(kind) for kind in ("syphoned", "dead_lettered")})
        .withColumn("delivered_end", F.least("sent_time", "syphoned_end"))
        .withColumns(
            {
                "first_sent_at": F.timestamp_micros("first_sent"),
                "diverted_at": F.timestamp_micros("diverted_time"),
                "syphoned_at": F.timestamp_micros("syphoned_end"),
                "dead_lettered_at": F.timestamp_micros("dead_lettered_end"),
                "delivered_at": F.timestamp_micros("delivered_end"),
                "consumed_at": F.timestamp_micros(consumed),
                "backlog_s": (F.coalesce(syphoned, dead) - diverted) / 1e6,
                "skew_s": skew / 1e6,
                "day": F.to_date(F.timestamp_micros(F.coalesce("first_sent", "first_event"))),
            }
        )
    )


def _with_fate(gathered: DataFrame) -> DataFrame:
    sent, diverted, syphoned = F.col("n_sent"), F.col("n_diverted"), F.col("n_syphoned")
    rejected, expired, copies = F.col("n_dead_lettered"), F.col("n_expired"), F.col("copies_delivered")
    is_owed = copies < F.greatest(F.col("sends"), F.lit(1))
    may_be_there = F.col("maybe_duplicate")
    fate = (
        F.when(copies > F.greatest(F.col("sends"), F.lit(1)), "duplicated")
        .when((diverted > syphoned + rejected + expired) & (may_be_there | (copies < F.col("sends"))), "waiting")
        .when((rejected > 0) & is_owed, "dead-lettered")
        .when((expired > 0) & is_owed, "expired")
        .when(diverted + syphoned > 0, "recovered")
        .when(sent > 0, "direct")
        .otherwise("unknown")
    )
    in_backlog = diverted + syphoned + rejected + expired + F.col("n_received_from_backlog") + F.col("n_abandoned") > 0
    route = (
        F.when((sent > 0) & in_backlog, "both").when(sent > 0, "primary").when(in_backlog, "backlog").otherwise(None)
    )
    return (
        gathered.withColumn("sends", sent + diverted)
        .withColumn("copies_delivered", F.greatest(sent + syphoned, F.col("n_consumed")))
        .withColumn("route", route)
        .withColumn("fate", fate)
        .withColumn("failed_tries", F.col("n_send_failed"))
        .withColumn("caller_errors", F.col("n_backlog_unavailable"))
    )


def balance(messages: DataFrame) -> DataFrame:
    """The sum of it all, in one row.

    Returns:
        Counts of messages: ``messages``, ``accepted`` (a namespace took it), ``diverted``, ``consumed``, ``refused``
        (the caller got an error, and nothing else is known), ``lost`` (accepted, and nobody knows what became of it),
        and one for each of :data:`FATES`.
    """
    is_unknown, is_accepted = F.col("fate") == "unknown", F.col("sends") >= 1
    return messages.agg(
        F.count("*").alias("messages"),
        F.count_if(is_accepted).alias("accepted"),
        F.count("diverted_at").alias("diverted"),
        F.count("consumed_at").alias("consumed"),
        F.count_if(is_unknown & (F.col("caller_errors") > 0)).alias("refused"),
        F.count_if(is_accepted & is_unknown).alias("lost"),
        *(F.count_if(F.col("fate") == fate).alias(fate) for fate in FATES),
    )
