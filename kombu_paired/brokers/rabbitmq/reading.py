"""Frames of AMQP 0-9-1, read from a connection many at a time, and the deliveries in them."""

from __future__ import annotations

from collections.abc import Callable
from struct import Struct
from typing import Any

import amqp
from amqp import spec
from amqp.exceptions import UnexpectedFrame
from amqp.method_framing import frame_handler

from kombu_paired.brokers.rabbitmq.encoding import BODY, FRAME_END, FRAME_HEADER, HEADER, METHOD, decode_properties

__all__ = ("Frame", "FrameReader", "delivered", "deliveries_first")

#: Type, channel, payload.
Frame = tuple[int, int, bytes]

#: Octets that are asked for at a time.
AT_ONCE = 64 << 10

HEARTBEAT = 8
_DELIVER = Struct(">HH").pack(*spec.Basic.Deliver)
_DELIVERED, _BODY_SIZE = Struct(">QB"), Struct(">Q")


class FrameReader:
    """Cuts what comes into frames. What it has read of one is kept when a read ends early.

    Arguments:
        receive: takes the most octets that are wanted, and returns some of them, none at the end.
    """

    def __init__(self, receive: Callable[[int], bytes]) -> None:
        self._receive = receive
        self._octets = b""
        self._begin = 0

    @property
    def has_begun(self) -> bool:
        """Whether something was read that was not handed out yet."""
        return self._begin < len(self._octets)

    def at_hand(self) -> Frame | None:
        """The next frame, if all of it was read.

        Raises:
            UnexpectedFrame: the peer speaks something else.
        """
        octets, begin = self._octets, self._begin
        if len(octets) - begin < FRAME_HEADER.size:
            return None
        kind, channel, size = FRAME_HEADER.unpack_from(octets, begin)
        begin += FRAME_HEADER.size
        end = begin + size
        if len(octets) <= end:
            return None
        if octets[end] != FRAME_END:
            raise UnexpectedFrame(f"Received frame_end {octets[end]:#04x} while expecting {FRAME_END:#04x}")
        self._begin = end + 1
        return kind, channel, octets[begin:end]

    def read(self) -> Frame:
        """The next frame.

        Raises:
            OSError: the peer has closed the connection, or what receiving raises.
        """
        while (frame := self.at_hand()) is None:
            octets = self._receive(AT_ONCE)
            if not octets:
                raise OSError("Server unexpectedly closed connection")
            self._octets = self._octets[self._begin :] + octets
            self._begin = 0
        return frame


def deliveries_first(connection: Any, callback: Callable[..., Any]) -> Callable[[Frame], bool]:
    """What handles the frames of a connection, made as py-amqp makes its own: deliveries here, the rest as there.

    Arguments:
        callback: takes channel, method, its arguments and the message, when a message is complete.
    """
    others = frame_handler(connection, callback)
    coming: dict[int, amqp.Message] = {}

    def handle(frame: Frame) -> bool:
        kind, channel, payload = frame
        message = coming.get(channel)
        if message is None and kind == METHOD and payload.startswith(_DELIVER):
            connection.bytes_recv += 1
            coming[channel] = amqp.Message(frame_method=spec.Basic.Deliver, frame_args=payload)
            return False
        if message is None or kind == HEARTBEAT:
            return bool(others(frame))
        connection.bytes_recv += 1
        _take(message, kind, payload)
        if not message.ready:
            return False
        del coming[channel]
        callback(channel, spec.Basic.Deliver, message.frame_args, message)
        return True

    return handle


def _take(message: amqp.Message, kind: int, payload: bytes) -> None:
    """The next part of a message: its header, then its body in one part or more."""
    expected = BODY if message.body_size else HEADER
    if kind != expected:
        raise UnexpectedFrame(f"Received frame {kind} while expecting type: {expected}")
    if kind == BODY:
        message.inbound_body(payload)
    else:
        [message.body_size] = _BODY_SIZE.unpack_from(payload, 4)
        message.properties = decode_properties(payload, 12)
        message.ready = not message.body_size


def delivered(payload: bytes) -> tuple[str, int, bool]:
    """Consumer tag, delivery tag, and whether it was delivered before, of the arguments of a ``basic.deliver``."""
    end = 5 + payload[4]
    delivery_tag, bits = _DELIVERED.unpack_from(payload, end)
    return payload[5:end].decode("utf-8", "surrogatepass"), delivery_tag, bool(bits & 1)
