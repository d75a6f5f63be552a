"""What tests ask of a channel, and how they look at what a broker was asked."""

from __future__ import annotations

import threading

import pytest


def publish(channel, body="x", *, exchange="", routing_key="orders", **more):
    properties = {"delivery_mode": more.pop("delivery_mode", 2)}
    message = channel.prepare_message(body, content_type="text/plain", properties=properties)
    channel.basic_publish(message, exchange=exchange, routing_key=routing_key, **more)


def consume(channel, queue="orders", tag="tag"):
    channel.basic_consume(queue=queue, no_ack=False, callback=lambda message: None, consumer_tag=tag)


def in_thread(step):
    thread = threading.Thread(target=step)
    thread.start()
    thread.join(30)
    assert not thread.is_alive()


def told(log, *words):
    """What the primary was asked of these kinds."""
    return [(each.what, each.about) for each in log if each.side == "primary" and each.what in words]


CONSUMER_CALLS = {
    "basic_consume": consume,
    "basic_get": lambda channel: channel.basic_get("orders"),
    "basic_qos": lambda channel: channel.basic_qos(0, 7, False),
    "queue_purge": lambda channel: channel.queue_purge("orders"),
    "basic_recover": lambda channel: channel.basic_recover(requeue=True),
}
consumer_calls = pytest.mark.parametrize("call", CONSUMER_CALLS.values(), ids=CONSUMER_CALLS)
