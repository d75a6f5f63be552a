"""What is private in py-amqp is there in the version that is installed."""

from __future__ import annotations

import amqp

from kombu_paired.brokers.rabbitmq.compat import RELIES_ON
from tests.support.contract import broken_promises


def test_the_installed_py_amqp_has_what_this_room_relies_on():
    assert broken_promises("amqp", RELIES_ON) == []


def test_one_that_closes_channels_in_another_way_is_found_out(monkeypatch):
    monkeypatch.delattr(amqp.Channel, "_on_close")
    [sentence] = broken_promises("amqp", RELIES_ON)
    assert sentence.startswith("amqp 5")
    assert sentence.endswith("amqp.channel:Channel has no _on_close")
