"""The journal's format: the names of its files, and what a later version may do to it."""

from __future__ import annotations

import pytest

from kombu_paired.journal.format import (
    COMPRESSED,
    ENDINGS,
    FORMS,
    GZIP,
    HALF_COMPRESSED,
    JOURNAL_FIELDS,
    JOURNAL_VERSION,
    NAME,
    PART,
    file_name,
    known_events,
    stem_of,
)

TEN = 1_772_359_200 // 3600  # 2026-03-01T10:00Z, in hours
FILE = "20260301T10-web-1-4711-1772359261034127.jsonl"
#: What lines of version 1 hold; what they all hold comes first.
REQUIRED = ["v", "time", "host", "pid", "seq", "event", "pairing"]
OPTIONAL = ["first_attempt", "entity", "message_id", "route", "bytes", "failure", "ms", "maybe_duplicate", "detail"]
EVENTS = [
    *("sent", "diverted", "send_failed", "backlog_unavailable", "suspect", "failed_over", "ping", "restored"),
    *("backlog_pulled", "backlog_readmitted", "polled", "received_from_backlog", "syphoned", "dead_lettered"),
    *("abandoned", "consumed", "syphon_started", "syphon_stopped", "closed", "faulted", "journal_trimmed"),
]


def test_a_file_is_named_after_its_hour_its_process_and_its_beginning():
    assert file_name(TEN, "web-1", 4711, 1772359261034127) == FILE
    assert file_name(TEN, "web 1/ü", 7, 1) == "20260301T10-web-1--7-1.jsonl"


@pytest.mark.parametrize("form", ["", PART, GZIP, HALF_COMPRESSED])
def test_a_name_that_a_process_gives_tells_its_age_and_its_form(form):
    parts = NAME.fullmatch(FILE + form)
    assert (parts["hour"], parts["start"], parts["form"]) == ("20260301T10", "1772359261034127", form)


@pytest.mark.parametrize("name", ["notes.jsonl", FILE + ".zst", "2026-web-1-1.jsonl", FILE + ".part.gz"])
def test_other_names_are_none_of_a_process(name):
    assert NAME.fullmatch(name) is None


def test_a_journal_in_any_of_its_forms_is_one_and_is_read():
    assert {stem_of(FILE + form) for form in FORMS} == {FILE}
    assert all((FILE + form).endswith(ENDINGS) for form in FORMS)
    assert set(COMPRESSED) < set(FORMS)


def test_what_is_half_compressed_is_no_journal():
    assert not (FILE + HALF_COMPRESSED).endswith(ENDINGS)


@pytest.mark.parametrize("name", ["a.json.gz", "a.gz", "a.jsonl", "part"])
def test_a_name_that_no_journal_takes_stays_as_it_is(name):
    assert stem_of(name) == name


def test_no_version_requires_a_field_that_the_first_one_lacked():
    assert [field.name for field in JOURNAL_FIELDS if field.required] == REQUIRED


def test_a_field_or_a_kind_of_event_that_is_added_raises_the_version():
    """So that readers of before say that they are to be updated, and do not take the lines for garbage."""
    fields, events = [field.name for field in JOURNAL_FIELDS if not field.required], list(known_events())
    assert (JOURNAL_VERSION > 1) == ((fields, events) != (OPTIONAL, EVENTS))
    assert set(OPTIONAL) <= set(fields)
    assert set(EVENTS) <= set(events)
