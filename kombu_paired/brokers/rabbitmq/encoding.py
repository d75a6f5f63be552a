"""A message as bytes of AMQP 0-9-1, and its properties read back. Pure.

They are the bytes that py-amqp writes, in a third of the time: it sends each value through a stream, and copies what it
has made twice. What is rare in a header is left to py-amqp (AMQP 0-9-1, sections 2.3.5 and 4.2; the types of a table
are those of RabbitMQ's errata).
"""

from __future__ import annotations

from functools import lru_cache
from struct import Struct
from typing import Any

from amqp import Message as Content
from amqp import spec
from amqp.serialization import dumps, loads

from kombu_paired.message import Message

__all__ = ("FRAME_END", "FRAME_HEADER", "decode_properties", "publish_frames")

#: Type, channel and size, which begin a frame; and the octet that ends it.
FRAME_HEADER = Struct(">BHI")
FRAME_END = 0xCE
METHOD, HEADER, BODY = 1, 2, 3
#: Octets of a frame that are not its payload.
_AROUND = FRAME_HEADER.size + 1
_END = bytes((FRAME_END,))

_PUBLISH = Struct(">HHH").pack(*spec.Basic.Publish, 0)
_CONTENT = Struct(">HHQ")
_OCTET, _FLAGS, _SIZE, _LONG_LONG = Struct("B"), Struct(">H"), Struct(">I"), Struct(">Q")
#: Items of a table, each with its type before it.
_SIZED, _INT, _DOUBLE = Struct(">cI"), Struct(">ci"), Struct(">cd")
#: Types of a table that are read here: text, nothing, truth, and numbers.
_TEXT, _VOID, _TRUTH, _TABLE, _ARRAY = b"SVtFA"
_NUMBERS = {b"I"[0]: Struct(">i"), b"l"[0]: Struct(">q"), b"L"[0]: Struct(">q"), b"d"[0]: Struct(">d")}
#: py-amqp writes a longer integer beyond these.
_INTS = range(-2_147_483_647, 2_147_483_648)

#: Properties in their order: name, type, bit of the flags.
_PROPERTIES = tuple((name, kind, 1 << (15 - place)) for place, (name, kind) in enumerate(Content.PROPERTIES))


def publish_frames(channel: int, message: Message, mandatory: bool, largest: int) -> bytes:
    """A ``basic.publish`` with its content.

    Arguments:
        channel: its number.
        largest: octets that a frame may have.

    Raises:
        ValueError, TypeError, LookupError, struct.error, amqp.exceptions.FrameSyntaxError: AMQP has no form for it.
    """
    body, encoding = message.body, message.content_encoding
    if isinstance(body, str):
        encoding = encoding or "utf-8"
        body = body.encode(encoding)
    properties = {
        **message.properties,
        "content_type": message.content_type,
        "content_encoding": encoding,
        "application_headers": message.headers,
        "priority": message.priority,
    }
    method = _PUBLISH + _short(message.exchange) + _short(message.routing_key) + (b"\1" if mandatory else b"\0")
    content = _CONTENT.pack(spec.Basic.CLASS_ID, 0, len(body)) + _properties(properties)
    room = largest - _AROUND
    frame = FRAME_HEADER.pack
    parts = [frame(METHOD, channel, len(method)), method, _END, frame(HEADER, channel, len(content)), content, _END]
    for begin in range(0, len(body), room):
        piece = body if len(body) <= room else body[begin : begin + room]
        parts += (frame(BODY, channel, len(piece)), piece, _END)
    return b"".join(parts)


def _properties(values: dict[str, Any]) -> bytes:
    flags = 0
    parts = [b""]
    for name, kind, bit in _PROPERTIES:
        value = values.get(name)
        if value is None:
            continue
        flags |= bit
        if kind == "s":
            parts.append(_short(value))
        elif kind == "F":
            parts.append(_table(value))
        else:
            parts.append((_OCTET if kind == "o" else _LONG_LONG).pack(value))
    parts[0] = _FLAGS.pack(flags)
    return b"".join(parts)


def _short(text: str | bytes) -> bytes:
    octets = text.encode("utf-8", "surrogatepass") if isinstance(text, str) else text or b""
    return _OCTET.pack(len(octets)) + octets


#: Names of headers are few, and come again with each message.
_name = lru_cache(1024)(_short)


def _table(table: dict[str, Any]) -> bytes:
    parts = [b""]
    for name, value in table.items():
        if type(value) is str:
            octets = value.encode("utf-8", "surrogatepass")
            parts += (_name(name), _SIZED.pack(b"S", len(octets)), octets)
        else:
            item = _item(value)
            parts.append(dumps("F", ({name: value},))[_SIZE.size :] if item is None else _name(name) + item)
    octets = b"".join(parts)
    return _SIZE.pack(len(octets)) + octets


def _item(value: Any) -> bytes | None:
    """An item of a table with its type; None: py-amqp knows what to do."""
    kind: type = type(value)
    if value is None:
        return b"V"
    if kind is str:
        octets: bytes = value.encode("utf-8", "surrogatepass")
        return _SIZED.pack(b"S", len(octets)) + octets
    if kind is bool:
        return b"t\1" if value else b"t\0"
    if kind is int and value in _INTS:
        return _INT.pack(b"I", value)
    if kind is float:
        return _DOUBLE.pack(b"d", value)
    if kind is dict:
        return b"F" + _table(value)
    if kind is list or kind is tuple:
        items = [_item(each) for each in value]
        if None in items:
            return None
        octets = b"".join(items)  # type: ignore[arg-type]
        return _SIZED.pack(b"A", len(octets)) + octets
    return None


class _Rare(Exception):
    """A type that py-amqp is to read."""


def decode_properties(payload: bytes, offset: int) -> dict[str, Any]:
    """The properties in the payload of a content header, whose flags begin at an offset.

    Raises:
        struct.error, IndexError, ValueError, amqp.exceptions.FrameSyntaxError: they are not that.
    """
    properties: dict[str, Any] = {}
    [flags] = _FLAGS.unpack_from(payload, offset)
    offset += 2
    for name, kind in _layout(flags):
        if kind == "s":
            begin = offset + 1
            offset = begin + payload[offset]
            properties[name] = payload[begin:offset].decode("utf-8", "surrogatepass")
        elif kind == "o":
            properties[name] = payload[offset]
            offset += 1
        elif kind == "F":
            properties[name], offset = _headers(payload, offset)
        else:
            [properties[name]] = _LONG_LONG.unpack_from(payload, offset)
            offset += 8
    return properties


@lru_cache
def _layout(flags: int) -> tuple[tuple[str, str], ...]:
    return tuple((name, kind) for name, kind, bit in _PROPERTIES if flags & bit)


def _headers(payload: bytes, offset: int) -> tuple[dict[str, Any], int]:
    try:
        return _read_table(payload, offset)
    except _Rare:
        [headers], end = loads("F", payload, offset)
        return headers, end


def _read_table(payload: bytes, offset: int) -> tuple[dict[str, Any], int]:
    [size] = _SIZE.unpack_from(payload, offset)
    offset += 4
    end = offset + size
    table: dict[str, Any] = {}
    while offset < end:
        begin = offset + 1
        offset = begin + payload[offset]
        name = _read_name(payload[begin:offset])
        if payload[offset] == _TEXT:
            [size] = _SIZE.unpack_from(payload, offset + 1)
            begin = offset + 5
            offset = begin + size
            table[name] = _text(payload[begin:offset])
        else:
            table[name], offset = _read_item(payload, offset)
    return table, offset


def _text(octets: bytes) -> Any:
    try:
        return octets.decode("utf-8", "surrogatepass")
    except UnicodeDecodeError:
        return octets


_read_name = lru_cache(1024)(_text)


def _read_item(payload: bytes, offset: int) -> tuple[Any, int]:
    kind = payload[offset]
    offset += 1
    if kind == _VOID:
        return None, offset
    if kind == _TRUTH:
        return payload[offset] != 0, offset + 1
    if (number := _NUMBERS.get(kind)) is not None:
        return number.unpack_from(payload, offset)[0], offset + number.size
    if kind == _TABLE:
        return _read_table(payload, offset)
    if kind != _TEXT and kind != _ARRAY:
        raise _Rare
    [size] = _SIZE.unpack_from(payload, offset)
    offset += 4
    end = offset + size
    if kind == _TEXT:
        return _text(payload[offset:end]), end
    items = []
    while offset < end:
        item, offset = _read_item(payload, offset)
        items.append(item)
    return items, offset
