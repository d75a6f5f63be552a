"""The broker in memory whose answers a test scripts: an application runs on it unchanged."""

from __future__ import annotations

import gc

import pytest
from celery import Celery
from kombu import Connection, Consumer, Exchange, Producer, Queue

from kombu_paired.errors import BacklogUnavailable, NamespaceFailure
from kombu_paired.failures import FailureKind
from kombu_paired.message import MAYBE_DUPLICATE, Message, from_backlog
from kombu_paired.testing import ManualClock, ScriptedBroker
from kombu_paired.transport import pairing_of


@pytest.fixture
def primary():
    return ScriptedBroker("primary")


@pytest.fixture
def secondary():
    return ScriptedBroker("secondary")


@pytest.fixture
def plain(primary):
    """A connection to the primary alone."""
    with Connection(primary.uri) as connection:
        yield connection


@pytest.fixture
def paired(primary, secondary):
    options = secondary.as_secondary(backlog_queue_count=1, throttle_wait=0.01, failover_interval=0)
    with Connection(f"paired+{primary.uri}", transport_options=options) as connection:
        yield connection
        pairing_of(connection).close()


def publish(connection, body="x", **where):
    Producer(connection).publish(body, **(where or {"routing_key": "orders", "declare": [Queue("orders")]}))


# -- as a Kombu transport ---------------------------------------------------------------------------------------------


def received(connection, queue, times=1, ack=True):
    bodies = []

    def take(body, message):
        bodies.append(body)
        if ack:
            message.ack()

    with Consumer(connection, [queue], callbacks=[take]):
        for _ in range(times):
            connection.drain_events(timeout=1)
    return bodies


def test_a_message_waits_until_it_is_acknowledged(primary, plain):
    publish(plain, {"n": 1})
    [message] = primary.queues["orders"]
    assert (message.exchange, message.routing_key, message.content_type) == ("", "orders", "application/json")
    with Connection(primary.uri) as other:
        assert received(other, Queue("orders"), ack=False) == [{"n": 1}]
        assert primary.queues["orders"] == []
    [message] = primary.queues["orders"]  # its consumer is gone
    assert message.properties["delivery_mode"] == 2
    plain.channel().basic_get("orders").reject(requeue=True)
    assert received(plain, Queue("orders")) == [{"n": 1}]
    assert primary.queues["orders"] == []
    assert primary.asked_for("acknowledge") == [""]
    assert primary.asked_for("send") == ["orders"]


@pytest.mark.parametrize(("kind", "key", "reach"), [("topic", "eu.*", 1), ("fanout", "", 1), ("direct", "us", 0)])
def test_exchanges_lead_where_kombu_bound_queues(primary, plain, kind, key, reach):
    news = Exchange("news", kind)
    publish(plain, exchange=news, routing_key="eu.sport", declare=[Queue("readers", news, routing_key=key)])
    assert len(primary.queues["readers"]) == reach


def test_it_says_what_it_was_asked(primary, plain):
    publish(plain)
    assert [each[1:] for each in primary.log] == [
        ("connect", ""),
        ("declare", "orders"),
        ("size", "orders"),
        ("send", "orders"),
    ]
    primary.log.clear()
    assert received(plain, Queue("orders")) == ["x"]
    with plain.channel() as channel:
        channel.basic_qos(0, 7, False)
        assert channel.queue_purge("orders") == 0
    said = [what for _, what, _ in primary.log]
    assert said[-3:] == ["qos", "purge", "close channel"]
    assert {"consume", "get", "acknowledge", "cancel"} <= set(said)


def test_a_broker_that_is_away_lets_nobody_in_and_one_that_is_busy_does(primary):
    primary.go_away()
    with pytest.raises(Connection(primary.uri).connection_errors, match="primary unreachable"):
        Connection(primary.uri).connect()
    primary.be_busy()
    Connection(primary.uri).connect()
    primary.refuse()
    with pytest.raises(ConnectionError, match="primary unauthorized"):
        Connection(primary.uri).connect()
    primary.come_back()
    Connection(primary.uri).connect()
    assert [each.what for each in primary.log if each.what != "connect"] == []


def test_a_broker_that_nobody_holds_is_gone():
    uri = ScriptedBroker().uri
    gc.collect()
    with pytest.raises(KeyError):
        Connection(uri).connect()


# -- with an application on it ----------------------------------------------------------------------------------------


def test_an_application_sends_on_while_its_primary_is_away(primary, secondary):
    app = Celery("shop", broker=f"paired+{primary.uri}", set_as_current=False)
    app.conf.broker_transport_options = secondary.as_secondary(failover_interval=0)
    app.send_task("shop.record", (1,), queue="orders")
    assert len(primary.queues["orders"]) == 1

    primary.go_away()
    app.send_task("shop.record", (2,), queue="orders")

    [stored] = secondary.stored
    assert from_backlog(stored, 0).routing_key == "orders"
    secondary.go_away()
    with pytest.raises(BacklogUnavailable, match=r"primary unreachable.*secondary unreachable"):
        app.send_task("shop.record", (3,), queue="orders", retry=False)
    with app.connection_for_write() as connection:
        pairing_of(connection).close()


@pytest.mark.parametrize(
    ("kind", "stored"),
    [
        (FailureKind.UNREACHABLE, (0, 1)),
        (FailureKind.FAULT, (0, 1)),
        (FailureKind.TIMEOUT, (0, 1)),
        (FailureKind.THROTTLED, (1, 0)),
    ],
)
def test_a_failure_comes_through_as_it_was_scripted(primary, secondary, paired, kind, stored):
    primary.fail(kind)
    publish(paired)
    assert (len(primary.stored), len(secondary.stored)) == stored


@pytest.mark.parametrize("kind", [FailureKind.REJECTED, FailureKind.UNAUTHORIZED])
def test_what_diverting_would_hide_is_raised(primary, secondary, paired, kind):
    primary.fail(kind)
    with pytest.raises(Exception, match=f"primary {kind.value}"):
        publish(paired)
    assert (primary.stored, secondary.stored) == ([], [])


def test_an_answer_that_is_lost_leaves_two_copies_one_of_them_marked(primary, secondary, paired):
    primary.lose_answer()
    publish(paired)
    assert [MAYBE_DUPLICATE in message.headers for message in primary.stored + secondary.stored] == [False, True]


def test_a_queue_that_fails_fails_alone(primary, secondary, paired):
    primary.failing_queues.add("orders")
    publish(paired)
    publish(paired, routing_key="mails")
    assert [message.routing_key for message in primary.stored] == ["mails"]
    assert len(secondary.stored) == 1


# -- as a namespace, on a clock ---------------------------------------------------------------------------------------


def test_what_it_takes_to_fail_passes_on_its_clock():
    clock = ManualClock()
    broker = ScriptedBroker("primary", clock=clock)
    broker.cost = 3.0
    broker.go_away()
    began = clock()
    with pytest.raises(NamespaceFailure):
        broker.probe(None, 2.0)
    assert clock() - began == 2.0
    with pytest.raises(NamespaceFailure):
        broker.sender().send(Message("x", routing_key="orders"), 9.0)
    assert clock() - began == 5.0
    assert broker.stored == []


def test_a_receiver_that_finds_nothing_has_waited_for_its_time_and_what_it_holds_goes_back():
    clock = ManualClock()
    broker = ScriptedBroker("secondary", clock=clock)
    receiver = broker.receiver(["backlog"], 10, 1.0)
    began = clock()
    assert receiver.receive(10, 900.0) == []
    assert clock() - began == 900.0
    for number in "12":
        broker.put("backlog", Message(number, properties={"message_id": number}))
    held = receiver.receive(10, 900.0)
    assert clock() - began == 900.0
    receiver.complete(held[:1])
    receiver.close()
    assert [message.body for message in broker.queues["backlog"]] == ["2"]


def test_two_brokers_with_one_log_show_what_came_first():
    log = []
    first, second = ScriptedBroker("primary", log=log), ScriptedBroker("secondary", log=log)
    second.probe(None, 1)
    first.probe(None, 1)
    assert [each.side for each in log] == ["secondary", "primary"]
    assert (first.probes, second.probes) == (1, 1)
