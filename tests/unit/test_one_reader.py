"""Who reads from a consumer's connection: one thread, or they take each other's frames."""

from __future__ import annotations

import threading
from types import SimpleNamespace

import pytest
from kombu import Connection


@pytest.fixture
def connection():
    options = {"secondary": "memory://spare", "allow_unsafe_secondary": True}
    with Connection("paired+memory://main", transport_options=options) as connection:
        connection.connect()
        yield connection


@pytest.fixture
def channel(connection):
    return connection.channel()


@pytest.fixture
def set_by(channel, monkeypatch):
    """The threads that set the prefetch count of the primary's own channel, and the count."""
    calls = []
    monkeypatch.setattr(
        channel.primary_channel(), "basic_qos", lambda size, count, share: calls.append((threading.get_ident(), count))
    )
    return calls


def in_another_thread(step):
    thread = threading.Thread(target=step)
    thread.start()
    thread.join()


def test_who_consumes_sets_the_prefetch_count_at_once(channel, set_by):
    channel.basic_qos(0, 7, False)
    assert set_by == [(threading.get_ident(), 7)]


def test_a_thread_of_the_pool_leaves_it_to_the_one_that_consumes(connection, channel, set_by):
    in_another_thread(lambda: channel.basic_qos(0, 7, False))
    in_another_thread(lambda: channel.basic_qos(0, 8, False))
    assert set_by == []

    with pytest.raises(TimeoutError):
        connection.drain_events(timeout=0.01)

    assert set_by == [(threading.get_ident(), 7), (threading.get_ident(), 8)]


def test_or_to_its_event_loop(connection, channel, set_by):
    soon = []
    loop = SimpleNamespace(call_soon=soon.append)
    connection.transport.register_with_event_loop(connection.connection, loop)

    in_another_thread(lambda: channel.basic_qos(0, 7, False))
    assert set_by == []
    [step] = soon
    step()
    assert set_by == [(threading.get_ident(), 7)]

    connection.transport.unregister_from_event_loop(connection.connection, loop)
    in_another_thread(lambda: channel.basic_qos(0, 8, False))
    assert (len(soon), len(set_by)) == (1, 1)


def test_not_for_a_channel_that_is_gone_meanwhile(connection, channel, set_by):
    in_another_thread(lambda: channel.basic_qos(0, 7, False))
    channel.close()
    connection.channel().primary_channel()
    with pytest.raises(TimeoutError):
        connection.drain_events(timeout=0.01)
    assert set_by == []


def test_a_thread_of_the_pool_never_connects(connection, monkeypatch):
    channel = connection.channel()
    connected_by = []
    monkeypatch.setattr(channel, "primary_channel", lambda: connected_by.append(threading.get_ident()))
    in_another_thread(lambda: channel.basic_qos(0, 7, False))
    assert connected_by == []


def test_a_channel_that_has_ended_says_so_as_plain_ones_do(channel):
    channel.close()
    with pytest.raises(ConnectionError, match="the channel is closed"):
        channel.basic_qos(0, 7, False)
