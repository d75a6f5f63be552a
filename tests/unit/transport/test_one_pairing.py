"""Which connections share a pairing, and what a child process does with an inherited one."""

from __future__ import annotations

import multiprocessing
import pickle

import pytest
from kombu import Connection, Queue
from kombu.pools import connections, producers

from kombu_paired.message import Message
from kombu_paired.pairing import last_send
from kombu_paired.transport import pairing_of
from tests.unit.transport.asking import consume, publish


@pytest.mark.parametrize(
    "another", [Connection.clone, lambda connection: pickle.loads(pickle.dumps(connection))], ids=["clone", "pickle"]
)
def test_a_clone_and_a_pickle_share_it_in_any_weather(connection, primary, secondary, another):
    with another(connection) as other:
        assert pairing_of(other) is pairing_of(connection)
        publish(other.channel(), "1")
        primary.go_away()
        publish(other.channel(), "2")
    assert [message.body for message in primary.stored + secondary.stored] == [b"1", b"2"]


def test_so_do_connections_of_the_same_settings_and_no_others(connection, primary, secondary):
    options = dict(connection.transport_options)
    same = Connection(f"paired+{primary.uri}", transport_options={**options, "max_retries": 3})  # Celery's, of a call
    other = Connection(f"paired+{primary.uri}", transport_options={**options, "primary_name": "another"})
    assert pairing_of(same) is pairing_of(connection)
    assert pairing_of(other) is not pairing_of(connection)
    assert pairing_of(other).name == "another"


def test_pools_of_kombus_send_in_any_weather(connection, primary, secondary):
    with producers[connection].acquire(block=True) as producer:
        producer.publish("1", routing_key="orders", declare=[Queue("orders")])
    primary.go_away()
    with connections[connection].acquire(block=True) as pooled:
        publish(pooled.channel(), "2")
    with producers[connection].acquire(block=True) as producer:
        producer.publish("3", routing_key="orders", declare=[Queue("orders")])
    assert [message.body for message in primary.stored + secondary.stored] == [b"1", b"2", b"3"]


def seen_by_a_child(connection, own, primary):
    """What a child process sees of a connection that its parent consumes from, and what it leaves."""
    inherited = (own.connected, own.primary, connection.transport.for_consuming.client)
    primary.log.clear()
    own.close()
    touched = list(primary.log)
    with connection.clone() as fresh:
        publish(fresh.channel(), "from the child")
        return inherited, touched, [message.body for message in primary.stored], pairing_of(fresh)


def test_a_child_touches_nothing_of_what_it_inherited(connection, channel, primary):
    consume(channel)
    own, parents = connection.connection, pairing_of(connection)
    fork = multiprocessing.get_context("fork")
    ours, theirs = fork.Pipe()

    def child():
        *seen, pairing = seen_by_a_child(connection, own, primary)
        theirs.send((*seen, pairing is pairing_of(connection), pairing is parents))

    process = fork.Process(target=child)
    process.start()
    assert ours.poll(30)
    inherited, touched, stored, is_shared, is_the_parents = ours.recv()
    process.join(30)
    assert inherited == (False, None, None)
    assert touched == []
    assert stored == [b"from the child"]
    assert is_shared, "all connections of the child share one"
    assert not is_the_parents
    assert own.connected
    assert primary.asked_for("close connection") == []


@pytest.mark.parametrize(
    "send",
    [
        lambda connection: publish(connection.channel(), "1"),
        lambda connection: pairing_of(connection).send_batch([Message("{}", "", "orders")]),
    ],
    ids=["one", "batch"],
)
def test_the_syphon_of_a_worker_hears_of_what_its_children_send(connection, primary, tmp_path, monkeypatch, send):
    monkeypatch.setattr(last_send, "MEMORY", str(tmp_path))
    options = {**connection.transport_options, "primary_name": "children"}
    with Connection(f"paired+{primary.uri}", transport_options=options) as workers:
        pairing = pairing_of(workers)
        assert pairing.since_last_send() > 60

        def child():
            with workers.clone() as own:
                send(own)

        process = multiprocessing.get_context("fork").Process(target=child)
        process.start()
        process.join(30)
        assert process.exitcode == 0
        assert pairing.since_last_send() < 60
        pairing.close()
