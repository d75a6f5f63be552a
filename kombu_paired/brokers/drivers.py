"""Which driver is used for a URL."""

from __future__ import annotations

from collections.abc import Mapping
from functools import cache

from kombu.transport import get_transport_cls
from kombu.transport.base import Transport

from kombu_paired.brokers.driver import Driver
from kombu_paired.brokers.generic import SQS, AzureStorageQueues, Database, Files, Generic, Memory, Unknown
from kombu_paired.brokers.rabbitmq.driver import RabbitMQ, RabbitMQOverTLS
from kombu_paired.brokers.redis.driver import Redis, RedisOverTLS, Sentinel
from kombu_paired.brokers.servicebus.driver import ServiceBus
from kombu_paired.brokers.spool.driver import Spool
from kombu_paired.forks import importing
from kombu_paired.urls import BrokerUrl

__all__ = ("DRIVERS", "default_primary_name", "driver_named", "driver_of", "usual_transports")

#: URL scheme -> driver. ``docs/brokers.md`` shows users what each can do; a test holds the two together.
DRIVERS: dict[str, Driver] = {
    "amqp": RabbitMQ(),
    "amqps": RabbitMQOverTLS(),
    "pyamqp": RabbitMQ(),
    "redis": Redis(),
    "rediss": RedisOverTLS(),
    "sentinel": Sentinel(),
    "azureservicebus": ServiceBus(),
    "spool": Spool(),
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
    found = BrokerUrl(url)
    return DRIVERS.get(found.scheme) or driver_named(found.kind)


def default_primary_name(url: str) -> str:
    """A name that no other primary has that might use the same secondary.

    On Service Bus the first host label (``contoso`` of ``contoso.servicebus.windows.net``), or host and port of a local
    server. Elsewhere the host; the port too where it is not the usual one or the host says nothing alone
    (``localhost``, an address); and the virtual host or database where it is not the first: two applications that share
    a broker must not share backlog queues.
    """
    first = BrokerUrl.all_in(url)[0].text
    return driver_of(first).primary_name(first)


@cache
def usual_transports() -> tuple[type[Transport], ...]:
    """The transports of primaries with links of their own, as far as what they need is installed."""
    with importing:
        found = {
            get_transport_cls(driver.transport or scheme): None
            for scheme, driver in DRIVERS.items()
            if not isinstance(driver, Generic) and driver.may_be_primary and driver.is_installed
        }
    return tuple(found)
