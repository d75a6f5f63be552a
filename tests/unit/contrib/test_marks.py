"""What a task publishes that may run for the second time is marked, too."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import pytest
from celery import Celery, signals
from kombu import Connection

import kombu_paired
from kombu_paired import maybe_duplicate
from kombu_paired.contrib import celery as room

MARKED = {"x-paired-maybe-duplicate": "true"}


@pytest.fixture
def app() -> Iterator[Celery]:
    app = Celery("shop", broker="memory://", set_as_current=False)
    app.conf.task_ignore_result = True

    @app.task(name="shop.publish", shared=False)
    def publish() -> None:
        app.send_task("shop.other", queue="others")

    kombu_paired.setup(app)
    yield app
    signals.before_task_publish.disconnect(room._mark_what_a_marked_task_publishes)


def published(app: Celery) -> Any:
    with app.connection_for_write() as connection:
        return Connection.SimpleQueue(connection, "others").get(timeout=1)


def test_what_a_marked_task_publishes_is_marked_and_nothing_else_is(app: Celery) -> None:
    task = app.tasks["shop.publish"]
    task.apply()
    assert not signals.before_task_publish.receivers  # who has nothing to mark pays nothing
    assert not maybe_duplicate(published(app))
    task.apply(headers=MARKED)
    assert maybe_duplicate(published(app))
    task.apply()
    app.send_task("shop.other", queue="others")
    assert not maybe_duplicate(published(app))
    assert not maybe_duplicate(published(app))
