"""Redis, with or without TLS or Sentinel. Its links are in :mod:`kombu_paired.namespaces.redis`."""

from __future__ import annotations

from importlib import import_module
from typing import TYPE_CHECKING, Any, ClassVar

from kombu_paired.failures import FailureKind
from kombu_paired.namespaces.base import Receiver, Sender
from kombu_paired.namespaces.driver import Driver

if TYPE_CHECKING:
    from kombu_paired.namespaces.kombu import KombuNamespace
    from kombu_paired.namespaces.links import Link

__all__ = ("Redis", "RedisOverTLS", "Sentinel")


class Redis(Driver):
    """A Redis server."""

    routed = True
    keeps_unsettled = True
    outlives_restart = False  # only with its append-only file turned on
    tested = True
    has_host = True
    port: ClassVar[int | None] = 6379
    package, extra = "redis", "kombu-paired[redis]"
    consumer = "kombu_paired.namespaces.redis_transport:Transport"

    def load(self) -> None:
        import_module("kombu_paired.namespaces.redis")

    def link(self, namespace: KombuNamespace) -> Link:
        from kombu_paired.namespaces.redis import RedisLink

        return RedisLink(namespace)

    def sender(self, namespace: KombuNamespace) -> Sender:
        from kombu_paired.namespaces.redis import RedisSender

        return RedisSender(namespace)

    def receiver(self, namespace: KombuNamespace, queue: str, prefetch: int, timeout: float) -> Receiver:
        from kombu_paired.namespaces.redis import RedisReceiver

        return RedisReceiver(namespace, queue, timeout)

    def kind_of(self, exc: BaseException) -> FailureKind | None:
        from kombu_paired.namespaces.redis import kind_of

        return kind_of(exc)

    def concerns_all(self, exc: BaseException) -> bool:
        from kombu_paired.namespaces.redis import concerns_all

        return concerns_all(exc)

    def consumer_options(self, connect_timeout: float, send_timeout: float) -> dict[str, Any]:
        """None of its sockets waits for ever; ``BRPOP`` answers within a second, so five are enough for any reply."""
        return {"socket_connect_timeout": connect_timeout, "socket_timeout": max(send_timeout, 5.0)}

    def hurry(self, connection: Any, seconds: float) -> None:
        from kombu_paired.namespaces.redis import hurry

        hurry(connection, seconds)


class RedisOverTLS(Redis):
    """The same, over TLS."""

    tested = False


class Sentinel(Redis):
    """A Redis server that its sentinels name."""

    tested = False
    port = None  # of the server, which its sentinels know
    consumer = "kombu_paired.namespaces.redis_transport:SentinelTransport"
