"""The service's side of an outage: metrics of a Service Bus namespace, as Azure Monitor gives them away.

Two forms are read: what a diagnostic setting exports to storage (a JSON object per line, without the entity), and what
the metrics REST API answers (per entity, if asked with ``$filter=EntityName eq '*'``). ServerErrors, ThrottledRequests
and ActiveMessages cannot be exported: only the API has them.
"""

from __future__ import annotations

from collections.abc import Sequence

from pyspark.errors import AnalysisException
from pyspark.sql import Column, DataFrame, SparkSession
from pyspark.sql import functions as F

from kombu_paired.pipeline.reading import NoJournals

__all__ = ("SERVICE_COLUMNS", "read_metrics", "service_side")

#: Metric -> its column. They are added up, but for the last, of which the largest is taken.
METRICS = {
    "IncomingMessages": "incoming",
    "OutgoingMessages": "outgoing",
    "ServerErrors": "server_errors",
    "ThrottledRequests": "throttled",
    "ActiveMessages": "active_messages",
}
EXPORTED = "resourceId string, time timestamp, metricName string, total double, average double, maximum double"
ANSWER = (
    "value array<struct<id: string, name: struct<value: string>, timeseries: array<struct<"
    "metadatavalues: array<struct<name: struct<value: string>, value: string>>, "
    "data: array<struct<timeStamp: timestamp, total: double, average: double, maximum: double>>>>>>"
)

SERVICE_COLUMNS = ("scope", "pairing", "entity", "first_failure_at", "ended_at", *METRICS.values())
MINUTE = 60 * 1_000_000


def read_metrics(spark: SparkSession, paths: Sequence[str]) -> DataFrame:
    """Metrics from files of either form.

    Arguments:
        paths: files, or folders, which are searched to the bottom (an export's are ``y=/m=/d=/h=/m=``).

    Returns:
        namespace (in lower case), entity (in lower case; null for all of the namespace), time (of the minute), metric,
        and value: the total, or of ActiveMessages the most.

    Raises:
        NoJournals: there is no such path.
    """
    try:
        whole = spark.read.option("recursiveFileLookup", "true").text(list(paths), wholetext=True)
    except AnalysisException as exc:
        raise NoJournals(f"no metrics at {', '.join(paths)}: name the files of an export, or their folder") from exc
    is_answer = F.col("value").contains('"timeseries"')
    return whole.where(~is_answer).transform(_exported).unionByName(whole.where(is_answer).transform(_answered))


def _exported(files: DataFrame) -> DataFrame:
    lines = files.select(F.explode(F.split("value", "\n")).alias("line"))
    return lines.select(F.from_json("line", EXPORTED).alias("of")).select(
        _namespace(F.col("of.resourceId")).alias("namespace"),
        F.lit(None).cast("string").alias("entity"),
        F.col("of.time").alias("time"),
        F.col("of.metricName").alias("metric"),
        _value(F.col("of.metricName"), F.col("of")).alias("value"),
    )


def _answered(files: DataFrame) -> DataFrame:
    metric = files.select(F.explode(F.from_json("value", ANSWER)["value"]).alias("of"))
    series = metric.select(
        _namespace(F.regexp_replace("of.id", "(?i)/providers/microsoft[.]insights/.*", "")).alias("namespace"),
        F.col("of.name.value").alias("metric"),
        F.explode("of.timeseries").alias("series"),
    )
    named = F.filter("series.metadatavalues", lambda each: F.lower(each["name"]["value"]) == "entityname")
    return series.select(
        "namespace",
        F.lower(F.get(named, 0)["value"]).alias("entity"),
        "metric",
        F.explode("series.data").alias("at"),
    ).select(
        "namespace",
        "entity",
        F.col("at.timeStamp").alias("time"),
        "metric",
        _value(F.col("metric"), F.col("at")).alias("value"),
    )


def _namespace(resource: Column) -> Column:
    return F.lower(F.substring_index(resource, "/", -1))


def _value(metric: Column, of: Column) -> Column:
    most = F.coalesce(of["maximum"], of["average"], of["total"])
    return F.when(metric == "ActiveMessages", most).otherwise(of["total"])


def service_side(outages: DataFrame, metrics: DataFrame) -> DataFrame:
    """What the service says of the time of each outage.

    Arguments:
        outages: of :func:`kombu_paired.pipeline.tables.outages.outages`; a pairing's name is taken for that of its
            namespace.
        metrics: of :func:`read_metrics`.

    Returns:
        One row per outage: scope, pairing, entity, first_failure_at, ended_at; and of the minutes that it touches
        incoming, outgoing, server_errors, throttled (totals) and active_messages (the most), as double. They are null
        where no metric is there. An entity's outage has those of the entity alone; a namespace's has its own where
        there are any, else those of its entities together.
    """
    of_all = metrics.where(F.col("entity").isNull()).select("namespace", "metric").distinct()
    minutes = metrics.join(of_all.withColumn("is_whole", F.lit(True)), ["namespace", "metric"], "left")
    is_of_entity = (F.col("scope") == "entity") & F.lower(F.col("o.entity")).eqNullSafe(F.col("m.entity"))
    is_of_namespace = (F.col("scope") == "namespace") & (F.col("m.entity").isNull() | F.col("is_whole").isNull())
    first = F.unix_micros("first_failure_at")
    is_meanwhile = (F.unix_micros("time") + MINUTE > first) & (F.col("time") <= F.col("ended_at"))
    joined = outages.alias("o").join(
        minutes.alias("m"),
        (F.lower("pairing") == F.col("namespace")) & (is_of_entity | is_of_namespace) & is_meanwhile,
        "left",
    )
    keys = [F.col(f"o.{name}").alias(name) for name in SERVICE_COLUMNS if name not in METRICS.values()]
    return (
        joined.groupBy(*keys).agg(*(_told(name, column) for name, column in METRICS.items())).select(*SERVICE_COLUMNS)
    )


def _told(metric: str, column: str) -> Column:
    value = F.when(F.col("metric") == metric, F.col("value"))
    return (F.max(value) if metric == "ActiveMessages" else F.sum(value)).alias(column)
