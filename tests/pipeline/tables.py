"""The tables of a simulated fleet, made step by step, so that a test can look at any of them."""

from __future__ import annotations

import datetime
import gzip
import json
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from pyspark.sql import DataFrame, SparkSession

from kombu_paired.pipeline.costs.prices import PriceSheet, Tier
from kombu_paired.pipeline.reading import accepted, find_journals, read_events, write_events
from kombu_paired.pipeline.schema import journal_schema
from kombu_paired.pipeline.tables.cost import cost, heavy
from kombu_paired.pipeline.tables.messages import messages
from kombu_paired.pipeline.tables.outages import intervals, outages
from kombu_paired.pipeline.tables.quality import once, plain, processes, special, without_copies
from kombu_paired.pipeline.tables.replay import arrivals, spans
from kombu_paired.pipeline.tables.what_if import Grid, what_if
from kombu_paired.simulation import FleetSettings, simulate

#: A fleet that sees outages, and the settings that are tried instead of its own.
RAN = FleetSettings(
    processes=4,
    days=0.25,
    outages=3,
    messages=24_000,
    seed=11,
    entities=3,
    outage_kinds=("namespace", "partial", "overlapping"),
    secondary_outages=0,
    backlog_queues=5,
).without_faults()
GRID = Grid((10.0, 40.0), (15.0, 60.0), (1, 5, 10))
SHEET = PriceSheet("a sheet", datetime.date(2026, 1, 1), "a test", "EUR", 9.81, 0, (Tier(None, 0.8),))


@dataclass
class Fleet:
    """A fleet's journals, and what the pipeline makes of them.

    Attributes:
        lines: every event once, as Python reads it.
    """

    folder: Path
    truth: Path
    lines: list[dict[str, Any]]
    events: DataFrame
    intervals: DataFrame
    messages: DataFrame
    outages: DataFrame

    def saved(self, table: DataFrame, name: str) -> DataFrame:
        """The table, worked out once."""
        return saved(table, self.folder.parent / "out" / name)

    def truth_messages(self) -> list[dict[str, Any]]:
        with gzip.open(self.truth / "truth-messages.jsonl.gz", "rt") as file:
            return [json.loads(line) for line in file]


def made_of(spark: SparkSession, settings: FleetSettings, place: Path) -> Fleet:
    """Simulate, read, and save the first tables."""
    folder, truth, out = place / "journals", place / "truth", place / "out"
    simulate(settings, folder, truth)
    write_events(spark, find_journals(spark, [str(folder)]), str(out / "events"))

    every = accepted(read_events(spark, str(out / "events")))
    events = each_once(every, saved(processes(every), out / "processes"))
    found, failing = saved(messages(events), out / "messages"), saved(intervals(events), out / "intervals")
    happened = saved(outages(failing, events, found), out / "outages")
    return Fleet(folder, truth, read_lines(folder), events, failing, found, happened)


@dataclass
class Tried:
    """What settings were tried on, and what became of it."""

    cost: DataFrame
    spans: DataFrame
    arrivals: DataFrame
    what_if: DataFrame


def tried_of(fleet: Fleet) -> Tried:
    """Try :data:`GRID`."""
    paid = fleet.saved(cost(fleet.events, heavy(fleet.events, fleet.messages), SHEET), "cost")
    known = fleet.saved(spans(fleet.intervals), "spans")
    reach = {"longest_failover": max(GRID.failover_intervals), "longest_ping": max(GRID.ping_intervals)}
    came = fleet.saved(arrivals(fleet.events, known, **reach), "arrivals")
    table = what_if(known, came, fleet.events, fleet.messages, fleet.outages, paid, GRID)
    return Tried(paid, known, came, fleet.saved(table, "what_if"))


def each_once(events: DataFrame, processes: DataFrame) -> DataFrame:
    """The events without copies, as a report puts them together."""
    apart = special(events, processes)
    return plain(events, processes).unionByName(without_copies(apart, once(apart)))


def saved(table: DataFrame, place: Path) -> DataFrame:
    table.write.parquet(str(place))
    return table.sparkSession.read.schema(table.schema).parquet(str(place))


def read_lines(folder: Path) -> list[dict[str, Any]]:
    """Every event of clean journals, without the pipeline."""
    lines = []
    for file in sorted(folder.glob("*.jsonl.gz")):
        with gzip.open(file, "rt") as content:
            lines += [json.loads(line) for line in content]
    return lines


def events_of(spark: SparkSession, *lines: dict[str, Any]) -> DataFrame:
    """Events by hand: what is left out is as of a process that does nothing else."""
    common = {"v": 1, "host": "h", "pid": 1, "pairing": "main", "seq": 1}
    return spark.createDataFrame([common | line for line in lines], journal_schema())
