"""Whoever asks one thing of a namespace needs no more of it than that."""

from __future__ import annotations

from itertools import combinations

import pytest

from kombu_paired.brokers.roles import (
    Consumes,
    KeepsBacklog,
    Namespace,
    Primary,
    Probes,
    Role,
    Secondary,
    Sends,
    StandsIn,
)
from kombu_paired.errors import NamespaceFailure
from kombu_paired.failures import FailureKind
from kombu_paired.health_check import _Question

ROLES = [Sends, Probes, KeepsBacklog, StandsIn, Consumes]


def asked_of(role):
    return role.__abstractmethods__ - Role.__abstractmethods__


@pytest.mark.parametrize(("one", "other"), list(combinations(ROLES, 2)))
def test_no_two_roles_ask_the_same(one, other):
    assert not asked_of(one) & asked_of(other)


def test_a_side_is_asked_for_its_roles_alone():
    assert asked_of(Primary) == asked_of(Sends) | asked_of(Probes) | asked_of(Consumes)
    assert asked_of(Secondary) == asked_of(Primary) | asked_of(KeepsBacklog) | asked_of(StandsIn)
    assert asked_of(Namespace) == asked_of(Primary) | asked_of(Secondary)


class Probed(Probes):
    side, uri = "primary", "probed://here"

    def __init__(self, failure=None):
        self.failure = failure

    def probe(self, entity, timeout):
        if self.failure is not None:
            raise self.failure

    def close(self):
        self.closed = True


@pytest.mark.parametrize("is_away", [False, True])
def test_a_health_page_only_probes(is_away):
    failure = NamespaceFailure(FailureKind.UNREACHABLE, "primary", ConnectionError("away")) if is_away else None
    answer = _Question(Probed(failure), 10).answer(10)
    assert (answer.uri, answer.reachable) == ("probed://here", not is_away)
