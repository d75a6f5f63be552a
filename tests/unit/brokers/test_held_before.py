"""What a worker held of a stand-in queue that was killed comes home marked: its task may have run."""

from __future__ import annotations

from types import SimpleNamespace

import pytest
from kombu.utils.json import dumps

from kombu_paired.brokers.redis.receiving import RedisReceiver
from kombu_paired.brokers.servicebus import receiving
from kombu_paired.message import Message
from kombu_paired.stand_in import stand_in_name

STAND_IN, BACKLOG = stand_in_name("shop", "orders"), "shop/x-servicebus-transfer/0"


@pytest.mark.parametrize(("headers", "again"), [({"redelivered": True}, True), ({}, False)])
def test_on_redis_kombu_says_so(headers, again):
    receiver = object.__new__(RedisReceiver)
    receiver._held = {}
    item = dumps({"body": "x", "headers": headers, "properties": {}, "content-type": "text/plain"}).encode()
    assert receiver._received(STAND_IN, "token", item).again is again


@pytest.mark.parametrize(
    ("queue", "delivery_count", "again"), [(STAND_IN, 1, True), (STAND_IN, 0, False), (BACKLOG, 1, False)]
)
def test_service_bus_counts_deliveries(monkeypatch, queue, delivery_count, again):
    monkeypatch.setattr(receiving, "received_backlog_message", lambda raw: Message("x", "", queue))
    source = object.__new__(receiving._Source)
    source.queue = queue
    assert source._received(SimpleNamespace(delivery_count=delivery_count)).again is again
