"""Which sends of one task id are the same message, for a queue that detects duplicates."""

from __future__ import annotations

import uuid

import pytest
from hypothesis import given
from hypothesis import strategies as st

from kombu_paired.brokers.servicebus.ids import LONGEST_ID, has_id, message_id

TASK = {"id": "task-1", "task": "shop.record", "retries": 0, "eta": None, "origin": "gen1@host", "traceparent": "00-a"}
BODY = "W1sxXSwge30sIHt9XQ=="


def of_task(body=BODY, properties=None, **headers):
    return message_id({**TASK, **headers}, properties or {"correlation_id": "task-1"}, body)


@pytest.mark.parametrize(
    "other",
    [
        {"retries": 1},
        {"eta": "2031-02-03T04:05:06+02:00"},
        {"task": "shop.replacement"},
        {"replaced_task_nesting": 1},
        {"body": "W1syXSwge30sIHt9XQ=="},
        {"id": "task-2"},
    ],
    ids=lambda other: next(iter(other)),
)
def test_another_message_of_a_task_has_another_id(other):
    assert of_task(**other) != of_task()
    assert of_task(**other) == of_task(**other)


@pytest.mark.parametrize(
    "other",
    [
        {"origin": "gen2@another"},
        {"traceparent": "00-b"},
        {"x-paired-maybe-duplicate": "true"},
        {"properties": {"message_id": "task-1", "correlation_id": "task-1"}},
        {"properties": {"message_id": "task-1", "correlation_id": "task-1", "expiration": "77"}},
    ],
    ids=lambda other: next(iter(other)),
)
def test_who_sends_it_and_which_way_makes_no_other_message_of_it(other):
    """The backlog pins the task's id as the message id, and the syphon restores what is left of the time to live."""
    assert of_task(**other) == of_task()


def test_the_id_begins_with_the_tasks():
    assert of_task().startswith("task-1.")


def test_the_applications_own_is_kept():
    assert of_task(properties={"message_id": "order-17"}) == "order-17"
    assert message_id({}, {"message_id": 7}, b"") == "7"
    assert message_id({}, {"message_id": "x" * LONGEST_ID}, b"") == "x" * LONGEST_ID


def test_messages_of_one_conversation_are_told_apart():
    """Replies, and tasks of Celery's first protocol, whose number of the retry is in the payload."""
    ids = {message_id({}, {"correlation_id": "c-1"}, body) for body in ("one", "two", b"three")}
    assert len(ids) == 3
    assert message_id({}, {"correlation_id": "c-1", "message_id": "c-1"}, "one") in ids


@pytest.mark.parametrize("headers", [None, {}, {"id": None}])
def test_a_message_without_an_id_gets_one(headers):
    first, second = (message_id(headers, {}, "x") for _ in range(2))
    assert uuid.UUID(first) != uuid.UUID(second)
    assert not has_id(headers, {})
    assert has_id(headers, {"message_id": first})


anything = st.none() | st.integers() | st.text() | st.binary()


@given(
    st.dictionaries(st.sampled_from(["id", "task", "retries", "eta"]), anything),
    st.dictionaries(st.sampled_from(["message_id", "correlation_id"]), anything),
    st.text() | st.binary(),
)
def test_every_id_is_one_that_the_service_takes_and_the_same_at_each_try(headers, properties, body):
    found = message_id(headers, properties, body)
    assert 1 <= len(found) <= LONGEST_ID
    found.encode()
    assert not has_id(headers, properties) or message_id(headers, properties, body) == found
