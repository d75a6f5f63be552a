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
TO_DESTINATION = ("sent", "send_failed", "diverted", "backlog_unavailable", "syphoned", "handed_out")
#: Events that know the message's size as the application sent it.
AS_SENT = ("sent", "send_failed", "backlog_unavailable")
#: Why a message is dead-lettered whose time ran out.
EXPIRED = "TTLExpiredException"

#: The route of what happens at a stand-in queue.
STAND_IN = "stand-in"
#: What is counted of a message. ``dead_lettered`` are those that did not expire; ``expired`` are the others. What
#: happens to a message in a stand-in queue is counted apart: it ran there, came home from there, or died there.
KINDS = (
    "sent",
    "consumed",
    "ran_there",
    "diverted",
    "syphoned",
    "syphoned_there",
    "handed_out",
    "dead_lettered",
    "dead_lettered_there",
    "expired",
    "expired_there",
    "send_failed",
    "backlog_unavailable",
    "in_backlog",
)
#: How it is called what an event says of a stand-in queue.
THERE = {"consumed": "ran_there", "syphoned": "syphoned_there", "dead_lettered": "dead_lettered_there"}
#: Events that tell no more than that a message was in the backlog.
IN_BACKLOG = ("received_from_backlog", "abandoned")
#: Of which the first time is asked for, too: name -> kinds.
TIMED = {
    "sent": ("sent",),
    "consumed": ("consumed", "ran_there"),
    "ran_there": ("ran_there",),
    "diverted": ("diverted",),
    "syphoned": ("syphoned", "syphoned_there"),
    "handed_out": ("handed_out",),
    "dead_lettered": ("dead_lettered", "dead_lettered_there", "expired", "expired_there"),
}
#: Each number that Spark sums costs as much as three counts of up to two million in the digits of one.
DIGIT, PER_NUMBER = 21, 3
#: Added to what counts only where there is nothing better: the least is then the best. No size reaches it.
SECOND_CHOICE = 1 << 48

#: What can have become of a message.
FATES = ("direct", "recovered", "stood-in", "waiting", "dead-lettered", "expired", "duplicated", "unknown")

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
    "handed_out_at",
    "dead_lettered_at",
    "delivered_at",
    "consumed_at",
    "backlog_s",
    "late_s",
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
        route              string     ``primary``, ``backlog``, ``stand-in`` (from the backlog to workers that stood
                                      in), ``both`` (the primary and one of these); null for none
        backlog_queue      int        the first of the backlog queues that it was in
        diverted_at        timestamp  when it was stored in a backlog queue
        syphoned_at        timestamp  when the syphon had delivered it
        handed_out_at      timestamp  when it was handed out to workers that stood in
        dead_lettered_at   timestamp
        delivered_at       timestamp  when the primary had it, or workers that stood in
        consumed_at        timestamp  when a worker had finished it
        backlog_s          double     seconds in the backlog
        late_s             double     seconds from its first send until a worker that stood in had finished it; null
                                      where none had
        sends              bigint     times that a namespace took it from the application
        copies_delivered   bigint     times that the primary or workers that stood in got it, or that it was
                                      consumed, whichever is more; one that came home from there is the same
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
    is_there = F.col("route").eqNullSafe(STAND_IN)
    kind = F.when(is_expired, F.when(is_there, KINDS.index("expired_there")).otherwise(KINDS.index("expired")))
    for name, there in THERE.items():
        kind = kind.when((event == name) & is_there, KINDS.index(there))
    for number, name in enumerate(KINDS):
        kind = kind.when(event.isin(*IN_BACKLOG) if name == "in_backlog" else event == name, number)
    queue = F.when(F.col("route").startswith("backlog/"), F.substring("route", len("backlog/") + 1, 10).try_cast("int"))
    place, size = F.col("place").cast("bigint"), F.col("bytes")
    return events.join(F.broadcast(places), ["pairing", "entity"], "left").select(
        "message_id",
        kind.alias("kind"),
        "time",
        "first_attempt",
        F.when(event.isin(*TO_DESTINATION), place).when(event == "consumed", place + SECOND_CHOICE).alias("place"),
        F.when(event.isin(*AS_SENT), size)
        .when(event.isin("diverted", "syphoned", "handed_out"), size + SECOND_CHOICE)
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
        *(
            F.min(F.when(kind.isin(*map(KINDS.index, kinds)), F.col("time"))).alias(f"{name}_time")
            for name, kinds in TIMED.items()
        ),
        *(counts(first).alias(f"counts_{first}") for first in numbers),
    )
    counted = {
        f"n_{name}": F.shiftright(f"counts_{first}", DIGIT * place).bitwiseAND(F.lit((1 << DIGIT) - 1))
        for first in numbers
        for place, name in enumerate(KINDS[first : first + PER_NUMBER])
    }
    return gathered.withColumns(counted | {name: F.col(name) % SECOND_CHOICE for name in ("place", "bytes")})


def _in_order_of_causes(gathered: DataFrame) -> DataFrame:
    """Times, none before its cause."""
    diverted, first = F.col("diverted_time"), F.col("first_sent")

    def after_causes(kind: str) -> Column:
        at = F.col(f"{kind}_time")
        return F.when(at.isNotNull(), F.greatest(at, diverted, first))

    dead, left = F.col("dead_lettered_end"), F.least("syphoned_end", "handed_out_end")
    cause = F.when(~F.col("maybe_duplicate"), F.col("delivered_end"))
    consumed = F.when(F.col("consumed_time").isNotNull(), F.greatest("consumed_time", "first_sent", cause))
    ran_there = F.greatest("ran_there_time", "first_sent", "handed_out_end")
    skew = F.greatest(
        F.lit(0),
        diverted - F.col("syphoned_time"),
        diverted - F.col("handed_out_time"),
        diverted - F.col("dead_lettered_time"),
        first - F.col("consumed_time"),
    )
    return (
        gathered.withColumns(
            {f"{kind}_end": after_causes(kind) for kind in ("syphoned", "handed_out", "dead_lettered")}
        )
        .withColumn("delivered_end", F.least("sent_time", "syphoned_end", "handed_out_end"))
        .withColumns(
            {
                "first_sent_at": F.timestamp_micros("first_sent"),
                "diverted_at": F.timestamp_micros("diverted_time"),
                "syphoned_at": F.timestamp_micros("syphoned_end"),
                "handed_out_at": F.timestamp_micros("handed_out_end"),
                "dead_lettered_at": F.timestamp_micros("dead_lettered_end"),
                "delivered_at": F.timestamp_micros("delivered_end"),
                "consumed_at": F.timestamp_micros(consumed),
                "backlog_s": (F.coalesce(left, dead) - diverted) / 1e6,
                "late_s": F.when(F.col("ran_there_time").isNotNull(), ran_there - first) / 1e6,
                "skew_s": skew / 1e6,
                "day": F.to_date(F.timestamp_micros(F.coalesce("first_sent", "first_event"))),
            }
        )
    )


def _with_fate(gathered: DataFrame) -> DataFrame:
    sent, diverted, syphoned = F.col("n_sent"), F.col("n_diverted"), F.col("n_syphoned")
    ran, ran_there, back = F.col("n_consumed"), F.col("n_ran_there"), F.col("n_syphoned_there")
    died_there = F.col("n_dead_lettered_there") + F.col("n_expired_there")
    rejected = F.col("n_dead_lettered") + F.col("n_dead_lettered_there")
    expired = F.col("n_expired") + F.col("n_expired_there")
    # Whatever ran, came home or died there was handed out, whether or not a journal has that, too.
    there = F.greatest(F.col("n_handed_out"), ran_there + back + died_there)
    arrived = sent + syphoned + there - died_there
    sends, copies = sent + diverted, F.greatest(arrived, ran + ran_there)
    owed = F.greatest(sends, F.lit(1))
    left = syphoned + there - died_there + rejected + expired
    has_stood_in = (ran_there > 0) | ((there > back + died_there) & (ran == 0))
    fate = (
        F.when(copies > owed, "duplicated")
        .when((diverted > left) & (F.col("maybe_duplicate") | (copies < sends)), "waiting")
        .when((rejected > 0) & (copies < owed), "dead-lettered")
        .when((expired > 0) & (copies < owed), "expired")
        .when(has_stood_in, "stood-in")
        .when(diverted + syphoned + there > 0, "recovered")
        .when(sent > 0, "direct")
        .otherwise("unknown")
    )
    was_in_backlog = diverted + left + F.col("n_in_backlog") > 0
    detour = F.when(there > 0, STAND_IN).when(was_in_backlog, "backlog")
    route = F.when(sent > 0, F.when(was_in_backlog, "both").otherwise("primary")).otherwise(detour)
    return (
        gathered.withColumn("sends", sends)
        .withColumn("copies_delivered", copies)
        .withColumn("route", route)
        .withColumn("fate", fate)
        .withColumn("failed_tries", F.col("n_send_failed"))
        .withColumn("caller_errors", F.col("n_backlog_unavailable"))
    )


def balance(messages: DataFrame, *further: Column) -> DataFrame:
    """The sum of it all, in one row.

    Arguments:
        further: what else to sum up, with a name each.

    Returns:
        Counts of messages: ``messages``, ``accepted`` (a namespace took it), ``diverted``, ``consumed``, ``refused``
        (the caller got an error, and nothing else is known), ``lost`` (accepted, and nobody knows what became of it),
        ``ran_meanwhile`` (workers that stood in ran it), and one for each of :data:`FATES`.
    """
    is_unknown, is_accepted = F.col("fate") == "unknown", F.col("sends") >= 1
    return messages.agg(
        F.count("*").alias("messages"),
        F.count_if(is_accepted).alias("accepted"),
        F.count("diverted_at").alias("diverted"),
        F.count("consumed_at").alias("consumed"),
        F.count_if(is_unknown & (F.col("caller_errors") > 0)).alias("refused"),
        F.count_if(is_accepted & is_unknown).alias("lost"),
        F.count("late_s").alias("ran_meanwhile"),
        *(F.count_if(F.col("fate") == fate).alias(fate) for fate in FATES),
        *further,
    )
