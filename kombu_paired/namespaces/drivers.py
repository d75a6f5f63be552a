"""Which driver is used for a URL."""

from __future__ import annotations

from collections.abc import Mapping
from functools import cache

from kombu.transport import get_transport_cls
from kombu.transport.base import Transport

from kombu_paired.forks import importing
from kombu_paired.namespaces.amqp import RabbitMQ, RabbitMQOverTLS
from kombu_paired.namespaces.driver import Driver
from kombu_paired.namespaces.generic import SQS, AzureStorageQueues, Database, Files, Generic, Memory, Unknown
from kombu_paired.namespaces.redis_driver import Redis, RedisOverTLS, Sentinel
from kombu_paired.namespaces.servicebus.driver import ServiceBus

__all__ = ("DRIVERS", "driver_named", "driver_of", "usual_transports")

#: URL scheme -> driver. ``docs/brokers.md`` shows users what each can do; a test holds the two together.
DRIVERS: dict[str, Driver] = {
    "amqp": RabbitMQ(),
    "amqps": RabbitMQOverTLS(),
    "pyamqp": RabbitMQ(),
    "redis": Redis(),
    "rediss": RedisOverTLS(),
    "sentinel": Sentinel(),
    "azureservicebus": ServiceBus(),
    "sqs": SQS(),
    "filesystem": Files(),
    "sqla": Database(),
    "sqlalchemy": Database(),
    "memory": Memory(),
}

#: Of Kombu's other transports nothing is promised; it is known what these need.
_OTHERS: Mapping[str, Driver] = {
    "azurestoragequeues": AzureStorageQueues(),
    "mongodb": Unknown("pymongo", "kombu[mongodb]"),
    "confluentkafka": Unknown("confluent_kafka", "kombu[confluentkafka]"),
    "kafka": Unknown("confluent_kafka", "kombu[confluentkafka]"),
    "zookeeper": Unknown("kazoo", "kombu[zookeeper]"),
    "consul": Unknown("consul", "kombu[consul]"),
}
_UNKNOWN = Unknown()


def driver_named(scheme: str) -> Driver:
    """The driver for a scheme; of a transport that is not in the table nothing is promised."""
    return DRIVERS.get(scheme) or _OTHERS.get(scheme) or _UNKNOWN


def driver_of(url: str) -> Driver:
    """The driver for a URL; ``sqla+postgresql`` has that of ``sqla``."""
    scheme = url.split("://", 1)[0]
    return DRIVERS.get(scheme) or driver_named(scheme.split("+", 1)[0])


@cache
def usual_transports() -> tuple[type[Transport], ...]:
    """The transports of brokers with links of their own, as far as what they need is installed."""
    with importing:
        found = {
            get_transport_cls(driver.transport or scheme): None
            for scheme, driver in DRIVERS.items()
            if not isinstance(driver, Generic) and driver.is_installed
        }
    return tuple(found)
