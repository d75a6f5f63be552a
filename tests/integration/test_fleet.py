"""What one worker of a fleet costs the secondary: connections, threads, questions while there is nothing to do."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator
from typing import Any

import pytest
from celery import states
from kombu import Connection, Queue

from kombu_paired import Syphon
from kombu_paired.brokers.kombu import new_connection
from kombu_paired.contrib import results_home
from kombu_paired.contrib.kept_results import KeptResult
from kombu_paired.contrib.result_backlog import result_backlog
from kombu_paired.contrib.results_home import ResultPump
from kombu_paired.events import Event, EventKind
from kombu_paired.message import Diversion, Message, to_backlog
from kombu_paired.pairing import Pairing
from kombu_paired.testing import LocalRedis
from kombu_paired.transport import pairing_of
from tests.support.brokers import BrokerNode
from tests.support.own_sockets import connections_to, own_threads

QUEUES = 10


def wait_until(condition: Callable[[], Any], what: str, seconds: float = 30.0) -> None:
    deadline = time.monotonic() + seconds
    while not condition():
        assert time.monotonic() < deadline, what
        time.sleep(0.02)


@pytest.fixture
def pairing(primary: BrokerNode, options: dict[str, Any]) -> Iterator[Pairing]:
    """One that has ten backlog queues, and has sent nothing."""
    options = {**options, "backlog_queue_count": QUEUES, "syphon_poll": 0.5}
    with new_connection(primary.url) as plain:
        Queue("orders", durable=True)(plain.default_channel).declare()
    with Connection(f"paired+{primary.url}", transport_options=options) as connection:
        made = pairing_of(connection)
        made.open()
        yield made
        made.close()


@pytest.fixture
def polls(pairing: Pairing) -> list[Event]:
    found: list[Event] = []
    pairing.events.listen(found.append, (EventKind.POLLED,))
    return found


@pytest.fixture
def syphon(pairing: Pairing, polls: list[Event]) -> Iterator[Syphon]:
    """One that has found its queues empty."""
    made = Syphon(pairing)
    made.start()
    wait_until(lambda: len(polls) >= 2 * QUEUES, "it polls")
    yield made
    made.stop()


def test_an_idle_syphon_is_one_connection_and_two_threads(pairing, secondary, primary, polls, syphon):
    def is_idle() -> bool:
        return connections_to(secondary.port) == 1 and connections_to(primary.port) == 0

    wait_until(is_idle, "a probe has no link any more")
    name = f"kombu-paired-syphon-{pairing.name}"
    assert [each for each in own_threads() if pairing.name in each] == [f"{name}-pump", f"{name}-watch"]
    assert {event.entity for event in polls} == set(pairing.backlog_queue_names)

    moved: list[Event] = []
    pairing.events.listen(moved.append, (EventKind.SYPHONED,))
    sender = pairing.secondary.sender()
    why = Diversion(time.time(), time.time(), "web-1/1", "unreachable")
    names = pairing.backlog_queue_names
    properties = [{"message_id": str(n), "delivery_mode": 2} for n in range(200)]
    messages = [Message(b"{}", "", "orders", properties=each) for each in properties]
    batch = [to_backlog(message, names[n % QUEUES], why) for n, message in enumerate(messages)]
    assert sender.send_batch(batch, 20) == [None] * 200
    sender.close()

    wait_until(lambda: len(moved) == 200, "all are home")
    wait_until(lambda: syphon.has_seen_empty and is_idle(), "it is idle again")


def test_a_syphon_that_is_stopped_has_none(pairing, secondary, syphon):
    began = time.monotonic()
    syphon.stop()
    assert time.monotonic() - began < 10
    wait_until(lambda: connections_to(secondary.port) == 0, "they are closed")
    assert [each for each in own_threads() if pairing.name in each] == []


def test_results_that_are_kept_cost_an_idle_syphon_neither_a_thread_nor_a_connection(
    pairing, secondary, primary, shop_factory, syphon, monkeypatch, tmp_path
):
    """They have both while there are any, and while the primary is away, when the syphon does not look."""
    monkeypatch.setattr(results_home, "QUIET", 0.3)
    with LocalRedis(tmp_path / "results") as server:
        conf = {"result_backend": server.url, "task_ignore_result": False}
        shop = shop_factory(f"paired+{primary.url}", {"secondary": secondary.url}, conf=conf, setup=True)
        backend = shop.backend
        backlog = result_backlog(pairing, backend.place)
        pump = ResultPump(shop, pairing, syphon.look_out)
        threads = [f"kombu-paired-syphon-{pairing.name}-{each}" for each in ("pump", "watch")]

        def keep(name: str) -> None:
            kept = KeptResult(name, states.SUCCESS, 7, at=time.time())
            backlog.keep(kept.as_message(backend), "it is away")
            backlog.hang_up()

        def is_idle() -> bool:
            ours = [each for each in own_threads() if pairing.name in each or "results" in each]
            return ours == threads and connections_to(secondary.port) == 1

        keep("before")
        pump.start()
        for n, name in enumerate(("before", "when it is idle"), 1):
            wait_until(lambda n=n: pump.stored == n, f"{name}: it is stored")
            wait_until(is_idle, f"{name}: it is idle again")
            assert shop.AsyncResult(name).get(timeout=20) == 7
            if n == 1:
                keep("when it is idle")

        with monkeypatch.context() as patched:

            def fail(*_: object) -> None:
                raise pairing.primary.failure(ConnectionError("it is away"))

            patched.setattr(pairing.primary, "probe", fail)
            syphon.primary_failed(pairing.primary.failure(ConnectionError("it is away")))
            keep("without a primary")
            wait_until(lambda: pump.stored == 3, "it is stored though the primary is away")
        wait_until(is_idle, "it is idle again")
        pump.stop()


@pytest.mark.parametrize(("broker_kind", "with_results"), [("amqp", False), ("redis", True)])
def test_an_idle_worker_holds_one_connection_to_the_secondary_and_three_threads(
    with_results, options, paired_shop, paired_worker, secondary, broker_pool
):
    results = broker_pool.pair("redis")[0].url.rpartition("/")[0] + "/5"
    conf = {"result_backend": results} if with_results else {}
    worker = paired_worker(conf=conf, args=("-I", "tests.support.telling_threads"))
    seen = []

    def is_steady() -> bool:
        seen.append(connections_to(secondary.port, *worker.processes()))
        return len(seen) > 50 and set(seen[-50:]) == {1}

    wait_until(is_steady, f"{seen[-50:]}")
    inspect = paired_shop(conf=conf).control.inspect(timeout=20, limit=1)
    threads: list[list[str]] = []

    def are_few() -> bool:
        threads[:] = (inspect._request("own_threads") or {}).values()
        return bool(threads) and len(threads[0]) <= 3

    wait_until(are_few, f"{threads}")
    assert with_results == ("results" in str(inspect.stats()))
