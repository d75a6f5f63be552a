"""What is declared through a channel: before it consumes, and when it does."""

from __future__ import annotations

import pytest
from kombu import Exchange, Producer, Queue
from kombu.transport.virtual.base import queue_declare_ok_t

from kombu_paired.errors import PrimaryUnavailable
from kombu_paired.failures import FailureKind
from kombu_paired.message import diversion_of
from kombu_paired.testing.scripted import ScriptedRefusal
from kombu_paired.transport import pairing_of
from tests.unit.transport.asking import consume, publish, told


def test_declarations_come_before_the_message_that_needs_them(connection, log):
    news = Exchange("news", "topic")
    Producer(connection).publish(
        "x", exchange=news, routing_key="eu", declare=[Queue("readers", news, routing_key="eu")]
    )
    asked = [what for what, about in told(log, "declare", "bind", "send")]
    assert asked[-1] == "send"
    assert {"declare", "bind"} <= set(asked[:-1])


def test_while_the_primary_is_away_they_are_noted_and_go_with_the_message(connection, primary, secondary):
    primary.go_away()
    news = Exchange("news", "topic")
    queue = Queue("readers", news, routing_key="eu")
    Producer(connection).publish("x", exchange=news, routing_key="eu", declare=[queue])
    [stored] = secondary.stored
    carried = [(each.operation, each.name) for each in diversion_of(stored).declarations]
    assert carried == [("exchange_declare", "news"), ("queue_declare", "readers"), ("queue_bind", "readers")]


def test_what_was_deleted_and_unbound_goes_with_no_message(connection, channel, primary, secondary):
    channel.exchange_declare("news", "topic")
    for queue in ("readers", "writers"):
        channel.queue_declare(queue)
        channel.queue_bind(queue, "news", "eu")
    channel.queue_delete("readers")
    channel.queue_unbind("writers", "news", "eu")
    primary.go_away()
    publish(channel, exchange="news", routing_key="eu")
    assert [each.name for each in diversion_of(secondary.stored[0]).declarations] == ["news"]
    primary.come_back()
    channel.exchange_delete("news")
    primary.go_away()
    publish(channel, exchange="news", routing_key="eu")
    assert diversion_of(secondary.stored[1]).declarations == ()


def test_a_queue_has_an_answer_while_the_primary_is_away_and_a_question_has_none(channel, primary):
    primary.go_away()
    assert channel.queue_declare("orders") == queue_declare_ok_t("orders", 0, 0)
    with pytest.raises(PrimaryUnavailable, match="cannot be asked for the queue 'orders'"):
        channel.queue_declare("orders", passive=True)


def test_a_declaration_that_is_refused_is_raised(channel, primary):
    primary.always = primary.failure(FailureKind.REJECTED)
    with pytest.raises(ScriptedRefusal):
        channel.queue_declare("orders")


@pytest.mark.parametrize("arguments", [{"queue": ""}, {"queue": "mine", "exclusive": True}])
def test_a_queue_of_ones_own_is_declared_where_it_will_be_consumed(connection, channel, arguments):
    channel.queue_declare(**arguments)
    assert connection.connection.primary is not None
    assert list(pairing_of(connection).book.lasting()) == []


def test_what_was_declared_before_the_channel_consumes_is_repeated_where_it_does(channel, primary, log):
    channel.exchange_declare("news", "topic")
    channel.queue_declare("readers")
    channel.queue_declare("readers", passive=True)
    channel.queue_bind("readers", "news", "eu")
    log.clear()
    consume(channel, "readers")
    asked = told(log, "connect", "declare", "bind", "consume")
    assert asked == [
        ("connect", ""),
        ("declare", "news"),
        ("declare", "readers"),
        ("bind", "readers"),
        ("consume", "readers"),
    ]
    log.clear()
    consume(channel, "readers", "another")
    assert told(log, "connect", "declare") == []


def test_a_channel_that_consumes_declares_there_and_has_it_noted(connection, channel, primary, secondary, log):
    consume(channel)
    log.clear()
    channel.queue_declare("mails")
    assert told(log, "connect", "declare") == [("declare", "mails")]
    primary.go_away()
    publish(channel, routing_key="mails")
    assert [each.name for each in diversion_of(secondary.stored[0]).declarations] == ["mails"]


def test_a_full_primary_that_declares_nothing_is_there_to_be_emptied(channel, primary, caplog):
    channel.primary_channel()
    primary.always = primary.failure(FailureKind.FAULT)
    assert channel.queue_declare("orders") == queue_declare_ok_t("orders", 0, 0)
    assert "refuses queue_declare (primary fault), and is consumed from without" in caplog.text
    primary.always = primary.failure(FailureKind.REJECTED)
    with pytest.raises(ScriptedRefusal):
        channel.queue_declare("orders")
