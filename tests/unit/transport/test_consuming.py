"""Consuming: who connects, who waits for a primary that is away, and how long."""

from __future__ import annotations

from types import SimpleNamespace

import pytest
from kombu import Consumer, Queue

from kombu_paired.errors import PrimaryUnavailable
from kombu_paired.failures import FailureKind
from kombu_paired.message import MAYBE_DUPLICATE, Message, from_backlog
from kombu_paired.testing import ManualClock
from kombu_paired.testing.scripted import ScriptedError
from kombu_paired.transport import pairing_of, primary_for_consuming
from tests.unit.transport.asking import consume, consumer_calls, publish, told


@pytest.fixture
def clock(monkeypatch):
    """The time on which a transport waits for its primary."""
    clock = ManualClock()
    monkeypatch.setattr(primary_for_consuming, "time", SimpleNamespace(monotonic=clock, sleep=clock.sleep))
    return clock


@consumer_calls
def test_the_first_call_of_a_consumer_connects_and_no_other(connection, channel, log, call):
    assert told(log, "connect") == []
    call(channel)
    call(channel)
    assert told(log, "connect") == [("connect", "")]
    call(connection.channel())
    assert told(log, "connect") == [("connect", "")], "all channels of a connection share it"


@pytest.mark.parametrize(
    ("name", "arguments"),
    [
        ("basic_ack", ("tag",)),
        ("basic_reject", ("tag",)),
        ("basic_get", ("orders",)),
        ("basic_recover", (True,)),
        ("basic_consume", ("orders", True, print, "tag")),
        ("exchange_unbind", ("mails", "news", "eu")),
        ("flow", (False,)),
        ("get_bindings", ()),
        ("queue_purge", ("orders",)),
    ],
)
def test_a_call_of_a_consumer_is_that_of_the_primarys_own_channel(channel, monkeypatch, name, arguments):
    called = []
    monkeypatch.setattr(
        channel.primary_channel(), name, lambda *args, **more: called.append((args, more)) or "answer", raising=False
    )
    assert getattr(channel, name)(*arguments, nowait=True) == "answer"
    assert called == [(arguments, {"nowait": True})]


def test_a_consumer_gets_what_was_sent(connection, channel):
    publish(channel, "hello")
    taken = []
    with Consumer(channel, [Queue("orders")], on_message=taken.append):
        connection.drain_events(timeout=1)
    [message] = taken
    assert message.body == b"hello"
    message.ack()


def test_an_attribute_never_connects(channel, log):
    """Celery asks a dead channel for this and that while it cleans up."""
    with pytest.raises(AttributeError, match="before it consumes"):
        channel.qos  # noqa: B018
    assert told(log, "connect") == []
    channel.primary_channel()
    assert channel.qos is channel.primary_channel().qos


def test_who_is_no_worker_has_the_patience_of_a_plain_connection(channel, primary, clock):
    primary.go_away()
    with pytest.raises(PrimaryUnavailable, match="is away: ScriptedError: primary unreachable"):
        consume(channel)
    assert len(primary.asked_for("connect")) == 3  # at once, and every PAUSE of 2 seconds within connect_timeout, 5
    assert clock.now == 1004.0


def test_a_callers_own_time_limit_is_shorter(connection, primary, clock):
    primary.go_away()
    with pytest.raises(PrimaryUnavailable):
        connection.drain_events(timeout=3)
    assert clock.now == 1002.0


def test_a_primary_that_comes_back_meanwhile_is_consumed_from(channel, primary, clock, monkeypatch):
    primary.go_away()
    monkeypatch.setattr(clock, "sleep", lambda seconds: primary.come_back())
    primary_for_consuming.time.sleep = clock.sleep
    consume(channel)
    assert primary.asked_for("consume") == ["orders"]


@pytest.mark.parametrize("worker", [True, False])
def test_a_primary_that_refuses_the_credentials_is_waited_for_by_nobody(channel, primary, clock, monkeypatch, worker):
    monkeypatch.setattr(primary_for_consuming, "is_worker_itself", lambda: worker)
    monkeypatch.setattr(primary_for_consuming, "sleep_unless_worker_stops", clock.sleep)
    primary.refuse()
    with pytest.raises(ScriptedError, match="primary unauthorized"):
        consume(channel)
    assert (clock.now, len(primary.asked_for("connect"))) == (1000.0, 1)


class Nap:
    """A worker's pauses; something happens in one of them."""

    def __init__(self, monkeypatch, when, what):
        self.pauses, self._when, self._what = [], when, what
        monkeypatch.setattr(primary_for_consuming, "is_worker_itself", lambda: True)
        monkeypatch.setattr(primary_for_consuming, "sleep_unless_worker_stops", self)

    def __call__(self, seconds):
        self.pauses.append(seconds)
        if len(self.pauses) == self._when:
            self._what()


def test_a_worker_waits_until_the_primary_is_back_and_says_so_once(channel, primary, monkeypatch, caplog):
    primary.go_away()
    nap = Nap(monkeypatch, 4, primary.come_back)
    consume(channel)
    assert len(nap.pauses) == 4
    assert all(0 <= pause <= 0.5 * 2**number for number, pause in enumerate(nap.pauses))
    assert len([each for each in caplog.records if "consuming waits for it" in each.message]) == 1
    assert len(primary.asked_for("connect")) == 5


def test_a_worker_that_is_told_to_stop_waits_no_longer(channel, primary, monkeypatch):
    primary.go_away()
    stops = []
    nap = Nap(monkeypatch, 2, lambda: stops.append(True))
    monkeypatch.setattr(primary_for_consuming, "worker_is_told_to_stop", lambda: bool(stops))
    with pytest.raises(ScriptedError):
        consume(channel)
    assert len(nap.pauses) == 2


def test_a_consumer_that_connected_is_news_for_senders(connection, channel, primary, secondary):
    primary.go_away()
    publish(channel)
    assert pairing_of(connection)._primary_route.reach.fresh_failure
    primary.come_back()
    consume(channel)
    assert not pairing_of(connection)._primary_route.reach.fresh_failure


@pytest.mark.parametrize(("kind", "marked"), [(FailureKind.TIMEOUT, True), (FailureKind.FAULT, True)])
def test_a_message_that_was_just_being_taken_is_diverted(channel, primary, secondary, kind, marked):
    """Only a channel of ours for Redis knows of such: it is told whom to hand it to."""
    channel.primary_channel().on_stranded(Message("x", "", "orders"), primary.failure(kind).cause)
    [stored] = secondary.stored
    assert from_backlog(stored, 0).routing_key == "orders"
    assert (MAYBE_DUPLICATE in stored.headers) is marked
