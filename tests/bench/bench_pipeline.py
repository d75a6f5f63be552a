"""How long does a report take, against a bare scan of the same files, in one run?

    python -m tests.bench.bench_pipeline [--events N] [--small N] [--rounds N] [--keep FOLDER] [--against FOLDER]

A simulated fleet to which everything happens writes about so many events (10^6 by default), and fewer (a tenth). The
bare scan reads the same compressed JSON with the same schema and writes nothing. DuckDB and Polars, where they are
installed, read the same files, and make the table of messages alone, with its fates: less than the report does. (Polars
stops at a line that is no JSON, of which there are some, and says so.) All are warmed up with the small fleet first.
Wall time, and time of the processor, which tells more on a busy machine.

With ``--against``, the same report by the code of this checkout and by that of another one (its folder), in turn. Each
is made by the command, in a new process that starts its Java, as a user has it. A run of each goes before, unmeasured,
for what they keep from one report to the next.
"""

from __future__ import annotations

import argparse
import contextlib
import ctypes
import importlib.util
import json
import os
import resource
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import psutil
from pyspark.sql import SparkSession

from kombu_paired.pipeline.report import make_report
from kombu_paired.pipeline.schema import journal_schema
from kombu_paired.pipeline.session import spark_session
from kombu_paired.simulation import FleetSettings, simulate

#: Events that a message makes, about: the fewer the more there are, since pings do not depend on them.
EVENTS_OF_A_MESSAGE = 2.3

#: Events of which the first time is asked for.
TIMED = ("sent", "diverted", "syphoned", "consumed")
#: The fates of messages, of events without copies; what the report says in more than one row of a process's lines.
FATES = """
WITH events AS (SELECT DISTINCT ON (host, pid, seq, time) * FROM lines WHERE v = 1 AND message_id IS NOT NULL),
gathered AS (
    SELECT message_id, min(entity) FILTER (event IN ('sent', 'diverted', 'syphoned')) AS entity,
        min(first_attempt) AS first_sent, min(bytes) AS bytes, min(route) AS route, bool_or(maybe_duplicate) AS maybe,
        min(time) FILTER (event = 'sent') AS sent_at, min(time) FILTER (event = 'diverted') AS diverted_at,
        min(time) FILTER (event = 'syphoned') AS syphoned_at, min(time) FILTER (event = 'consumed') AS consumed_at,
        count(*) FILTER (event = 'sent') AS sent, count(*) FILTER (event = 'diverted') AS diverted,
        count(*) FILTER (event = 'syphoned') AS syphoned, count(*) FILTER (event = 'dead_lettered') AS dead,
        count(*) FILTER (event = 'consumed') AS consumed
    FROM events GROUP BY message_id)
SELECT *, CASE WHEN greatest(sent + syphoned, consumed) > greatest(sent + diverted, 1) THEN 'duplicated'
    WHEN diverted > syphoned + dead THEN 'waiting' WHEN dead > 0 THEN 'dead-lettered'
    WHEN diverted + syphoned > 0 THEN 'recovered' WHEN sent > 0 THEN 'direct' ELSE 'unknown' END AS fate
FROM gathered
"""


def fleet(events: int, folder: Path) -> Path:
    """A folder of journals; made once, if the folder is kept."""
    place = folder / f"{events}"
    if not place.exists():
        # No binary file: a bare scan would stop at the one that is no gzip.
        messages = round(events / EVENTS_OF_A_MESSAGE)
        settings = FleetSettings(processes=100, entities=50, messages=messages, binary=0)
        simulate(settings, place / "journals", place / "truth")
    return place / "journals"


def events_in(journals: Path) -> int:
    truth: dict[str, int] = json.loads((journals.parent / "truth" / "truth-simulation.json").read_text())
    return truth["events"]


def processor_seconds() -> float:
    own = resource.getrusage(resource.RUSAGE_SELF)
    below = [each.cpu_times() for each in psutil.Process().children(recursive=True)]
    return own.ru_utime + own.ru_stime + sum(each.user + each.system for each in below)


def peak_mib(process: int) -> int:
    """The most memory that a process had."""
    status = Path(f"/proc/{process}/status").read_text()
    return int(next(line for line in status.splitlines() if line.startswith("VmHWM")).split()[1]) // 1024


def timed(what: Callable[[], Any], rounds: int) -> dict[str, float]:
    """Medians of wall and processor seconds."""
    walls, processors = [], []
    for _ in range(rounds):
        began, used = time.perf_counter(), processor_seconds()
        what()
        walls.append(time.perf_counter() - began)
        processors.append(processor_seconds() - used)
    return {"wall_s": round(statistics.median(walls), 1), "cpu_s": round(statistics.median(processors), 1)}


def bare_scan(spark: SparkSession, journals: Path) -> None:
    spark.read.schema(journal_schema()).json(str(journals)).write.format("noop").mode("overwrite").save()


def report(spark: SparkSession, journals: Path, out: Path, steps: dict[str, float]) -> None:
    made = make_report(spark, [str(journals)], str(out))
    assert_true(made.balance, journals)
    steps.update({name: round(seconds, 1) for name, seconds in made.seconds.items()})


def assert_true(balance: dict[str, int], journals: Path) -> None:
    truth = json.loads((journals.parent / "truth" / "truth-balance.json").read_text())
    assert {name: balance[name] for name in truth} == truth


HERE = Path(__file__).resolve().parents[2]


def adopt_orphans() -> None:
    """From now on a process below this one whose parent ends is this one's child: Java outlives who started it."""
    pr_set_child_subreaper = 36
    if ctypes.CDLL(None, use_errno=True).prctl(pr_set_child_subreaper, 1, 0, 0, 0):
        raise OSError(ctypes.get_errno(), "prctl")


def by_command(checkout: Path, journals: Path, scratch: Path) -> dict[str, float]:
    """Seconds of a report by the code of a checkout, and of the processor by all that it starts, to its very end."""
    out, cache = scratch / "out", scratch / "cache"
    command = [sys.executable, "-m", "kombu_paired.cli", "report", "--journal", journals, "--out", out, "--json"]
    environment = os.environ | {"PYTHONPATH": str(checkout), "XDG_CACHE_HOME": str(cache)}
    before, began = resource.getrusage(resource.RUSAGE_CHILDREN), time.perf_counter()
    done = subprocess.run(
        [*map(str, command)], env=environment, cwd=scratch, stdout=subprocess.PIPE, text=True, check=True
    )
    wall = time.perf_counter() - began
    with contextlib.suppress(ChildProcessError):  # there is none left
        while True:
            os.wait()
    after = resource.getrusage(resource.RUSAGE_CHILDREN)
    assert_true(json.loads(done.stdout)["balance"], journals)
    return {"wall_s": wall, "cpu_s": after.ru_utime + after.ru_stime - before.ru_utime - before.ru_stime}


def against(other: Path, journals: Path, rounds: int) -> dict[str, Any]:
    """Lower quartiles, medians and upper quartiles of this checkout, of the other, and of the ratio of each two."""
    adopt_orphans()
    checkouts = {"this": HERE, "other": other.resolve()}
    found: dict[str, list[dict[str, float]]] = {name: [] for name in checkouts}
    with tempfile.TemporaryDirectory() as folder:
        for name in checkouts:
            Path(folder, name).mkdir()
        for number in range(rounds + 1):
            for name in list(checkouts)[:: 1 if number % 2 else -1]:
                taken = by_command(checkouts[name], journals, Path(folder, name))
                if number:
                    found[name].append(taken)
                    print(json.dumps({name: taken, "load": round(os.getloadavg()[0], 2)}), flush=True)
    result: dict[str, Any] = {"events": events_in(journals)}
    for unit in ("wall_s", "cpu_s"):
        ours, theirs = ([each[unit] for each in found[name]] for name in checkouts)
        result[unit] = {name: quartiles(each) for name, each in (("this", ours), ("other", theirs))}
        result[unit]["ratio"] = quartiles([mine / its for mine, its in zip(ours, theirs, strict=True)])
    return result


def quartiles(numbers: list[float]) -> list[float]:
    found = statistics.quantiles(numbers, n=4, method="inclusive") if len(numbers) > 1 else numbers * 3
    return [round(each, 2) for each in found]


def by_duckdb(journals: Path, out: Path) -> None:
    import duckdb

    types = {"bigint": "BIGINT", "double": "DOUBLE", "string": "VARCHAR", "boolean": "BOOLEAN"}
    columns = {each.name: types[each.dataType.simpleString()] for each in journal_schema().fields}
    with duckdb.connect() as connection:
        connection.execute(f"SET threads = {os.cpu_count()}")
        connection.execute(
            f"CREATE VIEW lines AS SELECT * FROM read_json('{journals}/*.jsonl*', columns = {columns}, "
            "format = 'newline_delimited', ignore_errors = true)"
        )
        connection.execute(f"COPY ({FATES}) TO '{out}' (FORMAT parquet)")


def by_polars(journals: Path, out: Path) -> None:
    import polars as pl

    types = {"bigint": pl.Int64, "double": pl.Float64, "string": pl.String, "boolean": pl.Boolean}
    schema = {each.name: types[each.dataType.simpleString()] for each in journal_schema().fields}
    lines = pl.scan_ndjson(f"{journals}/*.jsonl*", schema=schema, ignore_errors=True)
    events = lines.filter((pl.col("v") == 1) & pl.col("message_id").is_not_null())
    events = events.unique(("host", "pid", "seq", "time"))

    def at(*kinds: str) -> pl.Expr:
        return pl.col("event").is_in(kinds)

    gathered = events.group_by("message_id").agg(
        pl.col("entity").filter(at("sent", "diverted", "syphoned")).min(),
        pl.col("first_attempt").min().alias("first_sent"),
        pl.col("bytes").min(),
        pl.col("route").min(),
        pl.col("maybe_duplicate").any().alias("maybe"),
        *(pl.col("time").filter(at(kind)).min().alias(f"{kind}_at") for kind in TIMED),
        *(at(kind).sum().cast(pl.Int64).alias(kind) for kind in (*TIMED, "dead_lettered")),
    )
    sent, diverted, syphoned = (pl.col(kind) for kind in ("sent", "diverted", "syphoned"))
    copies = pl.max_horizontal(sent + syphoned, "consumed")
    fate = (
        pl.when(copies > pl.max_horizontal(sent + diverted, pl.lit(1)))
        .then(pl.lit("duplicated"))
        .when(diverted > syphoned + pl.col("dead_lettered"))
        .then(pl.lit("waiting"))
        .when(pl.col("dead_lettered") > 0)
        .then(pl.lit("dead-lettered"))
        .when(diverted + syphoned > 0)
        .then(pl.lit("recovered"))
        .when(sent > 0)
        .then(pl.lit("direct"))
        .otherwise(pl.lit("unknown"))
    )
    gathered.with_columns(fate.alias("fate")).sink_parquet(out)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--events", type=float, default=1e6)
    parser.add_argument("--small", type=float, help="events of the small fleet; by default a tenth")
    parser.add_argument("--rounds", type=int, default=1)
    parser.add_argument("--keep", type=Path, help="a folder where the journals are kept for another run")
    parser.add_argument("--against", type=Path, metavar="FOLDER", help="another checkout, to make the same reports by")
    options = parser.parse_args()
    if options.against:
        with tempfile.TemporaryDirectory() as scratch:
            journals = fleet(round(options.events), options.keep or Path(scratch))
            result = against(options.against, journals, options.rounds)
        print(json.dumps({**result, "load": round(os.getloadavg()[0], 2)}))
        return
    with tempfile.TemporaryDirectory() as scratch, spark_session() as spark:
        place = options.keep or Path(scratch)
        large, small = (fleet(round(each), place) for each in (options.events, options.small or options.events / 10))
        out, steps = Path(scratch, "out"), {}
        result: dict[str, Any] = {}
        bare_scan(spark, small)
        report(spark, small, out, steps)
        for name, journals in (("small", small), ("large", large)):
            scan = timed(lambda journals=journals: bare_scan(spark, journals), options.rounds)
            ours = timed(lambda journals=journals: report(spark, journals, out, steps), options.rounds)
            result[name] = {"events": events_in(journals), "scan": scan, "report": ours, "steps": dict(steps)}
            result[name] |= {f"times_{unit}": round(ours[unit] / scan[unit], 2) for unit in ("wall_s", "cpu_s")}
            print(json.dumps({name: result[name]}), flush=True)
        for unit in ("wall_s", "cpu_s"):
            times = {name: result["large"][name][unit] / result["small"][name][unit] for name in ("scan", "report")}
            result[f"growth_{unit}"] = {name: round(value, 1) for name, value in times.items()}
        for name, other in (("duckdb", by_duckdb), ("polars", by_polars)):
            if importlib.util.find_spec(name):
                try:
                    result[name] = timed(
                        lambda other=other: other(large, Path(scratch, "other.parquet")), options.rounds
                    )
                except Exception as exc:  # whatever it says is printed
                    result[name] = f"{type(exc).__name__}: {exc}".splitlines()[0]
                print(json.dumps({name: result[name]}), flush=True)
        [java] = psutil.Process().children()
        result["java_peak_mib"] = peak_mib(java.pid)
    print(json.dumps({**result, "load": round(os.getloadavg()[0], 2)}))


if __name__ == "__main__":
    main()
