"""Where the stream keeps its events: what to read, what to merge, and what a kill at any moment leaves."""

from __future__ import annotations

import json

import pytest
from hypothesis import given
from hypothesis import strategies as st

from kombu_paired.pipeline.live.store import ABOUT, EventStore, Segment, mergeable, visible
from kombu_paired.pipeline.parquet import write_table
from kombu_paired.pipeline.schema import accepted_schema

# -- pure -------------------------------------------------------------------------------------------------------------


def batches(segments):
    """Each batch as often as it is read."""
    return [batch for each in segments for batch in range(each.first, each.last + 1)]


def single(count):
    return {Segment(number, number) for number in range(count)}


def merged(segments, fit=lambda group: True):
    """Everything that is ripe, as a store does it."""
    while ripe := mergeable(segments, fit):
        for whole, parts in ripe:
            segments = (segments - set(parts)) | {whole}
    return segments


def _steps(segments, fit):
    """Each merge, and of what."""
    while ripe := mergeable(segments, fit):
        yield from ripe
        for whole, parts in ripe:
            segments = (segments - set(parts)) | {whole}


def test_names():
    assert str(Segment(70, 79)) == "70-79"
    assert Segment.named("70-79") == Segment(70, 79)
    assert [Segment.named(name) for name in ("7-7.12.new", "7", "", "a-b", "-7", "_SUCCESS")] == [None] * 6


def test_ten_of_a_size_are_one_of_the_next():
    assert merged(single(9)) == single(9)
    assert merged(single(10)) == {Segment(0, 9)}
    assert merged(single(123)) == {
        Segment(0, 99), Segment(100, 109), Segment(110, 119), Segment(120, 120), Segment(121, 121), Segment(122, 122)
    }  # fmt: skip


@given(st.integers(0, 3000))
def test_every_batch_is_read_once_and_the_segments_are_few(count):
    found = merged(single(count))
    assert sorted(batches(visible(found))) == list(range(count))
    assert len(found) <= 9 * len(str(count))


@given(st.lists(st.integers(1, 30), max_size=300), st.sets(st.integers(0, 299)))
def test_what_is_too_large_to_be_merged_is_not_hidden_by_what_is(sizes, deleted):
    segments = {each for each in single(len(sizes)) if each.first not in deleted}
    there = sorted(batches(segments))
    kept = {batch: size for batch, size in enumerate(sizes) if batch not in deleted}

    def fit(group):
        return sum(kept.get(batch, 0) for batch in batches(group)) <= 100

    found = merged(segments, fit)
    assert not mergeable(found, fit)
    assert set(there) <= set(batches(visible(found)))
    assert sum(kept.get(batch, 0) for batch in batches(visible(found))) == sum(kept.values())
    for whole, group in _steps(segments, fit):
        assert set(batches(group)) >= {batch for batch in there if whole.first <= batch <= whole.last}
    parts = [sum(kept.get(batch, 0) for batch in batches([each])) for each in found if each.first != each.last]
    assert max(parts, default=0) <= 100


@given(st.integers(1, 400), st.sets(st.integers(0, 399)), st.data())
def test_with_batches_deleted_and_a_merge_killed_anywhere_nothing_is_read_twice_or_lost(count, deleted, data):
    segments = {each for each in single(count) if each.first not in deleted}
    there = sorted(batches(segments))
    for _ in range(4):
        ripe = mergeable(segments)
        if not ripe:
            break
        whole, parts = data.draw(st.sampled_from(ripe))
        left = data.draw(st.sets(st.sampled_from(parts)))  # the kill comes before these are deleted
        segments = (segments - set(parts)) | {whole} | left
        read = batches(visible(segments))
        assert len(read) == len(set(read))
        assert set(there) <= set(read)
    assert mergeable(merged(segments)) == []


def test_what_contains_another_is_read():
    assert visible([Segment(0, 0), Segment(0, 9), Segment(9, 9), Segment(10, 10)]) == [Segment(0, 9), Segment(10, 10)]


# -- on the disk ------------------------------------------------------------------------------------------------------


@pytest.fixture
def store(spark, tmp_path):
    return EventStore(spark, tmp_path / "events")


@pytest.fixture
def add(spark, store):
    """Keep a batch with one event, whose number and time are given."""

    def keep(batch, seq, time=0):
        def write(place):
            write_table(spark.createDataFrame([{"seq": seq, "time": time, "event": "sent"}], accepted_schema()), place)
            return time

        store.add(batch, write)

    return keep


def numbers(store):
    return sorted(row.seq for row in store.read().select("seq").collect())


def names(store):
    return sorted(each.name for each in store._folder.iterdir())


def test_an_empty_store_has_no_rows(store):
    assert store.read().schema == accepted_schema()
    assert (numbers(store), store.latest(), store.merge()) == ([], None, False)
    store.tidy(0)


def test_what_an_earlier_version_kept_is_read(store, add, request):
    add(0, 1)
    request.getfixturevalue("next_version")
    add(1, 2)
    assert "colour" in accepted_schema().names
    assert store.read().schema == accepted_schema()
    assert numbers(store) == [1, 2]


def test_a_batch_that_comes_again_is_kept_once(store, add):
    add(0, 1)
    add(0, 2)
    assert numbers(store) == [1]


def test_what_is_half_written_is_not_read_and_goes(store, add):
    add(0, 1)
    for name in ("1-1.99.new", "strange"):
        (store._folder / name).mkdir()
        (store._folder / name / "part-0.parquet").write_text("half a")
    assert numbers(store) == [1]
    add(1, 2)
    store.tidy(0)
    assert names(store) == ["0-0", "1-1"]
    assert numbers(store) == [1, 2]


def test_merging_keeps_every_row_and_the_latest_time(store, add):
    for batch in range(12):
        add(batch, batch + 1, time=100 - batch)
    assert store.merge()
    assert not store.merge()
    assert names(store) == ["0-9", "10-10", "11-11"]
    assert numbers(store) == list(range(1, 13))
    assert json.loads((store._folder / "0-9" / ABOUT).read_text()) == {"latest": 100}
    assert store.has(3)
    assert not store.has(12)


def test_what_a_killed_merge_leaves_is_read_once(store, add, tmp_path):
    for batch in range(10):
        add(batch, batch)
    (store._folder / "3-3").rename(tmp_path / "3-3")
    saved = tmp_path / "3-3"
    add(3, 3)
    store.merge()
    saved.rename(store._folder / "3-3")
    assert numbers(store) == list(range(10))
    store.tidy(0)
    assert names(store) == ["0-9"]


def test_what_is_old_goes_but_the_last_which_says_how_far_it_is(store, add):
    for batch, time in enumerate((5, 50, 7, None, 8)):
        add(batch, batch, time)
    store.tidy(20)
    assert names(store) == ["1-1", "3-3", "4-4"]  # 3-3 has no event: it is as old as its writing
    assert store.latest() == 50


def test_what_is_large_is_not_merged(store, add, monkeypatch):
    monkeypatch.setattr("kombu_paired.pipeline.live.store.LARGEST", 10)
    for batch in range(12):
        add(batch, batch)
    assert not store.merge()
