"""The live tables: equal to a report's over the same journals, however they came, and whatever was killed meanwhile."""

from __future__ import annotations

import gzip
import itertools
import json
import os
import random
import shutil
import signal
import subprocess
import sys
import time
from collections import Counter
from contextlib import nullcontext
from pathlib import Path

import pyarrow.parquet as pq
import pytest
from click.testing import CliRunner
from pyspark.sql import functions as F

from kombu_paired.cli import main
from kombu_paired.cli import watch as cli_watch
from kombu_paired.journal.format import JOURNAL_VERSION, ORPHANED
from kombu_paired.pipeline import session
from kombu_paired.pipeline.live.watch import Refresh, Stuck, Watch, only_one, parsed, watch
from kombu_paired.pipeline.parquet import write_table
from kombu_paired.pipeline.reading import NoJournals, accepted, find_journals, read_events, write_events
from kombu_paired.pipeline.report import Report, TakenFolder, make_report
from kombu_paired.pipeline.tables.messages import messages, places
from kombu_paired.simulation import FleetSettings, simulate
from tests.pipeline.test_reading import STRANGE
from tests.pipeline.writing import line, write
from tests.support.spark import require_spark

pytestmark = pytest.mark.spark
TABLES = ("messages", "outages", "cost", "what_if", "quality", "processes", "places", "intervals")
#: Bytes: small, so that there are many batches.
BATCH = 400_000


def aged(folder):
    """Long enough ago that nobody writes to these files."""
    for file in folder.rglob("*.jsonl*"):
        os.utime(file, (time.time() - 2 * ORPHANED,) * 2)


@pytest.fixture(scope="module")
def simulated(spark, tmp_path_factory):
    """The journals of a fleet, and the tables that a report makes of them."""
    place = tmp_path_factory.mktemp("simulated")
    rare = {"duplicated": 0.005, "waiting": 0.02, "dead_lettered": 0.02, "expired": 0.02}
    settings = FleetSettings(messages=6_000, outages=4, garbage=0.01, copies=4, **rare)
    simulate(settings, place / "journals", place / "truth")
    aged(place / "journals")
    make_report(spark, [str(place / "journals")], str(place / "report"))
    return place


def assert_same_tables(out, wanted):
    """What the watch has made is what a report has made."""
    for name in TABLES:
        (columns, rows), (their_columns, theirs) = content(out / name), content(wanted / name)
        assert (name, columns) == (name, their_columns)
        wrong, missing = list((rows - theirs).elements()), list((theirs - rows).elements())
        assert (name, wrong[:3], missing[:3]) == (name, [], [])
        assert rows


def content(place):
    """Columns with their types, and how often each row is there."""
    table = pq.read_table(place, coerce_int96_timestamp_unit="us")
    rows = Counter(tuple(map(comparable, row)) for row in zip(*table.to_pydict().values(), strict=True))
    return [(each.name, each.type) for each in table.schema], rows


def comparable(value):
    """Sums of fractions depend on the order in which they are added, in their last digits."""
    return round(value, 6) if isinstance(value, float) else tuple(value) if isinstance(value, list) else value


# -- equal to a report ------------------------------------------------------------------------------------------------


def test_tables_are_those_of_a_report_though_files_came_in_any_order_and_in_many_batches(spark, simulated, tmp_path):
    """Files come at random, half of them growing first; copies may come before or after what they are copies of."""
    files = sorted((simulated / "journals").iterdir())
    rng, journals, out = random.Random(3), tmp_path / "journals", tmp_path / "out"
    rng.shuffle(files)
    # A plain copy is known by its name only beside the compressed one: it may come first, but not be read first.
    files.sort(key=lambda file: file.name.endswith(".jsonl"))
    journals.mkdir()
    with only_one(str(out)) as place:
        one = Watch(spark, [str(journals)], place, batch=BATCH)
        growing = []
        for number in range(6):
            for file in growing:
                grown(journals, file)
            growing = []
            for file in files[number::6]:
                if rng.random() < 0.3 and is_journal(file):
                    half(journals, file, rng)
                    growing.append(file)
                else:
                    shutil.copy2(file, journals)
            one.take()
        for file in growing:
            grown(journals, file)
        refresh = one.refresh(one.take())
    assert len(one.store.segments()) > 3
    assert_same_tables(out, simulated / "report")
    assert refresh.report.problems["duplicate_events"] > 0
    assert {"truncated", "malformed", "unknown_version", "empty", "unreadable"} <= set(refresh.report.problems)


def is_journal(file):
    return file.name.startswith("2026") and file.name.endswith(".jsonl.gz") and ".copy" not in file.name


def half(journals, file, rng):
    """The first part of a journal, as its process writes it: events only, since a garbage line names its file."""
    lines = gzip.decompress(file.read_bytes()).splitlines(keepends=True)
    good = next((place for place, each in enumerate(lines) if not is_event(each)), len(lines))
    content = b"".join(lines[:good])
    write(journals / file.name.replace(".gz", ".part"), content[: rng.randrange(len(content) + 1)])


def is_event(text):
    try:
        return json.loads(text).get("v") in range(1, JOURNAL_VERSION + 1) and json.loads(text).get("pid", 0) > 1
    except (ValueError, AttributeError):
        return False


def grown(journals, file):
    """The rest of it, compressed."""
    shutil.copy2(file, journals)
    (journals / file.name.replace(".gz", ".part")).unlink()


def test_a_line_is_judged_as_a_report_judges_it(spark, tmp_path):
    for number, (text, _) in enumerate(STRANGE):
        write(tmp_path / f"{number} +%.jsonl", line(number + 1, message_id="before"), text, "", "   ", line(99) + "\r")
    write(tmp_path / "mark.jsonl", b"\xef\xbb\xbf" + line(7).encode() + b"\n")
    write_events(spark, find_journals(spark, [str(tmp_path)]), str(tmp_path / "batch"))
    wanted = read_events(spark, str(tmp_path / "batch"))
    rows = [
        (file.as_uri(), bytearray(each))
        for file in tmp_path.glob("*.jsonl")
        for each in file.read_bytes().split(b"\n")
        if each.strip()
    ]
    found = parsed(spark.createDataFrame(rows, "file string, line binary"))
    columns = [each for each in wanted.columns if each not in ("line", "file")]
    file = F.replace("file", F.lit("file:///"), F.lit("file:/"))
    wanted, found = (
        table.select(*columns, F.url_decode(F.replace(file, F.lit("+"), F.lit("%2B"))).alias("file"))
        for table in (wanted, found)
    )
    events = F.col("problem").isNull()
    assert found.exceptAll(wanted).where(events).collect() == wanted.exceptAll(found).where(events).collect() == []
    judgements = [sorted((row.file, row.problem) for row in each.where(~events).collect()) for each in (wanted, found)]
    assert judgements[0] == judgements[1]
    assert len(judgements[0]) == len(STRANGE)


def test_lines_of_all_versions_are_judged_as_a_report_judges_them(spark, next_version):
    texts = [line(v=each) for each in range(next_version + 2)] + [line(v=next_version, colour="octarine")]
    found = parsed(spark.createDataFrame([("file:///a", text.encode()) for text in texts], "file string, line binary"))
    judgements = [(row.problem, row.colour) for row in found.collect()]
    read = [(None, None)] * next_version
    assert judgements == [("malformed", None), *read, ("unknown_version", None), (None, "octarine")]


# -- killed -----------------------------------------------------------------------------------------------------------


def command(journals, out, *arguments):
    options = ["--journal", str(journals), "--out", str(out), *arguments]
    return [sys.executable, "-m", "kombu_paired.cli", "watch", *options]


@pytest.fixture
def started():
    """Start a watch in a process group of its own; none outlives its test."""
    require_spark()
    processes = []

    def start(*arguments):
        process = subprocess.Popen(
            command(*arguments), stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True,
            start_new_session=True, cwd=Path(__file__).parents[2],
        )  # fmt: skip
        processes.append(process)
        return process

    yield start
    for process in processes:
        if process.poll() is None:
            os.killpg(process.pid, signal.SIGKILL)
            process.wait()


def wait_for(process, what):
    deadline = time.monotonic() + 600
    while not what():
        assert process.poll() is None, process.communicate()
        assert time.monotonic() < deadline
        time.sleep(0.002)


def killed(process):
    process.kill()
    process.wait()
    process.stdout.close()
    process.stderr.close()


@pytest.mark.slow
def test_after_three_kills_nothing_is_lost_or_counted_twice(spark, simulated, started, tmp_path):
    """Killed with a batch planned, with it half written, and with it kept but its tables not made."""
    files = sorted((simulated / "journals").iterdir())
    journals, out = tmp_path / "journals", tmp_path / "out"
    journals.mkdir()
    random.Random(5).shuffle(files)
    files.sort(key=lambda file: file.name.endswith(".jsonl"))
    moments = [
        lambda: (out / "checkpoint" / "offsets" / "0").exists(),
        lambda: any((out / "events").glob("1-1.*.new/_temporary/0/*/*.parquet")) or (out / "events" / "1-1").exists(),
        lambda: (out / "events" / "2-2").exists(),
    ]
    for number, moment in enumerate(moments):
        for file in files[number::4]:
            shutil.copy2(file, journals)
        process = started(journals, out, "--every", "0.1")
        wait_for(process, moment)
        killed(process)
    for file in files[3::4]:
        shutil.copy2(file, journals)
    [refresh] = refreshes(spark, journals, out, once=True)
    assert refresh.report.balance["lost"] == 0
    assert_same_tables(out, simulated / "report")


def test_a_python_that_takes_long_to_begin_is_begun_again(spark, journals, tmp_path, monkeypatch):
    """Spark waits ten seconds for it; on a busy machine it may take longer."""
    slow, waited = tmp_path / "python", tmp_path / "waited"
    is_first = f'case "$*" in *streaming_source_runner*) [ -e "{waited}" ] || {{ touch "{waited}"; sleep 11; }};; esac'
    write(slow, "#!/bin/sh", is_first, f'exec "{sys.executable}" "$@"')
    slow.chmod(0o755)
    monkeypatch.setattr(spark.sparkContext, "pythonExec", str(slow))
    read(spark, journals, tmp_path / "out")
    assert waited.exists()


@pytest.mark.slow
@pytest.mark.alone
def test_it_stops_at_once_and_cleanly(started, tmp_path):
    """At either signal. Both watches begin together: that takes a while, and the machine does nothing else."""
    write(tmp_path / "journals" / "a.jsonl", line(1, message_id="a", entity="orders"))
    numbers = (signal.SIGINT, signal.SIGTERM)
    watches = {each: started(tmp_path / "journals", tmp_path / each.name, "--every", "0.1") for each in numbers}
    for process in watches.values():
        assert "1 sent, 0 diverted, 0 waiting. Nothing is down." in process.stdout.readline()
    for number, process in watches.items():
        process.send_signal(number)
        began = time.monotonic()
        process.communicate(timeout=20)
        assert (number, process.returncode) == (number, 0)
        assert time.monotonic() - began < 10  # on a machine that does nothing else it is below 2


# -- what is replaced -------------------------------------------------------------------------------------------------


def seqs(spark, out):
    return sorted(row[0] for row in spark.read.parquet(str(out / "messages")).select("message_id").collect())


@pytest.fixture
def journals(tmp_path):
    folder = tmp_path / "journals"
    write(folder / "a.jsonl", line(1, message_id="a", entity="orders"), line(3, "consumed", message_id="a"))
    return folder


def refreshes(spark, journals, out, **options):
    return watch(spark, [str(journals)], str(out), **options)


def read(spark, journals, out):
    """A watch that ends before it makes tables, which takes most of its time."""
    with only_one(str(out)) as place:
        one = Watch(spark, [str(journals)], place)
        assert one.take().is_all
        assert one.has_new


@pytest.fixture
def messages_alone(monkeypatch):
    """A watch makes only one table, where a test looks at no other: each takes a second."""

    def make(spark, rows, problems, out, **options):
        events = accepted(rows)
        found = messages(events, places(events))
        write_table(found, f"{out}/messages", "day")
        return Report(balance={"messages": spark.read.schema(found.schema).parquet(f"{out}/messages").count()})

    monkeypatch.setattr("kombu_paired.pipeline.live.watch.make_tables", make)


@pytest.mark.usefixtures("messages_alone")
def test_tables_grow_and_those_before_stay_whole_for_who_reads_them(spark, tmp_path, journals, monkeypatch):
    out, waits, now = tmp_path / "out", [], time.monotonic
    monkeypatch.setattr("kombu_paired.pipeline.live.watch.time.monotonic", lambda: now() + sum(waits))

    def sleep(seconds):
        waits.append(seconds)
        write(journals / f"{len(waits)}.jsonl", line(10 + len(waits), message_id=f"m{len(waits)}", pid=len(waits)))

    each = refreshes(spark, journals, out, every=0.01, sleep=sleep)
    first = next(each)
    assert (first.report.balance["messages"], first.report.files, first.latest) == (1, 1, 3.0)
    before = (out / "tables").resolve()
    second = next(each)
    assert second.report.balance["messages"] > 1
    assert seqs(spark, out) == ["a", *sorted(f"m{number + 1}" for number in range(len(waits)))]
    assert (out / "tables").resolve() != before
    assert seqs(spark, before) == ["a"]
    next(each)
    assert not before.exists()
    each.close()


def test_a_refresh_takes_no_more_than_half_of_the_time(spark, tmp_path, journals, monkeypatch):
    now, looks = [1000.0], []
    monkeypatch.setattr("kombu_paired.pipeline.live.watch.time.monotonic", lambda: now[0])
    monkeypatch.setattr(Watch, "take", lambda one: looks.append(now[0]) or setattr(one, "has_new", True) or Look())
    monkeypatch.setattr(Watch, "refresh", lambda one, look: now.__setitem__(0, now[0] + 100) or look)

    class Look:
        is_all, files = True, 1

    each = refreshes(spark, journals, tmp_path / "out", every=30, sleep=lambda s: now.__setitem__(0, now[0] + s))
    ends = []
    for _ in range(4):
        next(each)
        ends.append(now[0])
    each.close()
    assert all(200 <= later - sooner <= 230 for sooner, later in itertools.pairwise(ends))


@pytest.mark.usefixtures("messages_alone")
def test_nothing_is_made_anew_where_nothing_is_new(spark, tmp_path, journals):
    naps = []

    def sleep(seconds):
        naps.append(seconds)
        if len(naps) == 5:
            raise InterruptedError

    each = refreshes(spark, journals, tmp_path / "out", every=0.01, sleep=sleep)
    next(each)
    checkpoint = sorted((tmp_path / "out" / "checkpoint" / "offsets").iterdir())
    with pytest.raises(InterruptedError):
        next(each)
    assert sorted((tmp_path / "out" / "checkpoint" / "offsets").iterdir()) == checkpoint


def test_a_watch_goes_on_where_the_last_one_was_and_files_that_went_meanwhile_are_kept(spark, tmp_path, journals):
    out = tmp_path / "out"
    read(spark, journals, out)
    (journals / "a.jsonl").unlink()
    write(journals / "b.jsonl", line(9, message_id="b", pid=2))
    [refresh] = refreshes(spark, journals, out, once=True)
    assert seqs(spark, out) == ["a", "b"]
    assert refresh.report.problems == {"missing_events": 1}


def test_without_its_checkpoint_it_reads_all_again(spark, tmp_path, journals):
    out = tmp_path / "out"
    read(spark, journals, out)
    shutil.rmtree(out / "checkpoint")
    [refresh] = refreshes(spark, journals, out, once=True)
    assert (refresh.report.balance["messages"], refresh.report.problems) == (1, {"missing_events": 1})


# -- the last days ----------------------------------------------------------------------------------------------------

HOUR = 3_600_000_000


@pytest.mark.usefixtures("messages_alone")
def test_tables_tell_of_the_last_days_before_the_latest_event_and_what_is_older_goes(spark, tmp_path):
    journals, out = tmp_path / "journals", tmp_path / "out"
    for day in range(3):
        write(journals / f"{day}.jsonl", line(day + 1, message_id=f"m{day}", time=day * 24 * HOUR + HOUR))
        read(spark, journals, out)
    [refresh] = refreshes(spark, journals, out, once=True, last=1.5 * 86400)
    assert seqs(spark, out) == ["m1", "m2"]
    assert refresh.latest == 49 * 3600
    assert sorted(each.name for each in (out / "events").iterdir()) == ["1-1", "2-2"]


@pytest.mark.usefixtures("messages_alone")
def test_a_clock_that_is_ahead_does_no_harm(spark, tmp_path):
    now = int(time.time() * 1e6)
    write(tmp_path / "journals" / "a.jsonl", line(1, message_id="now", time=now - HOUR))
    write(tmp_path / "journals" / "b.jsonl", line(2, message_id="ahead", time=now + 10_000 * HOUR))
    [refresh] = refreshes(spark, tmp_path / "journals", tmp_path / "out", once=True, last=86400.0)
    assert seqs(spark, tmp_path / "out") == ["ahead", "now"]
    assert refresh.latest <= time.time()


def test_what_is_down_now_is_told(spark, tmp_path):
    def failed(seq, entity, **fields):
        return line(seq, "send_failed", entity=entity, message_id=f"{entity}{seq}", failure="unreachable", **fields)

    write(
        tmp_path / "journals" / "a.jsonl",
        failed(1, "long-ago"),
        failed(2, "orders", time=3 * HOUR),
        line(3, "diverted", entity="orders", message_id="orders2", route="backlog/1", time=3 * HOUR + 1),
        failed(4, "mended", time=3 * HOUR),
        line(5, "restored", entity="mended", time=3 * HOUR + 5),
    )
    [refresh] = refreshes(spark, tmp_path / "journals", tmp_path / "out", once=True)
    assert refresh.outages == [
        {"pairing": "main", "entity": "orders", "since": 10800.0, "processes": 1, "waiting": 1},
    ]


# -- what may be wrong ------------------------------------------------------------------------------------------------


def test_nothing_but_garbage(spark, tmp_path):
    write(tmp_path / "journals" / "a.jsonl", "garbage", "{}", b"\xff\xfe\n", line(event="syphon_started"))
    (tmp_path / "journals" / "b.jsonl.gz").write_bytes(b"no gzip")
    [refresh] = refreshes(spark, tmp_path / "journals", tmp_path / "out", once=True)
    assert (refresh.report.balance["messages"], refresh.outages) == (0, [])
    assert refresh.report.problems == {"malformed": 3, "unreadable": 1}


@pytest.mark.usefixtures("messages_alone")
def test_a_folder_without_a_journal_is_waited_for_and_with_once_it_is_an_error(spark, tmp_path):
    (tmp_path / "journals").mkdir()
    each = refreshes(spark, tmp_path / "journals", tmp_path / "out", every=0.01)
    assert (next(each).latest, next(iter([1]))) == (None, 1)
    each.close()
    with pytest.raises(NoJournals, match=r"no journal at .*looked for files that end in \.jsonl, "):
        list(refreshes(spark, tmp_path / "journals", tmp_path / "out", once=True))
    with pytest.raises(NoJournals, match=r"there is no .*nowhere"):
        list(refreshes(spark, tmp_path / "nowhere", tmp_path / "out", once=True))


def test_one_folder_one_watch(spark, tmp_path, journals):
    out = tmp_path / "out"
    with only_one(str(out)), pytest.raises(TakenFolder, match="another watch keeps its tables in"):
        next(refreshes(spark, journals, out, every=0.01))
    with pytest.raises(TakenFolder, match="belongs to kombu-paired watch"):
        make_report(spark, [str(journals)], str(out))


def test_a_folder_of_somebody_else_is_left_alone(spark, tmp_path, journals):
    write_events(spark, find_journals(spark, [str(journals)]), str(tmp_path / "out" / "events"))  # as a report begins
    before = sorted(tmp_path.rglob("*"))
    with pytest.raises(TakenFolder, match="is not empty, and not of a watch"):
        list(refreshes(spark, journals, tmp_path / "out", once=True))
    assert sorted(tmp_path.rglob("*")) == before
    with pytest.raises(TakenFolder, match="is no folder of this machine"), only_one("s3://bucket/out"):
        pass


@pytest.mark.usefixtures("messages_alone")
def test_what_cannot_be_kept_is_told_and_not_lost(spark, tmp_path, journals, monkeypatch):
    def full(*arguments):
        raise OSError(28, "No space left on device")

    with monkeypatch.context() as patch:
        patch.setattr("kombu_paired.pipeline.live.watch.write_table", full)
        with pytest.raises(OSError, match="No space left"):
            list(refreshes(spark, journals, tmp_path / "out", once=True))
    list(refreshes(spark, journals, tmp_path / "out", once=True))
    assert seqs(spark, tmp_path / "out") == ["a"]


def test_what_spark_cannot_do_is_told_in_a_sentence(spark, tmp_path, journals, monkeypatch):
    monkeypatch.setattr(
        "kombu_paired.pipeline.live.watch.make_tables", lambda spark, *rest, **more: spark.table("nowhere")
    )
    with pytest.raises(Stuck, match=r"^Spark cannot go on: \[TABLE_OR_VIEW_NOT_FOUND\] .*$"):
        list(refreshes(spark, journals, tmp_path / "out", once=True))


# -- the command ------------------------------------------------------------------------------------------------------


def run(*arguments):
    return CliRunner().invoke(main, ["watch", *map(str, arguments)])


@pytest.fixture
def same_session(spark, monkeypatch):
    monkeypatch.setattr(cli_watch, "spark_session", lambda **where: nullcontext(spark))


def test_the_command_once(same_session, spark, tmp_path, journals):
    result = run("--journal", journals, "--out", tmp_path / "out", "--once")
    assert result.exit_code == 0, result.output
    assert "1 sent, 0 diverted, 0 waiting. Nothing is down. In the journals: 1 missing_events. " in result.output
    assert result.output.count("\n") == 1
    result = run("--journal", journals, "--out", tmp_path / "out", "--once", "--json", "--last", "30m")
    found = json.loads(result.stdout)
    assert (found["balance"]["direct"], found["files"], found["down"]) == (1, 1, [])


def test_errors_have_no_traceback(same_session, tmp_path, journals):
    result = run("--journal", tmp_path / "nowhere", "--out", tmp_path / "out")
    assert (result.exit_code, result.output.startswith("Error: there is no ")) == (1, True)
    write(tmp_path / "taken" / "file", "text")
    result = run("--journal", journals, "--out", tmp_path / "taken")
    assert (result.exit_code, "is not empty, and not of a watch" in result.output) == (1, True)


@pytest.mark.parametrize(
    ("arguments", "said"),
    [
        ([], "--journal"),
        (["--journal", "x"], "--out"),
        (["--journal", "x", "--out", "y", "--last", "a week"], "is no duration: write e.g. 90s"),
        (["--journal", "x", "--out", "y", "--every", "0"], "it must be more than 0"),
        (["--journal", "x", "--out", "y", "--prices", "/nowhere"], "/nowhere"),
    ],
)
def test_wrong_usage(arguments, said):
    result = run(*arguments)
    assert result.exit_code == 2
    assert said in result.output


def test_without_spark_it_says_what_to_install(monkeypatch):
    monkeypatch.setattr(session, "_is_installed", lambda name: name != "pyarrow")
    result = run("--journal", "x", "--out", "y")
    assert result.exit_code == 1
    assert "a watch needs pyarrow, which is not installed: pip install 'kombu-paired[pipeline]'" in result.output


def test_the_live_view():
    counts = (
        "accepted",
        "direct",
        "diverted",
        "recovered",
        "stood-in",
        "waiting",
        "dead-lettered",
        "expired",
        "refused",
        "lost",
    )
    report = Report(balance=dict.fromkeys(counts, 1234), problems={"truncated": 2})
    down = {"pairing": "main", "entity": "orders", "since": 40.0, "processes": 3, "waiting": 17}
    text = shown(Refresh(100.0, report, [down], latest=99.0))
    assert all(each in text for each in ("1,234", "main/orders", "00:00:40", "59 s", "2 truncated", "1.0 s old"))
    assert "Nothing is down." in shown(Refresh(100.0, report))
    assert "Down: main/orders (3 processes)." in cli_watch.line(Refresh(100.0, report, [down], latest=99.0))


def shown(refresh):
    from rich.console import Console

    console = Console(width=120, record=True, file=open(os.devnull, "w"))  # noqa: SIM115
    for part in cli_watch._picture(refresh, "out"):
        console.print(part)
    return console.export_text()
