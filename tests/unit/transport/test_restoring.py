"""What a worker that stands in is given: the message as it was sent, and how it came."""

from __future__ import annotations

import time
from typing import Any

import pytest
from celery import Celery
from celery.worker.request import Request
from kombu.message import Message as Received

from kombu_paired import maybe_duplicate, was_diverted
from kombu_paired.message import Diversion, Message, to_backlog
from kombu_paired.stand_in import CAME_BY, stand_in_name
from kombu_paired.transport.stand_in_channel import restore

HEADERS = {"id": "a", "task": "shop.work"}


@pytest.fixture
def app() -> Celery:
    app = Celery("shop", set_as_current=False)

    @app.task(name="shop.work", shared=False)
    def work() -> None:
        """It is never run."""

    return app


def received(**more: Any) -> Received:
    """As it comes from a stand-in queue; or as it was sent, where nothing diverted it."""
    facts = {"body": "[[], {}, {}]", "content_type": "application/json", "content_encoding": "utf-8"}
    return Received(**facts, delivery_tag=1, accept={"application/json"}, **more)


def stood_in(in_doubt: bool = False) -> Received:
    sent = Message("[[], {}, {}]", "", "orders", headers=dict(HEADERS), properties={"correlation_id": "a"})
    queue = stand_in_name("shop", "orders")
    stored = to_backlog(sent, queue, Diversion(time.time(), time.time(), "web-1/1", "unreachable", in_doubt, ()))
    return received(
        headers=stored.headers,
        properties=stored.properties,
        delivery_info={"exchange": "", "routing_key": queue},
    )


def test_the_process_that_runs_a_task_knows_that_it_came_by_a_stand_in_queue(app: Celery) -> None:
    message = stood_in()
    assert restore(message)
    request = Request(message, app=app).request_dict
    assert request["properties"][CAME_BY] == "stand-in"
    assert request["delivery_info"]["routing_key"] == "orders"


@pytest.mark.parametrize("in_doubt", [True, False])
def test_its_task_knows_that_it_was_diverted_and_whether_there_may_be_two(app: Celery, in_doubt: bool) -> None:
    message = stood_in(in_doubt)
    restore(message)
    request = Request(message, app=app)
    assert (was_diverted(request), maybe_duplicate(request)) == (True, in_doubt)


def test_a_retry_of_it_is_sent_without_the_mark(app: Celery) -> None:
    message = stood_in()
    restore(message)
    task = app.tasks["shop.work"]
    task.push_request(**Request(message, app=app).request_dict)
    again = task.signature_from_request(task.request, countdown=0)
    assert CAME_BY not in repr(dict(again))


def test_what_was_never_diverted_is_left_as_it_is() -> None:
    message = received(headers=dict(HEADERS), properties={"correlation_id": "a"}, delivery_info={})
    assert restore(message)
    assert (message.headers, message.properties) == (HEADERS, {"correlation_id": "a"})
