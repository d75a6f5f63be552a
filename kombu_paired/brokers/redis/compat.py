"""What is private in redis-py and in Kombu's Redis transport, and used here nevertheless: each name once.

Classes of ours that are subclasses of theirs use and override further private methods, which :data:`RELIES_ON` lists.
``tests/unit/brokers/redis/test_compat.py`` holds all of it against the versions that are installed, and
``docs/contributing.md`` says how a new version is let in.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

from kombu.transport import redis

__all__ = (
    "RELIES_ON",
    "close_at_once",
    "has_unread",
    "is_deleted_unused",
    "is_readable",
    "limit_replies",
    "list_of",
    "open_connections",
    "open_pools",
    "priority_list",
    "socket_of",
    "used_connections",
)

#: Owner -> names that it must have: methods with the parameters that are given or taken here, other names alone.
RELIES_ON = {
    "redis.connection:AbstractConnection": ("_sock", "_parser", "_connect()", "can_read(timeout)"),
    "redis.connection:SSLConnection": ("_wrap_socket_with_ssl(sock)",),
    "redis.connection:ConnectionPool": ("_available_connections", "_in_use_connections"),
    "redis._parsers.base:_RESPBase": ("_buffer",),
    "redis._parsers.hiredis:_HiredisParser": ("_socket_timeout",),
    "redis._parsers.socket:SocketBuffer": ("socket_timeout", "unread_bytes()"),
    "kombu.transport.redis": ("_socket_readable(sock)",),
    "kombu.transport.redis:QoS": ("_remove_from_indices(delivery_tag)", "restore_by_tag(tag, client, leftmost)"),
    "kombu.transport.redis:MultiChannelPoller": (
        "_chan_to_sock",
        "_fd_to_chan",
        "_channels",
        "_register(channel, client, type)",
        "_unregister_from_poll(fileno)",
        "maybe_check_brpop_health()",
        "maybe_restore_messages()",
    ),
    "kombu.transport.redis:Channel": (
        "_brpop_read(options)",
        "_brpop_sent_at",
        "_brpop_start(timeout)",
        "_closing",
        "_connparams(asynchronous)",
        "_create_client(asynchronous)",
        "_disconnect_pools()",
        "_do_restore_message(payload, exchange, routing_key, pipe, leftmost)",
        "_flush_brpop_reauth()",
        "_expires",
        "_get_client()",
        "_get_message_priority(message, reverse)",
        "_get_pool(asynchronous)",
        "_in_poll",
        "_maybe_update_queues_expire(client, queue)",
        "_on_connection_disconnect(connection)",
        "_pending_reauth_token(connection)",
        "_pool",
        "_async_pool",
        "_q_for_pri(queue, pri)",
        "_queue_cycle",
        "_update_queue_cycle()",
        "maybe_refresh_binding_expiry()",
    ),
}

#: The test of a socket, without waiting, that Kombu makes before it calls a silent connection dead.
is_readable = redis._socket_readable


def socket_of(connection: Any) -> Any:
    """The open socket of a connection; None if there is none."""
    return connection._sock


def has_unread(connection: Any) -> bool | None:
    """Whether something that was read from the socket waits in the parser; None if that does not say."""
    unread = getattr(getattr(connection._parser, "_buffer", None), "unread_bytes", None)
    return None if unread is None else bool(unread())


def limit_replies(connection: Any, seconds: float) -> None:
    """Let replies on an open connection take at most so long; parsers keep the limit for themselves, too."""
    connection.socket_timeout = connection.socket_connect_timeout = seconds
    if connection._sock is not None:
        connection._sock.settimeout(seconds)
    parser = connection._parser
    buffer = getattr(parser, "_buffer", None)
    if buffer is not None and hasattr(buffer, "socket_timeout"):
        buffer.socket_timeout = seconds
    if hasattr(parser, "_socket_timeout"):  # hiredis
        parser._socket_timeout = seconds


def open_pools(channel: Any) -> list[Any]:
    """The pools that a channel has made: asked for by their public names, they would be made now."""
    return [pool for name in ("_pool", "_async_pool") if (pool := vars(channel).get(name)) is not None]


def open_connections(channel: Any) -> Iterator[Any]:
    """Connections of a channel that are at hand: those of its clients, and those that lie idle in its pools."""
    made = vars(channel)
    for name in ("client", "subclient"):
        connection = getattr(made.get(name), "connection", None)
        if connection is not None:
            yield connection
    for pool in open_pools(channel):
        yield from list(pool._available_connections)


def used_connections(channel: Any) -> Iterator[Any]:
    """Connections of a channel's pools over which somebody asks for something, in whichever thread."""
    for pool in open_pools(channel):
        yield from list(pool._in_use_connections)


def priority_list(channel: Any, queue: str, step: int) -> str:
    """The list that has a queue's messages of one priority step."""
    return str(channel._q_for_pri(queue, step))


def list_of(channel: Any, queue: str, prepared: dict[str, Any]) -> str:
    """The list of a queue that a prepared message goes into."""
    return str(channel._q_for_pri(queue, channel._get_message_priority(prepared, reverse=False)))


def is_deleted_unused(channel: Any, queue: str) -> bool:
    """Whether a queue was declared over this channel as one that lives for a time after its last use."""
    return queue in channel._expires


def close_at_once(channel: Any) -> None:
    """Let go of a channel's connections, and give nothing back."""
    channel._closing = True
    channel._disconnect_pools()
