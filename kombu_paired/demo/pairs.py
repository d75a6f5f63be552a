"""What the demo can be played with."""

from __future__ import annotations

from dataclasses import dataclass

from kombu_paired.testing import Kind

__all__ = ("PAIRS", "Pair")


@dataclass(frozen=True)
class Pair:
    """Two brokers of one kind, or one and a spool.

    Attributes:
        kind: of the brokers.
        words: what they are.
        driver: the module that speaks to them.
        seconds: over how long to publish: time enough to see the primary, when it has started again, in use.
        has_spool: the secondary is a folder on the local disk.
    """

    kind: Kind
    words: str
    driver: str
    seconds: float = 14.0
    has_spool: bool = False


PAIRS = {
    "servicebus": Pair("azureservicebus", "two emulated Service Bus namespaces", "azure.servicebus"),
    "amqp": Pair("amqp", "two RabbitMQ brokers", "amqp", seconds=20.0),
    "redis": Pair("redis", "two Redis brokers", "redis"),
    "amqp+spool": Pair("amqp", "one RabbitMQ broker, with a spool,", "amqp", seconds=20.0, has_spool=True),
    "redis+spool": Pair("redis", "one Redis broker, with a spool,", "redis", has_spool=True),
}
