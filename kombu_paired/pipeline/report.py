"""The whole report: every journal read once, each table made of that and written as Parquet, and the page of it all."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path

from pyspark.sql import DataFrame, SparkSession

from kombu_paired.pipeline.costs.prices import PriceSheet
from kombu_paired.pipeline.jobs import side_by_side
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
#: What is done, one step after the other: by :func:`make_report`, and by :func:`make_tables`, a part of it. Within a
#: step there are things side by side.
OF_TABLES = ("count lines", "messages", "outages and cost", "what if", "page")
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
        seconds: step -> how long it took. Steps follow each other: together it is all of the time.
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
    every = accepted(rows)
    with work.step("count lines"):
        first = side_by_side(
            spark,
            {
                "read": lambda: _read(work, every),
                "places": lambda: work.saved(places(every), "places"),
            },
        )
        read, failing = first["read"]
    # The settings are the session's: nothing is beside it.
    with work.step("messages"), with_settings(spark, of_messages.SPARK_SETTINGS):
        found = work.saved(messages(read.events, first["places"]), "messages", "day")
    files = spark.createDataFrame(list(problems), "file string, problem string")
    with work.step("outages and cost"):
        made = side_by_side(
            spark,
            {
                "outages": lambda: _outages(work, read, failing, found, metrics),
                "cost": lambda: _cost(work, read, found, sheet),
                "arrivals": lambda: _arrivals(work, read, failing),
                "quality": lambda: work.saved(
                    quality(rejected(rows), files, read.processes, read.single, found).coalesce(1), "quality"
                ),
            },
        )
    with work.step("what if"):
        spans_, came = made["arrivals"]
        tried = work.none(WHAT_IF_COLUMNS)
        if failing is not None:
            tried = what_if(spans_, came, read.few, found, made["outages"], made["cost"])
        tried = work.saved(tried.coalesce(1), "what_if")
    with work.step("page"):
        tables = {"messages": found, "what_if": tried, **{name: made[name] for name in ("outages", "quality", "cost")}}
        facts = gather(tables, sheet)
        report.balance, report.late_s = facts.balance, facts.late_s
        counts = {"entity": facts.outages_of_entities, "namespace": facts.outages_all}
        report.outages = {scope: count for scope, count in counts.items() if count}
        report.problems = {name: count for name, (count, *_) in sorted(facts.problems.items())}
        report.page = write_page(spark, page(facts), out)
    report.seconds = work.seconds
    return report


@dataclass(frozen=True)
class _Read:
    """What tables are made of.

    Attributes:
        processes: of :func:`kombu_paired.pipeline.tables.quality.processes`.
        single: of :func:`kombu_paired.pipeline.tables.quality.once`.
        few: the special events, each once.
        events: all events, each once.
    """

    processes: DataFrame
    single: DataFrame
    few: DataFrame
    events: DataFrame


def _read(work: _Work, every: DataFrame) -> tuple[_Read, DataFrame | None]:
    """What was read; and the intervals, None if nothing failed."""
    writers = work.saved(processes(every), "processes")
    apart = work.saved(special(every, writers), "special")
    single = work.saved(once(apart), "doubled")
    few = without_copies(apart, single)
    failing = work.saved(intervals(few), "intervals")
    read = _Read(writers, single, few, plain(every, writers).unionByName(few))
    return read, None if failing.isEmpty() else failing


def _outages(
    work: _Work, read: _Read, failing: DataFrame | None, found: DataFrame, metrics: DataFrame | None
) -> DataFrame:
    happened = work.none(OUTAGE_COLUMNS) if failing is None else outages(failing, read.events, found)
    happened = work.saved(happened, "outages", "day")
    if metrics is not None:
        work.saved(service_side(happened, metrics), "service")
    return happened


def _cost(work: _Work, read: _Read, found: DataFrame, sheet: PriceSheet | None) -> DataFrame:
    weights = work.saved(heavy(read.few, found), "heavy")
    return work.saved(cost(read.events, weights, sheet), "cost", "day")


def _arrivals(work: _Work, read: _Read, failing: DataFrame | None) -> tuple[DataFrame, DataFrame]:
    """The spans, and the arrivals."""
    failed = work.saved(work.none(SPAN_COLUMNS) if failing is None else spans(failing), "spans")
    reach = {"longest_failover": max(GRID.failover_intervals), "longest_ping": max(GRID.ping_intervals)}
    came = work.none(ARRIVAL_COLUMNS) if failing is None else arrivals(read.events, failed, **reach)
    return failed, work.saved(came, "arrivals")
