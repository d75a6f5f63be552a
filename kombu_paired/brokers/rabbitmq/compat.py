"""What is private in py-amqp and in Kombu's transport on it, and used here nevertheless: each name once.

``tests/unit/brokers/rabbitmq/test_compat.py`` holds all of it against the versions that are installed, and
``docs/contributing.md`` says how a new version is let in.
"""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from typing import Any

from amqp import spec
from amqp.exceptions import ChannelError, RecoverableConnectionError, error_for_code
from kombu.transport import pyamqp

from kombu_paired.brokers.sockets import TimelySocket
from kombu_paired.deadline import Deadline

__all__ = ("RELIES_ON", "FurtherChannel", "has_read", "socket_of", "timely_connections", "write_frames")

#: Owner -> names that it must have: methods with the parameters that are given or taken here, other names alone.
RELIES_ON = {
    "amqp.transport:_AbstractTransport": ("_setup_transport", "_read_buffer", "_write", "having_timeout(timeout)"),
    "amqp.transport:TCPTransport": ("_setup_transport()", "_quick_recv"),
    "amqp.transport:SSLTransport": ("_setup_transport()", "_quick_recv"),
    "amqp.connection:Connection": ("_transport", "Transport(host, connect_timeout, ssl, read_timeout, write_timeout)"),
    "amqp.channel:Channel": ("_on_close(reply_code, reply_text, class_id, method_id)",),
    "kombu.transport.pyamqp:Transport": ("Connection",),
}


class _TimelyConnection(pyamqp.Connection):  # type: ignore[misc]
    """A connection whose socket keeps to a deadline, from the first frame on."""

    def __init__(self, *args: Any, until: Deadline, **kwargs: Any) -> None:
        self._until = until
        super().__init__(*args, **kwargs)

    def Transport(self, *args: Any, **kwargs: Any) -> Any:
        transport = super().Transport(*args, **kwargs)
        set_up = transport._setup_transport

        def set_up_timely() -> None:
            set_up()  # TLS, whose handshake has one time limit for all of it
            sock = transport.sock = TimelySocket(transport.sock, self._until)
            # Without waiting it would spin in the middle of a frame.
            transport._quick_recv, transport._write = sock.read, sock.sendall

        transport._setup_transport = set_up_timely
        return transport


def timely_connections(until: Deadline) -> Callable[..., Any]:
    """What a transport of Kombu's makes its connections by, so that their sockets keep to a deadline."""
    return partial(_TimelyConnection, until=until)


class FurtherChannel(pyamqp.Channel):  # type: ignore[misc]
    """One of many channels of a connection: when the broker closes it, the others go on.

    py-amqp would raise where somebody reads, whatever he reads for, and open it again.

    Arguments:
        on_end: is called with the reason then; whoever waits for an answer on this channel gets an error besides.
    """

    def __init__(self, connection: Any, on_end: Callable[[Exception], None]) -> None:
        super().__init__(connection)
        self._on_end = on_end

    def _on_close(self, reply_code: int, reply_text: str, class_id: int, method_id: int) -> None:
        self.send_method(spec.Channel.CloseOk)
        self.collect()
        self._on_end(error_for_code(reply_code, reply_text, (class_id, method_id), ChannelError))

    def close_later(self) -> None:
        """Close it without waiting for the broker's answer; what comes before that is ignored."""
        if self.is_open and not self.is_closing:
            self.is_closing: bool = True
            self.send_method(spec.Channel.Close, "BsBB", (0, "", 0, 0))


def write_frames(connection: Any, frames: bytes) -> None:
    """Write whole frames. The deadline is that of the socket.

    Raises:
        RecoverableConnectionError: the connection is closed; py-amqp would open it again.
        OSError: it broke, and perhaps not all of it was written.
    """
    transport = connection._transport
    if transport is None:
        raise RecoverableConnectionError("the connection was closed")
    transport.write(frames)
    connection.bytes_sent += 1  # all that its heartbeats ask is whether it has changed


def has_read(transport: Any) -> bool:
    """Whether a part of a frame was read and waits for its rest."""
    return bool(transport._read_buffer)


def socket_of(connection: Any) -> Any:
    """The socket of a connection; None if it is closed."""
    return getattr(connection._transport, "sock", None)
