"""Redis, with or without TLS or Sentinel. Its links are in the modules beside this."""

from __future__ import annotations

from collections.abc import Sequence
from importlib import import_module
from typing import TYPE_CHECKING, Any, ClassVar

from kombu_paired.brokers.driver import Driver
from kombu_paired.brokers.roles import Receiver, Sender
from kombu_paired.failures import FailureKind

if TYPE_CHECKING:
    from kombu_paired.brokers.kombu import KombuNamespace
    from kombu_paired.brokers.links import Link

__all__ = ("Redis", "RedisOverTLS", "Sentinel")


class Redis(Driver):
    """A Redis server."""

    routed = True
    keeps_unsettled = True
    stands_in = True
    keeps_notices = True
    outlives_restart = False  # only with its append-only file turned on
    tested = True
    has_host = True
    port: ClassVar[int | None] = 6379
    package, extra = "redis", "kombu-paired[redis]"
    consumer = "kombu_paired.brokers.redis.transport:Transport"

    def load(self) -> None:
        import_module("kombu_paired.brokers.redis.receiving")

    def link(self, namespace: KombuNamespace) -> Link:
        from kombu_paired.brokers.redis.links import RedisLink

        return RedisLink(namespace)

    def sender(self, namespace: KombuNamespace) -> Sender:
        from kombu_paired.brokers.redis.links import RedisSender

        return RedisSender(namespace)

    def receiver(self, namespace: KombuNamespace, queues: Sequence[str], prefetch: int, timeout: float) -> Receiver:
        from kombu_paired.brokers.redis.receiving import RedisReceiver

        return RedisReceiver(namespace, queues, timeout)

    def kind_of(self, exc: BaseException) -> FailureKind | None:
        from kombu_paired.brokers.redis.kinds import kind_of

        return kind_of(exc)

    def concerns_all(self, exc: BaseException) -> bool:
        from kombu_paired.brokers.redis.kinds import concerns_all

        return concerns_all(exc)

    def consumer_options(self, connect_timeout: float, send_timeout: float) -> dict[str, Any]:
        """None of its sockets waits for ever; ``BRPOP`` answers within a second, so five are enough for any reply."""
        return {"socket_connect_timeout": connect_timeout, "socket_timeout": max(send_timeout, 5.0)}

    def stand_in_options(self, prefix: str) -> dict[str, Any]:
        """What it holds is noted apart: the notes of whose broker this is are none of its business."""
        return {f"{name}_key": f"{prefix}{name}" for name in ("unacked", "unacked_index", "unacked_mutex")}

    def limit_answers(self, connection: Any, seconds: float) -> None:
        from kombu_paired.brokers.redis.connections import limit_answers

        limit_answers(connection, seconds)

    def sever(self, connection: Any) -> None:
        from kombu_paired.brokers.redis.connections import sever

        sever(connection)


class RedisOverTLS(Redis):
    """The same, over TLS."""

    tested = False


class Sentinel(Redis):
    """A Redis server that its sentinels name."""

    tested = False
    port = None  # of the server, which its sentinels know
    consumer = "kombu_paired.brokers.redis.transport:SentinelTransport"
