"""What is sent is what is received."""

from __future__ import annotations

import time
from dataclasses import replace

import pytest

from kombu_paired.declarations import Declaration
from kombu_paired.message import Diversion, Message, diversion_of, from_backlog, to_backlog
from tests.conformance.sites import TIMEOUT

BODIES = {
    "text": '{"args": ["grüße ☃"]}',
    "bytes": b"\x00\x01plain\x00",
    "empty": b"",
    "200 KB": b"0123456789" * 20_000,
    "not UTF-8": bytes(range(256)),
}
HEADERS = {
    "task": "shop.record",
    "nothing": None,
    "yes": True,
    "small": 1,
    "negative": -7,
    "large": 2**53,
    "half": 0.5,
    "ünïcode ☃": "ключ",
    "nested": {"list": [1, "two", None, {"three": 3}], "empty": {}, "none": None},
    "empty": "",
}
PROPERTIES = {
    "correlation_id": "c-1",
    "reply_to": "replies.7f",
    "message_id": "m-1",
    "delivery_mode": 2,
}


def as_bytes(body):
    return body.encode() if isinstance(body, str) else bytes(body)


def comparable(message):
    """A message as far as brokers keep it: they return text as bytes, and no priority may come back as 0."""
    return replace(message, body=as_bytes(message.body), priority=message.priority or None, mandatory=False)


def receive_one(receiver):
    [received] = receiver.receive(10, 20)
    receiver.complete([received])
    return received.message


@pytest.mark.parametrize("body", BODIES.values(), ids=BODIES.keys())
def test_a_body_comes_back_byte_for_byte(sender, receiver, queue, body):
    sent = Message(body, routing_key=queue, content_type="application/x", content_encoding="binary")
    if isinstance(body, str):
        sent = replace(sent, content_type="application/json", content_encoding="utf-8")

    sender.send(sent, TIMEOUT)

    got = receive_one(receiver)
    assert as_bytes(got.body) == as_bytes(body)
    assert (got.content_type, got.content_encoding) == (sent.content_type, sent.content_encoding)


def test_headers_come_back_with_their_types(sender, receiver, queue):
    sender.send(Message(b"x", routing_key=queue, headers=dict(HEADERS)), TIMEOUT)

    got = receive_one(receiver).headers

    assert got == HEADERS
    assert [type(value) for value in got.values()] == [type(HEADERS[name]) for name in got]


def test_properties_come_back(sender, receiver, queue):
    sender.send(Message(b"x", routing_key=queue, properties=dict(PROPERTIES)), TIMEOUT)

    assert receive_one(receiver).properties == PROPERTIES


@pytest.mark.needs("priority")
@pytest.mark.parametrize("priority", [None, 0, 5, 9])
def test_the_priority_comes_back(sender, receiver, queue, priority):
    sender.send(Message(b"x", routing_key=queue, priority=priority), TIMEOUT)

    assert (receive_one(receiver).priority or 0) == (priority or 0)


@pytest.mark.needs("stores_backlog")
@pytest.mark.parametrize("body", BODIES.values(), ids=BODIES.keys())
@pytest.mark.parametrize("mode", [None, 2])
def test_a_message_comes_out_of_the_backlog_as_it_went_in(sender, receiver, queue, body, mode):
    headers = {**HEADERS, "x-ms-path": "the application's own", "traceparent": "00-4bf92f-00f067-01"}
    properties = {**PROPERTIES, "expiration": "3600000"}
    if mode is None:
        del properties["delivery_mode"]
    message = Message(
        body,
        exchange="shop",
        routing_key="orders.new",
        priority=5,
        content_type="application/json",
        content_encoding="utf-8",
        headers=headers,
        properties=properties,
    )
    declared = Declaration("queue_declare", {"queue": "orders", "durable": True, "arguments": {"x-max-priority": 10}})
    now = time.time()
    diversion = Diversion(now, now + 0.25, "host/7", "unreachable: ünïcode", True, (declared,))
    sent = replace(message, headers=dict(headers), properties=dict(properties))

    sender.send(to_backlog(sent, queue, diversion), TIMEOUT)
    stored = receive_one(receiver)

    assert comparable(from_backlog(stored, now)) == comparable(message)
    assert diversion_of(stored) == diversion
    assert int(from_backlog(stored, now + 600).properties["expiration"]) == 3_000_000


@pytest.mark.needs("stores_backlog")
def test_a_backlog_message_is_not_taken_away_by_its_own_time_to_live(sender, receiver, queue, site):
    message = Message(b"x", routing_key="orders", properties={"expiration": "1", "message_id": "m-1"})
    sender.send(to_backlog(message, queue, Diversion(0, 0, "host/7", "unreachable")), TIMEOUT)
    time.sleep(0.1)

    assert receive_one(receiver).message_id == "m-1"


def test_the_oldest_comes_first_and_each_once(sender, receiver, queue):
    for n in range(20):
        sender.send(Message(b"%d" % n, routing_key=queue), TIMEOUT)
        time.sleep(0.002)  # the filesystem orders by milliseconds

    got = []
    while len(got) < 20:
        batch = receiver.receive(7, 20)
        assert 1 <= len(batch) <= 7
        receiver.complete(batch)
        got += [int(as_bytes(each.message.body)) for each in batch]

    assert got == list(range(20))
    assert receiver.receive(7, 0.1) == []
