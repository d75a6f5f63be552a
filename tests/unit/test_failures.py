"""What each kind of failure means for a send: docs/architecture.md, rule 5, row by row."""

from __future__ import annotations

import pytest

from kombu_paired.failures import FailureKind, Response

TABLE = {
    FailureKind.UNREACHABLE: (True, Response.DIVERT),
    FailureKind.TIMEOUT: (True, Response.DIVERT),
    FailureKind.FAULT: (True, Response.DIVERT),
    FailureKind.THROTTLED: (False, Response.WAIT),
    FailureKind.UNAUTHORIZED: (False, Response.RAISE),
    FailureKind.REJECTED: (False, Response.RAISE),
    FailureKind.MISSING: (False, Response.DECLARE),
}


def test_the_table_has_a_row_for_every_kind():
    assert set(TABLE) == set(FailureKind)


@pytest.mark.parametrize("kind", FailureKind)
def test_the_kind_alone_decides_whether_a_failure_counts_and_what_becomes_of_the_message(kind):
    assert (kind.counts, kind.response) == TABLE[kind]


def test_what_counts_towards_failover_is_diverted_and_nothing_else_is():
    assert {kind for kind in FailureKind if kind.counts} == {
        kind for kind in FailureKind if kind.response is Response.DIVERT
    }


def test_a_kind_is_found_again_by_the_word_that_events_carry():
    assert [FailureKind(kind.value) for kind in FailureKind] == list(FailureKind)
