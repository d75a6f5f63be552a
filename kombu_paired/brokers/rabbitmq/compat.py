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

from kombu_paired.brokers.rabbitmq.reading import Frame, FrameReader, delivered, deliveries_first
from kombu_paired.brokers.sockets import TimelySocket
from kombu_paired.deadline import Deadline

__all__ = ("RELIES_ON", "FurtherChannel", "has_read", "socket_of", "timely_connections", "write_frames")

#: Owner -> names that it must have: methods with the parameters that are given or taken here, other names alone.
RELIES_ON = {
    "amqp.transport:_AbstractTransport": ("_setup_transport", "_write", "having_timeout(timeout)"),
    "amqp.transport:TCPTransport": ("_setup_transport()",),
    "amqp.transport:SSLTransport": ("_setup_transport()",),
    "amqp.connection:Connection": ("_transport", "Transport(host, connect_timeout, ssl, read_timeout, write_timeout)"),
    "amqp.channel:Channel": ("_on_close(reply_code, reply_text, class_id, method_id)",),
    "kombu.transport.pyamqp:Transport": ("Connection",),
}


class _TimelyConnection(pyamqp.Connection):  # type: ignore[misc]
    """A connection whose socket keeps to a deadline, from the first frame on, and is read from in large pieces."""

    def __init__(self, *args: Any, until: Deadline, **kwargs: Any) -> None:
        self._until = until
        super().__init__(*args, frame_handler=deliveries_first, **kwargs)

    def Transport(self, *args: Any, **kwargs: Any) -> Any:
        transport = super().Transport(*args, **kwargs)
        set_up = transport._setup_transport

        def set_up_timely() -> None:
            set_up()  # TLS, whose handshake has one time limit for all of it
            sock = transport.sock = TimelySocket(transport.sock, self._until)
            transport._write = sock.sendall
            transport.frames = FrameReader(sock.read)
            transport.read_frame = partial(_read_frame, transport)

        transport._setup_transport = set_up_timely
        return transport

    def blocking_read(self, timeout: float | None = None) -> Any:
        transport = self.transport
        frame = transport.frames.at_hand()
        if frame is None:
            with transport.having_timeout(timeout):
                frame = transport.read_frame()
        return self.on_inbound_frame(frame)


def _read_frame(transport: Any) -> Frame:
    try:
        return transport.frames.read()  # type: ignore[no-any-return]
    except TimeoutError:
        raise
    except OSError:
        transport.connected = False
        raise


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

    def dispatch_method(self, method_sig: Any, payload: bytes, content: Any) -> None:
        if method_sig == spec.Basic.Deliver and not self.is_closing:
            consumer_tag, delivery_tag, redelivered = delivered(payload)
            callback = self.callbacks.get(consumer_tag)
            if callback is not None:
                content.delivery_info = {"delivery_tag": delivery_tag, "redelivered": redelivered}
                content.body = _text_of(content)
                callback(content)
                return
        super().dispatch_method(method_sig, payload, content)

    def _on_close(self, reply_code: int, reply_text: str, class_id: int, method_id: int) -> None:
        self.send_method(spec.Channel.CloseOk)
        self.collect()
        self._on_end(error_for_code(reply_code, reply_text, (class_id, method_id), ChannelError))

    def close_later(self) -> None:
        """Close it without waiting for the broker's answer; what comes before that is ignored."""
        if self.is_open and not self.is_closing:
            self.is_closing: bool = True
            self.send_method(spec.Channel.Close, "BsBB", (0, "", 0, 0))


def _text_of(content: Any) -> Any:
    """The body, decoded as py-amqp does it: if it says how, and that is true."""
    body, encoding = content.body, content.properties.get("content_encoding")
    if encoding is None or isinstance(body, str):  # py-amqp's own empty one
        return body
    try:
        return body.decode(encoding)
    except (LookupError, ValueError):
        return body


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
    """Whether something was read that nobody has handled: frames, or a part of one that waits for its rest."""
    return bool(transport.frames.has_begun)


def socket_of(connection: Any) -> Any:
    """The socket of a connection; None if it is closed."""
    return getattr(connection._transport, "sock", None)
