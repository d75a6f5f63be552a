"""What is wrong with journals is counted, exactly, and copies count nowhere else."""

from __future__ import annotations

import pytest

from kombu_paired.pipeline.tables.quality import QUALITY_COLUMNS, doubled, once, processes, quality, special
from tests.pipeline.tables import each_once, events_of

S = 1_000_000


def line(seq, pid=1, host="h", time=None):
    return {"seq": seq, "pid": pid, "host": host, "time": S * seq if time is None else time, "event": "sent"}


LIFE, NEXT_LIFE = [line(seq) for seq in (1, 2, 4, 5)], [line(seq, time=(1000 + seq) * S) for seq in (1, 2, 3, 5, 6)]
THERE = sorted(set(range(1, 1000)) - {7, 63, 64, 65, 128, 998})

#: What happens to a process: its lines, and what is wrong with them.
PROCESSES = {
    "all there": ([line(seq) for seq in range(100, 300)], {}),
    "missing": ([line(seq) for seq in THERE], {"missing_events": 6}),
    "missing at the ends": ([line(5), line(6)], {}),
    "as many copies as are missing": (
        [line(1), line(2), line(2), line(4)],
        {"duplicate_events": 1, "missing_events": 1},
    ),
    "the pid comes again": ([*LIFE, *NEXT_LIFE], {"missing_events": 2}),
    "and a copy": ([*LIFE, *NEXT_LIFE, *NEXT_LIFE[:2]], {"duplicate_events": 2, "missing_events": 2}),
    "a thread is late with the first line": (
        [line(1, time=5100), line(2, time=5000), line(3, time=6000), line(3, time=6000)],
        {"duplicate_events": 1},
    ),
    "absurd": ([line(1), line(2**63 - 1, time=3)], {"missing_events": 2**63 - 3}),
}


@pytest.fixture(scope="module")
def found(spark):
    """All that is wrong, as rows."""
    lines = [each | {"host": host} for host, (lines, _) in PROCESSES.items() for each in lines]
    rejected = [
        *[("file:///journals/a%20b+c.jsonl.gz", "malformed")] * 3,
        ("file:///journals/a%20b+c.jsonl.gz", "truncated"),
        ("hdfs://there/%C3%BC.jsonl", "unknown_version"),
    ]
    files = [("/x/none.jsonl", "empty"), ("/x/cut.jsonl.gz", "unreadable")]
    events = events_of(spark, *lines, line(3, 2, "missing"), line(5, 2, "missing"))
    table = quality(
        spark.createDataFrame(rejected, "file string, problem string"),
        spark.createDataFrame(files, "file string, problem string"),
        processes(events),
        once(special(events, processes(events))),
        spark.createDataFrame([(0.0,), (0.25,), (3.0,)], "skew_s double"),
    )
    assert tuple(table.columns) == QUALITY_COLUMNS
    return [tuple(row) for row in table.collect()]


@pytest.mark.parametrize("name", PROCESSES)
def test_the_lines_of_a_process(found, name):
    rows = {problem: count for _, host, pid, problem, count, _ in found if (host, pid) == (name, 1)}
    assert rows == PROCESSES[name][1]


def test_processes_of_one_host_are_told_apart(found):
    assert (None, "missing", 2, "missing_events", 1, None) in found


def test_lines_and_files(found):
    assert [row for row in found if row[0] is not None] == [
        ("a b+c.jsonl.gz", None, None, "malformed", 3, None),
        ("a b+c.jsonl.gz", None, None, "truncated", 1, None),
        ("cut.jsonl.gz", None, None, "unreadable", 1, None),
        ("none.jsonl", None, None, "empty", 1, None),
        ("ü.jsonl", None, None, "unknown_version", 1, None),
    ]


def test_clocks_that_differ(found):
    assert [row for row in found if row[:3] == (None, None, None)] == [(None, None, None, "clock_skew", 2, 3.0)]


def test_each_event_once(spark):
    events = events_of(spark, line(1), line(2), line(2), line(2, time=9), line(1, pid=2), line(1, host="other"))
    found = processes(events)
    assert [(row.host, row.pid) for row in doubled(found).collect()] == [("h", 1)]
    rows = sorted((row.host, row.pid, row.seq, row.time) for row in each_once(events, found).collect())
    assert rows == [("h", 1, 1, S), ("h", 1, 2, 9), ("h", 1, 2, 2 * S), ("h", 2, 1, S), ("other", 1, 1, S)]
