"""Connections of redis-py that keep to a deadline, and the one client that a channel has."""

from __future__ import annotations

import math
import socket
from itertools import chain
from typing import Any

from redis.backoff import NoBackoff
from redis.retry import Retry

from kombu_paired.brokers.letting_go import letting_go
from kombu_paired.brokers.redis.compat import (
    has_unread,
    limit_replies,
    open_connections,
    open_pools,
    socket_of,
    used_connections,
)
from kombu_paired.brokers.sockets import TimelySocket, look_up
from kombu_paired.deadline import Deadline

__all__ = ("OneClient", "limit_answers", "sever", "timely_channel")

#: redis-py would try a command, and the ping before it, three times more.
_ONCE = Retry(NoBackoff(), 0)


def limit_answers(connection: Any, seconds: float) -> None:
    """Let no answer take longer than this, on open sockets and on those still to come."""
    for channel in list(connection.channels):
        channel.socket_timeout = channel.socket_connect_timeout = seconds  # of the pool it will close with
        for pool in open_pools(channel):
            pool.connection_kwargs.update(
                socket_timeout=seconds, socket_connect_timeout=seconds, retry=_ONCE, health_check_interval=0
            )
        for connection in open_connections(channel):
            connection.retry, connection.health_check_interval = _ONCE, 0
            with letting_go("a consumer's connection"):  # its socket may be closed
                limit_replies(connection, seconds)
        for used in used_connections(channel):  # the wait that it is in is somebody's own; it may connect anew
            used.retry, used.health_check_interval = _ONCE, 0
            used.socket_timeout = used.socket_connect_timeout = seconds


def sever(connection: Any) -> None:
    """Let whoever waits for an answer, in whichever thread, hear that none comes."""
    for channel in list(connection.channels):
        for each in chain(open_connections(channel), used_connections(channel)):
            with letting_go("a silent consumer's connection"):  # its socket may be closed
                socket_of(each).shutdown(socket.SHUT_RDWR)


class _Timely:
    """What is different in a connection whose socket keeps to a deadline."""

    _sock: TimelySocket | None
    host: str
    socket_timeout: float
    socket_connect_timeout: float

    def __init__(self, *args: Any, until: Deadline, **kwargs: Any) -> None:
        self._until = until
        super().__init__(*args, **kwargs)
        self.driver_info = self.lib_name = self.lib_version = None  # telling Redis is worth no round trip

    def _connect(self) -> Any:
        patience = self.socket_connect_timeout
        if hasattr(self, "port"):  # not a socket of this machine
            self.socket_connect_timeout = min(self._until.left, patience or math.inf)
            look_up(self.host, self.socket_connect_timeout)
        try:
            return TimelySocket(super()._connect(), self._until)  # type: ignore[misc]
        finally:
            self.socket_connect_timeout = patience

    def can_read(self, timeout: float = 0) -> bool:
        """Asked before each command; redis-py switches its socket to not waiting and back for it."""
        if timeout == 0 and self.is_ready():
            return False
        return bool(super().can_read(timeout))  # type: ignore[misc]

    def is_ready(self) -> bool:
        """Connected, and certainly without an answer, or an end, that nobody has read."""
        return self._sock is not None and has_unread(self) is False and self._sock.is_quiet()

    def _wrap_socket_with_ssl(self, sock: Any) -> Any:
        if self._until.left < math.inf:
            sock.settimeout(self._until.left)  # of the handshake
        wrapped = super()._wrap_socket_with_ssl(sock)  # type: ignore[misc]
        wrapped.settimeout(self.socket_timeout)
        return wrapped


class OneClient:
    """What a channel has one of where Kombu makes one for each command: building its table of answers takes a fifth of
    a send, and of an acknowledgement. Clients that wait for messages keep a connection of their own, and stay apart.
    """

    _only_client: Any = None

    def _create_client(self, asynchronous: bool = False) -> Any:
        if asynchronous:
            return super()._create_client(asynchronous=True)  # type: ignore[misc]
        if self._only_client is None or self._only_client.connection_pool is not self.pool:  # type: ignore[attr-defined]
            self._only_client = super()._create_client()  # type: ignore[misc]
        return self._only_client


class OneAtHand:
    """A pool for one thread, in front of one of redis-py's: the connection that was used last is kept at hand.

    To take it out of a pool and put it back, with locks, counters and events, is a tenth of a send. What redis-py does
    at such a moment is done here: a connection that is not ready, or is to be made anew, goes to the pool, which knows
    how, and one whose token has been renewed says so to the server.
    """

    def __init__(self, pool: Any) -> None:
        self._pool = pool
        self._at_hand: Any = None

    def get_connection(self) -> Any:
        connection, self._at_hand = self._at_hand, None
        if connection is not None:
            if connection.is_ready():
                return connection
            self._pool.release(connection)  # and has it back, as the last one
        return self._pool.get_connection()

    def release(self, connection: Any) -> None:
        if self._at_hand is not None or connection.should_reconnect():
            self._pool.release(connection)
            return
        self._at_hand = connection
        connection.re_auth()

    def __getattr__(self, name: str) -> Any:
        return getattr(self._pool, name)


def timely_channel(kind: Any, until: Deadline) -> Any:
    """Kombu's channel on connections that keep to a deadline; one, where Kombu would have one more for consuming."""

    class Channel(OneClient, kind):  # type: ignore[misc]
        def _connparams(self, asynchronous: bool = False) -> dict[str, Any]:
            found: dict[str, Any] = super()._connparams(asynchronous)
            found["connection_class"] = type("TimelyConnection", (_Timely, found["connection_class"]), {})
            return {**found, "until": until, "protocol": 2}  # the third begins with a round trip, and adds nothing here

        def _get_pool(self, asynchronous: bool = False) -> Any:
            return OneAtHand(super()._get_pool(asynchronous))

        @property
        def async_pool(self) -> Any:
            return self.pool

    return Channel
