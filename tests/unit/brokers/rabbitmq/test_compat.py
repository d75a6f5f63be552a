"""What is private in py-amqp is there in the version that is installed."""

from __future__ import annotations

import struct

import amqp
import pytest
from amqp import spec
from amqp.serialization import dumps
from kombu.transport import pyamqp

from kombu_paired.brokers.rabbitmq.compat import RELIES_ON, FurtherChannel
from tests.support.contract import broken_promises


def test_the_installed_py_amqp_has_what_this_room_relies_on():
    assert broken_promises("amqp", RELIES_ON) == []


def test_one_that_closes_channels_in_another_way_is_found_out(monkeypatch):
    monkeypatch.delattr(amqp.Channel, "_on_close")
    [sentence] = broken_promises("amqp", RELIES_ON)
    assert sentence.startswith("amqp 5")
    assert sentence.endswith("amqp.channel:Channel has no _on_close")


def deliver_to(channel, body, properties, consumer="consumer"):
    """What its consumer gets of a message that the broker delivers."""
    got = []
    channel.callbacks["consumer"] = got.append
    content = amqp.Message(body, **properties)
    arguments = struct.pack(">HH", *spec.Basic.Deliver) + dumps("sLbss", (consumer, 7, True, "exchange", "key"))
    channel.dispatch_method(spec.Basic.Deliver, arguments, content)
    return [(each.body, each.properties, each.delivery_tag, each.delivery_info["redelivered"]) for each in got]


@pytest.mark.parametrize(
    ("body", "properties"),
    [
        ("é".encode(), {"content_encoding": "utf-8"}),
        (b"\xff", {"content_encoding": "utf-8"}),
        (b"\xff", {"content_encoding": "binary"}),
        (b"\xff", {"content_encoding": "nobody\0s"}),
        (b"\xff", {"content_type": "application/data"}),
        ("", {"content_encoding": "utf-8"}),
    ],
)
def test_a_consumer_gets_what_py_amqp_would_give_it(body, properties):
    theirs = deliver_to(pyamqp.Channel(pyamqp.Connection()), body, properties)
    ours = deliver_to(FurtherChannel(pyamqp.Connection(), pytest.fail), body, properties)
    assert ours == theirs
    assert len(ours) == 1


def test_what_comes_while_a_channel_closes_is_ignored():
    channel = FurtherChannel(pyamqp.Connection(), pytest.fail)
    channel.is_closing = True
    assert deliver_to(channel, b"x", {}) == []


def test_what_comes_for_nobody_goes_back(monkeypatch):
    channel = FurtherChannel(pyamqp.Connection(), pytest.fail)
    rejected = []
    monkeypatch.setattr(channel, "basic_reject", lambda tag, requeue: rejected.append((tag, requeue)))
    assert deliver_to(channel, b"x", {}, consumer="another") == []
    assert rejected == [(7, True)]
