"""Finding and reading journals: every format, and everything that is none."""

from __future__ import annotations

import os

import pyarrow
import pytest
from pyspark.sql.types import BooleanType, DoubleType, LongType, StringType
from pyspark.testing import assertDataFrameEqual

from kombu_paired.journal.format import JOURNAL_FIELDS, JOURNAL_VERSION, known_events
from kombu_paired.pipeline import reading
from kombu_paired.pipeline.reading import NoJournals, accepted, find_journals, read_events, rejected, write_events
from kombu_paired.pipeline.schema import EVENT_FIELDS, REQUIRED, journal_schema
from tests.pipeline.writing import line, write


def read(spark, out, *paths, **limits):
    """Events, rejected lines, and the files as they turned out."""
    journals = write_events(spark, find_journals(spark, [str(path) for path in paths]), str(out), **limits)
    rows = read_events(spark, str(out))
    return accepted(rows), rejected(rows), journals


def names(files):
    return sorted(os.path.basename(each) for each in files)


def numbers(events):
    return sorted(row.seq for row in events.select("seq").collect())


# -- the schema -------------------------------------------------------------------------------------------------------


def test_the_schema_is_that_of_the_journal():
    types = {"integer": LongType, "number": DoubleType, "text": StringType, "boolean": BooleanType}
    written = [(each.name, types[each.type]) for each in JOURNAL_FIELDS]
    assert [(each.name, type(each.dataType)) for each in journal_schema().fields] == written
    assert set(REQUIRED) == {"v", "time", "host", "pid", "seq", "event", "pairing"}
    assert [*EVENT_FIELDS] == [each.name for each in JOURNAL_FIELDS if each.name != "v"]
    assert {"sent", "diverted", "syphoned", "consumed"} <= set(known_events())


# -- finding ----------------------------------------------------------------------------------------------------------


def test_what_is_a_journal_is_told_by_its_name_at_any_depth(spark, tmp_path):
    for name in ("a.jsonl", "deep/er/b.jsonl.gz", "c.json.gz", "d.jsonl.part", "e.txt", "f.json", "g.jsonl.gz.tmp"):
        write(tmp_path / name, line())
    found = find_journals(spark, [str(tmp_path)])
    assert names(found.lines) == ["a.jsonl", "b.jsonl.gz", "c.json.gz", "d.jsonl.part"]


def test_files_without_lines_and_files_that_cannot_be_opened_are_known_at_once(spark, tmp_path, monkeypatch):
    write(tmp_path / "empty.jsonl")
    (tmp_path / "empty.jsonl.gz").touch()
    write(tmp_path / "blank.jsonl.gz", "", "  ", "\t\r")
    (tmp_path / "no-gzip.jsonl.gz").write_bytes(b"\x00\x01\x02")
    (tmp_path / "dangling.jsonl").symlink_to("/nowhere/at/all")
    write(tmp_path / "secret.jsonl", line())
    is_empty = reading._is_empty

    def without_permission(file):
        if file.name == "secret.jsonl":
            raise PermissionError(13, "Permission denied")
        return is_empty(file)

    monkeypatch.setattr(reading, "_is_empty", without_permission)
    found = find_journals(spark, [str(tmp_path)])
    assert found.lines == []
    assert names(found.empty) == ["blank.jsonl.gz", "empty.jsonl", "empty.jsonl.gz"]
    assert names(found.unreadable) == ["dangling.jsonl", "no-gzip.jsonl.gz", "secret.jsonl"]


def test_the_reports_own_output_is_no_journal(spark, tmp_path):
    write(tmp_path / "a.jsonl", line())
    write(tmp_path / "out" / "part-0.parquet", "anything")
    assert find_journals(spark, [str(tmp_path)], beside=str(tmp_path / "out")).count == 1


def test_no_journal_at_all_is_an_error_that_says_what_to_do(spark, tmp_path):
    write(tmp_path / "notes.txt", "nothing")
    with pytest.raises(NoJournals, match=r"looked for files that end in \.jsonl, .*transport option 'journal'"):
        find_journals(spark, [str(tmp_path)])
    with pytest.raises(NoJournals, match=r"there is no .*nowhere"):
        find_journals(spark, [str(tmp_path / "nowhere")])


# -- formats ----------------------------------------------------------------------------------------------------------

EVENTS = [
    line(1, "sent", first_attempt=999, entity="orders", message_id="m1", route="primary", bytes=7, ms=0.5),
    line(2, "diverted", entity="rückgaben", message_id="m2", route="backlog/3", failure="timeout", ms=2, detail="é\n"),
    line(3, "syphoned", entity="orders", message_id="m2", maybe_duplicate=True, bytes=None),
]


@pytest.fixture(scope="module")
def plain(spark, tmp_path_factory):
    """The events, from a plain file."""
    place = tmp_path_factory.mktemp("plain")
    events, lines, _ = read(spark, place / "out", write(place / "a.jsonl", *EVENTS))
    assert lines.isEmpty()
    return events


def test_an_event_has_the_fields_of_its_line(plain):
    sent, diverted, syphoned = (row.asDict() for row in plain.orderBy("seq").collect())
    assert (sent["time"], sent["first_attempt"], sent["bytes"], sent["message_id"]) == (1_000_000, 999, 7, "m1")
    assert (diverted["entity"], diverted["ms"], diverted["detail"]) == ("rückgaben", 2.0, "é\n")
    assert (syphoned["maybe_duplicate"], syphoned["bytes"]) == (True, None)


def test_how_long_a_task_took_is_kept_where_a_lock_was_renewed_for_it(spark, tmp_path):
    lines = [line(number + 1, "consumed", message_id="m", ms=ms) for number, ms in enumerate((59_999.0, 60_000.0))]
    events, _, _ = read(spark, tmp_path / "out", write(tmp_path / "a.jsonl", *lines))
    assert [row.ms for row in events.orderBy("seq").collect()] == [None, 60_000.0]


@pytest.mark.parametrize("name", ["a.jsonl.gz", "a.json.gz", "a.jsonl.part", "odd +%20 [1]{2}*?é\\.jsonl.gz"])
def test_all_formats_and_names_say_the_same(spark, tmp_path, plain, name):
    assertDataFrameEqual(read(spark, tmp_path / "out", write(tmp_path / name, *EVENTS))[0], plain)


def test_zstd_says_the_same(spark, tmp_path, plain):
    with pyarrow.output_stream(tmp_path / "a.jsonl.zst", compression="zstd") as file:
        file.write("".join(f"{each}\n" for each in EVENTS).encode())
    assertDataFrameEqual(read(spark, tmp_path / "out", tmp_path / "a.jsonl.zst")[0], plain)


def test_parquet_says_the_same_whatever_the_order_of_its_columns(spark, tmp_path, plain):
    lines = spark.read.schema(journal_schema()).json(str(write(tmp_path / "a.jsonl", *EVENTS)))
    lines.select(*reversed(lines.columns)).write.parquet(str(tmp_path / "table"))
    assertDataFrameEqual(read(spark, tmp_path / "out", tmp_path / "table")[0], plain)


# -- what is no event -------------------------------------------------------------------------------------------------


#: What is no event, and what is wrong with it.
STRANGE = [
    ('{"v":1,"time":17724096', "truncated"),
    ("{", "truncated"),
    ('  {"v":1,"tim', "truncated"),
    ("no JSON", "malformed"),
    ("[1]", "malformed"),
    ("7", "malformed"),
    ("{}", "malformed"),
    (b"\x00\x00\x00\n", "malformed"),
    (b'{"v":1,"host":"\xff\xfe"}\n', "malformed"),
    (line(time="noon"), "malformed"),
    (line(time=10**30), "malformed"),
    (line(bytes="many"), "malformed"),
    (line(event="teleported"), "malformed"),
    (line(pairing=None), "malformed"),
    (line(v=None), "malformed"),
    (line(time=10**18), "malformed"),
    (line(seq=0), "malformed"),
    (line(bytes=-1), "malformed"),
    (line(bytes=2**62), "malformed"),
    (line(v=JOURNAL_VERSION + 1), "unknown_version"),
    (f'{{"v":{JOURNAL_VERSION + 1},"colour":"octarine"}}', "unknown_version"),
    (line(v=JOURNAL_VERSION + 1, event="entangled"), "unknown_version"),
    (line(v=2**63 - 1, time="noon"), "unknown_version"),  # no business of this version
    (f'{{"v":{JOURNAL_VERSION + 1},"tim', "truncated"),
    (line(v=0), "malformed"),
    (line(v=-1), "malformed"),
    (line(v=2**63), "malformed"),
    (line(v=1.0), "malformed"),
    (line(v=True), "malformed"),
    (line(v="2"), "malformed"),
]


def test_a_line_that_is_no_event_is_kept_with_its_file_and_what_is_wrong(spark, tmp_path):
    for number, (text, _) in enumerate(STRANGE):
        write(tmp_path / f"{number}.jsonl", line(number + 1, message_id="before"), text, "", "   ", line(99) + "\r")
    events, lines, _ = read(spark, tmp_path / "out", tmp_path)
    assert numbers(events) == sorted([*range(1, len(STRANGE) + 1), *[99] * len(STRANGE)])
    rows = {int(os.path.basename(row.file).removesuffix(".jsonl")): row for row in lines.collect()}
    assert [(text, rows[number].problem) for number, (text, _) in enumerate(STRANGE)] == STRANGE
    assert lines.count() == len(STRANGE)
    assert rows[0].line == STRANGE[0][0]
    assert '"event":"teleported"' in rows[12].line


def test_a_later_version_is_counted_apart_and_the_version_of_today_is_read(spark, tmp_path):
    lines = [line(1), line(2, v=JOURNAL_VERSION + 1), line(3, v=JOURNAL_VERSION + 7, time="noon"), line(4)]
    events, apart, _ = read(spark, tmp_path / "out", write(tmp_path / "a.jsonl", *lines))
    assert numbers(events) == [1, 4]
    assert [row.problem for row in apart.collect()] == ["unknown_version"] * 2


def test_all_versions_up_to_the_readers_own_are_read_and_what_earlier_ones_lacked_is_null(
    spark, tmp_path, next_version
):
    own, later = line(2, v=next_version, colour="octarine"), line(3, v=next_version + 1, colour="octarine")
    write(tmp_path / "a.jsonl", *(line(1, v=each) for each in range(1, next_version)), own, later)
    table = spark.read.json(str(write(tmp_path / "x", *EVENTS)), journal_schema()).drop("colour")
    table.write.parquet(str(tmp_path / "table"))
    events, apart, _ = read(spark, tmp_path / "out", tmp_path)
    colours = sorted((row.seq, row.colour or "") for row in events.collect())
    assert colours == [(1, "")] * next_version + [(2, ""), (2, "octarine"), (3, "")]
    assert [row.problem for row in apart.collect()] == ["unknown_version"]


def test_a_damaged_file_is_left_out_whole_and_the_others_are_read(spark, tmp_path):
    many = [line(seq, message_id=os.urandom(18).hex()) for seq in range(1, 3000)]
    whole = write(tmp_path / "cut.jsonl.gz", *many)
    whole.write_bytes(whole.read_bytes()[: whole.stat().st_size // 2])
    write(tmp_path / "fine.jsonl.gz", line(7))
    write(tmp_path / "fine-too.jsonl", line(8))
    write(tmp_path / "broken.parquet", "no Parquet")
    spark.read.schema(journal_schema()).json(str(write(tmp_path / "x", line(9)))).write.parquet(str(tmp_path / "table"))
    events, lines, journals = read(spark, tmp_path / "out", tmp_path)
    assert numbers(events) == [7, 8, 9]
    assert lines.isEmpty()
    assert names(journals.unreadable) == ["broken.parquet", "cut.jsonl.gz"]


def test_a_folder_with_nothing_but_damage_is_no_error(spark, tmp_path):
    (tmp_path / "binary.jsonl.gz").write_bytes(bytes(range(256)))
    write(tmp_path / "empty.jsonl")
    events, _, journals = read(spark, tmp_path / "out", tmp_path)
    assert events.isEmpty()
    assert (len(journals.unreadable), len(journals.empty)) == (1, 1)


def test_other_errors_than_those_of_a_file_are_not_hidden(spark, tmp_path):
    write(tmp_path / "a.jsonl", line())
    (tmp_path / "in-the-way").write_text("a file where the folder should be")
    with pytest.raises(Exception, match=r"in-the-way"):
        read(spark, tmp_path / "in-the-way" / "out", tmp_path / "a.jsonl")


@pytest.mark.parametrize("damaged", [set(), {"f0"}, {"f99"}, {"f3", "f4", "f50"}])
def test_damaged_files_are_found_by_halving(damaged):
    looks = []

    def can_read(files):
        looks.append(len(files))
        return damaged.isdisjoint(files)

    assert set(reading._damaged([f"f{number}" for number in range(100)], can_read)) == damaged
    assert len(looks) <= 1 + 15 * len(damaged)


# -- from and to ------------------------------------------------------------------------------------------------------


def test_only_events_between_from_and_to_and_all_that_is_wrong(spark, tmp_path):
    file = write(tmp_path / "a.jsonl", *(line(seq) for seq in range(1, 6)), "nonsense")
    events, lines, _ = read(spark, tmp_path / "out", file, since=2_000_000, until=4_000_000)
    assert numbers(events) == [2, 3]
    assert lines.count() == 1
