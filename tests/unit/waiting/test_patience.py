"""Only a worker waits for a primary that is away; everybody else has the patience of a plain connection."""

from __future__ import annotations

import math
import multiprocessing
import os
import re
import socket
import threading
import time
from contextlib import ExitStack

import kombu.transport.redis
import pytest
from celery import Celery, current_task
from celery.apps.worker import Worker
from celery.contrib.testing.worker import TestWorkController
from celery.worker.heartbeat import Heart
from celery.worker.pidbox import gPidbox
from celery.worker.worker import WorkController
from kombu import Connection, Consumer, Exchange, Producer, Queue
from kombu.exceptions import OperationalError
from kombu.transport import TRANSPORT_ALIASES
from kombu.utils.objects import cached_property

from kombu_paired import connection_settings
from kombu_paired.brokers.checking import transport_class
from kombu_paired.errors import PrimaryUnavailable
from kombu_paired.stopping import is_worker_itself
from kombu_paired.transport import primary_for_consuming
from tests.support.in_worker import in_worker

#: Seconds on a busy machine, too; whoever has a worker's patience takes longer.
SOON = 15


def in_thread(action):
    answers = []
    thread = threading.Thread(target=lambda: answers.append(action()))
    thread.start()
    thread.join()
    return answers[0]


def in_fork(action):
    fork = multiprocessing.get_context("fork")
    ours, theirs = fork.Pipe()
    process = fork.Process(target=lambda: theirs.send(action()))
    process.start()
    answer = ours.recv()
    process.join()
    return answer


def in_task(action):
    app = Celery("shop", set_as_current=False)
    answer = app.task(action, name="look").apply().get()
    assert not current_task
    return answer


def test_a_worker_is_told_apart_from_its_tasks_and_its_pool():
    assert in_worker(is_worker_itself) is True
    assert in_worker(lambda: in_task(is_worker_itself)) is False  # solo
    assert in_worker(lambda: in_thread(is_worker_itself)) is False  # threads
    assert in_worker(lambda: in_fork(is_worker_itself)) is False  # prefork
    assert in_thread(lambda: in_worker(is_worker_itself)) is True  # celery.contrib.testing
    assert in_fork(lambda: in_worker(is_worker_itself)) is True
    assert is_worker_itself() is False


def test_the_greenlet_that_listens_to_remote_control_belongs_to_the_worker():
    box, seen = object.__new__(gPidbox), []

    class Node:
        def connection_for_read(self):
            seen.append(is_worker_itself())
            raise ConnectionError

    with pytest.raises(ConnectionError):
        box.loop(Node())
    assert seen == [True]


def test_its_heart_belongs_to_it_in_whatever_thread_it_beats():
    seen = []

    class Eventer:
        on_enabled, on_disabled = set(), set()

        def send(self, *args, **kwargs):
            seen.append(is_worker_itself())

    in_thread(lambda: Heart(None, Eventer())._send("worker-heartbeat"))
    assert seen == [True]


def test_every_worker_of_celerys_starts_as_the_one_that_is_looked_for():
    assert Worker.start is WorkController.start
    assert issubclass(TestWorkController, WorkController)
    assert "start" not in vars(TestWorkController) or "super" in TestWorkController.start.__code__.co_names


# -- what it is for ---------------------------------------------------------------------------------------------------


@pytest.fixture(params=["redis", "amqp"])
def dead(request):
    with socket.socket() as taken:
        taken.bind(("127.0.0.1", 0))
        yield f"paired+{request.param}://127.0.0.1:{taken.getsockname()[1]}//"


@pytest.fixture
def silent():
    with socket.socket() as listener:
        listener.bind(("127.0.0.1", 0))
        listener.listen(9)
        yield f"127.0.0.1:{listener.getsockname()[1]}"


@pytest.fixture(autouse=True)
def short_pause(monkeypatch):
    monkeypatch.setattr(primary_for_consuming, "PAUSE", 0.1)


def connect(url, **arguments):
    options = {
        "secondary": "memory://spare",
        "allow_unsafe_secondary": True,
        "send_timeout": 0.3,
        "ping_interval": 1800,
    }
    return Connection(url, transport_options=options, **{"connect_timeout": 0.3, **arguments})


def drain(connection, timeout=1.0):
    with Consumer(connection, [Queue("q")]):
        connection.drain_events(timeout=timeout)


ASKING = {
    "get": lambda connection: Queue("q")(connection.channel()).get(),
    "simple queue": lambda connection: connection.SimpleQueue("q").get(timeout=1),
    "purge": lambda connection: Queue("q")(connection.channel()).purge(),
    "consumer": drain,
}


def seconds_of(action, *arguments):
    started = time.monotonic()
    with pytest.raises(OperationalError) as caught:
        action(*arguments)
    return time.monotonic() - started, caught.value


@pytest.mark.parametrize("asking", ASKING)
def test_a_program_gets_its_answer_soon_when_the_primary_refuses(dead, asking):
    seconds, error = seconds_of(ASKING[asking], connect(dead))
    assert seconds < SOON
    assert isinstance(error, PrimaryUnavailable)
    assert re.search("is away: (Connection|GivenUp)", str(error))  # the latter on a busy machine


@pytest.mark.parametrize("kind", ["redis", "amqp"])
def test_and_when_it_is_silent(silent, kind):
    seconds, _ = seconds_of(ASKING["get"], connect(f"paired+{kind}://{silent}"))
    assert seconds < SOON


@pytest.mark.parametrize("kind", ["redis", "amqp"])
def test_and_when_its_name_is_not_found_out(monkeypatch, kind):
    monkeypatch.setattr(socket, "getaddrinfo", lambda *args, **kwargs: time.sleep(20))
    seconds, _ = seconds_of(ASKING["get"], connect(f"paired+{kind}://hang.example"))
    assert seconds < SOON


def test_the_callers_own_time_limit_holds(silent):
    connection = connect(f"paired+redis://{silent}", connect_timeout=20)
    seconds, _ = seconds_of(lambda: connection.connection.drain_events(timeout=0.3))
    assert seconds < SOON


def test_remote_control_that_is_asked_in_vain_says_so_in_its_time(dead):
    app = Celery("shop", broker=dead, set_as_current=False)
    app.conf.update(
        broker_connection_timeout=0.3,
        broker_transport_options=connect(dead).transport_options,
    )
    seconds, _ = seconds_of(lambda: app.control.inspect(timeout=0.3).ping())
    assert seconds < SOON


def publish_heartbeat(connection):
    exchange = Exchange("celeryev", type="topic")
    Producer(connection).publish(
        {},
        exchange=exchange,
        routing_key="worker.heartbeat",
        delivery_mode=1,
        retry=True,
        retry_policy={"max_retries": 20},  # Celery's has none
    )


def test_a_worker_is_not_kept_by_its_own_heart(dead):
    seconds, error = in_worker(lambda: seconds_of(publish_heartbeat, connect(dead)))
    assert seconds < SOON
    assert isinstance(error, PrimaryUnavailable)


def test_kombu_pauses_as_its_policy_says_before_it_tries_a_transient_message_again(dead, monkeypatch):
    pauses = []

    def pause(seconds):
        pauses.append(seconds)
        if len(pauses) == 4:
            raise KeyboardInterrupt

    monkeypatch.setattr("kombu.utils.functional.sleep", pause)
    monkeypatch.setattr("kombu_paired.pairing.reach.CHEAP", math.inf)  # on a busy machine, too
    with pytest.raises(KeyboardInterrupt):
        publish_heartbeat(connect(dead))


def test_a_worker_waits_with_growing_pauses(dead, monkeypatch):
    monkeypatch.setattr(primary_for_consuming, "WORKER_PATIENCE", 1.0)
    tries, pauses = [], []
    monkeypatch.setattr(
        primary_for_consuming, "sleep_unless_worker_stops", lambda pause: pauses.append(pause) or time.sleep(pause / 20)
    )
    paired = connect(dead).transport
    connect_once = paired.for_consuming._connect_once
    monkeypatch.setattr(paired.for_consuming, "_connect_once", lambda: tries.append(1) or connect_once())

    def connect_in_vain():
        with pytest.raises(paired.connection_errors):
            paired.for_consuming.connect()
        return True

    started = time.monotonic()
    assert in_worker(connect_in_vain)
    assert time.monotonic() - started >= primary_for_consuming.WORKER_PATIENCE
    assert len(tries) == len(pauses) + 1 > 2
    assert all(pause <= min(0.5 * 2**number, 5) for number, pause in enumerate(pauses))


# -- forks ------------------------------------------------------------------------------------------------------------


def test_a_child_needs_no_lock_that_a_thread_of_its_parent_held(monkeypatch):
    """A process forks while another of its threads is in its first call, which looks for the driver."""
    looking, found = threading.Event(), threading.Event()
    parent, transport_class = os.getpid(), connection_settings.transport_class

    def slow_transport_class(*args):
        if os.getpid() == parent and not found.is_set():
            looking.set()
            found.wait(60)
        return transport_class(*args)

    monkeypatch.setattr(connection_settings, "transport_class", slow_transport_class)
    caller = threading.Thread(target=lambda: connect("paired+memory://main").transport)
    caller.start()
    assert looking.wait(30)
    fork = multiprocessing.get_context("fork").Process(target=lambda: connect("paired+memory://main").transport)
    fork.start()
    fork.join(30)
    code = fork.exitcode
    fork.kill()
    found.set()
    caller.join()
    assert code == 0


def test_a_process_forks_when_its_threads_have_imported_their_drivers(monkeypatch, tmp_path):
    """Python locks a module while it is imported, and a child would wait for a thread that it has not."""
    begun = threading.Event()
    (tmp_path / "slow_driver.py").write_text("begun.set()\nimport time\ntime.sleep(0.5)\nTransport = object\n")
    monkeypatch.syspath_prepend(tmp_path)
    monkeypatch.setattr("builtins.begun", begun, raising=False)
    monkeypatch.setitem(TRANSPORT_ALIASES, "slow", "slow_driver:Transport")
    caller = threading.Thread(target=transport_class, args=("primary", "slow://main"))
    caller.start()
    begun.wait(10)
    fork = multiprocessing.get_context("fork").Process(target=transport_class, args=("primary", "slow://main"))
    fork.start()
    fork.join(30)
    code = fork.exitcode
    fork.kill()
    caller.join()
    assert code == 0


@pytest.mark.parametrize("owner", [Connection, kombu.transport.redis.Channel, Celery])
def test_a_child_can_ask_kombu_and_celery_for_what_a_thread_of_its_parent_was_asking_for(owner):
    """Each look at a ``cached_property`` of theirs takes a lock."""
    properties = [each for each in vars(owner).values() if isinstance(each, cached_property)]
    assert properties
    held, over = threading.Event(), threading.Event()

    def hold():
        with ExitStack() as locks:
            for each in properties:
                locks.enter_context(each.lock)
            held.set()
            over.wait(10)

    holder = threading.Thread(target=hold)
    holder.start()
    held.wait(10)
    is_free = multiprocessing.get_context("fork").Process(
        target=lambda: os._exit(sum(not each.lock.acquire(timeout=1) for each in properties))
    )
    is_free.start()
    is_free.join(10)
    over.set()
    holder.join()
    assert is_free.exitcode == 0
