"""A local broker by its kind."""

from __future__ import annotations

import os

from kombu_paired.testing.base import Kind, LocalBroker
from kombu_paired.testing.errors import BrokerMissing
from kombu_paired.testing.local_rabbitmq import LocalRabbitMQ
from kombu_paired.testing.local_redis import LocalRedis
from kombu_paired.testing.local_servicebus import LocalServiceBus

__all__ = ("local_broker", "local_broker_missing")

_BROKERS: dict[Kind, type[LocalRedis] | type[LocalRabbitMQ] | type[LocalServiceBus]] = {
    "redis": LocalRedis,
    "amqp": LocalRabbitMQ,
    "azureservicebus": LocalServiceBus,
}


def local_broker(kind: Kind, folder: str | os.PathLike[str] | None = None) -> LocalBroker:
    """A broker of that kind, not started yet; :class:`BrokerMissing` when it is not installed."""
    if kind not in _BROKERS:
        raise ValueError(f"no local broker of kind {kind!r}: there are {', '.join(map(repr, _BROKERS))}")
    _BROKERS[kind]._program()
    return _BROKERS[kind](folder)


def local_broker_missing(kind: Kind) -> str | None:
    """Why this kind of broker cannot run here; None when it can."""
    try:
        _BROKERS[kind]._program()
    except BrokerMissing as missing:
        return str(missing)
    return None
