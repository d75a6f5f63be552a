"""Letting go never raises: the sockets are really closed under the drivers."""

from __future__ import annotations

import errno
import logging
from types import SimpleNamespace

import pytest

from kombu_paired.brokers.kombu import KombuNamespace
from kombu_paired.brokers.letting_go import letting_go
from kombu_paired.message import Message
from kombu_paired.transport import Connection
from kombu_paired.transport.consumed import Consumed
from tests.support.peers import peer, rabbitmq, redis_server

PEERS = {"amqp": rabbitmq, "redis": redis_server}
brokers = pytest.mark.parametrize("kind", PEERS)


@pytest.fixture
def namespace(kind):
    with peer(PEERS[kind]()) as port:
        yield KombuNamespace("primary", [f"{kind}://127.0.0.1:{port}"], {}, send_timeout=2)


def sockets_of(connection, kind):
    """The sockets of a Kombu connection's transport."""
    if kind == "amqp":
        return [connection.transport.sock]
    pools = [pool for channel in connection.channels for pool in (channel._pool, channel._async_pool) if pool]
    connections = [each for pool in pools for each in (*pool._available_connections, *pool._in_use_connections)]
    return [each._sock for each in connections if each._sock is not None]


def close_sockets(connection, kind):
    found = sockets_of(connection, kind)
    assert found
    for sock in found:
        sock.close()


def test_what_is_met_while_letting_go_is_told_at_debug_level(caplog):
    caplog.set_level(logging.DEBUG)
    with letting_go("a link to a broker"):
        raise OSError(errno.EBADF, "Bad file descriptor")
    assert "while a link to a broker was let go: OSError(9, 'Bad file descriptor')" in caplog.text


def test_an_interrupt_is_not_swallowed():
    with pytest.raises(KeyboardInterrupt), letting_go("a link"):
        raise KeyboardInterrupt


@brokers
@pytest.mark.parametrize("step", ["close", "drop"])
def test_a_sender_lets_go_and_can_be_used_again(namespace, kind, step):
    sender = namespace.sender()
    sender.send(Message(b"x", routing_key="orders"), 2)
    close_sockets(sender.link.connection, kind)

    getattr(sender, step)()

    assert sender.is_fresh
    sender.send(Message(b"x", routing_key="orders"), 2)
    sender.close()


@brokers
@pytest.mark.parametrize("step", ["limit_answers", "close", "collect"])
def test_a_consumers_connection_lets_go(namespace, kind, step):
    client = namespace.consumer_client(None, 2)
    connection = Connection(
        SimpleNamespace(client=client, pairing=SimpleNamespace(primary=namespace), primary_transport=client.transport)
    )
    primary = client.transport.establish_connection()
    connection.consumed = Consumed(namespace, client.transport, primary)
    channel = client.transport.create_channel(primary)
    assert channel is not None
    close_sockets(primary, kind)

    if step == "limit_answers":
        namespace.limit_answers(primary, 1)
    else:
        getattr(connection, step)()
        assert connection.primary is None


@brokers
def test_a_driver_that_raises_while_it_closes_is_not_heard(namespace, kind, monkeypatch):
    def refuse(*args):
        raise ValueError("file descriptor cannot be a negative integer (-1)")

    sender = namespace.sender()
    sender.send(Message(b"x", routing_key="orders"), 2)
    link = sender.link
    if kind == "amqp":
        monkeypatch.setattr(link.connection, "collect", refuse)
        monkeypatch.setattr(link.connection, "close", refuse)
    else:
        monkeypatch.setattr(link.channel, "_disconnect_pools", refuse)
    sender.close()
    assert sender.is_fresh
