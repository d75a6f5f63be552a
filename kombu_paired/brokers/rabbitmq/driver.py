"""The driver of RabbitMQ. Its links are in the modules beside this."""

from __future__ import annotations

import socket
from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

from kombu_paired.brokers.driver import Driver
from kombu_paired.brokers.links import Link
from kombu_paired.brokers.rabbitmq.compat import socket_of
from kombu_paired.brokers.rabbitmq.kinds import BrokerBlocked, kind_of
from kombu_paired.brokers.rabbitmq.links import AmqpLink
from kombu_paired.brokers.rabbitmq.receiving import AmqpReceiver
from kombu_paired.brokers.rabbitmq.sending import AmqpSender
from kombu_paired.brokers.roles import Receiver, Sender
from kombu_paired.failures import FailureKind

if TYPE_CHECKING:
    from kombu_paired.brokers.kombu import KombuNamespace

__all__ = ("RabbitMQ", "RabbitMQOverTLS")


class RabbitMQ(Driver):
    """RabbitMQ, by AMQP 0-9-1."""

    routed = True
    keeps_unsettled = True
    stands_in = True
    keeps_notices = True
    tested = True
    has_host = True
    port = 5672

    def link(self, namespace: KombuNamespace) -> Link:
        return AmqpLink(namespace)

    def sender(self, namespace: KombuNamespace) -> Sender:
        return AmqpSender(namespace)

    def receiver(self, namespace: KombuNamespace, queues: Sequence[str], prefetch: int, timeout: float) -> Receiver:
        return AmqpReceiver(namespace, queues, prefetch, timeout)

    def kind_of(self, exc: BaseException) -> FailureKind | None:
        return kind_of(exc)

    def concerns_all(self, exc: BaseException) -> bool:
        return isinstance(exc, BrokerBlocked)

    def limit_answers(self, connection: Any, seconds: float) -> None:
        sock = socket_of(connection)
        if sock is not None:
            sock.settimeout(seconds)

    def sever(self, connection: Any) -> None:
        sock = socket_of(connection)
        if sock is not None:
            sock.shutdown(socket.SHUT_RDWR)


class RabbitMQOverTLS(RabbitMQ):
    """The same, over TLS."""

    tested = False
    port = 5671
