"""The brokers, the network and the worker that all other tests here stand on do what they say."""

from __future__ import annotations

import os
import socket
import subprocess
import sys
import time
from pathlib import Path

import pytest
from amqp import AccessRefused
from azure.servicebus.exceptions import (
    MessagingEntityDisabledError,
    OperationTimeoutError,
    ServiceBusAuthenticationError,
    ServiceBusQuotaExceededError,
)
from kombu import Exchange, Queue
from kombu.exceptions import OperationalError
from redis.exceptions import AuthenticationError, OutOfMemoryError
from redis.exceptions import TimeoutError as RedisTimeoutError

from kombu_paired.brokers.kombu import new_connection
from kombu_paired.testing import (
    BrokerFailed,
    BrokerMissing,
    LocalRabbitMQ,
    LocalRedis,
    LocalServiceBus,
    descendants,
    local_broker,
    process_state,
)
from kombu_paired.testing.local_rabbitmq import _rabbitmq_scripts
from tests.conftest import require_broker
from tests.support.nodes import ROOT, PairedCluster, WorkerFailed
from tests.support.proxy import Proxy

QUEUE = Queue("orders", Exchange("orders", type="direct"), routing_key="orders", durable=True)
TIMED_OUT = (TimeoutError, RedisTimeoutError, OperationalError, OperationTimeoutError)
WRONG_PASSWORD = (AccessRefused, AuthenticationError, ServiceBusAuthenticationError)
PATIENCE = 20.0
FULL = {"amqp": TimeoutError, "redis": OutOfMemoryError, "azureservicebus": ServiceBusQuotaExceededError}


def connect(url, timeout=PATIENCE):
    options = {
        "amqp": {"confirm_publish": True, "read_timeout": timeout, "write_timeout": timeout},
        "redis": {"socket_timeout": timeout, "socket_connect_timeout": timeout, "max_retries": 0},
        "azureservicebus": {"send_timeout": timeout},
    }[url.partition("://")[0]]
    return new_connection(url, connect_timeout=timeout, transport_options=options)


def publish(url, body, timeout=PATIENCE):
    with connect(url, timeout) as connection:
        publish_over(connection, body)


def publish_over(connection, body):
    connection.Producer().publish(body, exchange=QUEUE.exchange, routing_key="orders", declare=[QUEUE], delivery_mode=2)


def take_all(url):
    bodies = []
    with connect(url) as connection, connection.channel() as channel:
        queue = QUEUE(channel)
        queue.declare()
        while (message := queue.get()) is not None:
            message.ack()
            bodies.append(message.payload)
    return bodies


def test_a_killed_broker_comes_back_with_its_port_and_its_messages(primary):
    publish(primary.url, "before")
    pid, url = primary.broker.pid, primary.url

    primary.kill()

    assert process_state(pid) == ""
    assert primary.container.status == "exited"
    with pytest.raises(OSError, match="refused"):
        socket.create_connection(("127.0.0.1", primary.port), 1)

    primary.restart()

    assert (primary.url, primary.container.status) == (url, "running")
    assert take_all(primary.url) == ["before"]


def test_a_frozen_broker_is_silent_until_it_thaws(primary):
    publish(primary.url, "before")

    primary.freeze()

    assert process_state(primary.broker.pid) == "T"
    started = time.monotonic()
    with pytest.raises(TIMED_OUT):
        publish(primary.url, "frozen", timeout=0.5)
    assert time.monotonic() - started >= 0.5

    primary.thaw()
    publish(primary.url, "after")
    bodies = take_all(primary.url)
    assert (bodies[0], bodies[-1]) == ("before", "after")


def test_a_full_broker_takes_nothing_until_there_is_room(primary):
    publish(primary.url, "before")

    primary.fill()

    with pytest.raises(FULL[primary.kind]):
        publish(primary.url, "full", timeout=1 if primary.kind == "amqp" else PATIENCE)  # who answers may take its time

    primary.unfill()
    publish(primary.url, "after")
    bodies = take_all(primary.url)
    assert bodies[0] == "before"
    assert "after" in bodies


def test_reset_leaves_an_empty_broker_with_its_first_password(primary):
    publish(primary.url, "before")
    first = primary.url
    primary.set_password(primary.odd_password)
    publish(primary.url, "with the new one")
    with pytest.raises((AccessRefused, OperationalError)) as refused:
        publish(first, "with the old one", timeout=5)
    assert isinstance(refused.value.__cause__ or refused.value, WRONG_PASSWORD)
    primary.cut()

    primary.reset()

    assert primary.url == first
    assert take_all(primary.proxied_url) == []
    if isinstance(primary.broker, LocalRabbitMQ):
        publish(primary.url, "one")
        primary.reset()
        assert primary.depths() == {}
        assert "orders" not in primary.broker.erl("rabbit_exchange:list_names()")


def test_stop_leaves_nothing_behind(broker_kind):
    require_broker(broker_kind)
    broker = local_broker(broker_kind)
    with broker:
        family = [broker.pid, *descendants(broker.pid)]
        publish(broker.url, "x")
        broker.freeze()
        started = time.monotonic()
        broker.stop()
        assert time.monotonic() - started < 9
        broker.stop()

    assert all(process_state(pid) in ("", "Z") for pid in family)
    assert not broker.folder.exists()
    commands = subprocess.run(["ps", "-eo", "args"], capture_output=True, text=True).stdout
    assert str(broker.folder) not in commands
    assert broker.state == "down"


def test_a_broker_dies_with_the_process_that_started_it(broker_kind, tmp_path):
    if not sys.platform.startswith("linux"):
        pytest.skip("needs Linux's parent-death signal")
    require_broker(broker_kind)
    program = (
        "import sys, threading, time\n"
        "from kombu_paired.testing import local_broker\n"
        f"broker = local_broker({broker_kind!r}, {str(tmp_path)!r})\n"
        "starter = threading.Thread(target=broker.start)\n"
        "starter.start(); starter.join()\n"
        "broker.wait_ready()\n"
        "print(broker.pid, flush=True)\n"
        "time.sleep(60)\n"
    )
    parent = subprocess.Popen(
        [sys.executable, "-c", program],
        cwd=ROOT,
        env=os.environ | {"PYTHONPATH": str(ROOT)},
        stdout=subprocess.PIPE,
    )
    with parent:
        pid = int(parent.stdout.readline())
        assert process_state(pid) in ("S", "R")
        parent.kill()
    deadline = time.monotonic() + 20
    while process_state(pid) not in ("", "Z"):
        assert time.monotonic() < deadline
        time.sleep(0.01)


def test_rabbitmq_plugins_and_ctl(tmp_path):
    require_broker("amqp")
    with LocalRabbitMQ(tmp_path, plugins=["rabbitmq_shovel"]) as broker:
        broker.ctl(
            "set_parameter",
            "shovel",
            "move",
            f'{{"src-uri": "{broker.url.rstrip("/")}", "src-queue": "orders",'
            f' "dest-uri": "{broker.url.rstrip("/")}", "dest-queue": "moved"}}',
        )
        publish(broker.url, "x")
        deadline = time.monotonic() + 60
        while "moved\t1" not in broker.ctl("list_queues", "name", "messages"):
            assert time.monotonic() < deadline


def test_a_redis_password_given_at_the_start(tmp_path):
    require_broker("redis")
    with LocalRedis(tmp_path, password="s3cret/") as broker:
        publish(broker.url, "x")
        broker.restart()
        assert take_all(broker.url) == ["x"]
        with pytest.raises(Exception, match=r"(?i)auth"):
            publish(f"redis://127.0.0.1:{broker.port}/0", "x")


def test_a_service_bus_queue_can_fail_alone(tmp_path):
    with LocalServiceBus(tmp_path, password="s3cret/+=") as broker:
        publish(broker.url, "before")
        broker.ask("POST", "faults", {"kind": "disabled", "entity": "orders"})
        with pytest.raises(MessagingEntityDisabledError):
            publish(broker.url, "meanwhile")
        broker.unfill()
        assert take_all(broker.url) == ["before"]
        with pytest.raises(BrokerFailed, match="no-such-fault"):
            broker.ask("POST", "faults", {"kind": "no-such-fault"})
        with pytest.raises((ServiceBusAuthenticationError, OperationalError)) as refused:
            publish(broker.url.replace("s3cret", "another"), "x")
        assert isinstance(refused.value.__cause__ or refused.value, WRONG_PASSWORD)


@pytest.mark.parametrize(("kind", "package"), [("redis", "redis-server"), ("amqp", "rabbitmq-server")])
def test_a_missing_broker_says_what_to_install(kind, package, monkeypatch, tmp_path):
    _rabbitmq_scripts.cache_clear()
    monkeypatch.setattr("shutil.which", lambda *_args, **_kwargs: None)
    monkeypatch.setattr(Path, "exists", lambda _self: False)
    with pytest.raises(BrokerMissing, match=f"apt-get install {package}"):
        local_broker(kind, tmp_path)
    _rabbitmq_scripts.cache_clear()


def test_the_network_can_be_cut_and_healed(primary, secondary):
    with connect(primary.proxied_url) as connection:
        publish_over(connection, "one")
        assert primary.proxy.connections

        primary.cut()

        with pytest.raises(OSError, match="refused"):
            socket.create_connection(("127.0.0.1", primary.proxy.port), 1)
        with pytest.raises(connection.connection_errors):
            connection.default_channel.queue_declare("orders", passive=True)
    publish(primary.url, "around it")
    publish(secondary.proxied_url, "the other one is not touched")

    primary.heal()

    publish(primary.proxied_url, "two")
    assert take_all(primary.proxied_url) == ["one", "around it", "two"]


def test_a_silent_network(primary):
    with connect(primary.proxied_url, timeout=1) as connection:
        connection.connect()

        primary.blackhole()

        socket.create_connection(("127.0.0.1", primary.proxy.port), 1).close()
        started = time.monotonic()
        with pytest.raises(TIMED_OUT):
            connection.default_channel.queue_declare("orders", durable=True)
        with pytest.raises(TIMED_OUT):
            publish(primary.proxied_url, "swallowed", timeout=0.5)
        assert 0.5 <= time.monotonic() - started < 15

    primary.heal()

    publish(primary.proxied_url, "after")
    assert take_all(primary.proxied_url) == ["after"]


@pytest.fixture
def echo():
    """A server that echoes; the port."""
    with socket.create_server(("127.0.0.1", 0)) as server:
        program = (
            "import socket, threading\n"
            f"server = socket.socket(fileno={server.fileno()})\n"
            "def serve(s):\n"
            "    while data := s.recv(65536): s.sendall(data)\n"
            "    s.close()\n"
            "while True: threading.Thread(target=serve, args=(server.accept()[0],)).start()\n"
        )
        with subprocess.Popen([sys.executable, "-c", program], pass_fds=[server.fileno()]) as process:
            yield server.getsockname()[1]
            process.kill()


def test_the_proxy_holds_back_resets_and_is_fast(echo):
    with Proxy(echo) as proxy:
        with socket.create_connection(("127.0.0.1", proxy.port), 5) as client:
            client.sendall(b"a")
            assert client.recv(10) == b"a"
            proxy.blackhole(swallow=False)
            client.sendall(b"b")
            client.settimeout(0.2)
            with pytest.raises(TimeoutError):
                client.recv(10)
            proxy.heal()
            client.settimeout(5)
            assert client.recv(10) == b"b"

            started = time.monotonic()
            for _ in range(2000):
                client.sendall(b"x" * 600)
                got = 0
                while got < 600:
                    got += len(client.recv(600))
            assert time.monotonic() - started < 10  # a proxy that napped 10 ms at a time would need 40

            proxy.reset_all()
            with pytest.raises(ConnectionResetError):
                client.recv(10)
        with socket.create_connection(("127.0.0.1", proxy.port), 5) as client:
            client.sendall(b"c")
            assert client.recv(10) == b"c"
    with pytest.raises(OSError, match="refused"):
        socket.create_connection(("127.0.0.1", proxy.port), 1)


def test_a_worker_writes_the_ledger(paired_cluster, worker_factory, shop_factory, ledger):
    assert isinstance(paired_cluster, PairedCluster)
    url, conf = paired_cluster.primary.url, paired_cluster.primary.plain_conf
    worker = worker_factory(url, setup=False, conf=conf)
    shop = shop_factory(url, conf=conf)

    for n in range(50):
        shop.record.delay(n)
    shop.spawn.delay(50)
    shop.slow_record.delay(51, 0.1)

    ledger.wait_for(52, timeout=60)
    assert ledger.missing(range(52)) == set()
    assert ledger.duplicates() == {}
    worker.assert_log_exists("shop.record")
    family = worker.processes()
    assert len(family) >= 3
    code, seconds = worker.stop()
    assert (code, worker.alive()) == (0, False)
    assert seconds < 20


def test_a_worker_can_be_frozen_and_killed(primary, worker_factory, shop_factory, ledger):
    worker = worker_factory(primary.url, setup=False, conf={"task_acks_late": True, **primary.plain_conf})
    shop = shop_factory(primary.url, conf=primary.plain_conf)
    family = worker.processes()
    worker.freeze()
    assert worker.container.status == "paused"
    shop.record.delay(1)
    with pytest.raises(AssertionError):
        ledger.wait_for(1, timeout=0.3)
    worker.thaw()
    ledger.wait_for(1, timeout=60)

    worker.kill()

    assert not worker.alive()
    assert all(process_state(pid) in ("", "Z") for pid in family)
    with pytest.raises(WorkerFailed, match="it exited"):
        worker.wait_for_log("never logged")
