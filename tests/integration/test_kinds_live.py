"""Failure kinds from the exceptions of real brokers, provoked one by one."""

from __future__ import annotations

import os
import threading
import time

import amqp
import kombu
import pytest
import redis

from kombu_paired.brokers.kombu import KombuNamespace
from kombu_paired.declarations import Declaration, Entity
from kombu_paired.errors import NamespaceFailure
from kombu_paired.failures import FailureKind
from kombu_paired.message import Message
from kombu_paired.testing import LocalRabbitMQ, LocalRedis, spawn, stop_tree
from tests.conftest import require_broker

UNREACHABLE, TIMEOUT, FAULT, THROTTLED, UNAUTHORIZED, REJECTED, MISSING = FailureKind
#: Seconds for what a broker says at once, on a busy machine too.
SOON = 20.0
PERSISTENT = {"delivery_mode": 2, "message_id": "m"}


def namespace(url, send_timeout=2.0, **arguments):
    return KombuNamespace("primary", [url], {}, send_timeout=send_timeout, **arguments)


def failing(call):
    with pytest.raises(NamespaceFailure) as caught:
        call()
    return caught.value


def wait_until(condition, timeout=30.0):
    deadline = time.monotonic() + timeout
    while not condition():
        assert time.monotonic() < deadline, "it did not come true"
        time.sleep(0.02)


def queue(name="orders", **arguments):
    return Declaration("queue_declare", {"queue": name, "durable": True, "auto_delete": False, **arguments})


def message(name="orders", exchange="", body=b"x", **more):
    return Message(body, exchange=exchange, routing_key=name, properties=dict(PERSISTENT), **more)


# -- RabbitMQ ---------------------------------------------------------------------------------------------------


@pytest.fixture
def rabbitmq(broker_pool):
    return broker_pool.pair("amqp")[0]


@pytest.fixture
def rabbit(rabbitmq):
    """Its erl() and ctl()."""
    broker = rabbitmq.broker
    assert isinstance(broker, LocalRabbitMQ)
    return broker


@pytest.fixture
def guest(rabbitmq):
    return namespace(rabbitmq.url)


def test_a_channel_that_the_broker_closed_between_two_sends_fails_the_second_at_once(guest):
    sender = guest.sender()
    sender.declare([queue()], SOON)
    sender.send(message(), SOON)
    sender.link.channel.basic_publish(amqp.Message("x"), exchange="nowhere", routing_key="x")
    wait_until(sender.link.has_arrived)

    began = time.monotonic()
    failure = failing(lambda: sender.send(message(), SOON))

    assert (failure.kind, failure.maybe_stored) == (MISSING, False)  # py-amqp alone loses the word, and never confirms
    assert time.monotonic() - began < SOON / 2
    sender.send(message(), SOON)
    sender.close()


@pytest.fixture
def sender(guest):
    made = guest.sender()
    yield made
    made.close()


@pytest.fixture
def clerk(rabbit):
    """A user who may do nothing, with his URL."""
    rabbit.erl('rabbit_auth_backend_internal:add_user(<<"clerk">>, <<"pw">>, <<"local">>)')
    yield f"amqp://clerk:pw@127.0.0.1:{rabbit.port}"
    rabbit.erl('rabbit_auth_backend_internal:delete_user(<<"clerk">>, <<"local">>)')


def permit(rabbit, configure="", write="", read=""):
    patterns = ", ".join(f'<<"{each}">>' for each in (configure, write, read))
    rabbit.erl(f'rabbit_auth_backend_internal:set_permissions(<<"clerk">>, <<"/">>, {patterns}, <<"local">>)')


def test_rabbitmq_a_missing_exchange(sender):
    failure = failing(lambda: sender.send(message("new", "nowhere"), SOON))
    assert (failure.kind, failure.cause.reply_code, failure.maybe_stored) == (MISSING, 404, False)


def test_rabbitmq_a_mandatory_message_that_nobody_gets(sender):
    failure = failing(lambda: sender.send(message("nobody", mandatory=True), SOON))
    assert (failure.kind, failure.cause.reply_code, failure.maybe_stored) == (MISSING, 312, False)


def test_rabbitmq_somebodys_exclusive_queue(sender, rabbitmq):
    with kombu.Connection(rabbitmq.url) as connection, connection.channel() as channel:
        channel.queue_declare("mine", exclusive=True)
        failure = failing(lambda: sender.declare([queue("mine")], SOON))
    assert (failure.kind, failure.cause.reply_code) == (REJECTED, 405)


def test_rabbitmq_a_queue_that_was_declared_otherwise(sender):
    sender.declare([queue()], SOON)
    failure = failing(lambda: sender.declare([queue(arguments={"x-max-length": 7})], SOON))
    assert (failure.kind, failure.cause.reply_code) == (REJECTED, 406)
    sender.send(message(), SOON)


def test_rabbitmq_a_user_without_rights(clerk, rabbit):
    permit(rabbit, configure="mine", write="mine", read="mine")
    his = namespace(clerk + "//")
    sender = his.sender()

    declared = failing(lambda: sender.declare([queue()], SOON))
    sent = failing(lambda: sender.send(message("new", "amq.direct"), SOON))
    probed = failing(lambda: his.probe(Entity("amq.direct", "new"), SOON))

    for failure in (declared, sent, probed):
        assert (failure.kind, failure.cause.reply_code, failure.whole_namespace) == (UNAUTHORIZED, 403, False)
    sender.close()


def test_rabbitmq_a_user_without_the_virtual_host(clerk):
    failure = failing(lambda: namespace(clerk + "//").sender().send(message(), SOON))
    assert (failure.kind, failure.cause.reply_code) == (UNAUTHORIZED, 530)


def test_rabbitmq_a_virtual_host_that_is_not_there(rabbit):
    failure = failing(lambda: namespace(rabbit.url_of("shop")).probe(None, SOON))
    assert (failure.kind, failure.cause.reply_code) == (UNAUTHORIZED, 530)


def test_rabbitmq_a_wrong_password(rabbitmq):
    failure = failing(lambda: namespace(f"amqp://guest:no@127.0.0.1:{rabbitmq.port}//").probe(None, SOON))
    assert (failure.kind, failure.cause.reply_code) == (UNAUTHORIZED, 403)


def test_rabbitmq_an_operator_closes_all_connections(sender, rabbit):
    sender.declare([queue()], SOON)
    sender.send(message(), SOON)
    rabbit.ctl("close_all_connections", "maintenance")

    failure = failing(lambda: sender.send(message(), SOON))

    assert (failure.kind, failure.whole_namespace) == (UNREACHABLE, False)
    assert sender.is_fresh
    sender.send(message(), SOON)


def test_rabbitmq_connection_forced_says_so(sender, rabbit):
    sender.declare([queue()], SOON)
    connection = sender.link.connection
    rabbit.erl('[rabbit_networking:close_connection(P, "maintenance") || P <- rabbit_networking:connections()]')

    with pytest.raises(Exception, match="maintenance") as caught:
        connection.drain_events(timeout=5)

    assert caught.value.reply_code == 320
    assert sender.namespace.failure(caught.value).kind is UNREACHABLE


def test_rabbitmq_a_memory_alarm(sender, guest, rabbit):
    sender.declare([queue()], 2)
    sender.send(message(), 2)
    rabbit.fill()

    found_out = failing(lambda: [sender.send(message(), 2) for _ in range(2)])
    probed = failing(lambda: guest.probe(Entity("", "orders"), 2))

    assert (found_out.kind, found_out.whole_namespace) == (FAULT, True)
    assert (probed.kind, probed.whole_namespace) == (FAULT, True)
    rabbit.unfill()
    sender.send(message(), 2)


def test_rabbitmq_a_full_queue_is_its_own_fault(sender):
    sender.declare([queue(arguments={"x-max-length": 0, "x-overflow": "reject-publish"})], SOON)
    failure = failing(lambda: sender.send(message(), SOON))
    assert (failure.kind, failure.whole_namespace, failure.maybe_stored) == (FAULT, False, False)


def test_rabbitmq_a_header_that_amqp_does_not_know(sender):
    sender.declare([queue()], SOON)
    failure = failing(lambda: sender.send(message(headers={"n": 2**70}), SOON))
    assert failure.kind is REJECTED


def test_rabbitmq_nobody_listens_and_no_such_host(rabbitmq):
    rabbitmq.cut()
    for url in (rabbitmq.proxied_url, "amqp://guest:guest@no-such-host.invalid//"):
        failure = failing(lambda url=url: namespace(url).probe(None, 2))
        assert (failure.kind, failure.whole_namespace, failure.maybe_stored) == (UNREACHABLE, True, False)


def test_rabbitmq_something_else_listens(rabbitmq, broker_pool):
    other = broker_pool.pair("redis")[0]
    failure = failing(lambda: namespace(f"amqp://guest:guest@127.0.0.1:{other.port}//").probe(None, 2))
    assert failure.kind is UNREACHABLE


# -- Redis ------------------------------------------------------------------------------------------------------


@pytest.fixture
def redis_broker(broker_pool):
    return broker_pool.pair("redis")[0]


@pytest.fixture
def server(redis_broker):
    with redis.Redis.from_url(redis_broker.url, decode_responses=True) as client:
        yield client


@pytest.fixture
def here(redis_broker):
    return namespace(redis_broker.url)


def every_way(here):
    """The failures of a send, a batch, a declaration and a probe on links of their own."""
    [batched] = here.sender().send_batch([message()], SOON)
    assert batched is not None
    return [
        failing(lambda: here.sender().send(message(), SOON)),
        batched,
        failing(lambda: here.probe(Entity("", "orders"), SOON)),
    ]


def kinds(failures):
    return [(each.kind, each.maybe_stored) for each in failures]


def test_redis_out_of_memory(here, server, redis_broker):
    redis_broker.fill()
    assert kinds(every_way(here)) == 3 * [(FAULT, False)]
    redis_broker.unfill()
    here.sender().send(message(), SOON)
    assert server.llen("orders") == 1


def test_redis_a_replica(here, server):
    server.execute_command("REPLICAOF", "127.0.0.1", "1")
    failures = every_way(here)
    server.execute_command("REPLICAOF", "NO", "ONE")
    assert kinds(failures) == 3 * [(FAULT, False)]
    assert all("read only replica" in str(each) for each in failures)


def test_redis_cannot_write_to_its_disk(here, server, redis_broker):
    in_the_way = redis_broker.broker.folder / "dump.rdb"
    in_the_way.mkdir()
    server.config_set("save", "3600 1")
    try:
        server.set("changed", 1)
        server.bgsave()
        wait_until(lambda: server.info("persistence")["rdb_last_bgsave_status"] == "err")
        failures = every_way(here)
    finally:
        in_the_way.rmdir()
        server.config_set("save", "")
        server.save()
    assert kinds(failures) == 3 * [(FAULT, False)]
    assert all("MISCONF" in str(each) for each in failures)


def test_redis_wants_a_password(here, server, redis_broker):
    redis_broker.broker.set_password("default", "s3cret")
    assert kinds(every_way(here)) == 3 * [(UNAUTHORIZED, False)]


def test_redis_wants_another_password(server, redis_broker):
    redis_broker.broker.set_password("default", "s3cret")
    failures = every_way(namespace(f"redis://:wr0ng@127.0.0.1:{redis_broker.port}/0"))
    assert kinds(failures) == 3 * [(UNAUTHORIZED, False)]
    assert not any("wr0ng" in str(each) for each in failures)


def test_redis_a_user_without_rights(server, redis_broker):
    server.execute_command("ACL", "SETUSER", "clerk", "on", ">pw", "~mine", "+@all")
    failures = every_way(namespace(f"redis://clerk:pw@127.0.0.1:{redis_broker.port}/0"))
    server.execute_command("ACL", "DELUSER", "clerk")
    assert kinds(failures) == 3 * [(UNAUTHORIZED, False)]


def test_redis_a_key_that_is_not_a_queue(here, server):
    server.set("orders", "a text")
    sender = here.sender()
    failure = failing(lambda: sender.send(message(), SOON))
    [batched, fine] = sender.send_batch([message(), message("others")], SOON)
    assert (failure.kind, batched.kind, fine) == (FAULT, FAULT, None)
    assert not failure.whole_namespace
    with pytest.raises(NamespaceFailure):
        here.probe(Entity("", "orders"), SOON)
    here.probe(Entity("", "others"), SOON)
    assert server.llen("others") == 1


def test_redis_is_loading(tmp_path):
    require_broker("redis")
    with LocalRedis(tmp_path) as broker:
        for n in range(100):
            broker.command("SET", f"key-{n}", "x" * 2000)
        broker.command("CONFIG", "SET", "rdbcompression", "no")
        broker.command("SAVE")
        broker.kill()
        # fmt: off
        slowly = spawn(
            [broker._program_path, "--bind", "127.0.0.1", "--port", str(broker.port), "--dir", str(tmp_path),
             "--key-load-delay", "100000", "--loading-process-events-interval-bytes", "1024"],
            env=os.environ, log=broker.log,
        )
        # fmt: on
        try:
            wait_until(lambda: "loading the dataset" in answer_of(broker))
            failures = every_way(namespace(broker.url))
        finally:
            stop_tree(slowly)
    assert kinds(failures) == 3 * [(FAULT, False)]


def answer_of(broker):
    try:
        return str(broker.command("PING"))
    except redis.RedisError as exc:
        return str(exc)


def test_redis_dies_in_the_middle_of_a_batch(server, redis_broker, here):
    sender = here.sender()
    sender.send(message(), 2)
    threading.Timer(0.2, redis_broker.kill).start()
    deadline = time.monotonic() + 10
    answers = [None]
    while not any(answers):
        assert time.monotonic() < deadline
        answers = sender.send_batch([message(body=b"x" * 100_000)] * 50, 2)
    assert {each.kind for each in answers} == {UNREACHABLE}
    redis_broker.broker.restart()
    assert sender.send_batch([message()], 2) == [None]
