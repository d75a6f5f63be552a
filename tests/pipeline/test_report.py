"""The whole report against a simulated fleet, whose truth is known: every table, every row, exactly."""

from __future__ import annotations

import gzip
import json
import random
import subprocess
import sys
import threading
import time
from pathlib import Path

import pytest
from click.testing import CliRunner
from pyspark.sql import functions as F

from kombu_paired.cli import main
from kombu_paired.cli import report as cli_report
from kombu_paired.journal.format import JOURNAL_VERSION
from kombu_paired.pipeline import session
from kombu_paired.pipeline.archive import CACHE
from kombu_paired.pipeline.reading import accepted, read_events
from kombu_paired.pipeline.report import STEPS, make_report
from kombu_paired.pipeline.schema import CORRUPT, lines_schema
from kombu_paired.pipeline.session import SparkUnavailable, require_spark, with_settings
from kombu_paired.pipeline.tables.quality import doubled, processes
from kombu_paired.pipeline.tables.what_if import GRID, WHAT_IF_COLUMNS
from kombu_paired.simulation import FleetSettings, simulate
from tests.pipeline.tables import each_once
from tests.pipeline.truth import assert_is_truth
from tests.pipeline.writing import line, write

MESSAGES = 20_000
#: Shares, so that of what seldom happens there is some.
RARE = {"duplicated": 0.005, "waiting": 0.005, "dead_lettered": 0.01, "expired": 0.01}
#: Spark compiles its queries, which the tests' session does not.
AS_EVERYBODY = {"spark.sql.codegen.wholeStage": "true", "spark.sql.codegen.factoryMode": "FALLBACK"}


@pytest.fixture(scope="module")
def fleet(spark, tmp_path_factory):
    """Journals of a fleet to which everything happens, one line of a hundred garbage, and the truth.

    A third of the files each: as they were, plain, and Parquet; in folders that say nothing of their order.
    """
    place = tmp_path_factory.mktemp("fleet")
    simulate(
        FleetSettings(messages=MESSAGES, garbage=0.01, copies=3, stand_in_after=30, **RARE),
        place / "simulated",
        place / "truth",
    )
    rng, became = random.Random(1), {}
    for file in sorted((place / "simulated").iterdir()):
        how = rng.choice(("gzip", "plain", "parquet"))
        folder = place / "journals" / str(rng.randrange(10))
        plain = file.with_suffix("")
        if how == "gzip" or file.suffix != ".gz" or plain.exists() or file.name.startswith(("binary", "empty")):
            write(folder / file.name).write_bytes(file.read_bytes())
        elif how == "plain":
            write(folder / plain.name, gzip.decompress(file.read_bytes()))
            became[file.name] = plain.name
        else:
            write(place / "to-parquet" / plain.name, gzip.decompress(file.read_bytes()))
            became[file.name] = None  # a table holds no line that does not parse
    lines = spark.read.schema(lines_schema()).json(str(place / "to-parquet"))
    of_a_process = f"{CORRUPT} is null and v <= {JOURNAL_VERSION} and pid > 1"  # garbage is of process 1, or of none
    events = lines.where(of_a_process).drop(CORRUPT)
    events.repartition(3).write.parquet(str(place / "journals" / "table"))
    truth = json.loads((place / "truth" / "truth-quality.json").read_text())
    rows = [
        row | {"file": became.get(row["file"], row["file"])} for row in truth if became.get(row["file"], "") is not None
    ]
    (place / "truth" / "truth-quality.json").write_text(json.dumps(rows))
    return place


@pytest.fixture(scope="module")
def out(spark, fleet):
    steps = []
    with with_settings(spark, AS_EVERYBODY):
        began = time.monotonic()
        made = make_report(spark, [str(fleet / "journals")], str(fleet / "out"), on_step=steps.append)
    assert tuple(steps) == tuple(made.seconds) == STEPS
    assert 0.9 < sum(made.seconds.values()) / (time.monotonic() - began) <= 1  # steps do not overlap, nor leave any out
    return made, fleet / "out"


@pytest.mark.parametrize("name", ["messages", "outages", "quality"])
def test_a_table_is_the_truth(spark, fleet, out, name):
    [truth] = (fleet / "truth").glob(f"truth-{name}.json*")
    assert_is_truth(spark, spark.read.parquet(str(out[1] / name)), truth)


def test_the_balance_is_the_truth(fleet, out):
    truth = json.loads((fleet / "truth" / "truth-balance.json").read_text())
    assert {name: out[0].balance[name] for name in truth} == truth
    assert truth["messages"] >= MESSAGES
    assert (
        min(
            truth[fate]
            for fate in ("recovered", "stood-in", "waiting", "dead-lettered", "expired", "duplicated", "unknown")
        )
        > 0
    )


def test_it_says_how_late_the_tasks_were_that_ran_during_an_outage(fleet, out):
    with gzip.open(fleet / "truth" / "truth-messages.jsonl.gz", "rt") as file:
        late = sorted(row["late_s"] for row in map(json.loads, file) if row["late_s"] is not None)
    middle, p95 = late[-(-len(late) // 2) - 1], late[-(-len(late) * 95 // 100) - 1]
    assert out[0].late_s == {"median": middle, "p95": p95, "longest": late[-1]}
    assert len(late) == out[0].balance["ran_meanwhile"] > 100


def test_every_problem_is_told(out):
    wanted = {"truncated", "malformed", "unknown_version", "empty", "unreadable"}
    assert set(out[0].problems) == wanted | {"missing_events", "duplicate_events", "clock_skew"}


def test_the_page_says_the_balance(out):
    page = (out[1] / "report.html").read_text()
    assert out[0].page == str(out[1] / "report.html")
    assert f"{out[0].balance['accepted']:,}" in page


def test_every_setting_of_the_grid_is_tried_and_one_is_recommended(spark, out):
    tried = spark.read.parquet(str(out[1] / "what_if"))
    assert tried.count() == len(GRID.failover_intervals) * len(GRID.ping_intervals) * len(GRID.backlog_queues)
    assert tried.where("is_recommended").count() == tried.where("is_recorded").count() == 1


def test_each_send_and_each_receive_is_an_operation(spark, out):
    stages = spark.read.parquet(str(out[1] / "cost")).groupBy("stage").agg(F.sum("operations")).collect()
    found = {row[0]: row[1] for row in stages}
    events = accepted(read_events(spark, str(out[1] / "events")))
    single = each_once(events, processes(events))
    calls = {row[0]: row[1] for row in single.groupBy("event").count().collect()}
    assert found["complete_at_primary"] == calls["consumed"]
    assert found["complete_in_backlog"] == sum(
        calls[each] for each in ("syphoned", "handed_out", "dead_lettered", "abandoned")
    )
    assert found["send_to_primary"] >= calls["sent"] > 0


def test_tables_are_partitioned_by_day(out):
    for name in ("messages", "outages", "cost"):
        assert {each.name for each in (out[1] / name).glob("day=*")} >= {"day=2026-03-02"}


def test_copies_are_compared_only_where_there_are_any(spark, out):
    every = accepted(read_events(spark, str(out[1] / "events")))
    found = processes(every)
    extra = every.count() - each_once(every, found).count()
    assert extra == out[0].problems["duplicate_events"]
    assert 0 < doubled(found).count() <= 3


# -- what may not stop it ---------------------------------------------------------------------------------------------


def test_nothing_but_garbage(spark, tmp_path, monkeypatch):
    """And nothing failed, so that nothing is planned of what outages need."""
    for name in ("outages", "spans", "arrivals", "what_if"):
        monkeypatch.setattr(f"kombu_paired.pipeline.report.{name}", None)
    write(tmp_path / "a.jsonl", "garbage", "{}", b"\xff\xfe\n", line(event="syphon_started"))
    (tmp_path / "b.jsonl.gz").write_bytes(b"no gzip")
    made = make_report(spark, [str(tmp_path)], str(tmp_path / "out"))
    assert (made.balance["messages"], made.outages) == (0, {})
    assert made.problems == {"malformed": 3, "unreadable": 1}
    assert spark.read.parquet(str(tmp_path / "out" / "what_if")).dtypes == list(WHAT_IF_COLUMNS.items())


def test_what_one_table_raises_is_raised_and_the_others_end(spark, tmp_path, monkeypatch):
    error = ZeroDivisionError("of the cost")

    def fail(*arguments):
        raise error

    monkeypatch.setattr("kombu_paired.pipeline.report.cost", fail)
    write(tmp_path / "a.jsonl", line(message_id="a", entity="orders"))
    with pytest.raises(ZeroDivisionError) as caught:
        make_report(spark, [str(tmp_path)], str(tmp_path / "out"))
    assert caught.value is error
    assert not [each for each in threading.enumerate() if each.name.startswith("kombu-paired-")]


def test_settings_are_for_a_block_alone(spark):
    name, unset = "spark.sql.shuffle.partitions", "spark.of.nobody"
    before = spark.conf.get(name)

    def fail():
        assert (spark.conf.get(name), spark.conf.get(unset)) == ("7", "true")
        raise ZeroDivisionError

    with pytest.raises(ZeroDivisionError), with_settings(spark, {name: "7", unset: "true"}):
        fail()
    assert (spark.conf.get(name), spark.conf.get(unset, None)) == (before, None)


# -- the command ------------------------------------------------------------------------------------------------------


def run(*arguments):
    return CliRunner().invoke(main, ["report", *map(str, arguments)])


@pytest.fixture
def same_session(spark, monkeypatch):
    """The command with the tests' session, which a second one of its own would cost seconds."""
    from contextlib import nullcontext

    monkeypatch.setattr(cli_report, "spark_session", lambda **where: nullcontext(spark))


def test_the_command_says_the_balance_first_and_a_second_report_replaces_the_first(same_session, tmp_path):
    write(tmp_path / "a.jsonl", line(1, message_id="a", entity="orders"), line(3, "consumed", message_id="a"))
    out = tmp_path / "out"  # within the journals' folder, and full of Parquet files
    result = run("--journal", tmp_path, "--out", out)
    assert result.exit_code == 0, result.output
    assert result.output.startswith("1 sent, 0 diverted, 0 recovered, 0 lost\n")
    assert "1 missing_events" in result.output
    as_json = json.loads(run("--journal", tmp_path, "--out", out, "--json", "--to", "1970-01-01T00:00:02").stdout)
    assert (as_json["balance"]["direct"], as_json["files"], as_json["problems"]) == (1, 1, {})


def test_no_journal_is_an_error_without_a_traceback(same_session, tmp_path):
    result = run("--journal", tmp_path, "--out", tmp_path / "out")
    assert result.exit_code == 1
    assert result.output.startswith("Error: no journal at")
    result = run("--journal", tmp_path, "--out", tmp_path / "out", "--azure-metrics", tmp_path / "nothing")
    assert result.exit_code == 1
    assert result.output.startswith("Error: no metrics at")


@pytest.mark.parametrize(
    ("arguments", "said"),
    [
        ([], "--journal"),
        (["--journal", "x"], "--out"),
        (["--journal", "x", "--out", "y", "--from", "yesterday"], "is no time: write e.g. 2026-03-02"),
        (["--journal", "x", "--out", "y", "--from", "2026-03-02", "--to", "2026-03-01"], "--from must be before --to"),
        (["--journal", "x", "--out", "y", "--master", "yarn", "--remote", "sc://z"], "give one of them"),
    ],
)
def test_wrong_usage(arguments, said):
    result = run(*arguments)
    assert result.exit_code == 2
    assert said in result.output


def test_times_are_utc_unless_they_say_otherwise():
    def moment(text):
        return cli_report.moment(None, None, text)

    assert moment("1970-01-01T00:00:01.5") == moment("1970-01-01T00:00:01.500Z") == 1_500_000
    assert moment("1970-01-01T02:00+02:00") == 0
    assert moment(None) is None


def test_without_spark_it_says_what_to_install(monkeypatch):
    monkeypatch.setattr(session, "_is_installed", lambda name: name not in ("pyspark", "pandas"))
    result = run("--journal", "x", "--out", "y")
    assert result.exit_code == 1
    assert (
        "a report needs pyspark, pandas, which are not installed: pip install 'kombu-paired[pipeline]'" in result.output
    )


def test_without_java_it_says_what_to_install(monkeypatch):
    monkeypatch.setattr(session, "_is_installed", lambda name: True)
    monkeypatch.setenv("JAVA_HOME", "/nowhere")
    with pytest.raises(SparkUnavailable, match=r"JAVA_HOME is /nowhere.*Java 17 or later"):
        require_spark()
    monkeypatch.delenv("JAVA_HOME")
    monkeypatch.setenv("PATH", "/nowhere")
    with pytest.raises(SparkUnavailable, match=r"no 'java' on the PATH: install Java 17 or later"):
        require_spark()
    require_spark("sc://a-server-has-its-own")


def test_spark_connect_needs_more_python_and_says_so(monkeypatch):
    monkeypatch.setattr(session, "_is_installed", lambda name: not name.startswith("grpc"))
    with pytest.raises(
        SparkUnavailable, match=r"grpc, grpc_status, which are not installed: pip install 'pyspark\[connect\]'"
    ):
        require_spark("sc://somewhere")


def test_a_java_that_cannot_run_spark_is_told_with_its_reason(tmp_path):
    """In a process of its own: this one has its Java."""
    java = write(tmp_path / "bin" / "java", "#!/bin/sh", "echo 'Error: far too old' >&2", "exit 1")
    java.chmod(0o755)
    command = [sys.executable, "-m", "kombu_paired.cli", "report", "--journal", "x", "--out", "y"]
    environment = {"JAVA_HOME": str(tmp_path), "PATH": "/usr/bin:/bin", CACHE: ""}
    done = subprocess.run(
        command, env=environment, capture_output=True, text=True, timeout=60, cwd=Path(__file__).parents[2]
    )
    assert done.returncode == 1
    assert "Java could not start Spark (Error: far too old): install Java 17 or later" in done.stderr
    assert "Traceback" not in done.stderr


def test_help_does_not_import_spark():
    program = (
        "import sys; from kombu_paired.cli import main\ntry: main(['report', '--help'])\nexcept SystemExit: pass\n"
    )
    done = subprocess.run(
        [sys.executable, "-c", program + "print('pyspark' in sys.modules)"], capture_output=True, text=True, timeout=60
    )
    assert "xit status" in done.stdout
    assert done.stdout.endswith("False\n")
