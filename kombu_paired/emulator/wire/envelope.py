"""The sections of an AMQP message: taken apart without touching the body, and put together again. Pure.

The bare message (properties, application properties, body) is the sender's and stays as it came, byte for byte.
Around it the broker writes its own header and annotations.
"""

from __future__ import annotations

import struct
from typing import Any, NamedTuple

from kombu_paired.emulator.wire.codec import (
    CodecError,
    Described,
    Symbol,
    Timestamp,
    UByte,
    UInt,
    ULong,
    decode,
    encode,
)

__all__ = (
    "BATCH_FORMAT",
    "Envelope",
    "Request",
    "batch_items",
    "read_request",
    "timestamp",
    "write_delivery",
    "write_response",
)

BATCH_FORMAT = 0x80013700

_HEADER, _DELIVERY, _ANNOTATIONS, _PROPERTIES, _APPLICATION, _DATA, _SEQUENCE, _VALUE, _FOOTER = range(0x70, 0x79)
_PROPERTIES_FOLLOW = b"\x00\x53\x73"
_U32 = struct.Struct(">I")


class Envelope(NamedTuple):
    """What a broker needs to know of a message.

    Attributes:
        bare: properties, application properties and body, as they came.
        application: where the application properties are in ``bare``, as (start, end); the same twice: none.
        durable: the header's.
        priority: the header's.
        time_to_live: seconds, None without one.
        expires: the properties' absolute expiry, seconds since 1970.
        annotations: the message annotations.
        message_id: as text.
        session_id: the properties' group id.
        to: where the properties say the message goes.
    """

    bare: bytes
    application: tuple[int, int]
    durable: bool = False
    priority: int | None = None
    time_to_live: float | None = None
    expires: float | None = None
    annotations: dict[Any, Any] = {}  # noqa: RUF012
    message_id: str | None = None
    session_id: str | None = None
    to: str | None = None

    @classmethod
    def read(cls, payload: bytes) -> Envelope:
        """Take a message apart."""
        position, bare_start, application = 0, None, None
        found: dict[str, Any] = {}
        while position < len(payload):
            code, start = _section(payload, position)
            if code >= _PROPERTIES and bare_start is None:
                bare_start = position
            if code >= _DATA:
                break
            value, end = decode(payload, start)
            if code == _APPLICATION:
                application = (position - (bare_start or 0), end - (bare_start or 0))
            else:
                _READERS[code](value, found)
            position = end
        bare = payload[bare_start if bare_start is not None else len(payload) :]
        behind = position - (bare_start if bare_start is not None else position)
        return cls(bare, application or (behind, behind), **found)

    def application_properties(self) -> dict[Any, Any]:
        """The application properties, decoded."""
        start, end = self.application
        return decode(self.bare, start + 3)[0] or {} if end > start else {}

    def properties(self) -> list[Any]:
        """The properties, decoded: thirteen, None where there is none."""
        values = decode(self.bare, 3)[0] if self.bare[:3] == _PROPERTIES_FOLLOW else []
        return [*values, *[None] * 13][:13]

    def with_message_id(self, message_id: str) -> Envelope:
        """The same message with an id."""
        end = decode(self.bare, 3)[1] if self.bare[:3] == _PROPERTIES_FOLLOW else 0
        section = _PROPERTIES_FOLLOW + encode([message_id, *self.properties()[1:]] if end else [message_id])
        moved = len(section) - end
        application = (self.application[0] + moved, self.application[1] + moved)
        return self._replace(bare=section + self.bare[end:], application=application, message_id=message_id)

    def with_application_properties(self, extra: dict[str, Any]) -> Envelope:
        """The same message with more application properties."""
        start, end = self.application
        section = b"\x00\x53\x74" + encode({**self.application_properties(), **extra})
        bare = self.bare[:start] + section + self.bare[end:]
        return self._replace(bare=bare, application=(start, start + len(section)))


def _section(payload: bytes, position: int) -> tuple[int, int]:
    """The code of the section at a position, and where its value starts."""
    if payload[position : position + 2] == b"\x00\x53" and position + 3 < len(payload):
        code, start = payload[position + 2], position + 3
    else:
        descriptor, start = decode(payload, position + 1)
        code = int(descriptor) if payload[position] == 0 and isinstance(descriptor, int) else 0
    if not _HEADER <= code <= _FOOTER:
        raise CodecError(f"byte {position} starts no section of a message")
    return code, start


def _read_header(value: list[Any], found: dict[str, Any]) -> None:
    durable, priority, time_to_live = (value + [None] * 3)[:3]
    found.update(durable=bool(durable), priority=priority)
    if time_to_live is not None:
        found["time_to_live"] = time_to_live / 1000


def _read_annotations(value: dict[Any, Any], found: dict[str, Any]) -> None:
    found["annotations"] = value


def _read_properties(value: list[Any], found: dict[str, Any]) -> None:
    fields = value + [None] * 13
    if fields[0] is not None:
        found["message_id"] = str(fields[0])
    found.update(to=fields[2], session_id=fields[10])
    if fields[8] is not None:
        found["expires"] = fields[8] / 1000


def _read_nothing(value: Any, found: dict[str, Any]) -> None:
    pass


_READERS = {
    _HEADER: _read_header,
    _DELIVERY: _read_nothing,
    _ANNOTATIONS: _read_annotations,
    _PROPERTIES: _read_properties,
}


def write_delivery(envelope: Envelope, delivery_count: int, annotations: dict[str, Any]) -> bytes:
    """The message as a receiver gets it. ``annotations`` go on top of the message's own."""
    time_to_live = None if envelope.time_to_live is None else UInt(min(envelope.time_to_live * 1000, 0xFFFFFFFF))
    priority = None if envelope.priority is None else UByte(envelope.priority)
    header = [envelope.durable, priority, time_to_live, None, UInt(delivery_count)]
    own = {**envelope.annotations, **{Symbol(name): value for name, value in annotations.items()}}
    return b"\x00\x53\x70" + encode(header) + b"\x00\x53\x72" + encode(own) + envelope.bare


def batch_items(payload: bytes) -> list[bytes]:
    """The messages of a batch: each is in a data section of the outer message."""
    items, position = [], 0
    while position < len(payload):
        code, start = _section(payload, position)
        value, position = decode(payload, start)
        if code == _DATA:
            items.append(value)
    return items


class Request(NamedTuple):
    """A message to ``$cbs`` or ``$management``."""

    message_id: Any
    application: dict[Any, Any]
    body: Any


def read_request(payload: bytes) -> Request:
    """Take a request apart, body included."""
    application: dict[Any, Any] = {}
    message_id, body, position = None, None, 0
    while position < len(payload):
        code, start = _section(payload, position)
        value, position = decode(payload, start)
        if code == _PROPERTIES:
            message_id = value[0] if value else None
        elif code == _APPLICATION:
            application = value or {}
        elif code == _VALUE:
            body = value
    return Request(message_id, application, body)


def write_response(correlation_id: Any, application: dict[str, Any], body: Any) -> bytes:
    """The answer to a request."""
    properties = [None, None, None, None, None, correlation_id]
    return b"".join(
        encode(Described(ULong(code), value))
        for code, value in ((_PROPERTIES, properties), (_APPLICATION, application), (_VALUE, body))
    )


def timestamp(seconds: float) -> Timestamp:
    """Seconds since 1970 as an AMQP timestamp."""
    return Timestamp(int(seconds * 1000))
