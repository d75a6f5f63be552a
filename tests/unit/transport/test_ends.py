"""The ends of channels and connections, and what outlives them."""

from __future__ import annotations

import threading

import pytest
from kombu import Connection

from kombu_paired.errors import PairingClosed
from kombu_paired.message import Message
from kombu_paired.testing import ScriptedBroker
from kombu_paired.testing.scripted import ScriptedError
from kombu_paired.transport import connection as consumers_connection
from kombu_paired.transport import pairing_of
from tests.unit.transport.asking import consume, consumer_calls, publish, told


@pytest.mark.parametrize("state", ["it never consumed", "it was closed"])
def test_there_is_nothing_to_cancel(channel, log, state):
    if state == "it was closed":
        consume(channel)
        channel.close()
    log.clear()
    assert channel.basic_cancel("tag") is None
    assert log == []


def test_a_consumer_is_cancelled(channel, primary):
    consume(channel)
    channel.basic_cancel("tag")
    assert primary.asked_for("cancel") == ["tag"]


@consumer_calls
def test_a_channel_that_is_closed_says_so_as_plain_ones_do(channel, log, call):
    channel.close()
    log.clear()
    with pytest.raises(ConnectionError, match="the channel is closed"):
        call(channel)
    assert log == []


def test_a_channel_that_is_closed_closes_that_of_the_primary_and_sends_on(connection, channel, primary):
    consume(channel)
    channel.close()
    assert primary.asked_for("close channel") == [""]
    assert not channel.is_open
    publish(channel)  # Kombu's pools keep producers whose channel somebody closed
    assert len(primary.stored) == 1


def test_a_closed_connection_is_closed_for_all_its_channels(connection, channel, primary):
    consume(channel)
    other, own = connection.channel(), connection.connection
    own.close()
    own.close()
    assert primary.asked_for("close connection") == [""]
    assert (own.connected, own.primary, channel.is_open, other.is_open) == (False, None, False, False)


def test_whatever_a_goodbye_meets_it_ends_and_raises_nothing(connection, channel, monkeypatch):
    def fail(*args):
        raise OSError("Bad file descriptor")

    consume(channel)
    own = connection.connection
    monkeypatch.setattr(connection.transport.primary_transport, "close_connection", fail)
    own.close()
    assert not own.connected


def test_a_worker_that_stops_waits_once_for_a_primary_that_does_not_answer(connection, channel, primary, monkeypatch):
    consume(channel)
    own, hurried = connection.connection, []
    pairing = pairing_of(connection)
    monkeypatch.setattr(pairing.primary, "limit_answers", lambda raw, seconds: hurried.append(seconds))
    monkeypatch.setattr(consumers_connection, "worker_is_told_to_stop", lambda: True)
    primary.go_away()
    with pytest.raises(ScriptedError):
        channel.basic_cancel("tag")
    assert hurried == [consumers_connection.GOODBYE, consumers_connection.NO_PATIENCE]
    assert not own.connected
    assert channel.basic_cancel("tag") is None, "nothing is left to be waited for"


def test_a_pairing_that_was_closed_is_followed_by_a_whole_one(connection, channel, primary):
    before = pairing_of(connection)
    before.close()
    with pytest.raises(PairingClosed):
        before.send(Message("x", "", "orders"))
    publish(channel)
    assert len(primary.stored) == 1
    assert pairing_of(connection) is not before


def test_a_connection_that_is_closed_while_a_message_is_on_its_way_loses_nothing(
    connection, channel, primary, monkeypatch
):
    under_way, go_on = threading.Event(), threading.Event()
    take = primary.take

    def slowly(*args):
        under_way.set()
        go_on.wait(30)
        take(*args)

    monkeypatch.setattr(primary, "take", slowly)
    errors = []

    def send():
        try:
            publish(channel)
        except Exception as exc:
            errors.append(exc)

    thread = threading.Thread(target=send)
    thread.start()
    assert under_way.wait(30)
    connection.connection.close()
    go_on.set()
    thread.join(30)
    assert errors == []
    assert len(primary.stored) == 1


def test_no_heart_beats_for_a_connection_that_does_not_consume(connection, log):
    own = connection.connection
    assert connection.transport.heartbeat_check(own) is None
    assert connection.transport.get_heartbeat_interval(own) == 0
    assert told(log, "connect") == []


def test_it_looks_like_the_primarys_own_transport(connection, primary):
    own = ScriptedBroker()
    plain = Connection(own.uri).transport
    paired = connection.transport
    assert paired.implements == plain.implements
    assert (paired.driver_type, paired.driver_name) == (plain.driver_type, plain.driver_name)
    assert connection.as_uri() == f"paired+{primary.uri}"
