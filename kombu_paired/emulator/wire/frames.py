"""The frames of AMQP 1.0: performatives and delivery outcomes as named tuples, to bytes and back. Pure."""

from __future__ import annotations

import struct
from typing import Any, NamedTuple

from kombu_paired.emulator.wire.codec import (
    Array,
    CodecError,
    Described,
    Symbol,
    UByte,
    UInt,
    ULong,
    UShort,
    decode,
    encode,
    encode_list,
)

__all__ = (
    "ACCEPTED",
    "AMQP_HEADER",
    "EMPTY_FRAME",
    "RELEASED",
    "SASL_HEADER",
    "Attach",
    "Begin",
    "Close",
    "Detach",
    "Disposition",
    "End",
    "Flow",
    "Open",
    "Performative",
    "SaslInit",
    "SaslMechanisms",
    "SaslOutcome",
    "Transfer",
    "amqp_error",
    "decode_frame",
    "encode_frame",
    "encode_transfers",
    "modified",
    "rejected",
    "source",
    "symbols",
    "target",
)

AMQP_HEADER = b"AMQP\x00\x01\x00\x00"
SASL_HEADER = b"AMQP\x03\x01\x00\x00"
EMPTY_FRAME = b"\x00\x00\x00\x08\x02\x00\x00\x00"

_HEAD = struct.Struct(">IBBH")


class Open(NamedTuple):
    """First frame of a connection."""

    container_id: str
    hostname: str | None = None
    max_frame_size: int | None = 4294967295
    channel_max: int | None = 65535
    idle_timeout: int | None = None
    outgoing_locales: Any = None
    incoming_locales: Any = None
    offered_capabilities: Any = None
    desired_capabilities: Any = None
    properties: dict[Any, Any] | None = None


class Begin(NamedTuple):
    """Starts a session on a channel."""

    remote_channel: int | None = None
    next_outgoing_id: int = 0
    incoming_window: int = 0
    outgoing_window: int = 0
    handle_max: int | None = 4294967295
    offered_capabilities: Any = None
    desired_capabilities: Any = None
    properties: dict[Any, Any] | None = None


class Attach(NamedTuple):
    """Starts a link. ``role`` True: the one who says so receives."""

    name: str
    handle: int
    role: bool
    snd_settle_mode: int | None = 2
    rcv_settle_mode: int | None = 0
    source: Any = None
    target: Any = None
    unsettled: Any = None
    incomplete_unsettled: bool | None = None
    initial_delivery_count: int | None = None
    max_message_size: int | None = None
    offered_capabilities: Any = None
    desired_capabilities: Any = None
    properties: dict[Any, Any] | None = None


class Flow(NamedTuple):
    """Windows of a session, credit of a link."""

    next_incoming_id: int | None
    incoming_window: int
    next_outgoing_id: int
    outgoing_window: int
    handle: int | None = None
    delivery_count: int | None = None
    link_credit: int | None = None
    available: int | None = None
    drain: bool | None = None
    echo: bool | None = None
    properties: dict[Any, Any] | None = None


class Transfer(NamedTuple):
    """A message, or a part of one."""

    handle: int
    delivery_id: int | None = None
    delivery_tag: bytes | None = None
    message_format: int | None = None
    settled: bool | None = None
    more: bool | None = None
    rcv_settle_mode: int | None = None
    state: Any = None
    resume: bool | None = None
    aborted: bool | None = None
    batchable: bool | None = None
    payload: bytes = b""


class Disposition(NamedTuple):
    """What became of deliveries."""

    role: bool
    first: int
    last: int | None = None
    settled: bool | None = None
    state: Any = None
    batchable: bool | None = None


class Detach(NamedTuple):
    """Ends a link."""

    handle: int
    closed: bool | None = None
    error: Any = None


class End(NamedTuple):
    """Ends a session."""

    error: Any = None


class Close(NamedTuple):
    """Ends a connection."""

    error: Any = None


class SaslMechanisms(NamedTuple):
    """The ways to log in that the server offers."""

    mechanisms: Any = None


class SaslInit(NamedTuple):
    """The way that the client chose."""

    mechanism: str
    initial_response: bytes | None = None
    hostname: str | None = None


class SaslOutcome(NamedTuple):
    """0: welcome."""

    code: int
    additional_data: bytes | None = None


Performative = (
    Open
    | Begin
    | Attach
    | Flow
    | Transfer
    | Disposition
    | Detach
    | End
    | Close
    | SaslMechanisms
    | SaslInit
    | SaslOutcome
)

# Per performative: its code, and the types of the fields whose Python type does not say which AMQP type it is.
_ERROR = _ANY = None
_SHAPES: dict[type[Any], tuple[int, tuple[Any, ...]]] = {
    Open: (0x10, (str, str, UInt, UShort, UInt)),
    Begin: (0x11, (UShort, UInt, UInt, UInt, UInt)),
    Attach: (0x12, (str, UInt, bool, UByte, UByte, _ANY, _ANY, _ANY, bool, UInt, ULong)),
    Flow: (0x13, (UInt, UInt, UInt, UInt, UInt, UInt, UInt, UInt, bool, bool)),
    Transfer: (0x14, (UInt, UInt, bytes, UInt, bool, bool, UByte, _ANY, bool, bool, bool)),
    Disposition: (0x15, (bool, UInt, UInt, bool, _ANY, bool)),
    Detach: (0x16, (UInt, bool, _ERROR)),
    End: (0x17, (_ERROR,)),
    Close: (0x18, (_ERROR,)),
    SaslMechanisms: (0x40, (_ANY,)),
    SaslInit: (0x41, (Symbol, bytes, str)),
    SaslOutcome: (0x44, (UByte, bytes)),
}
_BY_CODE: dict[int, type[Any]] = {code: kind for kind, (code, _) in _SHAPES.items()}


def encode_frame(channel: int, performative: Any, payload: bytes = b"") -> bytes:
    """One frame; SASL performatives make SASL frames."""
    code, types = _SHAPES[type(performative)]
    fields = list(performative[:11] if code == 0x14 else performative)
    while fields and fields[-1] is None:
        fields.pop()
    encoded = [
        b"\x40" if value is None else encode(types[index](value) if index < len(types) and types[index] else value)
        for index, value in enumerate(fields)
    ]
    body = b"\x00\x53" + bytes((code,)) + encode_list(encoded) + payload
    return _HEAD.pack(len(body) + 8, 2, 1 if code >= 0x40 else 0, channel) + body


def decode_frame(frame: bytes) -> tuple[int, Any]:
    """The channel and performative of a whole frame, size included; None for an empty frame."""
    size, offset, _, channel = _HEAD.unpack_from(frame)
    start = offset * 4
    if size != len(frame) or start > size or start < 8:
        raise CodecError(f"a frame of {len(frame)} bytes that says it has {size}, header {start}")
    if start == size:
        return channel, None
    value, end = decode(frame, start)
    if not isinstance(value, Described) or not isinstance(value.value, list):
        raise CodecError("a frame without a performative")
    kind = _BY_CODE.get(value.descriptor) if isinstance(value.descriptor, int) else None
    if kind is None:
        raise CodecError(f"unknown performative {value.descriptor!r}")
    try:
        performative = kind(*value.value)
    except TypeError as error:
        raise CodecError(f"malformed {kind.__name__}: {error}") from error
    if kind is Transfer:
        performative = performative._replace(payload=frame[end:])
    return channel, performative


def encode_transfers(
    channel: int, handle: int, delivery_id: int, tag: bytes, settled: bool, payload: bytes, max_frame_size: int
) -> list[bytes]:
    """The frames of one delivery: as many as the peer's frame size needs. By hand: it is the hot path."""
    fixed = encode(UInt(handle)) + encode(UInt(delivery_id)) + encode(tag) + b"\x43" + (b"\x41" if settled else b"\x42")
    room = max_frame_size - len(fixed) - 16
    parts = [payload[start : start + room] for start in range(0, len(payload), room)] or [b""]
    frames = []
    for index, part in enumerate(parts):
        fields = fixed + (b"\x41" if index + 1 < len(parts) else b"\x42")
        body = b"\x00\x53\x14\xc0" + bytes((len(fields) + 1, 6)) + fields + part
        frames.append(_HEAD.pack(len(body) + 8, 2, 0, channel) + body)
    return frames


# ---------------------------------------------------------------------------- the composite values inside performatives

ACCEPTED = Described(ULong(0x24), [])
RELEASED = Described(ULong(0x26), [])


def amqp_error(condition: str, description: str) -> Described:
    """An error with all its fields: the SDK waits for ever where one is missing."""
    return Described(ULong(0x1D), [Symbol(condition), description, {}])


def rejected(condition: str | None = None, description: str = "") -> Described:
    """The outcome "rejected", with or without an error."""
    return Described(ULong(0x25), [amqp_error(condition, description)] if condition else [])


def modified(delivery_failed: bool, undeliverable_here: bool) -> Described:
    """The outcome "modified"."""
    return Described(ULong(0x27), [delivery_failed, undeliverable_here])


def source(address: str | None, filters: dict[Any, Any] | None = None) -> Described:
    """Where a link's messages come from."""
    fields: list[Any] = [address]
    if filters is not None:
        fields += [None, None, None, None, None, None, filters]
    return Described(ULong(0x28), fields)


def target(address: str | None) -> Described:
    """Where a link's messages go."""
    return Described(ULong(0x29), [address])


def symbols(*names: str) -> Array:
    """An array of symbols."""
    return Array(Symbol(name) for name in names)
