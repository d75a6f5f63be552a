"""What the demo can be played with."""

from __future__ import annotations

from dataclasses import dataclass

from kombu_paired.testing import Kind

__all__ = ("PAIRS", "Pair")


@dataclass(frozen=True)
class Pair:
    """Two brokers of one kind.

    Attributes:
        kind: of both brokers.
        words: what they are.
        driver: the module that speaks to them.
        seconds: over how long to publish: time enough to see the primary, when it has started again, in use.
    """

    kind: Kind
    words: str
    driver: str
    seconds: float = 14.0


PAIRS = {
    "servicebus": Pair("azureservicebus", "two emulated Service Bus namespaces", "azure.servicebus"),
    "amqp": Pair("amqp", "two RabbitMQ brokers", "amqp", seconds=20.0),
    "redis": Pair("redis", "two Redis brokers", "redis"),
}
