"""How much there is to read, and what a session becomes by it."""

from __future__ import annotations

import pytest
from click.testing import CliRunner
from hypothesis import given
from hypothesis import strategies as st

from kombu_paired.cli import main
from kombu_paired.cli import report as cli_report
from kombu_paired.cli import watch as cli_watch
from kombu_paired.pipeline import session, size
from kombu_paired.pipeline.session import SparkUnavailable
from kombu_paired.pipeline.size import SHRINKS, SMALL, is_small, journals_at, size_of


def filled(file, length):
    """A file of this length that takes no room."""
    file.parent.mkdir(parents=True, exist_ok=True)
    with file.open("wb") as content:
        content.truncate(length)
    return file


# -- how much there is ------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("name", "counted"),
    [
        ("a.jsonl.gz", 1000),
        ("a.json.gz", 1000),
        ("a.jsonl.zst", 1000),
        ("a.parquet", 1000),
        ("a.jsonl", 1000 // SHRINKS),
        ("a.jsonl.part", 1000 // SHRINKS),
    ],
)
def test_a_file_counts_as_if_it_were_compressed(tmp_path, name, counted):
    assert size_of(filled(tmp_path / name, 1000)) == counted


def test_what_is_not_there_has_no_size(tmp_path):
    (tmp_path / "dangling.jsonl").symlink_to("/nowhere/at/all")
    assert size_of(tmp_path / "dangling.jsonl") == size_of(tmp_path / "nothing.jsonl") == 0
    assert is_small([str(tmp_path), str(tmp_path / "nothing")])


@given(lengths=st.lists(st.integers(0, SMALL), max_size=5), apart=st.booleans())
def test_all_files_together_are_small_or_not(tmp_path_factory, lengths, apart):
    folder = tmp_path_factory.mktemp("journals")
    files = [filled(folder / f"{number}" / "deep" / "a.jsonl.gz", length) for number, length in enumerate(lengths)]
    paths = [str(each) for each in files] if apart else [folder.as_uri()]
    assert is_small(paths) == (sum(lengths) <= SMALL)


def test_only_journals_count_and_not_what_the_report_wrote(tmp_path):
    filled(tmp_path / "a.txt", SMALL + 1)
    filled(tmp_path / "out" / "events" / "part-0.parquet", SMALL + 1)
    assert is_small([str(tmp_path)], beside=str(tmp_path / "out"))
    assert not is_small([str(tmp_path)])


@pytest.mark.parametrize("path", ["s3a://bucket/journals", "hdfs:///journals", "https://somewhere/a.jsonl.gz"])
def test_what_only_spark_can_see_is_never_small(tmp_path, path):
    assert not is_small([path])
    assert not is_small([str(filled(tmp_path / "a.jsonl.gz", 1)), path])


def test_no_more_is_looked_at_than_is_needed(tmp_path, monkeypatch):
    looked = []
    monkeypatch.setattr(size, "size_of", lambda file: looked.append(file) or SMALL)
    for number in range(5):
        filled(tmp_path / f"{number}.jsonl", 0)
    assert not is_small([str(tmp_path)])
    assert len(looked) == 2


def test_a_file_that_is_named_is_one_whatever_it_is_called(tmp_path):
    file = filled(tmp_path / "journal.txt", 1)
    assert list(journals_at(file)) == [file]


# -- what a session becomes by it -------------------------------------------------------------------------------------


def test_few_rows_do_without_the_second_compiler_and_have_few_parts(tmp_path):
    few, many = (session._local_settings(tmp_path, few_rows) for few_rows in (True, False))
    differing = {name for name in few if few[name] != many.get(name, session.EVERYWHERE.get(name))}
    assert differing == {"spark.driver.extraJavaOptions", *session.FEW_ROWS}
    assert session.FIRST_COMPILER in few["spark.driver.extraJavaOptions"].split()
    assert session.FIRST_COMPILER not in many["spark.driver.extraJavaOptions"].split()


@pytest.fixture
def asked(monkeypatch):
    """What a command asks a session for; it gets none."""
    found = {}

    def refuse(**wishes):
        found.update(wishes)
        raise SparkUnavailable("no Spark today")

    for command in (cli_report, cli_watch):
        monkeypatch.setattr(command, "spark_session", refuse)
        monkeypatch.setattr(command, "require_spark", lambda *where, **why: None)
    return found


def run(*arguments):
    result = CliRunner().invoke(main, [*map(str, arguments)])
    assert "no Spark today" in result.output


@pytest.mark.parametrize(("length", "is_few"), [(SMALL, True), (SMALL + 1, False)])
def test_a_report_knows_before_it_starts_whether_it_is_small(asked, tmp_path, length, is_few):
    filled(tmp_path / "a.jsonl.gz", length)
    run("report", "--journal", tmp_path, "--out", tmp_path / "out")
    assert asked["few_rows"] is is_few


@pytest.mark.parametrize(
    ("journal", "stored", "once", "is_few"),
    [
        (SMALL, SMALL, True, True),
        (SMALL + 1, 0, True, False),
        (0, SMALL + 1, True, False),  # trimmed away since, but the tables still tell of them
        (0, 0, False, False),  # it may run for weeks, and have many one day
    ],
)
def test_a_watch_is_small_if_it_is_and_stays_so(asked, tmp_path, journal, stored, once, is_few):
    filled(tmp_path / "a.jsonl.gz", journal)
    filled(tmp_path / "out" / "events" / "batch-0" / "part-0.parquet", stored)
    filled(tmp_path / "out" / "tables-1" / "messages" / "part-0.parquet", SMALL + 1)
    run("watch", "--journal", tmp_path, "--out", tmp_path / "out", *(["--once"] if once else []))
    assert asked["few_rows"] is is_few
