"""A trace goes through the backlog, the way home is linked to it, and the numbers are those that Prometheus gets."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import pytest
from celery import Celery, _state
from celery.app.trace import trace_task
from celery.worker.request import Request
from kombu.message import Message as Received
from opentelemetry.instrumentation.celery import CeleryInstrumentor
from opentelemetry.sdk.metrics import MeterProvider
from opentelemetry.sdk.metrics.export import InMemoryMetricReader
from opentelemetry.sdk.trace import TracerProvider
from opentelemetry.sdk.trace.export import SimpleSpanProcessor
from opentelemetry.sdk.trace.export.in_memory_span_exporter import InMemorySpanExporter
from opentelemetry.semconv._incubating.attributes import messaging_attributes as conventions

from kombu_paired import Syphon, events, pairing_of, was_diverted
from kombu_paired.contrib import opentelemetry as room
from kombu_paired.contrib.measuring import Measuring
from kombu_paired.contrib.opentelemetry import Instruments, Traces, system_of
from kombu_paired.events import EventKind
from kombu_paired.failures import FailureKind
from kombu_paired.testing import ScriptedBroker
from tests.support.traffic import wait_for


@pytest.fixture
def spans() -> Iterator[InMemorySpanExporter]:
    """What the stock instrumentation of Celery, and ours, tell of this process."""
    exporter, provider = InMemorySpanExporter(), TracerProvider()
    provider.add_span_processor(SimpleSpanProcessor(exporter))
    traces = Traces(provider.get_tracer("kombu_paired"), "redis")
    CeleryInstrumentor().instrument(tracer_provider=provider)
    events.everywhere.listen(traces.diverted, {EventKind.DIVERTED})
    events.everywhere.listen(traces.syphoned, {EventKind.SYPHONED})
    yield exporter
    CeleryInstrumentor().uninstrument()
    events.everywhere.silence(traces.diverted)
    events.everywhere.silence(traces.syphoned)


@pytest.fixture
def brokers() -> tuple[ScriptedBroker, ScriptedBroker]:
    return ScriptedBroker("primary"), ScriptedBroker("secondary")


@pytest.fixture
def app(brokers: tuple[ScriptedBroker, ScriptedBroker], monkeypatch: pytest.MonkeyPatch) -> Iterator[Celery]:
    primary, secondary = brokers
    app = Celery("shop", broker=f"paired+{primary.uri}", set_as_current=False)
    monkeypatch.setattr(_state._tls, "current_app", app)  # whose tasks the instrumentation knows
    app.conf.update(broker_transport_options=secondary.as_secondary(backlog_queue_count=1), task_ignore_result=True)

    @app.task(name="shop.work", shared=False)
    def work() -> None:
        """It does nothing."""

    yield app
    with app.connection_for_write() as connection:
        pairing_of(connection).close()


def run(app: Celery, message: Any) -> Any:
    """What a worker does with a message; returns its request."""
    received = Received(
        body=message.body,
        headers=message.headers,
        properties=message.properties,
        content_type=message.content_type,
        content_encoding=message.content_encoding,
        accept={"application/json"},
        delivery_tag=1,
    )
    request = Request(received, app=app)
    trace_task(app.tasks["shop.work"], request.id, (), {}, request.request_dict, app=app)
    return request


def test_the_task_continues_the_trace_of_its_sender_and_the_way_home_is_linked_to_it(
    app: Celery, brokers: tuple[ScriptedBroker, ScriptedBroker], spans: InMemorySpanExporter
) -> None:
    primary, _ = brokers
    primary.go_away()
    result = app.tasks["shop.work"].delay()
    primary.come_back()
    with app.connection_for_write() as connection:
        pairing = pairing_of(connection)
    syphon = Syphon(pairing)
    syphon.start()
    wait_for(lambda: primary.queues["celery"], 30, "it does not come home")
    wait_for(lambda: len(spans.get_finished_spans()) == 2, 30, "the way home is not told")
    syphon.stop()
    assert was_diverted(run(app, primary.queues["celery"][0]))

    sent, home, ran = spans.get_finished_spans()
    assert (sent.name, home.name, ran.name) == ("apply_async/shop.work", "send celery", "run/shop.work")
    assert ran.context.trace_id == sent.context.trace_id
    assert ran.parent.span_id == sent.context.span_id
    [link] = home.links
    assert (link.context.trace_id, link.context.span_id) == (sent.context.trace_id, sent.context.span_id)
    assert home.parent is None
    assert home.context.trace_id != sent.context.trace_id
    assert sent.end_time <= home.start_time <= home.end_time
    assert home.attributes[conventions.MESSAGING_SYSTEM] == "redis"
    assert home.attributes[conventions.MESSAGING_DESTINATION_NAME] == "celery"
    assert home.attributes[conventions.MESSAGING_OPERATION_TYPE] == "send"
    assert home.attributes[conventions.MESSAGING_OPERATION_NAME] == "send"
    assert home.attributes[conventions.MESSAGING_MESSAGE_ID] == result.id
    [diverted] = sent.events
    assert diverted.name == "kombu_paired.diverted"
    assert diverted.attributes["kombu_paired.failure"] == "unreachable"


def test_what_was_sent_without_a_trace_comes_home_without_a_link(spans: InMemorySpanExporter) -> None:
    events.everywhere.emit(events.Event(EventKind.SYPHONED, 20.0, "shop", entity="orders", headers={"id": "a"}))
    [home] = spans.get_finished_spans()
    assert home.links == ()


@pytest.mark.parametrize(
    ("url", "system"),
    [
        ("paired+amqp://main//", "rabbitmq"),
        ("paired+redis://main/0", "redis"),
        ("paired+azureservicebus://policy:key@shop", "servicebus"),
        ("sqs://", "aws_sqs"),
    ],
)
def test_a_broker_is_called_as_the_conventions_call_it(url: str, system: str) -> None:
    assert system_of(url) == system
    known = {each.value for each in conventions.MessagingSystemValues}
    assert system in {*known, "redis"}  # they have no name for it


def test_the_numbers_have_the_names_that_prometheus_gives_them() -> None:
    reader = InMemoryMetricReader()
    instruments = Instruments(MeterProvider([reader]).get_meter("kombu_paired"))
    measuring = Measuring(instruments, hands_on=False)
    measuring.sent("shop", 0.2)
    measuring.hand_on()
    for kind, facts in (
        (EventKind.SEND_FAILED, {"failure": FailureKind.TIMEOUT.value}),
        (EventKind.FAILED_OVER, {"entity": "orders"}),
        (EventKind.SYPHONED, {"seconds": 3.0}),
    ):
        measuring.happened(events.Event(kind, 1.0, "shop", **facts))

    [of_resource] = reader.get_metrics_data().resource_metrics
    found = {each.name: each for each in of_resource.scope_metrics[0].metrics}
    assert set(found) == {
        f"kombu_paired.{name}"
        for name in ("messages_sent", "send", "send_failures", "failovers", "messages_syphoned", "entity_state")
    } | {"kombu_paired.backlog_wait"}
    [sent] = found["kombu_paired.send"].data.data_points
    assert (sent.count, sent.sum, dict(sent.attributes)) == (1, 0.2, {"pairing": "shop", "route": "primary"})
    assert found["kombu_paired.send"].unit == "s"
    [state] = found["kombu_paired.entity_state"].data.data_points
    assert (state.value, dict(state.attributes)) == (2, {"pairing": "shop", "entity": "orders"})
    [failures] = found["kombu_paired.send_failures"].data.data_points
    assert dict(failures.attributes) == {"pairing": "shop", "kind": "timeout"}


def test_setup_listens_once(app: Celery, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(room, "_measuring", None)
    before = events.everywhere.meters
    try:
        assert room.setup(room.setup(app)) is app
        assert len(events.everywhere.meters) == len(before) + 1
    finally:
        room._measuring.stop()
        for kind in (EventKind.DIVERTED, EventKind.SYPHONED):
            for listener in events.everywhere._listeners[kind]:
                if isinstance(getattr(listener, "__self__", None), Traces):
                    events.everywhere.silence(listener)
