"""Which exceptions Kombu and Celery take for the broker's, whoever asks first."""

from __future__ import annotations

import subprocess
import sys
import textwrap

import amqp
import pytest
import redis
from kombu import Connection

from kombu_paired.errors import BacklogUnavailable, PrimaryUnavailable
from kombu_paired.failures import FailureKind
from kombu_paired.transport import Transport
from kombu_paired.transport.consumed import Consumed

TUPLES = ("connection_errors", "channel_errors", "recoverable_connection_errors", "recoverable_channel_errors")
OPTIONS = {"secondary": "redis://spare/0"}

#: What an application sees that has two brokers; in a process of its own, since the first to be used matters.
TWO_BROKERS = f"""
    import sys
    import kombu_paired
    from celery import Celery
    from kombu import Connection

    def connect(url):
        return Connection(f"paired+{{url}}", transport_options={OPTIONS})

    asking, *used_before = sys.argv[1:]
    for url in used_before:
        connect(url).transport
    app = Celery("shop", broker=f"paired+{{asking}}", set_as_current=False)
    app.conf.broker_transport_options = {OPTIONS}
    asks = app.connection_for_read()
    for name in {TUPLES}:  # as Celery's consumer does before its connection has a transport
        print(name, *sorted({{f"{{each.__module__}}.{{each.__qualname__}}" for each in getattr(asks, name)}}))
"""


def told_to(asking, *used_before):
    command = [sys.executable, "-c", textwrap.dedent(TWO_BROKERS), asking, *used_before]
    return subprocess.run(command, capture_output=True, text=True, check=True, timeout=60).stdout


@pytest.mark.parametrize(
    ("asking", "before"), [("redis://other/1", "amqp://main//"), ("amqp://other//", "redis://main/0")]
)
def test_what_a_connection_is_told_does_not_depend_on_who_was_there_before(asking, before):
    """It keeps the answer, and a worker ends at whatever is missing from it."""
    alone = told_to(asking)
    assert "amqp.exceptions.RecoverableChannelError" in alone
    assert "redis.exceptions.ConnectionError" in alone
    assert told_to(asking, before) == alone
    assert told_to(asking, before, asking) == alone


def connect(url):
    options = {"secondary": "memory://spare", "allow_unsafe_secondary": True}
    return Connection(f"paired+{url}", transport_options=options)


def test_a_driver_that_is_not_a_usual_one_is_known_as_soon_as_a_connection_has_it(monkeypatch):
    own = type("TheDriversOwn", (Exception,), {})
    monkeypatch.setattr(Connection("memory://").get_transport_cls(), "connection_errors", (own,))
    connect("memory://main").transport.implements  # noqa: B018
    connect("amqp://main//").transport.implements  # noqa: B018
    assert own in connect("memory://main").connection_errors
    assert own in connect("memory://main").recoverable_connection_errors  # it has none of this name


def test_an_instance_has_those_of_its_own_driver_alone():
    of_amqp, of_redis = connect("amqp://main//").transport, connect("redis://main/0").transport
    assert redis.exceptions.ConnectionError in of_redis.connection_errors
    assert redis.exceptions.ConnectionError not in of_amqp.connection_errors
    assert of_amqp.channel_errors == tuple(amqp.Connection.channel_errors)
    assert amqp.exceptions.RecoverableConnectionError in of_amqp.recoverable_connection_errors
    assert amqp.exceptions.ConnectionError not in of_amqp.recoverable_connection_errors
    assert of_redis.recoverable_channel_errors == ()
    assert of_amqp.recoverable_channel_errors == tuple(amqp.Connection.recoverable_channel_errors)


@pytest.mark.parametrize("of", ["the class", "an instance"])
def test_a_worker_connects_again_after_both_errors_of_ours_and_kombu_retries_one(of):
    asked = Transport if of == "the class" else connect("memory://main").transport
    assert {BacklogUnavailable, PrimaryUnavailable} <= set(asked.connection_errors)
    assert BacklogUnavailable in asked.recoverable_connection_errors
    assert PrimaryUnavailable not in asked.recoverable_connection_errors
    assert not {BacklogUnavailable, PrimaryUnavailable} & {*asked.channel_errors, *asked.recoverable_channel_errors}


@pytest.mark.parametrize(
    ("kind", "raised"), [(FailureKind.FAULT, PrimaryUnavailable), (FailureKind.REJECTED, ValueError)]
)
def test_a_primary_that_refuses_a_channel_for_now_is_away(monkeypatch, kind, raised):
    """A Redis whose disk is full refuses its ping, by an error that would end a worker."""
    options = {"secondary": "memory://spare", "allow_unsafe_secondary": True}
    with Connection("paired+memory://main", transport_options=options) as connection:
        channel, refusal = connection.channel(), ValueError("MISCONF unable to persist to disk")
        monkeypatch.setattr(channel.connection.transport.pairing.primary, "kind_of", lambda exc: kind)

        def refuse(*args):
            raise refusal

        monkeypatch.setattr(channel.connection.transport.primary_transport, "create_channel", refuse)
        transport = channel.connection.transport
        consumed = Consumed(transport.pairing.primary, transport.primary_transport, None)
        monkeypatch.setattr(channel.connection, "require_consumed", lambda: consumed)
        with pytest.raises(raised) as caught:
            channel.primary_channel()
        assert refusal in (caught.value, caught.value.__cause__)
        assert isinstance(caught.value, connection.connection_errors) is (raised is PrimaryUnavailable)
