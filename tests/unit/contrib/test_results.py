"""The guard around a result backend: what it lets through, how long, and what it says. No server is needed."""

from __future__ import annotations

import logging
import pickle
import statistics
import threading
import time
from importlib import import_module
from typing import Any

import pytest
from celery import Celery, states
from celery.backends.base import BaseBackend
from celery.backends.cache import CacheBackend
from celery.backends.database import DatabaseBackend
from celery.backends.redis import RedisBackend, SentinelBackend
from celery.backends.rpc import RPCBackend
from celery.exceptions import BackendGetMetaError
from celery.exceptions import TimeoutError as CeleryTimeoutError
from kombu.exceptions import OperationalError
from redis import exceptions

import kombu_paired
from kombu_paired.contrib import guarded_results, result_server, results
from kombu_paired.contrib.result_server import ResultServer
from kombu_paired.errors import ResultsUnavailable
from kombu_paired.outage import Outage

BUDGET = 0.3


class Shelf(BaseBackend):
    """A backend whose server is ``answer``: it may raise, or not return."""

    __module__ = "celery.backends.shelf"

    def __init__(self, *args: Any, **kwargs: Any) -> None:
        super().__init__(*args, **kwargs)
        self.kept: dict[str, Any] = {}
        self.calls: list[str] = []

    def answer(self) -> None:
        """All is well."""

    def _store_result(self, task_id: str, result: Any, state: str, traceback: Any = None, **kwargs: Any) -> None:
        self.calls.append("store")
        self.answer()
        self.kept[task_id] = {"status": state, "result": result, "task_id": task_id, "children": []}

    def _get_task_meta_for(self, task_id: str) -> Any:
        self.calls.append("read")
        self.answer()
        return self.kept.get(task_id, {"status": states.PENDING, "result": None})

    def _forget(self, task_id: str) -> None:
        self.answer()
        self.kept.pop(task_id, None)


class ForeignShelf(Shelf):
    """One of somebody else, which does something before a task is sent."""

    __module__ = "shelves"

    def on_task_call(self, producer: Any, task_id: str) -> Any:
        self.answer()
        return {"shelf": 1}


def away() -> None:
    raise ConnectionRefusedError("nobody there")


@pytest.fixture
def app():
    """An application that was set up; never connected."""
    app = Celery("shop", broker="paired+memory://", set_as_current=False)
    app.conf.broker_transport_options = {"secondary": "amqp://spare-broker//", "send_timeout": BUDGET}
    app.conf.result_backend = "redis://:s3cret@results.example:6379/0"
    kombu_paired.setup(app)
    yield app
    app.close()


@pytest.fixture
def shelf(app, monkeypatch):
    monkeypatch.setattr(result_server, "LOOK", 0.02)
    monkeypatch.setattr(result_server, "_servers", {})
    backend = results.guarded_class(Shelf)(app=app)
    yield backend
    backend.answer = lambda: None
    backend.result_server.wait_until_back(2)


def back_is_seen(backend):
    backend.answer = lambda: None
    assert backend.result_server.wait_until_back(5)


# -- the outage itself -----------------------------------------------------------------------------------------------


def test_an_outage_begins_and_ends_with_one_caller_each():
    now = [100.0]
    outage = Outage(lambda: now[0])

    assert (outage.is_on, outage.seconds, outage.ends()) == (False, 0.0, None)
    assert outage.begins(OSError("first"))
    now[0] += 7
    assert not outage.begins(OSError("second"))
    assert (outage.is_on, outage.seconds, str(outage.reason)) == (True, 7.0, "second")
    assert outage.ends() == 7.0
    assert (outage.is_on, outage.ends(), outage.reason) == (False, None, None)


def test_a_call_that_does_not_return_is_given_up():
    server, never = ResultServer("shelf", BUDGET), threading.Event()

    started = time.monotonic()
    with pytest.raises(TimeoutError, match=r"longer than 0\.05 s"):
        server.bounded(never.wait, 0.05)
    assert time.monotonic() - started < 10
    never.set()

    assert server.bounded(lambda: 7, 5) == 7
    with pytest.raises(KeyError):
        server.bounded(lambda: {}["x"], 5)


def test_a_child_process_knows_of_no_outage(monkeypatch):
    monkeypatch.setattr(result_server, "_servers", {})
    server = result_server.server_for("x", "shelf", BUDGET)
    assert result_server.server_for("x", "shelf", BUDGET) is server
    server.outage.begins(OSError())

    result_server._start_clean_after_fork()

    assert not server.is_away
    assert server.wait_until_back(0)


# -- a backend while its server is away ------------------------------------------------------------------------------


def test_one_call_finds_out_and_the_others_raise_at_once_with_one_line_in_the_log(shelf, caplog):
    caplog.set_level(logging.INFO, logger=result_server.__name__)
    shelf.answer = away

    for _ in range(5):
        with pytest.raises(OperationalError) as raised:
            shelf.forget("a-task")
    assert isinstance(raised.value, ResultsUnavailable)
    assert "forgetting the result of a-task: the result backend Shelf is away" in str(raised.value)
    assert "ConnectionRefusedError: nobody there" in str(raised.value)

    back_is_seen(shelf)
    shelf.forget("a-task")
    said = [(record.levelname, record.getMessage()) for record in caplog.records]
    assert [level for level, _ in said] == ["WARNING", "INFO"]
    assert "is away (ConnectionRefusedError: nobody there)" in said[0][1]
    assert "is back after" in said[1][1]


def test_a_connection_that_died_in_its_sleep_is_no_outage(shelf, in_task):
    """Neither for one who asks nor for a task that stores."""
    answers = [away, lambda: None, away, lambda: None]
    shelf.answer = lambda: answers.pop(0)()

    shelf.forget("a-task")
    shelf.store_result("a-task", 7, states.SUCCESS)

    assert answers == []
    assert not shelf.result_server.is_away


def test_a_silent_server_is_away_after_send_timeout(shelf):
    silence = threading.Event()
    shelf.answer = silence.wait

    times = []
    for _ in range(8):
        started = time.monotonic()
        with pytest.raises(ResultsUnavailable, match=r"longer than 0\.3 s"):
            shelf.get_state("a-task")
        times.append(time.monotonic() - started)

    assert BUDGET <= times[0] < BUDGET + 10
    assert statistics.median(times[1:]) < 0.8 * BUDGET, "it is not asked again"
    silence.set()


def test_an_impatient_caller_proves_nothing_about_the_server(shelf):
    silence = threading.Event()
    shelf.answer = silence.wait

    with shelf.within(0.05), pytest.raises(ResultsUnavailable):
        shelf.forget("a-task")

    assert not shelf.result_server.is_away
    silence.set()


@pytest.mark.parametrize("error", [KeyError("x"), ValueError("y"), NotImplementedError("z"), PermissionError("w")])
def test_an_error_that_is_no_outage_is_raised_as_it_is(shelf, error):
    def fails() -> None:
        raise error

    shelf.answer = fails

    with pytest.raises(type(error)):
        shelf.forget("a-task")
    assert not shelf.result_server.is_away
    shelf.answer = lambda: None


def test_a_state_that_cannot_be_read_is_what_celery_can_do_without(shelf):
    shelf.answer = away
    with pytest.raises(BackendGetMetaError) as raised:
        shelf.get_state("a-task")
    assert isinstance(raised.value, OperationalError)
    assert raised.value.task_id == "a-task"


def test_waiting_goes_on_through_an_outage_and_keeps_its_timeout(app, shelf):
    shelf.answer = away
    result = app.AsyncResult("a-task", backend=shelf)

    started = time.monotonic()
    with pytest.raises(CeleryTimeoutError):
        result.get(timeout=0.2, interval=0.05)
    assert time.monotonic() - started < 10

    shelf.kept["a-task"] = {"status": states.SUCCESS, "result": 42, "task_id": "a-task", "children": []}
    timer = threading.Timer(0.2, back_is_seen, [shelf])
    timer.start()
    assert result.get(timeout=30, interval=0.05) == 42
    timer.join()


def test_what_somebody_elses_backend_does_before_a_send_does_not_keep_it_from_being_sent(app, monkeypatch):
    monkeypatch.setattr(result_server, "LOOK", 0.02)
    backend = results.guarded_class(ForeignShelf)(app=app, url="shelf://")
    assert backend.on_task_call(None, "a-task") == {"shelf": 1}

    backend.answer = away

    assert backend.on_task_call(None, "a-task") == {}
    assert backend.result_server.is_away
    back_is_seen(backend)


def test_a_subclass_of_celerys_own_is_called_as_that_and_one_of_another_package_in_the_callers_thread(app):
    class OurRedis(RedisBackend):
        """Somebody's."""

    class Theirs(BaseBackend):
        """Made from scratch; it may keep its connection with a thread."""

    assert results.guarded_class(OurRedis)(app=app, url="redis://h").runs_apart
    assert not results.guarded_class(Theirs)(app=app).runs_apart


def test_a_chord_needs_no_server_where_its_count_is_kept_by_a_task(shelf):
    shelf.result_server.outage.begins(OSError())
    shelf.set_chord_size("a-group", 2)


# -- a worker that cannot store ---------------------------------------------------------------------------------------


@pytest.fixture
def in_task(app):
    """As if a worker ran a task here."""
    from celery._state import pop_current_task, push_current_task

    @app.task(name="shop.add", shared=False)
    def add() -> None:
        """Nothing."""

    push_current_task(add)
    yield add
    pop_current_task()


def test_a_task_waits_to_store_its_result(shelf, in_task):
    shelf.answer = away
    timer = threading.Timer(0.2, back_is_seen, [shelf])
    timer.start()

    shelf.store_result("a-task", 7, states.SUCCESS)

    timer.join()
    assert shelf.kept["a-task"]["result"] == 7


def test_a_task_waits_no_longer_than_the_patience_of_one_outage(shelf, in_task, monkeypatch, caplog):
    monkeypatch.setattr(guarded_results, "PATIENCE", 1.0)
    shelf.answer = away

    started = time.monotonic()
    for n in range(3):
        assert shelf.store_result(f"task-{n}", 7, states.SUCCESS) == 7
    assert 1.0 <= time.monotonic() - started < 2.9  # all three together

    lost = [record.getMessage() for record in caplog.records if record.levelname == "ERROR"]
    assert len(lost) == 3
    assert "the result of task[task-0] (SUCCESS) is not stored" in lost[0]
    caplog.set_level(logging.INFO)
    back_is_seen(shelf)
    assert "3 results were not stored" in caplog.text


@pytest.mark.parametrize("state", [states.STARTED, states.RETRY])
def test_a_task_does_not_wait_to_say_that_it_is_under_way(shelf, in_task, state, caplog):
    shelf.answer = away
    started = time.monotonic()
    shelf.store_result("a-task", None, state)
    assert time.monotonic() - started < 10
    assert "is not stored" not in caplog.text


def test_a_main_process_does_not_wait_and_stores_when_the_server_is_back(shelf):
    shelf.answer = away
    started = time.monotonic()
    shelf.mark_as_failure("a-task", RuntimeError("lost"))
    assert time.monotonic() - started < 10
    assert shelf.kept == {}

    back_is_seen(shelf)

    until = time.monotonic() + 20
    while "a-task" not in shelf.kept and time.monotonic() < until:
        time.sleep(0.01)
    assert shelf.kept["a-task"]["status"] == states.FAILURE


def test_celerys_own_retrying_does_not_hold_a_task_for_ever(app, in_task, monkeypatch):
    monkeypatch.setattr(guarded_results, "PATIENCE", 0.2)
    monkeypatch.setattr(result_server, "LOOK", 0.02)
    app.conf.result_backend_always_retry = True  # without end
    backend = results.guarded_class(Shelf)(app=app, url="always://")
    backend.exception_safe_to_retry = lambda exc: True
    backend.answer = away

    started = time.monotonic()
    backend.store_result("a-task", 7, states.SUCCESS)

    assert time.monotonic() - started < 10
    back_is_seen(backend)


# -- which class ------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("plain", [RedisBackend, SentinelBackend, RPCBackend, CacheBackend, DatabaseBackend, Shelf])
def test_a_guarded_backend_is_one_of_its_own_class(plain):
    cls = results.guarded_class(plain)
    assert issubclass(cls, plain)
    assert cls is results.guarded_class(plain)
    assert (cls.__name__, cls.__module__, cls.__doc__) == (plain.__name__, plain.__module__, plain.__doc__)


def test_setup_guards_the_applications_backend_and_names_it_without_its_password(app):
    assert isinstance(app.backend, RedisBackend)
    assert isinstance(app.backend, results.Guarded)
    assert app.backend.result_server.name == "redis://:**@results.example:6379/0"
    assert app.backend.result_server.budget == BUDGET
    made = app._get_backend
    kombu_paired.setup(app)
    assert app._get_backend is made


@pytest.mark.parametrize("backend", ["disabled://", None])
def test_no_backend_is_no_guarded_one(app, backend):
    app.conf.result_backend = backend
    assert not isinstance(app._get_backend(), results.Guarded)


def test_a_plain_broker_keeps_plain_results():
    app = Celery("shop", broker="memory://", backend="cache+memory://", set_as_current=False)
    kombu_paired.setup(app)
    assert type(app.backend) is CacheBackend


def test_pickled_results_and_backends_can_be_read_without_us_and_are_guarded_where_setup_was_called(app, monkeypatch):
    result = app.AsyncResult("a-task")
    text = pickle.dumps(result)

    assert b"kombu_paired" not in text
    app.set_current()
    again = pickle.loads(text)
    assert (again.id, type(again.backend)) == ("a-task", type(app.backend))
    assert again.backend.url == app.backend.url

    plain = Celery("other", backend="cache+memory://", set_as_current=False)
    plain.set_current()
    assert type(pickle.loads(text).backend) is RedisBackend


@pytest.mark.parametrize(
    ("error", "is_outage"),
    [
        (exceptions.ConnectionError("gone"), True),
        (exceptions.TimeoutError("silent"), True),
        (exceptions.OutOfMemoryError("OOM"), True),
        (exceptions.ReadOnlyError("a replica"), True),
        (exceptions.BusyLoadingError("loading"), True),
        (ConnectionResetError("gone"), True),
        (exceptions.AuthenticationError("wrong"), False),
        (exceptions.ResponseError("ERR no such command"), False),
        (exceptions.DataError("what is this"), False),
        (KeyError("x"), False),
    ],
)
def test_what_an_outage_of_redis_is(app, error, is_outage):
    assert app.backend.means_outage(error) is is_outage


@pytest.mark.parametrize(
    ("name", "is_outage"), [("OperationalError", True), ("IntegrityError", False), ("ProgrammingError", False)]
)
def test_what_an_outage_of_a_database_is(app, name, is_outage):
    error = getattr(import_module("sqlalchemy.exc"), name)("select", {}, Exception())
    backend = results.guarded_class(DatabaseBackend)(app=app, url="sqlite://")
    assert backend.means_outage(error) is is_outage
    assert not backend.runs_apart  # in memory, each thread has a database of its own


@pytest.mark.parametrize("place", sorted(results.PRIVATE))
def test_celery_has_what_is_taken_from_inside_of_it(place):
    module, _, owner = place.partition(":")
    found = import_module(module)
    for name in results.PRIVATE[place]:
        target = getattr(found, owner) if owner else found
        if owner == "Celery" and name in ("_local", "_backend_cache"):
            target = Celery(set_as_current=False)
        if owner == "ResultConsumer" and name == "_locked":
            target = target(RedisBackend(app=Celery(set_as_current=False)), None, None, None, None)
        assert hasattr(target, name), f"Celery's {place} has no {name} any more: look at kombu_paired.contrib.results"
