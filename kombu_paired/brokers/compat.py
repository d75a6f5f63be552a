"""What is private in Kombu, for every transport, and used here nevertheless: each name once.

What concerns one broker stands in the ``compat`` of its room. ``tests/unit/brokers/test_compat.py`` holds all of it
against the version that is installed, and ``docs/contributing.md`` says how a new version is let in.
"""

from __future__ import annotations

from typing import Any

from kombu.transport import virtual

__all__ = ("RELIES_ON", "collect", "deliver", "make_envelope", "queue_size", "queues_of")

#: Owner -> names that it must have: methods with the parameters that are given or taken here, other names alone.
RELIES_ON = {
    "kombu.transport.virtual:Channel": (
        "_inplace_augment_message(message, exchange, routing_key)",
        "_lookup(exchange, routing_key)",
        "_size(queue)",
        "_next_delivery_tag()",
        "_put(queue, message)",
        "_queue_bind",
        "_delete(queue)",
        "_has_queue(queue)",
        "_purge(queue)",
    ),
    "kombu.transport.virtual:Transport": ("_deliver(message, queue)",),
    "kombu.transport.virtual.base:QoS": ("append(message, delivery_tag)", "ack(delivery_tag)", "can_consume()"),
}

#: Hands a message to the consumer of a queue of a virtual transport. For each message, so it is no function of ours.
deliver = virtual.Transport._deliver


def make_envelope(channel: Any, prepared: dict[str, Any], exchange: str, routing_key: str) -> None:
    """Write into a prepared message of a virtual transport what a consumer expects: address, tag, encoding."""
    channel._inplace_augment_message(prepared, exchange, routing_key)


def queues_of(channel: Any, exchange: str, routing_key: str) -> list[str]:
    """Queues that a virtual channel would put a message into."""
    return list(channel._lookup(exchange, routing_key))


def queue_size(channel: Any, queue: str) -> int:
    """How many messages lie in a queue of a virtual transport."""
    return int(channel._size(queue))


def collect(transport: Any, connection: Any) -> None:
    """Let go of a connection without a goodbye; where the transport cannot, with one."""
    getattr(transport, "_collect", transport.close_connection)(connection)
