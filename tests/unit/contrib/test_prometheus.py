"""What happens becomes numbers, in one process and in many, and no scrape waits for a broker."""

from __future__ import annotations

import os
import socket
import subprocess
import sys
import threading
import time
import urllib.request
from collections.abc import Iterator
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
from celery import Celery
from prometheus_client import CollectorRegistry, Histogram

from kombu_paired import events
from kombu_paired.brokers.roles import BacklogDepth
from kombu_paired.contrib import prometheus
from kombu_paired.contrib.measuring import MOST_ENTITIES, MOST_NOTED, Measuring
from kombu_paired.contrib.prometheus import BacklogCollector, ExposeStep, Metrics, exposing
from kombu_paired.contrib.prometheus import backlog as backlog_room
from kombu_paired.contrib.prometheus.metrics import observe_all
from kombu_paired.errors import BacklogUnavailable, NamespaceFailure
from kombu_paired.events import Event, EventKind
from kombu_paired.failures import FailureKind
from kombu_paired.message import Message
from kombu_paired.options import PairedNamespaceOptions
from kombu_paired.pairing import Pairing, teller
from kombu_paired.testing import ManualClock, ScriptedBroker
from tests.support.nodes import ROOT
from tests.unit.syphon.trip import QUEUE, Trip

Sample = tuple[str, tuple[tuple[str, str], ...]]


@pytest.fixture
def metrics() -> Iterator[Metrics]:
    """Of all pairings, until the test is over."""
    made = Metrics()
    measuring = Measuring(made, hands_on=False)
    made.before_collecting = measuring.hand_on
    measuring.start()
    yield made
    measuring.stop()


@pytest.fixture
def pairing() -> Iterator[Pairing]:
    options = PairedNamespaceOptions(secondary="scripted://secondary", failover_interval=0, backlog_queue_count=1)
    clock = ManualClock()
    made = Pairing("shop", options, ScriptedBroker("primary", clock=clock), ScriptedBroker("secondary", clock=clock))
    yield made
    made.close()


def shown(collector: Any) -> dict[Sample, float]:
    return {
        (each.name, tuple(sorted(each.labels.items()))): each.value
        for metric in collector.collect()
        for each in metric.samples
    }


def value(collector: Any, name: str, **labels: str) -> float | None:
    return shown(collector).get((f"kombu_paired_{name}", tuple(sorted(labels.items()))))


def message(name: str = "a") -> Message:
    return Message("{}", "", "orders", properties={"message_id": name})


# -- what is counted --------------------------------------------------------------------------------------------------


def test_a_send_through_an_outage(metrics: Metrics, pairing: Pairing) -> None:
    pairing.send(message())
    pairing.primary.always = pairing.primary.failure(FailureKind.UNREACHABLE)
    pairing.send(message())
    pairing.send(message())

    assert value(metrics, "messages_sent_total", pairing="shop") == 1
    assert value(metrics, "messages_diverted_total", pairing="shop") == 2
    assert value(metrics, "send_failures_total", pairing="shop", kind="unreachable") == 1
    assert value(metrics, "failovers_total", pairing="shop") == 1
    assert value(metrics, "entity_state", pairing="shop", entity="orders") == 2
    assert value(metrics, "send_seconds_count", pairing="shop", route="primary") == 1
    assert value(metrics, "send_seconds_count", pairing="shop", route="backlog") == 2

    pairing.secondary.always = pairing.secondary.failure(FailureKind.UNREACHABLE)
    with pytest.raises(BacklogUnavailable):
        pairing.send(message())
    assert value(metrics, "messages_refused_total", pairing="shop") == 1

    pairing.mark_healthy(message().entity)
    assert value(metrics, "entity_state", pairing="shop", entity="orders") == 0


def test_a_healthy_send_is_counted_without_an_event(
    metrics: Metrics, pairing: Pairing, monkeypatch: pytest.MonkeyPatch
) -> None:
    """To build one takes longer than all else that counting does."""
    monkeypatch.delattr(teller, "Event")
    pairing.send(message())
    monkeypatch.undo()
    assert value(metrics, "messages_sent_total", pairing="shop") == 1


def test_what_a_closed_pairing_knew_is_not_shown_for_ever(metrics: Metrics, pairing: Pairing) -> None:
    pairing.primary.always = pairing.primary.failure(FailureKind.UNREACHABLE)
    pairing.send(message())
    pairing.close()
    assert value(metrics, "entity_state", pairing="shop", entity="orders") == 0


def test_the_way_home(metrics: Metrics) -> None:
    trip = Trip()
    trip.put("a", "b", "c")
    trip.move(None, None, trip.failure(FailureKind.REJECTED))
    assert value(metrics, "messages_syphoned_total", pairing="contoso") == 2
    assert value(metrics, "backlog_wait_seconds_count", pairing="contoso") == 2
    assert value(metrics, "messages_dead_lettered_total", pairing="contoso", reason="Rejected") == 1
    trip.pairing.close()


def test_pings_by_their_results_and_who_runs_a_syphon_or_stands_in(metrics: Metrics) -> None:
    for kind, facts in (
        (EventKind.PING, {"failure": "timeout"}),
        (EventKind.PING, {}),
        (EventKind.SYPHON_STARTED, {}),
        (EventKind.STANDING_IN, {}),
        (EventKind.HANDED_OUT, {}),
    ):
        events.everywhere.emit(Event(kind, 1.0, "shop", **facts))
    assert value(metrics, "pings_total", pairing="shop", result="timeout") == 1
    assert value(metrics, "pings_total", pairing="shop", result="ok") == 1
    assert value(metrics, "messages_handed_out_total", pairing="shop") == 1
    assert (value(metrics, "syphons", pairing="shop"), value(metrics, "standing_in", pairing="shop")) == (1, 1)
    events.everywhere.emit(Event(EventKind.SYPHON_STOPPED, 1.0, "shop"))
    events.everywhere.emit(Event(EventKind.CAME_HOME, 1.0, "shop"))
    assert (value(metrics, "syphons", pairing="shop"), value(metrics, "standing_in", pairing="shop")) == (0, 0)


def test_queues_without_end_do_not_become_metrics_without_end(metrics: Metrics) -> None:
    for number in range(MOST_ENTITIES + 5):
        events.everywhere.emit(Event(EventKind.SUSPECT, 1.0, "shop", entity=f"reply-{number}"))
    assert sum(name == "kombu_paired_entity_state" for name, _ in shown(metrics)) == MOST_ENTITIES


def test_a_meter_that_fails_harms_no_send(pairing: Pairing, caplog: pytest.LogCaptureFixture) -> None:
    def broken(pairing: str, seconds: float) -> None:
        raise RuntimeError("no room")

    events.everywhere.measure(broken)
    try:
        pairing.send(message())
    finally:
        events.everywhere.end_measuring(broken)
    assert "a meter of sends failed" in caplog.text
    assert pairing.primary.queues["orders"]


def test_sends_that_nobody_asks_for_do_not_pile_up() -> None:
    metrics = Metrics()
    measuring = Measuring(metrics, hands_on=False)
    for _ in range(MOST_NOTED):
        measuring.sent("shop", 0.1)
    assert value(metrics, "messages_sent_total", pairing="shop") == MOST_NOTED


def test_sends_are_handed_on_by_themselves_where_another_process_shows_them() -> None:
    metrics = Metrics()
    measuring = Measuring(metrics, hands_on=True)
    for expected in (1, 2):  # and once more, after it had nothing to do
        measuring.sent("shop", 0.1)
        deadline = time.monotonic() + 30
        while value(metrics, "messages_sent_total", pairing="shop") != expected:
            assert time.monotonic() < deadline
            time.sleep(0.05)


def test_many_are_observed_at_once_as_one_by_one() -> None:
    """By values that are private to the client: held against what it does itself."""
    seconds = [0.0, 0.001, 0.0011, 0.3, 5.0, 99.0, 0.001]
    at_once, singly = CollectorRegistry(), CollectorRegistry()
    for registry in (at_once, singly):
        histogram = Histogram("taken", "Time", ["route"], registry=registry, buckets=(0.001, 0.5, 5.0))
        if registry is at_once:
            observe_all(histogram.labels("primary"), seconds)
        else:
            for each in seconds:
                histogram.labels("primary").observe(each)
    found, expected = shown(at_once), shown(singly)
    del found["taken_created", (("route", "primary"),)], expected["taken_created", (("route", "primary"),)]
    assert found == pytest.approx(expected)


# -- processes --------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("shares_a_folder", [True, False])
def test_a_child_counts_although_a_thread_of_its_parent_was_counting_when_it_was_forked(
    tmp_path: Path, shares_a_folder: bool
) -> None:
    program = """
import os, threading, time
from kombu_paired.contrib.prometheus import Metrics
from kombu_paired.process import at_fork
metrics = Metrics()
at_fork(before=metrics.before_fork, in_parent=metrics.in_parent, in_child=metrics.in_child)
def count():
    while True:
        metrics.count("messages_diverted", "shop")
threading.Thread(target=count, daemon=True).start()
for _ in range(12):
    child = os.fork()
    if not child:
        metrics.count("messages_diverted", "shop")
        [own] = [s.value for m in metrics.collect() for s in m.samples if s.name.endswith("diverted_total")]
        os._exit(0 if own == 1 else 1)
    deadline = time.monotonic() + 20
    while not (done := os.waitpid(child, os.WNOHANG))[0]:
        assert time.monotonic() < deadline, "the child waits for a lock"
        time.sleep(0.005)
    assert done[1] == 0, "the child does not begin at nothing"
os._exit(0)
"""
    # Where processes share a folder, the client has one lock for all its numbers, which a child inherits.
    environment = _environment(**({"PROMETHEUS_MULTIPROC_DIR": str(tmp_path)} if shares_a_folder else {}))
    run = subprocess.run([sys.executable, "-c", program], env=environment, capture_output=True, timeout=120)
    assert run.returncode == 0, run.stderr.decode()[-2000:]


A_FLEET = """
import os, signal, sys, time
from prometheus_client import generate_latest
from kombu_paired import events
from kombu_paired.contrib import prometheus
from kombu_paired.events import Event, EventKind

prometheus.listen()
prometheus.listen()
def work(sends):
    for _ in range(sends):
        events.everywhere.measured("shop", 0.1)
    events.everywhere.emit(Event(EventKind.FAILED_OVER, 1.0, "shop", entity="orders"))
    events.everywhere.emit(Event(EventKind.SYPHON_STARTED, 1.0, "shop"))
work(1)
events.everywhere.emit(Event(EventKind.RESTORED, 1.0, "shop", entity="orders"))
children = []
for sends in (10, 100):
    child = os.fork()
    if not child:
        work(sends)
        time.sleep(60)
        os._exit(0)
    children.append(child)

def scraped():
    text = generate_latest(prometheus.registry_to_scrape()).decode()
    lines = [line.rpartition(" ") for line in text.splitlines() if not line.startswith("#")]
    return {name.partition("{")[0]: float(value) for name, _, value in lines if "_bucket" not in name}

def wait_until(**expected):
    deadline = time.monotonic() + 30
    while not all((found := scraped()).get("kombu_paired_" + name) == value for name, value in expected.items()):
        assert time.monotonic() < deadline, (expected, found)
        time.sleep(0.05)

wait_until(messages_sent_total=111, send_seconds_count=111, failovers_total=3, syphons=3, entity_state=2)
for child in children:
    os.kill(child, signal.SIGKILL)
    os.waitpid(child, 0)
wait_until(messages_sent_total=111, failovers_total=3, syphons=1, entity_state=0)
"""


def test_of_many_processes_the_sum_and_of_the_dead_only_what_they_did(tmp_path: Path) -> None:
    environment = _environment(PROMETHEUS_MULTIPROC_DIR=str(tmp_path))
    run = subprocess.run([sys.executable, "-c", A_FLEET], env=environment, capture_output=True, timeout=120)
    assert run.returncode == 0, run.stderr.decode()[-2000:]


A_FILE_THAT_IS_BEING_MADE = """
import os, threading
from pathlib import Path
from prometheus_client import generate_latest
from kombu_paired.contrib import prometheus
path = Path(os.environ["PROMETHEUS_MULTIPROC_DIR"]) / "counter_1.db"
path.touch()
threading.Timer(0.2, path.write_bytes, [bytes(1024)]).start()
generate_latest(prometheus.registry_to_scrape())
"""


def test_a_process_that_has_just_begun_spoils_no_scrape(tmp_path: Path) -> None:
    environment = _environment(PROMETHEUS_MULTIPROC_DIR=str(tmp_path))
    program = A_FILE_THAT_IS_BEING_MADE
    run = subprocess.run([sys.executable, "-c", program], env=environment, capture_output=True, timeout=120)
    assert run.returncode == 0, run.stderr.decode()[-2000:]


def _environment(**more: str) -> dict[str, str]:
    kept = {name: value for name, value in os.environ.items() if name != "PROMETHEUS_MULTIPROC_DIR"}
    return kept | {"PYTHONPATH": str(ROOT)} | more


def step_of(app: Celery, port: int) -> Any:
    """The bootstep of a worker of this application."""
    prometheus.setup(app, port=port)
    [step_class] = [each for each in app.steps["worker"] if issubclass(each, ExposeStep)]
    return step_class(SimpleNamespace(app=app))


@pytest.fixture
def unheard(monkeypatch: pytest.MonkeyPatch) -> None:
    """What :func:`setup` does to the process is left out."""
    monkeypatch.setattr(exposing, "listen", lambda: None)


@pytest.mark.usefixtures("unheard")
def test_a_worker_answers_scrapes_until_it_stops_also_where_its_broker_is_a_plain_one(
    caplog: pytest.LogCaptureFixture,
) -> None:
    step = step_of(app := Celery("shop", broker="memory://", set_as_current=False), 0)
    step.start(SimpleNamespace(app=app))
    url = f"http://127.0.0.1:{step._server.server_port}/metrics"
    with urllib.request.urlopen(url, timeout=30) as answer:
        assert b"python_info" in answer.read()
    step.stop(None)
    assert "no metrics of the backlog" in caplog.text
    with pytest.raises(OSError, match=r"."):
        urllib.request.urlopen(url, timeout=30)


@pytest.mark.usefixtures("unheard")
def test_a_port_that_is_taken_keeps_no_worker_from_its_work(caplog: pytest.LogCaptureFixture) -> None:
    with socket.socket() as other:
        other.bind(("0.0.0.0", 0))
        other.listen()
        port = other.getsockname()[1]
        step = step_of(app := Celery("shop", broker="memory://", set_as_current=False), port)
        step.start(SimpleNamespace(app=app))
    assert f"no metrics: port {port} cannot be used" in caplog.text
    step.stop(None)


# -- the backlog ------------------------------------------------------------------------------------------------------


class Secondary:
    """Counts its queues when it is let to."""

    def __init__(self) -> None:
        self.asked = 0
        self.answers = threading.Event()
        self.failure: NamespaceFailure | None = None

    def backlog_depths(self, names: list[str], timeout: float) -> list[BacklogDepth]:
        self.asked += 1
        self.answers.wait(60)
        if self.failure is not None:
            raise self.failure
        return [BacklogDepth(QUEUE, 7, 900.0, 2), BacklogDepth("missing", None)]


@pytest.fixture
def looked(monkeypatch: pytest.MonkeyPatch) -> Any:
    secondary, clock = Secondary(), ManualClock()
    options = SimpleNamespace(send_timeout=1.0)
    pairing = SimpleNamespace(
        name="shop", secondary=secondary, backlog_queue_names=[QUEUE], options=options, closed=False
    )
    monkeypatch.setattr(backlog_room, "pairing_of", lambda connection: pairing)
    collector = BacklogCollector(object(), clock=clock, wall_clock=lambda: 1000.0)
    yield SimpleNamespace(secondary=secondary, clock=clock, collector=collector)
    secondary.answers.set()


def test_what_waits_is_shown_and_asked_for_seldom(looked: Any) -> None:
    looked.secondary.answers.set()
    for _ in range(3):
        assert value(looked.collector, "backlog_messages", pairing="shop", queue=QUEUE) == 7
    assert value(looked.collector, "backlog_oldest_seconds", pairing="shop", queue=QUEUE) == 100
    assert value(looked.collector, "dead_letters", pairing="shop", queue=QUEUE) == 2
    assert value(looked.collector, "secondary_up", pairing="shop") == 1
    assert value(looked.collector, "backlog_messages", pairing="shop", queue="missing") is None
    assert looked.secondary.asked == 1
    looked.clock.now += backlog_room.FRESH
    shown(looked.collector)
    assert looked.secondary.asked == 2


def test_no_scrape_waits_for_a_secondary_that_is_frozen(looked: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(backlog_room, "PATIENCE", 0.05)
    for _ in range(3):
        assert value(looked.collector, "secondary_up", pairing="shop") == 0
    assert looked.secondary.asked == 1  # and no thread for each scrape


def test_a_frozen_secondary_is_known_by_its_last_answer_for_a_minute(
    looked: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    looked.secondary.answers.set()
    shown(looked.collector)
    looked.secondary.answers.clear()
    monkeypatch.setattr(backlog_room, "PATIENCE", 0.05)
    looked.clock.now += backlog_room.STALE - 1
    assert value(looked.collector, "backlog_messages", pairing="shop", queue=QUEUE) == 7
    looked.clock.now += 1
    assert value(looked.collector, "backlog_messages", pairing="shop", queue=QUEUE) is None
    assert value(looked.collector, "secondary_up", pairing="shop") == 0


def test_a_secondary_that_fails_is_down_at_once(looked: Any) -> None:
    looked.secondary.answers.set()
    looked.secondary.failure = NamespaceFailure(FailureKind.UNREACHABLE, "secondary", ConnectionError("refused"))
    assert value(looked.collector, "secondary_up", pairing="shop") == 0
    assert value(looked.collector, "backlog_messages", pairing="shop", queue=QUEUE) is None


def test_a_registry_that_takes_the_collector_asks_nobody(looked: Any) -> None:
    CollectorRegistry().register(looked.collector)
    assert looked.secondary.asked == 0
