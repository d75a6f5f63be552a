"""The tables of a report, kept up to date while the journals grow: by Spark Structured Streaming.

A round looks at the folders, has Spark read all that is new into the
:class:`~kombu_paired.pipeline.live.store.EventStore`, and then makes the tables of what is there. Nothing is kept in
memory from one round to the next: what was read is in the checkpoint and in the store, and a watch that is killed goes
on from there.
"""

from __future__ import annotations

import fcntl
import json
import os
import shutil
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from py4j.protocol import Py4JError
from pyspark.errors import PySparkException, StreamingQueryException
from pyspark.sql import DataFrame, Observation, SparkSession
from pyspark.sql import functions as F
from tenacity import Retrying, retry_if_exception, stop_after_attempt

from kombu_paired.journal.format import ENDINGS
from kombu_paired.pipeline.costs.prices import PriceSheet
from kombu_paired.pipeline.live.folders import Folders, Inventory
from kombu_paired.pipeline.live.store import EventStore
from kombu_paired.pipeline.live.tail import BATCH, TASK, JournalSource
from kombu_paired.pipeline.parquet import write_table
from kombu_paired.pipeline.reading import NoJournals, judged
from kombu_paired.pipeline.report import LOCK, Report, TakenFolder, make_tables
from kombu_paired.pipeline.schema import CORRUPT, REJECTED, lines_schema
from kombu_paired.pipeline.tables.outages import GAP

__all__ = ("SPARK_SETTINGS", "Refresh", "Stuck", "Watch", "only_one", "parsed", "watch")

#: Spark's settings for a watch, which runs for weeks: what it remembers of the past is kept small.
SPARK_SETTINGS = {
    "spark.sql.streaming.minBatchesToRetain": "10",
    "spark.sql.streaming.numRecentProgressUpdates": "1",
    # A watch that is stopped does not wait for a batch: it is read again.
    "spark.sql.streaming.stopTimeout": "1s",
    "spark.ui.retainedJobs": "50",
    "spark.ui.retainedStages": "50",
    "spark.ui.retainedTasks": "1000",
    "spark.sql.ui.retainedExecutions": "50",
}
#: In a second.
MICROSECONDS = 1_000_000
#: What some editors put at the beginning of a file.
BYTE_ORDER_MARK = "\ufeff"
MOST_CHARACTERS = 2**31 - 1
#: A link to the folder of the tables as they are now; replacing it replaces them all.
CURRENT = "tables"
#: How many outages are told of a refresh.
MOST_OUTAGES = 20
#: What Spark says of a Python process of its own that took longer than ten seconds to begin, which no setting changes
#: (``PythonWorkerFactory``, Spark 4.3): the machine has other things to do. And how often it is begun in all.
NOT_CONNECTED, TRIES = "Python worker failed to connect back", 5


class Stuck(Exception):
    """Spark cannot go on; the text says why."""


@dataclass
class Refresh:
    """What there is to say after the tables were made.

    Attributes:
        at: when, in seconds since 1970.
        report: what the tables say, in short.
        outages: entities that fail now: pairing, entity, since (seconds since 1970), processes, waiting (messages).
        latest: when the latest event happened, in seconds since 1970.
        seconds: how long the tables took to make.
    """

    at: float
    report: Report
    outages: list[dict[str, Any]] = field(default_factory=list)
    latest: float | None = None
    seconds: float = 0.0

    @property
    def lag(self) -> float | None:
        """Seconds from the latest event to the tables; of old journals, and where clocks differ, it says little."""
        return None if self.latest is None else max(self.at - self.latest, 0.0)


def watch(
    spark: SparkSession,
    paths: Sequence[str],
    out: str,
    *,
    every: float = 30.0,
    last: float = 7 * 86400.0,
    sheet: PriceSheet | None = None,
    once: bool = False,
    on_step: Callable[[str], None] = lambda step: None,
    sleep: Callable[[float], None] = time.sleep,
) -> Iterator[Refresh]:
    """Keep the tables up to date, and tell of each time that they were made.

    Arguments:
        paths: files and folders of journals.
        out: a folder of this watch alone.
        every: seconds between two looks.
        last: seconds; the tables tell of what happened in so many of them before the latest event.
        once: all that is there now, and then it ends.

    Raises:
        NoJournals: a path is not there; with ``once`` also if there is no journal.
        TakenFolder: another watch, or a report, has the folder.
        Stuck: Spark cannot go on.
        OSError: the disk is full, or the like.
    """
    with only_one(out) as place, _told():
        one = Watch(spark, paths, place, last=last, sheet=sheet, on_step=on_step)
        began = ended = time.monotonic() - every
        is_old = True
        while True:
            look_at = time.monotonic()
            inventory = one.take()
            if once and not inventory.files:
                raise NoJournals(f"no journal at {', '.join(paths)}: looked for files that end in {', '.join(ENDINGS)}")
            is_old = is_old or one.has_new
            # Making the tables takes no more than half of the time, however long it takes.
            is_due = time.monotonic() - ended >= max(every, ended - began)
            if is_old and (inventory.is_all if once else is_due):
                began = time.monotonic()
                yield one.refresh(inventory)
                ended, is_old = time.monotonic(), False
            if inventory.is_all:
                if once:
                    return
                sleep(max(every - (time.monotonic() - look_at), ended - began if is_old else 0.0, 0.1))


class Watch:
    """What is read, and what it becomes.

    Arguments:
        place: the folder of the tables; it is this watch's alone.
        batch: bytes, not compressed, that are read at a time; by default as many as keep all cores busy.
    """

    def __init__(
        self,
        spark: SparkSession,
        paths: Sequence[str],
        place: Path,
        *,
        last: float = 7 * 86400.0,
        sheet: PriceSheet | None = None,
        batch: int | None = None,
        on_step: Callable[[str], None] = lambda step: None,
    ) -> None:
        self._spark, self._place, self._last, self._sheet = spark, place, last, sheet
        self._batch = batch or max(BATCH, TASK * spark.sparkContext.defaultParallelism)
        self._on_step = on_step
        self._checkpoint = place / "checkpoint"
        self._target = place / "target.json"
        #: There while nothing is left of the target: the last query came to its end.
        self._done = place / "done"
        self._failure: Exception | None = None
        if not (self._checkpoint / "metadata").exists():  # everything is read again
            shutil.rmtree(place / "events", ignore_errors=True)
            self._done.unlink(missing_ok=True)
        self.store = EventStore(spark, place / "events")
        self.folders = Folders(paths, place / "seen.json", beside=str(place))
        self.has_new = False
        missing = self.folders.missing()
        if missing:
            raise NoJournals(f"there is no {missing[0]}: name the journals' folder, or one of their files")
        spark.dataSource.register(JournalSource)

    # -- reading ------------------------------------------------------------------------------------------------------

    def take(self) -> Inventory:
        """Read what is new into the store; afterwards ``has_new`` says whether there was anything."""
        self._on_step("look")
        inventory = self.folders.look()
        target = json.dumps(inventory.target, sort_keys=True)
        self.has_new = not self._target.exists() or self._target.read_text() != target or not self._done.exists()
        if self.has_new:
            self._on_step("read")
            _replace(self._target, target)
            _patiently(self._run)
            while self.store.merge():
                pass
        return inventory

    def _run(self) -> None:
        self._done.unlink(missing_ok=True)
        options = {"target": str(self._target), "batch": str(self._batch)}
        lines = self._spark.readStream.format(JournalSource.name()).options(**options).load()
        query = (
            lines.writeStream.foreachBatch(self._keep)
            .option("checkpointLocation", str(self._checkpoint))
            .trigger(availableNow=True)
            .start()
        )
        try:
            query.awaitTermination()
        except StreamingQueryException as exc:
            raise self._failure or exc from exc
        finally:
            query.stop()
        self._done.touch()

    def _keep(self, lines: DataFrame, batch: int) -> None:
        rows = lines.transform(parsed)

        def write(place: str) -> int | None:
            observed = Observation()
            # A clock that is ahead must not keep its events for ever.
            time_of = F.least(F.col("time"), F.lit(round(time.time() * MICROSECONDS)))
            latest = F.max(F.when(F.col("event") != REJECTED, time_of))
            write_table(rows.observe(observed, latest.alias("latest")), place)
            found: int | None = observed.get["latest"]
            return found

        try:
            self.store.add(batch, write)
        except Exception as exc:
            self._failure = exc  # Spark would tell of it in a text with the whole traceback
            raise

    # -- tables -------------------------------------------------------------------------------------------------------

    def refresh(self, inventory: Inventory) -> Refresh:
        """Make the tables of all that is in the store, and put them in the place of those before."""
        began = time.monotonic()
        latest = self.store.latest()
        now = min(latest, round(time.time() * MICROSECONDS)) if latest is not None else 0
        since = now - round(self._last * MICROSECONDS)
        self.store.tidy(since)
        rows = self.store.read().where((F.col("event") == REJECTED) | (F.col("time") >= since))
        made = self._replaced(lambda out: make_tables(
            self._spark, rows, inventory.problems, out, sheet=self._sheet, on_step=self._on_step
        ))  # fmt: skip
        made.files = inventory.files
        outages = self._outages(now) if made.outages else []
        at = latest / MICROSECONDS if latest is not None else None
        return Refresh(time.time(), made, outages, at, time.monotonic() - began)

    def _replaced(self, make: Callable[[str], Report]) -> Report:
        """Tables that appear all at once, when they are whole. Those before stay for as long, for who reads them."""
        link = self._place / CURRENT
        former = link.resolve().name if link.is_symlink() else ""
        folders = [each for each in self._place.glob(f"{CURRENT}-*") if each.name != former]
        for each in folders:
            shutil.rmtree(each)
        number = int(former.rpartition("-")[2] or 0) + 1
        fresh = self._place / f"{CURRENT}-{number}"
        made = make(str(fresh))
        _link(link, fresh.name)
        for table in fresh.iterdir():
            if not (self._place / table.name).is_symlink():
                _link(self._place / table.name, f"{CURRENT}/{table.name}")
        return made

    def _outages(self, now: int) -> list[dict[str, Any]]:
        """Entities of which the last that is known is that they fail, and that not long ago."""
        outages = self._spark.read.parquet(str((self._place / CURRENT).resolve() / "outages"))
        is_out = F.col("restored_at").isNull() | (F.col("ended_at") > F.col("restored_at"))
        is_now = F.col("ended_at") >= F.timestamp_micros(F.lit(now - GAP))
        rows = outages.where((F.col("scope") == "entity") & is_out & is_now).select(
            "pairing",
            "entity",
            (F.unix_micros("first_failure_at") / MICROSECONDS).alias("since"),
            F.col("processes_unrestored").alias("processes"),
            F.col("messages_waiting").alias("waiting"),
        )
        order = (F.desc("waiting"), F.col("pairing"), F.col("entity"))
        return [row.asDict() for row in rows.orderBy(*order).limit(MOST_OUTAGES).collect()]


def parsed(lines: DataFrame) -> DataFrame:
    """The rows of :func:`kombu_paired.pipeline.reading.judged`, from ``file`` and ``line`` of a journal.

    Judges as Spark's reader of JSON files does, which a report uses, but for lines that no journal has: an array of
    events, and what is in another encoding than UTF-8, are malformed here, and not there.
    """
    text = F.col("line").cast("string")
    is_bad = ~F.is_valid_utf8(text)
    plain = F.when(text.startswith(BYTE_ORDER_MARK), F.substring(text, 2, MOST_CHARACTERS)).otherwise(text)
    options = {"mode": "PERMISSIVE", "columnNameOfCorruptRecord": CORRUPT}
    fields = F.from_json(F.when(~is_bad, plain), lines_schema(), options).alias("fields")
    corrupt = F.when(is_bad, F.make_valid_utf8(text)).otherwise(F.col(f"fields.{CORRUPT}"))
    names = [each.name for each in lines_schema().fields if each.name != CORRUPT]
    read = lines.select("file", "line", fields).select(
        "file", *(F.col(f"fields.{name}").alias(name) for name in names), corrupt.alias(CORRUPT)
    )
    return judged(read, F.col("file"))


def _is_slow_start(error: BaseException) -> bool:
    return NOT_CONNECTED in str(error)


#: For what goes on from the checkpoint, and so may be done again.
_patiently = Retrying(retry=retry_if_exception(_is_slow_start), stop=stop_after_attempt(TRIES), reraise=True)


@contextmanager
def _told() -> Iterator[None]:
    """What Spark raises, in a sentence."""
    try:
        yield
    except (PySparkException, Py4JError) as exc:
        lines = str(exc).strip().splitlines() or [type(exc).__name__]
        causes = [each.removeprefix("Caused by: ") for each in lines if each.startswith("Caused by: ")]
        raise Stuck(f"Spark cannot go on: {(causes or lines)[-1 if causes else 0]}") from exc


# -- the folder -------------------------------------------------------------------------------------------------------


@contextmanager
def only_one(out: str) -> Iterator[Path]:
    """The folder, as long as no other watch has it, nor anybody else has put anything there."""
    place = Path(out.removeprefix("file://")).absolute()
    if "://" in out and not out.startswith("file://"):
        raise TakenFolder(
            f"{out} is no folder of this machine: a watch keeps its tables in one, and replaces them there"
        )
    if place.exists() and not (place / LOCK).exists() and any(place.iterdir()):
        raise TakenFolder(f"{out} is not empty, and not of a watch: give it a folder of its own")
    place.mkdir(parents=True, exist_ok=True)
    with (place / LOCK).open("a") as lock:
        try:
            fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError as exc:
            raise TakenFolder(f"another watch keeps its tables in {out}: one folder, one watch") from exc
        yield place


def _replace(file: Path, text: str) -> None:
    beside = file.with_suffix(".new")
    beside.write_text(text)
    beside.replace(file)


def _link(link: Path, target: str) -> None:
    beside = link.with_name(f"{link.name}.new")
    beside.unlink(missing_ok=True)
    beside.symlink_to(target)
    os.replace(beside, link)
