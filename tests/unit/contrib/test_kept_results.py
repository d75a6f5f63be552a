"""Results that are kept while their server is away: what is kept of them, what is stored of it, when, how often."""

from __future__ import annotations

import logging
import threading
import time
from datetime import datetime, timezone
from types import SimpleNamespace
from typing import Any

import pytest
from celery import Celery, chord, states
from celery.app.task import Context
from kombu.exceptions import EncodeError
from kombu.serialization import loads

import kombu_paired
from kombu_paired.brokers.roles import DEAD_LETTER_SUFFIX
from kombu_paired.contrib import guarded_results, result_server, results
from kombu_paired.contrib.kept_results import KeptResult, is_news, moment_of, newest
from kombu_paired.contrib.result_backlog import queue_for
from kombu_paired.contrib.results_home import ResultPump
from kombu_paired.failures import FailureKind
from kombu_paired.message import MAYBE_DUPLICATE, ONCE, Message
from kombu_paired.testing import ScriptedBroker
from kombu_paired.testing.processes import wait_until
from kombu_paired.transport import pairing_of
from tests.unit.contrib.shelves import Drawer, away

BUDGET = 0.5
UTC = timezone.utc


# -- which state is news ----------------------------------------------------------------------------------------------


def kept(state: str, at: float = 100.0, **facts: Any) -> KeptResult:
    return KeptResult("a-task", state, at=at, **facts)


def at(seconds: float) -> str:
    return datetime.fromtimestamp(seconds, UTC).isoformat()


@pytest.mark.parametrize(
    ("state", "there", "done", "expected"),
    [
        (states.STARTED, states.PENDING, None, True),
        (states.SUCCESS, states.PENDING, None, True),
        (states.SUCCESS, states.STARTED, None, True),
        (states.FAILURE, states.RETRY, None, True),
        (states.STARTED, states.SUCCESS, at(50), False),
        (states.STARTED, states.FAILURE, at(50), False),
        (states.RETRY, states.STARTED, None, False),
        (states.STARTED, states.RETRY, None, True),
        ("PROGRESS", states.STARTED, None, True),
        (states.STARTED, "PROGRESS", None, False),
        ("PROGRESS", "PROGRESS", None, False),
        (states.SUCCESS, states.FAILURE, at(99), True),
        (states.SUCCESS, states.FAILURE, at(100), False),
        (states.SUCCESS, states.FAILURE, at(101), False),
        (states.SUCCESS, states.FAILURE, None, False),
        (states.FAILURE, states.SUCCESS, at(50), False),
        (states.REVOKED, states.FAILURE, datetime.fromtimestamp(99, UTC).replace(tzinfo=None), True),
    ],
)
def test_a_state_is_stored_over_an_earlier_one_alone(state, there, done, expected):
    assert is_news(kept(state), {"status": there, "date_done": done}, UTC) is expected


@pytest.mark.parametrize(
    ("done", "expected"),
    [
        (at(7), 7.0),
        ("1970-01-01T00:00:07Z", 7.0),
        ("1970-01-01T00:00:07", 7.0),
        ("then", None),
        (None, None),
        (7, None),
    ],
)
def test_a_date_is_read_as_backends_write_it(done, expected):
    assert moment_of(done, UTC) == expected


def test_of_several_states_the_last_counts_and_a_final_one_is_the_last_whatever_the_clock_says():
    first, last = kept("PROGRESS", 1), kept(states.SUCCESS, 0.5)
    other = KeptResult("other", states.STARTED, at=3)
    part = kept(states.SUCCESS, 9, is_part=True, has_state=False)
    assert newest([last, first, other, part]) == {"a-task": last, "other": other}


# -- a worker and its backlog -----------------------------------------------------------------------------------------


class Shop:
    """An application whose result server a test takes away, and the secondary that keeps what it cannot store."""

    def __init__(self, **conf: Any) -> None:
        self.primary, self.secondary = ScriptedBroker("primary"), ScriptedBroker("secondary")
        self.app = Celery("shop", broker=f"paired+{self.primary.uri}", set_as_current=False)
        self.app.conf.broker_transport_options = self.secondary.as_secondary(
            send_timeout=BUDGET, syphon_poll=0.05, primary_name="contoso"
        )
        self.app.conf.update(conf)
        kombu_paired.setup(self.app)
        self.backend = results.guarded_class(Drawer)(app=self.app, url="drawer://")
        self.app._local.backend = self.app._backend_cache = self.backend
        with self.app.connection_for_write() as connection:
            self.pairing = pairing_of(connection)
        self.queue = queue_for("contoso", self.backend.place)
        self.sent: list[Any] = []

        @self.app.task(name="shop.add", shared=False)
        def add(*args: Any) -> None:
            """Nothing."""

        self.add = add

    @property
    def backlog(self) -> list[Message]:
        return self.secondary.queues[self.queue]

    def go_away(self) -> None:
        self.backend.answer = away

    def come_back(self) -> None:
        self.backend.answer = lambda: None
        assert self.backend.result_server.wait_until_back(20)

    def request(self, **facts: Any) -> Context:
        return Context(**{"id": "a-task", "task": "shop.add", "called_directly": False, "delivery_info": {}} | facts)

    def move(self) -> ResultPump:
        """What a worker's pump does with all that is there."""
        pump = ResultPump(self.app, self.pairing)
        receiver = self.secondary.receiver([self.queue], 100, 1)
        pump._store(receiver, receiver.receive())
        receiver.close()
        return pump

    def meta(self, task_id: str = "a-task") -> Any:
        return self.backend._inside(lambda: self.backend._get_task_meta_for(task_id))


@pytest.fixture
def quick(monkeypatch):
    monkeypatch.setattr(result_server, "LOOK", 0.02)
    monkeypatch.setattr(result_server, "_servers", {})
    monkeypatch.setattr(guarded_results, "PATIENCE", 0.2)


@pytest.fixture
def shop(quick):
    made = Shop()
    yield made
    made.backend.answer = lambda: None
    made.backend.result_server.wait_until_back(20)
    made.pairing.close()
    made.app.close()


@pytest.fixture
def in_task(shop):
    from celery._state import pop_current_task, push_current_task

    push_current_task(shop.add)
    yield
    pop_current_task()


def test_a_result_is_kept_and_its_task_goes_on_at_once(shop, in_task, caplog):
    caplog.set_level(logging.INFO, logger=result_server.__name__)
    shop.go_away()
    shop.backend.mark_as_done("a-task", {"sum": 7}, shop.request(parent_id="its-parent"))
    assert shop.backend.kept == {}
    [message] = shop.backlog
    assert message.headers["x-paired-diverted-for"].startswith("the result backend: unreachable: ")
    assert shop.primary.stored == []

    shop.come_back()
    shop.move()

    meta = shop.meta()
    assert (meta["status"], meta["result"], meta["parent_id"]) == (states.SUCCESS, {"sum": 7}, "its-parent")
    assert shop.backlog == []
    said = [record.getMessage() for record in caplog.records]
    assert "1 results that were kept in the backlog are stored now" in said[-1]


def test_a_result_says_when_its_task_ended_and_not_when_it_was_stored(shop, in_task):
    shop.go_away()
    before = time.time()
    shop.backend.mark_as_done("a-task", 7, shop.request())
    ended = time.time()
    shop.come_back()
    time.sleep(0.05)
    shop.move()
    assert before - 0.001 <= moment_of(shop.meta()["date_done"], UTC) <= ended


def test_a_failure_comes_back_as_the_exception_that_it_was(shop, in_task):
    shop.go_away()
    shop.backend.mark_as_failure("a-task", KeyError("spam"), "Traceback …", shop.request())
    shop.come_back()
    shop.move()
    meta = shop.meta()
    assert (meta["status"], meta["traceback"]) == (states.FAILURE, "Traceback …")
    assert isinstance(meta["result"], KeyError)


def test_with_extended_results_what_a_task_was_called_with_is_kept_and_its_children(shop, in_task):
    shop.app.conf.result_extended = True
    shop.go_away()
    request = shop.request(args=[1, 2], kwargs={"a": 3}, hostname="worker1", delivery_info={"routing_key": "orders"})
    request.children.append(shop.app.AsyncResult("its-child"))
    shop.backend.mark_as_done("a-task", 7, request)
    shop.come_back()
    shop.move()
    meta = shop.meta()
    assert [meta[each] for each in ("name", "args", "kwargs", "worker", "queue")] == [
        *("shop.add", [1, 2], {"a": 3}, "worker1", "orders"),
    ]
    assert meta["children"] == [[["its-child", None], None]]


def test_states_that_follow_each_other_end_as_the_last_one(shop, in_task):
    shop.go_away()
    for state in (states.STARTED, "PROGRESS", states.SUCCESS):
        shop.backend.store_result("a-task", state, state, request=shop.request())
    shop.backend.store_result("another", "half", "PROGRESS", request=shop.request(id="another"))
    assert len(shop.backlog) == 4
    shop.backlog.reverse()
    shop.come_back()

    assert shop.move().stored == 4

    assert [shop.meta(each)["status"] for each in ("a-task", "another")] == [states.SUCCESS, "PROGRESS"]
    assert len(shop.backend.writes) == 2


def test_what_the_server_has_is_later_and_stays(shop, in_task):
    shop.go_away()
    shop.backend.store_result("a-task", None, states.STARTED, request=shop.request())
    shop.backend.store_result("other", ValueError(), states.FAILURE, request=shop.request())
    shop.come_back()
    shop.backend.store_result("a-task", 7, states.SUCCESS, request=shop.request())
    time.sleep(0.001)
    shop.backend.store_result("other", OSError(), states.FAILURE, request=shop.request())

    shop.move()

    assert shop.meta()["status"] == states.SUCCESS
    assert isinstance(shop.meta("other")["result"], OSError)
    assert shop.backlog == []


def test_what_cannot_be_encoded_raises_as_it_would_while_the_server_is_there(shop, in_task):
    shop.go_away()
    with pytest.raises(EncodeError):
        shop.backend.mark_as_done("a-task", object(), shop.request())
    assert shop.backlog == []


def test_a_main_process_does_not_wait_for_the_secondary_either(shop, monkeypatch):
    hang = threading.Event()
    monkeypatch.setattr(shop.backend, "keep", lambda *args: hang.wait(20))
    shop.go_away()
    started = time.monotonic()
    shop.backend.mark_as_failure("a-task", RuntimeError("lost"))
    assert time.monotonic() - started < 10
    hang.set()


def test_with_the_secondary_away_too_a_task_waits_as_it_would_without(shop, in_task, caplog, monkeypatch):
    monkeypatch.setattr(guarded_results, "PATIENCE", 20.0)
    shop.secondary.go_away()
    shop.go_away()
    timer = threading.Timer(0.05, shop.come_back)
    timer.start()
    shop.backend.mark_as_done("a-task", 7, shop.request())
    timer.join()
    assert shop.meta()["result"] == 7
    said = [record.getMessage() for record in caplog.records if "cannot be kept" in record.getMessage()]
    assert len(said) == 1
    assert "the result of shop.add[a-task] (SUCCESS) cannot be kept in the backlog" in said[0]


def test_a_healthy_server_is_asked_no_more_than_before(shop, in_task):
    asked: list[None] = []
    shop.backend.answer = lambda: asked.append(None)
    shop.backend.mark_as_done("a-task", 7, shop.request())
    assert len(asked) == 2  # Celery's own look, and its own write
    assert shop.secondary.log == []


# -- chords -----------------------------------------------------------------------------------------------------------


@pytest.fixture
def chord_of_two(shop, monkeypatch):
    """Two parts; the body is sent where a test sees it."""
    group = shop.app.GroupResult("a-group", [shop.app.AsyncResult(each) for each in ("part-0", "part-1")])
    group.save(backend=shop.backend)
    body = shop.add.s()
    body["chord_size"] = 2
    shop.primary.queues["celery"].clear()

    def end(n: int, result: Any) -> None:
        request = shop.request(id=f"part-{n}", group="a-group", group_index=n, chord=dict(body), root_id="the-root")
        shop.backend.mark_as_done(request.id, result, request)

    return end


def bodies(shop: Shop) -> list[Message]:
    return [each for each in shop.primary.stored if each.headers["task"] == "shop.add"]


def test_a_chord_whose_parts_ended_meanwhile_completes_once(shop, in_task, chord_of_two):
    shop.go_away()
    chord_of_two(0, "a")
    chord_of_two(1, "b")
    again = list(shop.backlog)
    shop.come_back()
    shop.move()

    [body] = bodies(shop)
    assert '[[["a", "b"]], ' in str(body.body)
    assert (body.headers["parent_id"], body.headers["root_id"]) == ("part-1", "the-root")
    assert [shop.meta(f"part-{n}")["result"] for n in range(2)] == ["a", "b"]
    shop.backlog[:] = again
    shop.move()
    assert len(bodies(shop)) == 1


def test_the_body_of_each_run_of_a_chord_is_to_be_kept_once(shop):
    def run() -> str:
        body = shop.add.s().set(headers={"tenant": "a"})
        chord([shop.add.s(1, 2)], body)()
        part = shop.primary.stored[-1]
        taken_along = loads(part.body, part.content_type, part.content_encoding)[2]["chord"]
        headers: dict[str, str] = taken_along["options"]["headers"]
        assert headers["tenant"] == "a"
        return headers[ONCE]

    assert run() != run()


def test_a_part_that_comes_twice_is_counted_once(shop, in_task, chord_of_two):
    shop.go_away()
    chord_of_two(0, "a")
    again = list(shop.backlog)
    shop.come_back()
    shop.move()
    shop.backlog[:] = again
    shop.move()
    assert bodies(shop) == []
    chord_of_two(1, "b")
    assert len(bodies(shop)) == 1


def test_a_part_counts_though_its_state_comes_behind_it(shop, in_task, chord_of_two):
    """Another pump may hold the state: the part brings it along, since whoever counts the last one reads them all."""
    shop.go_away()
    chord_of_two(0, "a")
    chord_of_two(1, "b")
    shop.backlog[:] = [each for n, each in enumerate(shop.backlog) if n % 2]
    shop.come_back()
    shop.move()
    assert len(bodies(shop)) == 1


def test_an_outage_while_a_part_is_counted_fails_no_chord(shop, in_task, chord_of_two, monkeypatch):
    """Celery takes every error there for the chord's."""
    failed: list[Any] = []
    monkeypatch.setattr(shop.backend, "fail_from_current_stack", lambda task_id, exc: failed.append(exc))
    chord_of_two(0, "a")
    with monkeypatch.context() as patched:
        patched.setattr(shop.backend, "restore_group", lambda *args, **kwargs: away())
        chord_of_two(1, "b")
    assert (failed, bodies(shop), len(shop.backlog)) == ([], [], 1)
    shop.come_back()
    shop.move()
    assert len(bodies(shop)) == 1


def test_an_error_of_a_task_that_looks_like_an_outage_fails_its_chord_when_the_server_answers(
    shop, in_task, chord_of_two, monkeypatch
):
    failed: list[Any] = []
    monkeypatch.setattr(shop.backend, "fail_from_current_stack", lambda task_id, exc: failed.append(exc))
    monkeypatch.setattr(shop.backend, "restore_group", lambda *args, **kwargs: away())
    chord_of_two(0, "a")
    shop.come_back()
    shop.move()
    assert len(failed) == 1
    assert shop.backlog == []


def test_a_body_that_is_no_json_is_not_kept_and_its_part_is_waited_for(shop, in_task, monkeypatch):
    monkeypatch.setattr(guarded_results, "PATIENCE", 20.0)
    shop.app.GroupResult("a-group", [shop.app.AsyncResult("a-task")]).save(backend=shop.backend)
    body = shop.add.s(object())
    body["chord_size"] = 1
    monkeypatch.setattr(shop.backend, "chord_error_from_stack", lambda *args, **kwargs: None)
    shop.go_away()
    timer = threading.Timer(0.1, shop.come_back)
    timer.start()
    shop.backend.on_chord_part_return(shop.request(group="a-group", chord=dict(body)), states.SUCCESS, 7)
    timer.join()
    assert shop.backlog == []
    assert not shop.backend.result_server.is_away


# -- the pump ---------------------------------------------------------------------------------------------------------


def test_a_pump_stores_what_it_finds_when_the_server_is_back(shop, in_task):
    shop.go_away()
    shop.backend.mark_as_done("a-task", 7, shop.request())
    pump = ResultPump(shop.app, shop.pairing)
    shop.app._local = SimpleNamespace(backend=shop.backend)
    pump.start()
    try:
        time.sleep(0.2)
        assert len(shop.backlog) == 1
        shop.come_back()
        wait_until(lambda: pump.stored == 1, 20, lambda: "nothing was stored")
    finally:
        pump.stop()
    assert shop.meta()["result"] == 7


def test_after_an_outage_another_thread_goes_on(shop, in_task):
    """Django keeps a connection with each thread, and one that has died is dead for good."""
    threads: list[threading.Thread] = []

    def answer() -> None:
        threads.append(threading.current_thread())
        if "results-home" in threads[-1].name and threads[-1] is first:
            away()

    pump = ResultPump(shop.app, shop.pairing)
    first = pump._thread
    shop.app._local = SimpleNamespace(backend=shop.backend)
    shop.go_away()
    shop.backend.mark_as_done("a-task", 7, shop.request())
    shop.come_back()
    shop.backend.answer = answer
    pump.start()
    try:
        wait_until(lambda: pump.stored == 1, 20, lambda: "nothing was stored")
    finally:
        pump.stop()
    assert first in threads


def test_a_server_that_goes_away_again_gets_the_rest_later(shop, in_task):
    shop.go_away()
    for n in range(3):
        shop.backend.mark_as_done(f"task-{n}", n, shop.request(id=f"task-{n}"))
    shop.come_back()
    left = [4 * [None]]  # two looks and a write for the first

    def answer() -> None:
        if not left[0]:
            away()
        left[0].pop()

    shop.backend.answer = answer
    pump = shop.move()
    assert (pump.stored, len(shop.backlog)) == (1, 2)
    assert shop.backend.result_server.is_away
    shop.come_back()
    assert shop.move().stored == 2


def test_what_is_no_result_or_is_refused_is_a_dead_letter_and_holds_up_nothing(shop, in_task, monkeypatch):
    shop.go_away()
    for task_id in ("refused", "a-task"):
        shop.backend.mark_as_done(task_id, 7, shop.request(id=task_id))
    shop.come_back()
    store = shop.backend._store_result
    monkeypatch.setattr(
        shop.backend,
        "_store_result",
        lambda task_id, *args, **kw: {}["no"] if task_id == "refused" else store(task_id, *args, **kw),
    )
    shop.backlog.insert(0, Message("what is this?", "", shop.queue))

    assert shop.move().stored == 1

    dead = [each.headers["DeadLetterReason"] for each in shop.secondary.queues[shop.queue + DEAD_LETTER_SUFFIX]]
    assert sorted(dead) == ["NoPath", "ResultRefused"]
    assert shop.meta()["result"] == 7


def test_two_backends_have_two_queues_and_a_password_makes_no_difference(quick):
    shop = Shop()
    places = {
        results.guarded_class(Drawer)(app=shop.app, url=url).place
        for url in ("redis://:a@h/0", "redis://:b@h/0", "redis://:b@h/1")
    }
    assert len({queue_for("contoso", each) for each in places}) == 2
    assert "b@" not in str(places)


def test_what_may_have_been_kept_twice_is_marked_and_stored_once(shop, in_task):
    shop.go_away()
    shop.secondary.script = [shop.secondary.failure(FailureKind.TIMEOUT, maybe_stored=True), None]
    shop.backend.mark_as_done("a-task", 7, shop.request())
    assert all(MAYBE_DUPLICATE in each.headers for each in shop.backlog[1:])
    shop.come_back()
    shop.move()
    assert shop.meta()["result"] == 7
