"""What a task is told of the way of its message."""

from __future__ import annotations

import pytest
from celery import Celery
from celery.app.task import Context
from celery.worker.request import Request
from kombu.message import Message as Received

from kombu_paired import maybe_duplicate, was_diverted
from kombu_paired.marks import marked
from kombu_paired.message import Diversion, Message, diversion_of, from_backlog, to_backlog

HEADERS = {"id": "a", "task": "shop.work", "lang": "py", "retries": 0, "tenant": "acme"}


@pytest.fixture
def app() -> Celery:
    app = Celery("shop", set_as_current=False)

    @app.task(name="shop.work", shared=False)
    def work() -> None:
        """It is never run."""

    return app


def headers_of(*, diverted: bool = True, in_doubt: bool = False) -> dict[str, object]:
    sent = Message("[[], {}, {}]", "", "orders", headers=dict(HEADERS))
    return (marked(sent, 12.5, in_doubt) if diverted else sent).headers


def request_of(app: Celery, headers: dict[str, object]) -> Request:
    facts = {"body": "[[], {}, {}]", "content_type": "application/json", "content_encoding": "utf-8"}
    return Request(Received(headers=headers, delivery_tag=1, accept={"application/json"}, **facts), app=app)


@pytest.mark.parametrize("in_doubt", [True, False])
def test_a_request_of_any_kind_says_what_became_of_its_message(app: Celery, in_doubt: bool) -> None:
    headers = headers_of(in_doubt=in_doubt)
    of_worker = request_of(app, headers)
    for request in (Context(of_worker.request_dict), of_worker, Received(headers=headers)):
        assert (was_diverted(request), maybe_duplicate(request)) == (True, in_doubt)


def test_what_came_straight_says_neither(app: Celery) -> None:
    of_worker = request_of(app, headers_of(diverted=False))
    for request in (Context(of_worker.request_dict), of_worker, Context(), Received()):
        assert not was_diverted(request)
        assert not maybe_duplicate(request)


def test_a_retry_carries_the_marks_also_through_another_outage(app: Celery) -> None:
    task = app.tasks["shop.work"]
    task.push_request(**request_of(app, headers_of(in_doubt=True)).request_dict)
    again = task.signature_from_request(task.request, countdown=0)
    sent = Message("", "", "orders", headers=again.options["headers"], properties={"message_id": "a"})
    why = Diversion(20.0, 20.0, "web-1/1", "unreachable")
    stored = to_backlog(sent, "contoso/x-servicebus-transfer/0", why)

    assert diversion_of(stored) == why  # of this diversion nothing is doubted
    home = marked(from_backlog(stored, 21.0), 20.0, in_doubt=False)
    assert home.headers == {"tenant": "acme", "x-paired-maybe-duplicate": "true", "x-paired-diverted-at": "20.0"}
