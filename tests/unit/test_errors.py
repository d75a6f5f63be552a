"""The tree of exceptions: what a caller can catch."""

from __future__ import annotations

import pickle

import pytest
from kombu.exceptions import OperationalError

from kombu_paired import errors
from kombu_paired.failures import FailureKind

PARENTS = {
    "PairedError": (Exception,),
    "ConfigurationError": (errors.PairedError, ValueError),
    "MalformedBacklogMessage": (errors.PairedError,),
    "ExpiredInBacklog": (errors.MalformedBacklogMessage,),
    "NamespaceFailure": (errors.PairedError,),
    "SendError": (errors.PairedError, OperationalError),
    "BacklogUnavailable": (errors.SendError,),
    "NamespaceUnauthorized": (errors.SendError,),
    "MessageTooLarge": (errors.SendError,),
    "PrimaryUnavailable": (errors.SendError,),
    "ResultsUnavailable": (errors.SendError,),
    "PairingClosed": (errors.SendError,),
}
SEEN_BY_CALLERS = [name for name in PARENTS if issubclass(getattr(errors, name), errors.SendError)]


def test_the_tree_is_complete():
    assert set(PARENTS) == set(errors.__all__)


@pytest.mark.parametrize("name", PARENTS)
def test_every_error_has_the_parents_that_the_tree_draws(name):
    assert getattr(errors, name).__bases__ == PARENTS[name]


@pytest.mark.parametrize("name", PARENTS)
def test_the_tree_in_the_docstring_names_every_error(name):
    assert name in errors.__doc__


@pytest.mark.parametrize("name", SEEN_BY_CALLERS)
def test_what_publish_raises_is_kombus_operational_error_as_celery_promises(name):
    with pytest.raises(OperationalError, match="why"):
        raise getattr(errors, name)("why")


@pytest.mark.parametrize("name", SEEN_BY_CALLERS)
def test_what_publish_raises_can_be_pickled_so_that_a_task_may_fail_with_it(name):
    error = getattr(errors, name)("why")
    again = pickle.loads(pickle.dumps(error))
    assert (type(again), str(again)) == (type(error), "why")


def test_only_what_a_caller_may_see_is_an_operational_error():
    assert not issubclass(errors.ConfigurationError, OperationalError)
    assert not issubclass(errors.MalformedBacklogMessage, OperationalError)
    assert not issubclass(errors.NamespaceFailure, OperationalError)


def test_a_malformed_message_carries_reason_and_description_for_the_dead_letter_queue():
    error = errors.MalformedBacklogMessage("NoPath", "no path in it")
    assert (error.reason, error.description, str(error)) == ("NoPath", "no path in it", "NoPath: no path in it")


def test_a_namespace_failure_names_the_namespace_the_kind_and_the_drivers_own_error():
    cause = ConnectionResetError("peer went away")
    failure = errors.NamespaceFailure(FailureKind.UNREACHABLE, "primary amqp://main//", cause)
    assert str(failure) == "primary amqp://main//: unreachable: ConnectionResetError: peer went away"
    assert (failure.kind, failure.cause) == (FailureKind.UNREACHABLE, cause)
    assert (failure.maybe_stored, failure.whole_namespace) == (False, False)
