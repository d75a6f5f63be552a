"""The whole report: every journal read once, each table made of that and written as Parquet, and the page of it all."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path

from pyspark.sql import Column, DataFrame, SparkSession
from pyspark.sql import functions as F

from kombu_paired.pipeline.costs.prices import PriceSheet
from kombu_paired.pipeline.page.facts import gather
from kombu_paired.pipeline.page.html import page, write_page
from kombu_paired.pipeline.parquet import write_table
from kombu_paired.pipeline.reading import accepted, find_journals, read_events, rejected, write_events
from kombu_paired.pipeline.session import with_settings
from kombu_paired.pipeline.tables import messages as of_messages
from kombu_paired.pipeline.tables.cost import cost, heavy
from kombu_paired.pipeline.tables.messages import messages, places
from kombu_paired.pipeline.tables.outages import OUTAGE_COLUMNS, intervals, outages
from kombu_paired.pipeline.tables.quality import once, plain, processes, quality, special, without_copies
from kombu_paired.pipeline.tables.replay import ARRIVAL_COLUMNS, SPAN_COLUMNS, arrivals, spans
from kombu_paired.pipeline.tables.service import read_metrics, service_side
from kombu_paired.pipeline.tables.what_if import GRID, WHAT_IF_COLUMNS, what_if

__all__ = ("LOCK", "STEPS", "Report", "TakenFolder", "make_report", "make_tables")

#: A file in the folder of a watch, and of no other.
LOCK = "watch.lock"
#: What is done, in this order: by :func:`make_report`, and by :func:`make_tables`, a part of it.
OF_TABLES = ("count lines", "messages", "outages", "cost", "what if", "quality", "page")
STEPS = ("find journals", "read journals", *OF_TABLES)


class TakenFolder(Exception):
    """Somebody else's tables are in the folder; the text says whose."""


@dataclass
class Report:
    """What a report found, in short.

    Attributes:
        files: journal files.
        balance: counts of messages, of :func:`kombu_paired.pipeline.tables.messages.balance`.
        outages: scope (``entity``, ``namespace``) -> how many.
        problems: problem -> how many.
        page: where ``report.html`` is.
        seconds: step -> how long it took.
        late_s: ``median``, ``p95`` and ``longest``: how late tasks were that ran during the outage; else None.
    """

    files: int = 0
    balance: dict[str, int] = field(default_factory=dict)
    outages: dict[str, int] = field(default_factory=dict)
    problems: dict[str, int] = field(default_factory=dict)
    page: str = ""
    seconds: dict[str, float] = field(default_factory=dict)
    late_s: dict[str, float | None] = field(default_factory=dict)


class _Work:
    """Where tables are written, and how long each step takes."""

    def __init__(self, spark: SparkSession, out: str, on_step: Callable[[str], None]) -> None:
        self._spark, self._on_step = spark, on_step
        self.place = out.rstrip("/")
        self.seconds: dict[str, float] = {}

    @contextmanager
    def step(self, name: str) -> Iterator[None]:
        self._on_step(name)
        began = time.monotonic()
        yield
        self.seconds[name] = time.monotonic() - began

    def saved(self, table: DataFrame, name: str, *by: str) -> DataFrame:
        """The table as it was written: what is made of it does not work it out again."""
        write_table(table, f"{self.place}/{name}", *by)
        return self._spark.read.schema(table.schema).parquet(f"{self.place}/{name}")

    def none(self, columns: Mapping[str, str]) -> DataFrame:
        """A table that is known to have no rows: Spark would take seconds to plan what finds none."""
        return self._spark.createDataFrame([], ", ".join(f"{name} {type_}" for name, type_ in columns.items()))


def make_report(
    spark: SparkSession,
    paths: Sequence[str],
    out: str,
    *,
    since: int | None = None,
    until: int | None = None,
    sheet: PriceSheet | None = None,
    azure_metrics: Sequence[str] = (),
    on_step: Callable[[str], None] = lambda step: None,
) -> Report:
    """Make all tables of the journals at these paths.

    Arguments:
        out: a folder, or the URL of one, for what :func:`make_tables` makes, and ``events``, every line read.
        since, until: microseconds since 1970, UTC: only events from the one to before the other.
        sheet: prices; without them the tables ``cost`` and ``what_if`` have no money.
        azure_metrics: files or folders of Azure Monitor's metrics; they make the table ``service``.
        on_step: told each of :data:`STEPS` when it begins.

    Raises:
        NoJournals: there is nothing to report on.
        TakenFolder: a watch keeps its tables in ``out``.
    """
    if Path(out, LOCK).exists():
        raise TakenFolder(f"{out} belongs to kombu-paired watch: give the report a folder of its own")
    work = _Work(spark, out, on_step)
    with work.step("find journals"):
        metrics = read_metrics(spark, azure_metrics) if azure_metrics else None
        journals = find_journals(spark, paths, beside=out)
        files = journals.count
    with work.step("read journals"):
        journals = write_events(spark, journals, f"{work.place}/events", since=since, until=until)
        rows = read_events(spark, f"{work.place}/events")
    report = make_tables(spark, rows, journals.problems(), out, sheet=sheet, metrics=metrics, on_step=on_step)
    report.files = files
    report.seconds = work.seconds | report.seconds
    return report


def make_tables(
    spark: SparkSession,
    rows: DataFrame,
    problems: Sequence[tuple[str, str]],
    out: str,
    *,
    sheet: PriceSheet | None = None,
    metrics: DataFrame | None = None,
    on_step: Callable[[str], None] = lambda step: None,
) -> Report:
    """Make all tables of what was read.

    Arguments:
        rows: of :func:`kombu_paired.pipeline.reading.read_events`.
        problems: path and problem of each file that gave no lines.
        out: a folder, or the URL of one. What it has of these names is replaced: ``messages``, ``outages`` and ``cost``
            (by day), ``what_if``, ``quality``, ``report.html``; and what they were made of: ``processes``, ``special``
            (all events but the plain ones), ``doubled`` (those of processes that are there more than once, once
            each), ``places``, ``intervals``, ``heavy``, ``spans``, ``arrivals``.
        sheet: prices.
        metrics: of :func:`kombu_paired.pipeline.tables.service.read_metrics`; they make the table ``service``.
        on_step: told each of :data:`OF_TABLES` when it begins.
    """
    work, report = _Work(spark, out, on_step), Report()
    saved, every = work.saved, accepted(rows)
    with work.step("count lines"):
        writers = saved(processes(every), "processes")
        apart = saved(special(every, writers), "special")
        single = saved(once(apart), "doubled")
        few = without_copies(apart, single)
        events = plain(every, writers).unionByName(few)
    with work.step("messages"):
        known = saved(places(events), "places")
        with with_settings(spark, of_messages.SPARK_SETTINGS):
            found = saved(messages(events, known), "messages", "day")
    with work.step("outages"):
        failing = saved(intervals(few), "intervals")
        is_calm = failing.isEmpty()
        happened = work.none(OUTAGE_COLUMNS) if is_calm else outages(failing, events, found)
        happened = saved(happened, "outages", "day")
        if metrics is not None:
            saved(service_side(happened, metrics), "service")
        report.outages = _counts(happened, "scope", F.count("*"))
    with work.step("cost"):
        weights = saved(heavy(few, found), "heavy")
        paid = saved(cost(events, weights, sheet), "cost", "day")
    with work.step("what if"):
        failed = saved(work.none(SPAN_COLUMNS) if is_calm else spans(failing), "spans")
        reach = {"longest_failover": max(GRID.failover_intervals), "longest_ping": max(GRID.ping_intervals)}
        came = saved(work.none(ARRIVAL_COLUMNS) if is_calm else arrivals(events, failed, **reach), "arrivals")
        tried = work.none(WHAT_IF_COLUMNS) if is_calm else what_if(failed, came, few, found, happened, paid)
        tried = saved(tried.coalesce(1), "what_if")
    with work.step("quality"):
        files = spark.createDataFrame(list(problems), "file string, problem string")
        wrong = saved(quality(rejected(rows), files, writers, single, found).coalesce(1), "quality")
        report.problems = _counts(wrong, "problem", F.sum("count"))
    with work.step("page"):
        tables = {"messages": found, "outages": happened, "quality": wrong, "cost": paid, "what_if": tried}
        facts = gather(tables, sheet)
        report.balance, report.late_s = facts.balance, facts.late_s
        report.page = write_page(spark, page(facts), out)
    report.seconds = work.seconds
    return report


def _counts(table: DataFrame, by: str, count: Column) -> dict[str, int]:
    rows = table.groupBy(by).agg(count.alias("count")).orderBy(by).toLocalIterator()
    return {row[0]: row[1] for row in rows}
