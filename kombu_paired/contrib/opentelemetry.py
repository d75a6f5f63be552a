"""OpenTelemetry: what became of a message, beside the spans of who sent it, and the numbers. Needs the extra
``opentelemetry``.

::

    kombu_paired.setup(app)
    opentelemetry.setup(app)

A message keeps its headers in the backlog, so that whatever instrumentation put a trace into them finds it when the
task runs. This adds what only we know: that the message was diverted, to the span that sent it, and its way home.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from celery import Celery, signals
from opentelemetry import metrics, propagate, trace
from opentelemetry.context import Context
from opentelemetry.trace import Link, SpanKind

from kombu_paired import events
from kombu_paired.contrib.measuring import COUNTERS, GAUGES, TIMERS, Measuring
from kombu_paired.events import Event, EventKind
from kombu_paired.process import at_exit, at_fork
from kombu_paired.urls import PREFIX

__all__ = ("setup",)

NAME = "kombu_paired"
#: Names of the semantic conventions, whose package has them among what is not stable yet.
SYSTEM, DESTINATION = "messaging.system", "messaging.destination.name"
OPERATION_NAME, OPERATION_TYPE, MESSAGE_ID = (
    "messaging.operation.name",
    "messaging.operation.type",
    "messaging.message.id",
)
#: What the conventions call a broker -> schemes of Kombu's URLs.
_SYSTEMS = {"rabbitmq": ("amqp", "pyamqp", "amqps"), "servicebus": ("azureservicebus",), "aws_sqs": ("sqs",)}

_measuring: Measuring | None = None


def setup(app: Celery) -> Celery:
    """Tell of this application's messages, by the providers that OpenTelemetry has for the process; twice changes
    nothing. Returns the application.
    """
    global _measuring
    if _measuring is None:
        measuring = _measuring = Measuring(Instruments(metrics.get_meter(NAME)), hands_on=True)
        at_fork(in_child=measuring.start_clean)
        at_exit(measuring.hand_on)
        signals.worker_process_shutdown.connect(_pool_process_exits)
        measuring.start()
        traces = Traces(trace.get_tracer(NAME), system_of(str(app.conf.broker_write_url)))
        events.everywhere.listen(traces.diverted, {EventKind.DIVERTED})
        events.everywhere.listen(traces.syphoned, {EventKind.SYPHONED})
    return app


def _pool_process_exits(**kwargs: Any) -> None:
    """It ends without the interpreter's own goodbye."""
    if _measuring is not None:
        _measuring.hand_on()


def system_of(url: str) -> str:
    """What the conventions call the broker of a URL."""
    scheme = url.removeprefix(PREFIX).partition(":")[0].partition("+")[0]
    return next((system for system, schemes in _SYSTEMS.items() if scheme in schemes), scheme)


class Traces:
    """Spans of what the syphon sends, and notes on those of who sent a message that was diverted.

    Arguments:
        tracer: makes them.
        system: the primary's kind, as the conventions call it.
    """

    def __init__(self, tracer: trace.Tracer, system: str) -> None:
        self._tracer = tracer
        self._system = system

    def diverted(self, event: Event) -> None:
        """In the thread that sends: its span is the current one."""
        span = trace.get_current_span()
        if span.is_recording():
            span.add_event(
                "kombu_paired.diverted",
                {
                    MESSAGE_ID: event.message_id or "",
                    "kombu_paired.pairing": event.pairing,
                    "kombu_paired.route": event.route,
                    "kombu_paired.failure": event.failure or "failed over",
                    "kombu_paired.maybe_duplicate": event.maybe_duplicate,
                },
            )

    def syphoned(self, event: Event) -> None:
        """A span of its own, linked to the sender's, which has long ended."""
        began = event.time if event.began is None else event.began
        span = self._tracer.start_span(
            f"send {event.entity}",
            context=Context(),
            kind=SpanKind.CLIENT,  # not PRODUCER: whoever receives the message continues the sender's trace
            links=_link_to(event.headers or {}),
            start_time=_nanoseconds(began),
            attributes={
                SYSTEM: self._system,
                DESTINATION: event.entity,
                OPERATION_NAME: "send",
                OPERATION_TYPE: "send",
                MESSAGE_ID: event.message_id or "",
                "kombu_paired.pairing": event.pairing,
                "kombu_paired.route": event.route,
                "kombu_paired.backlog_wait": event.seconds or 0.0,
                "kombu_paired.maybe_duplicate": event.maybe_duplicate,
            },
        )
        span.end(_nanoseconds(max(event.time, began)))


def _link_to(headers: Mapping[str, Any]) -> list[Link]:
    texts = {name: value for name, value in headers.items() if isinstance(value, str)}
    context = trace.get_current_span(propagate.extract(texts, context=Context())).get_span_context()
    return [Link(context)] if context.is_valid else []


def _nanoseconds(seconds: float) -> int:
    return int(seconds * 1e9)


class Instruments:
    """The numbers, by the names that Prometheus has for them: an exporter adds ``_total`` and ``_seconds``."""

    def __init__(self, meter: metrics.Meter) -> None:
        self._counters = {each.name: meter.create_counter(_full(each.name), "1", each.what) for each in COUNTERS}
        self._timers = {
            each.name: meter.create_histogram(
                _full(each.name), "s", each.what, explicit_bucket_boundaries_advisory=each.buckets
            )
            for each in TIMERS
        }
        self._gauges = {each.name: meter.create_gauge(_full(each.name), "1", each.what) for each in GAUGES}
        self._labels = {each.name: each.labels for each in (*COUNTERS, *TIMERS, *GAUGES)}

    def count(self, name: str, *labels: str, times: int = 1) -> None:
        self._counters[name].add(times, self._attributes(name, labels))

    def time(self, name: str, seconds: Sequence[float], *labels: str) -> None:
        attributes, timer = self._attributes(name, labels), self._timers[name]
        for each in seconds:
            timer.record(each, attributes)

    def set(self, name: str, value: int, *labels: str) -> None:
        self._gauges[name].set(value, self._attributes(name, labels))

    def _attributes(self, name: str, labels: Sequence[str]) -> dict[str, str]:
        return dict(zip(self._labels[name], labels, strict=True))


def _full(name: str) -> str:
    return f"{NAME}.{name}"
