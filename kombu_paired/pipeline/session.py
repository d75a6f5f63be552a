"""The Spark session of a report: local by default, a cluster where one is named. Importing this needs no Spark."""

from __future__ import annotations

import importlib.util
import os
import shutil
import sys
import tempfile
import warnings
from collections.abc import Iterator
from contextlib import contextmanager, nullcontext
from pathlib import Path
from typing import TYPE_CHECKING, Any

from kombu_paired.pipeline.archive import ClassArchive, class_archive

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

__all__ = ("SparkUnavailable", "require_spark", "share_done", "spark_session", "with_settings")

#: Modules that the pipeline needs, and the further ones of Spark Connect.
MODULES, CONNECT_MODULES = ("pyspark", "pandas", "pyarrow"), ("grpc", "grpc_status", "google.rpc", "zstandard")
INSTALL = "pip install 'kombu-paired[pipeline]'"
INSTALL_JAVA = (
    "install Java 17 or later (Debian and Ubuntu: apt-get install openjdk-17-jre-headless), "
    "or set JAVA_HOME to where it is"
)
#: Heap of a local session. It bounds memory: what does not fit is spilled to the scratch folder.
HEAP = "2g"
#: Nobody waits for a pause here, so the collector that takes the least time of all.
COLLECTOR = "-XX:+UseParallelGC"
#: Spark compiles each query, and stops for good when there is no more room for what is compiled.
CODE_CACHE = "-XX:ReservedCodeCacheSize=512m"
#: Of few rows: Java's second compiler takes longer than what it makes faster would have taken.
FIRST_COMPILER = "-XX:TieredStopAtLevel=1"
#: Of few rows, too: every part of them costs a task, and looking again at each plan costs more than a better one gains.
FEW_ROWS = {"spark.sql.shuffle.partitions": "2", "spark.sql.adaptive.enabled": "false"}

#: Spark says what concerns the user by raising; its log repeats that in hundreds of lines.
QUIET_LOG = """\
rootLogger.level = off
rootLogger.appenderRef.stderr.ref = stderr
appender.stderr.type = Console
appender.stderr.name = stderr
appender.stderr.target = SYSTEM_ERR
appender.stderr.layout.type = PatternLayout
appender.stderr.layout.pattern = %d{HH:mm:ss} %p %c{1}: %m%n
# Spark takes Python for a shell, and a shell's log level from here.
logger.shell.name = org.apache.spark.api.python.PythonGatewayServer
logger.shell.level = off
"""

#: Spark's own progress bar; and that each expression learns on which line of Python it was written, for messages that
#: nobody sees here. A server lets no client set them.
PROGRESS, DEBUGGING = "spark.ui.showConsoleProgress", "spark.python.sql.dataFrameDebugging.enabled"
#: True of every session. The tables are in UTC, and a number that does not fit is an error and not another number.
EVERYWHERE = {
    "spark.sql.session.timeZone": "UTC",
    "spark.sql.ansi.enabled": "true",
    "spark.sql.adaptive.enabled": "true",
    PROGRESS: "false",
    DEBUGGING: "false",
    # Without so many open files Spark would sort all rows by what a table is partitioned by.
    "spark.sql.maxConcurrentOutputFileWriters": "64",
    # A journal is small: counted as 4 MB each, as by default, they would make many tasks, and each task many files.
    "spark.sql.files.openCostInBytes": str(256 << 10),
    # Compressed files cannot be split: of smaller heaps of them, the last is sooner done.
    "spark.sql.files.maxPartitionBytes": str(32 << 20),
}


class SparkUnavailable(Exception):
    """Spark cannot be started here; the text says what to install or set."""


def require_spark(remote: str | None = None, *, command: str = "a report") -> None:
    """Raise :class:`SparkUnavailable`, with what to do, unless all is installed that a session needs.

    Arguments:
        remote: the URL of a Spark Connect server; then other modules are needed, and no Java.
        command: what needs it, for the text.
    """
    missing = [name for name in (*MODULES, *(CONNECT_MODULES if remote else ())) if not _is_installed(name)]
    if missing:
        what = "pip install 'pyspark[connect]'" if "pyspark" not in missing and remote else INSTALL
        are = "is" if len(missing) == 1 else "are"
        raise SparkUnavailable(f"{command} needs {', '.join(missing)}, which {are} not installed: {what}")
    if remote is None and _java() is None:
        home = os.environ.get("JAVA_HOME")
        where = f"JAVA_HOME is {home}, which has no bin/java" if home else "there is no 'java' on the PATH"
        raise SparkUnavailable(f"Spark needs Java, and {where}: {INSTALL_JAVA}")


def _is_installed(module: str) -> bool:
    try:
        return importlib.util.find_spec(module) is not None
    except ModuleNotFoundError:  # its parent is missing
        return False


def _java() -> str | None:
    home = os.environ.get("JAVA_HOME")
    return shutil.which("java", path=str(Path(home, "bin"))) if home else shutil.which("java")


@contextmanager
def spark_session(
    *,
    master: str | None = None,
    remote: str | None = None,
    few_rows: bool = False,
    settings: dict[str, str] | None = None,
) -> Iterator[SparkSession]:
    """A session, stopped at the end together with its temporary files.

    Arguments:
        master: as ``spark-submit --master`` has it. By default what ``spark-submit`` started this process for, else
            this machine with all its cores.
        remote: the URL of a Spark Connect server, ``sc://host:15002``.
        few_rows: it is for some 100,000 events, and not for many more (:func:`kombu_paired.pipeline.size.is_small`):
            sooner done with these, and slower with more. It makes no difference on a cluster.
        settings: Spark's own settings, stronger than the ones made here.

    Raises:
        SparkUnavailable: something is not installed, or the server does not answer.
    """
    require_spark(remote)
    from pyspark.errors import PySparkException
    from pyspark.sql import SparkSession

    is_local = remote is None and (master is None or master.startswith("local"))
    has_own_java = is_local and "PYSPARK_GATEWAY_PORT" not in os.environ
    archive = class_archive(str(_java()), _jars(), os.environ) if has_own_java else None
    with tempfile.TemporaryDirectory(prefix="kombu-paired-spark-") as scratch:
        builder = SparkSession.builder.appName("kombu-paired report")
        values = dict(EVERYWHERE)
        if remote is not None:
            builder = builder.remote(remote)
            del values[PROGRESS], values[DEBUGGING]
        elif has_own_java:
            values |= _local_settings(Path(scratch), few_rows, archive) | {"spark.master": master or "local[*]"}
        elif master is not None:
            values["spark.master"] = master
        for name, value in (values | (settings or {})).items():
            builder = builder.config(name, value)
        said = Path(scratch, "stderr")
        try:
            with _stderr_in(said) if is_local else nullcontext():
                session = builder.getOrCreate()
        except (PySparkException, OSError) as exc:
            raise SparkUnavailable(_why(exc, remote or master, said)) from exc
        if not is_local and remote is None:
            session.sparkContext.setLogLevel("ERROR")  # as of QUIET_LOG; what is logged before that, its owner chose
        with warnings.catch_warnings():
            # On a server Spark warns in Python of each sum over all rows. Those here are over few.
            warnings.filterwarnings("ignore", message="WARN WindowExpression")
            try:
                yield session
                if archive is not None and archive.classes.exists():
                    _keep_classes(session, archive)
            finally:
                session.stop()


def _local_settings(scratch: Path, few_rows: bool, archive: ClassArchive | None = None) -> dict[str, str]:
    # Spark resolves the machine's host name, and stops where nobody knows it; options alone do not prevent that.
    os.environ.setdefault("SPARK_LOCAL_IP", "127.0.0.1")
    # Of a Python data source: where this is not activated, the python3 on the PATH has none of these packages.
    os.environ.setdefault("PYSPARK_PYTHON", sys.executable)
    log = scratch / "log4j2.properties"
    log.write_text(QUIET_LOG)
    java = [f"-Dlog4j2.configurationFile={log.as_uri()}", CODE_CACHE]
    if "GC" not in os.environ.get("JDK_JAVA_OPTIONS", ""):  # Java takes one choice, and no two
        java.append(COLLECTOR)
    if few_rows:
        java.append(FIRST_COMPILER)
    if archive is not None:
        java += archive.java_options()
    return {
        "spark.driver.memory": HEAP,
        "spark.driver.host": "127.0.0.1",
        "spark.driver.bindAddress": "127.0.0.1",
        "spark.driver.extraJavaOptions": " ".join(java),
        "spark.ui.enabled": "false",
        "spark.scheduler.mode": "FAIR",  # of kombu_paired.pipeline.jobs
        "spark.sql.catalogImplementation": "in-memory",
        "spark.sql.warehouse.dir": (scratch / "warehouse").as_uri(),
        "spark.local.dir": str(scratch / "local"),
        # Listing files by a job of its own is for clusters.
        "spark.sql.sources.parallelPartitionDiscovery.threshold": "100000",
        "spark.sql.shuffle.partitions": str(4 * (os.cpu_count() or 1)),
        **(FEW_ROWS if few_rows else {}),
    }


def _jars() -> Path:
    """Where Spark's own classes are: as ``spark-submit`` finds them."""
    home = os.environ.get("SPARK_HOME")
    if home is None:
        import pyspark

        home = str(Path(pyspark.__file__).parent)
    return Path(home, "jars")


def _keep_classes(session: SparkSession, archive: ClassArchive) -> None:
    packages: Any = session.sparkContext._jvm
    java = packages.java.lang
    home, class_path = (java.System.getProperty(name) for name in ("java.home", "java.class.path"))
    archive.make(str(Path(home, "bin", "java")), class_path, java.ProcessHandle.current().pid())


@contextmanager
def _stderr_in(file: Path) -> Iterator[None]:
    """What is started meanwhile writes its errors there. Java greets everybody with a warning."""
    sys.stderr.flush()
    kept = os.dup(2)
    try:
        with file.open("wb") as instead:
            os.dup2(instead.fileno(), 2)
        yield
    finally:
        os.dup2(kept, 2)
        os.close(kept)


def _why(error: Exception, where: str | None, said: Path) -> str:
    if "JAVA_GATEWAY" in str(error):
        lines = said.read_text(errors="replace").split("\n") if said.exists() else []
        last = next((line for line in lines if "rror" in line), "it gave no reason")
        return f"Java could not start Spark ({last.strip()}): {INSTALL_JAVA}"
    place = f"Spark at {where}" if where else "Spark"
    return f"{place} cannot be used: {str(error).splitlines()[0]}"


@contextmanager
def with_settings(session: SparkSession, settings: dict[str, str]) -> Iterator[None]:
    """Spark's settings for the actions in the block alone."""
    before = {name: session.conf.get(name, None) for name in settings}
    for name, value in settings.items():
        session.conf.set(name, value)
    try:
        yield
    finally:
        for name, former in before.items():
            if former is None:
                session.conf.unset(name)
            else:
                session.conf.set(name, former)


def share_done(session: SparkSession) -> float | None:
    """How much of the jobs under way is done, 0 to 1; None when nothing runs or it cannot be known."""
    context = getattr(session, "_sc", None)  # Spark Connect has none
    if context is None:
        return None
    tracker = context.statusTracker()
    stages = [tracker.getStageInfo(each) for each in tracker.getActiveStageIds()]
    tasks = sum(stage.numTasks for stage in stages if stage)
    return sum(stage.numCompletedTasks for stage in stages if stage) / tasks if tasks else None
