"""Which kind of failure an exception of py-amqp is."""

from __future__ import annotations

import amqp
from amqp.exceptions import MessageNacked

from kombu_paired.failures import FailureKind

__all__ = ("BrokerBlocked", "kind_of")

#: Reply codes (AMQP 0-9-1 specification, section 1.2, and RabbitMQ's extensions).
_CODES = {
    311: FailureKind.REJECTED,  # content too large
    312: FailureKind.MISSING,  # no route
    313: FailureKind.MISSING,  # no consumers
    320: FailureKind.UNREACHABLE,  # connection closed by an operator, or the broker shuts down
    402: FailureKind.UNAUTHORIZED,  # no such virtual host
    403: FailureKind.UNAUTHORIZED,
    404: FailureKind.MISSING,
    405: FailureKind.REJECTED,  # somebody's exclusive queue
    406: FailureKind.REJECTED,  # declared differently, or too large
    501: FailureKind.UNREACHABLE,
    502: FailureKind.REJECTED,
    503: FailureKind.FAULT,
    504: FailureKind.UNREACHABLE,
    505: FailureKind.UNREACHABLE,
    506: FailureKind.FAULT,  # out of resources
    530: FailureKind.UNAUTHORIZED,  # virtual host not allowed
    540: FailureKind.REJECTED,
    541: FailureKind.FAULT,
}


class BrokerBlocked(Exception):
    """RabbitMQ is in alarm (memory or disk) and takes no messages."""


def kind_of(exc: BaseException) -> FailureKind | None:
    """The kind of an exception that py-amqp raises; None for others."""
    if isinstance(exc, BrokerBlocked | MessageNacked):
        return FailureKind.FAULT
    if isinstance(exc, amqp.AMQPError):
        code = exc.reply_code or exc.code  # py-amqp has no class for a returned message (312)
        if code == 404 and "down or inaccessible" in str(exc):
            return FailureKind.FAULT  # a cluster node that hosts the queue is away
        if "timed out" in str(exc):
            return FailureKind.TIMEOUT
        return _CODES.get(code, FailureKind.UNREACHABLE)
    if isinstance(exc, AttributeError):
        return FailureKind.UNREACHABLE  # py-amqp's answer when the connection vanished under a call
    return None
