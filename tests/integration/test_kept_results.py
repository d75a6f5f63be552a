"""Results that cannot be stored since their server is dead: kept on the secondary, and stored when it is back."""

from __future__ import annotations

import os
import time
from typing import Any

import pytest
from celery import chord, states
from celery._state import pop_current_task, push_current_task
from celery.app.task import Context

from kombu_paired.contrib.kept_results import KeptResult
from kombu_paired.contrib.results import result_queue_of
from kombu_paired.contrib.results_home import ResultPump
from kombu_paired.pairing import Pairing
from kombu_paired.syphon import Syphon
from kombu_paired.testing import LocalRedis
from kombu_paired.testing.processes import wait_until
from kombu_paired.transport import pairing_of

on_rabbitmq = pytest.mark.parametrize("broker_kind", ["amqp"])
on_redis = pytest.mark.parametrize("broker_kind", ["redis"])

#: Seconds; a minute is for a look by hand.
OUTAGE = float(os.environ.get("RESULTS_OUTAGE", "2.5"))
#: What is under way when it begins.
TASKS, CHORDS = (int(each) for each in os.environ.get("RESULTS_UNDER_WAY", "40,8").split(","))
#: The numbers of the chords' bodies in the ledger begin here.
BODIES = 100_000


def with_results(url: str) -> dict[str, Any]:
    return {"result_backend": url, "task_ignore_result": False}


def waiting(pairing: Pairing, queue: str) -> int | None:
    [depth] = pairing.secondary.backlog_depths([queue], 10)
    return depth.messages


@on_redis
def test_results_and_chords_under_way_when_their_redis_dies_arrive(primary, paired_shop, paired_worker, ledger):
    """One Redis is broker and result backend, and dies while a worker has its hands full."""
    conf = with_results(primary.url)
    shop = paired_shop(conf=conf, setup=True)
    chords = [
        chord(shop.total.s([n, m], 0.1, n) for m in range(3))(shop.total.s(0.0, BODIES + n)) for n in range(CHORDS)
    ]
    singles = [shop.total.delay([n], 0.1, n) for n in range(TASKS)]
    paired_worker(conf=conf, concurrency=4)

    ledger.wait_for(3, timeout=30)
    primary.kill()
    time.sleep(OUTAGE)
    primary.restart()

    assert [each.get(timeout=120) for each in chords] == [3 * n + 3 for n in range(CHORDS)]
    assert [each.get(timeout=120) for each in singles] == list(range(TASKS))
    counts = ledger.counts()
    assert {n: counts[BODIES + n] for n in range(CHORDS)} == dict.fromkeys(range(CHORDS), 1)


@on_redis
def test_a_body_that_redis_has_stored_without_telling_is_there_once(
    primary, secondary, options, paired_shop, paired_worker, ledger
):
    """Redis is killed, say, when it has written what it is given, and has not answered yet. A body's retries are other
    messages, of which the same is true.
    """
    options["failover_interval"] = 600  # each send is tried
    conf = with_results(primary.url)
    shop = paired_shop(conf=conf, setup=True)
    paired_worker(conf=conf, args=("--no-syphon", "-I", "tests.support.lost_answers"))
    bodies = [shop.total.s(0.0, BODIES), shop.retry.si(BODIES + 1, 2), shop.replace.si(BODIES + 2, 2)]
    for n, body in enumerate(bodies):
        chord([shop.total.s([n], 0.0, n), shop.total.s([n], 0.0, n)])(body)
    wait_until(lambda: secondary.backlog() == 5, 60, lambda: f"{secondary.backlog()} copies are in the backlog")

    with shop.connection_for_write() as connection:
        syphon = Syphon(pairing_of(connection))
    syphon.start()
    wait_until(lambda: secondary.backlog() == 0, 60, lambda: f"{secondary.backlog()} copies are left")
    syphon.stop()

    counts = ledger.wait_until_quiet(2, 30)
    assert [counts[BODIES + n] for n in range(3)] == [1, 3, 3]


def test_a_secondary_of_each_kind_keeps_what_a_result_server_of_its_own_cannot_store(paired_shop, tmp_path):
    with LocalRedis(tmp_path / "results") as server:
        shop = paired_shop(conf=with_results(server.url), setup=True)
        with shop.connection_for_write() as connection:
            pairing = pairing_of(connection)
        pairing.open()
        pump = ResultPump(shop, pairing)
        backend = shop.backend
        backend.store_result("before", 1, states.SUCCESS)

        server.kill()
        for n in range(20):
            request = Context(id=f"task-{n}", task="shop.record")
            for state in (states.STARTED, states.SUCCESS):
                backend.store_result(f"task-{n}", n, state, request=request)
        wait_until(lambda: waiting(pairing, pump.queue) == 40, 30, lambda: f"{waiting(pairing, pump.queue)} are kept")
        server.restart()
        pump.start()

        assert [shop.AsyncResult(f"task-{n}").get(timeout=60) for n in range(20)] == list(range(20))
        wait_until(lambda: waiting(pairing, pump.queue) == 0, 30, lambda: f"{waiting(pairing, pump.queue)} are left")
        pump.stop()


@on_redis
def test_a_state_that_somebody_stores_just_before_a_late_one_stays(primary, paired_shop, monkeypatch):
    """Between the last look at what is there and the write."""
    shop = paired_shop(conf=with_results(primary.url), setup=True)
    backend, encode = shop.backend, shop.backend.encode
    rival = shop._get_backend()

    def encode_and_be_overtaken(data: Any) -> Any:
        rival.store_result("a-task", 7, states.SUCCESS)
        return encode(data)

    monkeypatch.setattr(backend, "encode", encode_and_be_overtaken)
    assert backend.store_kept(KeptResult("a-task", states.STARTED, at=time.time()))
    assert shop.AsyncResult("a-task").get(timeout=10) == 7


@on_redis
def test_a_part_is_counted_again_while_one_who_died_may_still_send_the_body(primary, paired_shop):
    shop = paired_shop(conf=with_results(primary.url), setup=True)
    backend = shop.backend
    backend.set_chord_size("a-group", 1)
    claim = backend.get_key_for_group("a-group", ".c")
    backend.client.set(claim, "one who died")
    facts = {"id": "a-part", "task": "shop.record", "group": "a-group", "group_index": 0}
    body = shop.total.s(0.0, BODIES).set(task_id="the-body")
    part = KeptResult("a-part", states.SUCCESS, 7, None, {**facts, "chord": dict(body)}, time.time(), is_part=True)

    assert not backend.store_kept(part)
    assert backend.client.llen("celery") == 0
    backend.client.expire(claim, 1)
    deadline = time.monotonic() + 20
    while not backend.store_kept(part):
        assert time.monotonic() < deadline
        time.sleep(0.1)
    assert backend.store_kept(part)
    assert backend.client.llen("celery") == 1


@on_redis
def test_a_part_is_counted_again_if_the_right_to_send_the_body_ends_just_then(primary, paired_shop, monkeypatch):
    """After Redis has counted it, and before somebody looks whether there is one who may send the body."""
    shop = paired_shop(conf=with_results(primary.url), setup=True)
    backend = shop.backend
    backend.set_chord_size("a-group", 1)
    claim, count = backend.get_key_for_group("a-group", ".c"), backend._chord_part_return_script
    backend.client.set(claim, "one who died")

    def count_and_expire(**arguments: Any) -> Any:
        answer = count(**arguments)
        backend.client.delete(claim)
        return answer

    facts = {"id": "a-part", "task": "shop.record", "group": "a-group", "group_index": 0}
    body = shop.total.s(0.0, BODIES).set(task_id="the-body")
    part = KeptResult("a-part", states.SUCCESS, 7, None, {**facts, "chord": dict(body)}, time.time(), is_part=True)
    with monkeypatch.context() as patched:
        patched.setitem(vars(backend), "_chord_part_return_script", count_and_expire)
        assert not backend.store_kept(part)

    assert backend.store_kept(part)
    assert backend.client.llen("celery") == 1


@on_redis
def test_what_a_worker_left_behind_another_stores(paired_shop, paired_worker, ledger, tmp_path):
    """The broker works; the first worker is killed while the result server is away."""
    with LocalRedis(tmp_path / "results") as server:
        conf = with_results(server.url)
        shop = paired_shop(conf=conf, setup=True)
        with shop.connection_for_write() as connection:
            pairing = pairing_of(connection)
        queue = str(result_queue_of(shop, pairing.name))
        first = paired_worker(conf=conf)
        server.kill()
        results = [shop.record.delay(n) for n in range(10)]
        wait_until(lambda: waiting(pairing, queue) == 10, 30, lambda: f"{waiting(pairing, queue)} are kept")
        first.kill()
        server.restart()

        paired_worker(conf=conf)

        assert [each.get(timeout=60) for each in results] == list(range(10))
        assert ledger.duplicates() == {}
        wait_until(lambda: waiting(pairing, queue) == 0, 30, lambda: f"{waiting(pairing, queue)} are left")
        [facts] = shop.control.inspect(timeout=20, limit=1).stats().values()
        assert facts["results"] == {"backlog_queue": queue, "stored_late": 10}


@on_rabbitmq
def test_an_answer_of_rpc_that_the_broker_could_not_take_comes_when_it_is_back(primary, paired_shop, paired_worker):
    conf = with_results("rpc://")
    shop = paired_shop(conf=conf, setup=True)
    with shop.connection_for_write() as connection:
        pairing = pairing_of(connection)
    queue = str(result_queue_of(shop, pairing.name))
    worker = paired_worker(conf=conf)
    results = [shop.total.delay([n], 4.0, n) for n in range(2)]
    wait_until(lambda: worker.count_in_log("Task shop.total.* received") == 2, 30, worker.logs)
    primary.kill()
    wait_until(lambda: waiting(pairing, queue) == 2, 30, lambda: f"{waiting(pairing, queue)} are kept")
    primary.restart()
    assert [each.get(timeout=60) for each in results] == [0, 1]


@on_redis
def test_a_body_that_was_sent_just_before_the_server_died_is_not_sent_again(
    primary, paired_shop, monkeypatch, tmp_path
):
    with LocalRedis(tmp_path / "results") as server:
        shop = paired_shop(conf=with_results(server.url), setup=True)
        backend = shop.backend
        with shop.connection_for_write() as connection:
            pairing = pairing_of(connection)
        backend.set_chord_size("a-group", 1)
        facts = {"id": "a-part", "task": "shop.record", "group": "a-group", "group_index": 0}
        body = shop.total.s(0.0, BODIES).set(task_id="the-body")
        request = Context(**facts, chord=dict(body), called_directly=False)

        def send_and_kill(publish: Any, *args: Any) -> None:
            publish(*args)
            server.kill()

        with monkeypatch.context() as patched:
            patched.setattr(shop.amqp, "_retry_publish", send_and_kill)
            backend.on_chord_part_return(request, states.SUCCESS, 7)
        server.restart()
        pump = ResultPump(shop, pairing)
        pump.start()
        wait_until(lambda: pump.stored == 1, 60, lambda: "the end of the chord is not stored")
        pump.stop()

        assert backend.result_server.wait_until_back(30)
        backend.on_chord_part_return(request, states.SUCCESS, 7)
        assert primary.depths()["celery"] == 1


@on_redis
@pytest.mark.parametrize("step", ["_chord_part_return_script", "restore_group"])
def test_a_part_whose_connection_is_reset_is_counted_again_until_the_body_is_sent(
    primary, paired_shop, monkeypatch, step
):
    """The first time gave the right to send the body, and whoever got it does not send it."""
    shop = paired_shop(conf=with_results(primary.url), setup=True)
    backend = shop.backend
    with shop.connection_for_write() as connection:
        pump = ResultPump(shop, pairing_of(connection))
    backend.set_chord_size("a-group", 1)
    ask, lost = getattr(backend, step), []

    def lose_the_answer(*args: Any, **kwargs: Any) -> Any:
        answer = ask(*args, **kwargs)
        if not lost:
            lost.append(answer)
            raise backend.redis.ConnectionError("reset")
        return answer

    monkeypatch.setitem(vars(backend), step, lose_the_answer)
    chord_body = dict(shop.total.s(0.0, BODIES).set(task_id="the-body"))
    request = Context(id="a-part", task="shop.record", group="a-group", group_index=0, chord=chord_body)
    push_current_task(shop.record)
    try:
        backend.on_chord_part_return(request, states.SUCCESS, 7)
    finally:
        pop_current_task()
    assert lost
    assert primary.depth("celery") == 0
    backend.client.delete(backend.get_key_for_group("a-group", ".c"))  # it ends after five seconds or more
    pump.start()
    wait_until(lambda: primary.depth("celery") == 1, 60, lambda: "the body is not sent")
    pump.stop()
