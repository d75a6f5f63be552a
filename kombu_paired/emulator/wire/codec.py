"""The types of AMQP 1.0 on the wire. Pure: bytes to values and back, and nothing about frames or messages.

Python's own types are used where they say all there is to say; the others say which AMQP type they are:

=============  ==========================================================
AMQP           Python
=============  ==========================================================
null, boolean  None, bool
long           int
other ints     :class:`Byte` .. :class:`ULong`, subclasses of int
double, float  float, :class:`Float`
timestamp      :class:`Timestamp`, milliseconds since 1970
uuid, binary   :class:`uuid.UUID`, bytes
string         str
symbol, char   :class:`Symbol`, :class:`Char`, subclasses of str
list, map      list, dict
array          :class:`Array`
described      :class:`Described`
decimals       :class:`Opaque`: kept as they came
=============  ==========================================================

What was decoded is encoded again as the same type, so a message that passes through keeps its properties as they were.
"""

from __future__ import annotations

import struct
import uuid
from collections.abc import Callable
from typing import Any, NamedTuple

__all__ = (
    "Array",
    "Byte",
    "Char",
    "CodecError",
    "Described",
    "Float",
    "Int",
    "Opaque",
    "Short",
    "Symbol",
    "Timestamp",
    "UByte",
    "UInt",
    "ULong",
    "UShort",
    "decode",
    "encode",
    "encode_array",
    "encode_list",
)


class CodecError(ValueError):
    """Bytes that are not AMQP 1.0, or a value that has no AMQP type."""


class Byte(int):
    """A signed integer of 8 bits."""


class Short(int):
    """A signed integer of 16 bits."""


class Int(int):
    """A signed integer of 32 bits. A plain ``int`` is a long, of 64."""


class UByte(int):
    """An unsigned integer of 8 bits."""


class UShort(int):
    """An unsigned integer of 16 bits."""


class UInt(int):
    """An unsigned integer of 32 bits."""


class ULong(int):
    """An unsigned integer of 64 bits."""


class Timestamp(int):
    """Milliseconds since 1970, UTC."""


class Float(float):
    """A floating point number of 32 bits. A plain ``float`` is a double."""


class Symbol(str):
    """A name from a constrained domain; ASCII."""

    __slots__ = ()


class Char(str):
    """One Unicode character."""

    __slots__ = ()


class Described(NamedTuple):
    """A value with a descriptor that says what it means."""

    descriptor: Any
    value: Any


class Array(list[Any]):
    """A list whose items all have the same type, that of its first item."""


class Opaque(NamedTuple):
    """A value of a type that Python has nothing for, as it came: its format code and its bytes."""

    code: int
    data: bytes


_DEPTH_LIMIT = 64

_DESCRIBED, _NULL, _TRUE, _FALSE = 0x00, 0x40, 0x41, 0x42
_LIST8, _MAP8, _LIST32, _MAP32, _ARRAY8, _ARRAY32 = 0xC0, 0xC1, 0xD0, 0xD1, 0xE0, 0xF0

_U16, _U32, _U64 = struct.Struct(">H"), struct.Struct(">I"), struct.Struct(">Q")
_S8, _S16, _S32, _S64 = struct.Struct(">b"), struct.Struct(">h"), struct.Struct(">i"), struct.Struct(">q")
_F32, _F64 = struct.Struct(">f"), struct.Struct(">d")

# ---------------------------------------------------------------------------------------------------------- decoding

_Decoder = Callable[[bytes, int, int], tuple[Any, int]]


def decode(data: bytes, position: int = 0) -> tuple[Any, int]:
    """The value that starts at ``position``, and the position behind it."""
    try:
        return _decode(data, position, 0)
    except (struct.error, IndexError, UnicodeDecodeError, TypeError) as error:
        raise CodecError(f"not AMQP at byte {position}: {error}") from error


def _decode(data: bytes, position: int, depth: int) -> tuple[Any, int]:
    return _DECODERS[data[position]](data, position + 1, depth)


def _unknown(data: bytes, position: int, depth: int) -> tuple[Any, int]:
    raise CodecError(f"unknown AMQP type 0x{data[position - 1]:02x}")


def _constant(value: Any) -> _Decoder:
    return lambda data, position, depth: (value, position)


def _fixed(layout: struct.Struct, kind: Callable[[Any], Any] | None = None) -> _Decoder:
    unpack, size = layout.unpack_from, layout.size
    if kind is None:
        return lambda data, position, depth: (unpack(data, position)[0], position + size)
    return lambda data, position, depth: (kind(unpack(data, position)[0]), position + size)


def _octet(kind: Callable[[Any], Any]) -> _Decoder:
    return lambda data, position, depth: (kind(data[position]), position + 1)


def _take(data: bytes, start: int, size: int) -> tuple[bytes, int]:
    end = start + size
    if end > len(data):
        raise CodecError(f"{size} bytes announced, {len(data) - start} there")
    return data[start:end], end


def _variable8(convert: Callable[[bytes], Any]) -> _Decoder:
    def decoder(data: bytes, position: int, depth: int) -> tuple[Any, int]:
        taken, end = _take(data, position + 1, data[position])
        return convert(taken), end

    return decoder


def _variable32(convert: Callable[[bytes], Any]) -> _Decoder:
    def decoder(data: bytes, position: int, depth: int) -> tuple[Any, int]:
        taken, end = _take(data, position + 4, _U32.unpack_from(data, position)[0])
        return convert(taken), end

    return decoder


def _opaque(code: int, size: int) -> _Decoder:
    def decoder(data: bytes, position: int, depth: int) -> tuple[Any, int]:
        taken, end = _take(data, position, size)
        return Opaque(code, taken), end

    return decoder


def _uuid(data: bytes, position: int, depth: int) -> tuple[Any, int]:
    taken, end = _take(data, position, 16)
    return uuid.UUID(bytes=taken), end


def _char(data: bytes, position: int, depth: int) -> tuple[Any, int]:
    taken, end = _take(data, position, 4)
    return Char(taken.decode("utf-32-be")), end


def _sizes(data: bytes, position: int, wide: bool) -> tuple[int, int]:
    """Number of items, and where they start."""
    if wide:
        _take(data, position + 4, _U32.unpack_from(data, position)[0])
        return _U32.unpack_from(data, position + 4)[0], position + 8
    _take(data, position + 1, data[position])
    return data[position + 1], position + 2


def _items(data: bytes, position: int, count: int, depth: int) -> tuple[list[Any], int]:
    if depth >= _DEPTH_LIMIT:
        raise CodecError(f"nested deeper than {_DEPTH_LIMIT}")
    if count > len(data) - position:
        raise CodecError(f"{count} items announced in {len(data) - position} bytes")
    items: list[Any] = []
    append, decoders = items.append, _DECODERS
    for _ in range(count):
        value, position = decoders[data[position]](data, position + 1, depth + 1)
        append(value)
    return items, position


def _list(wide: bool) -> _Decoder:
    def decoder(data: bytes, position: int, depth: int) -> tuple[Any, int]:
        count, start = _sizes(data, position, wide)
        return _items(data, start, count, depth)

    return decoder


def _map(wide: bool) -> _Decoder:
    def decoder(data: bytes, position: int, depth: int) -> tuple[Any, int]:
        count, start = _sizes(data, position, wide)
        if count % 2:
            raise CodecError(f"a map of {count} items: a key has no value")
        items, end = _items(data, start, count, depth)
        pairs = iter(items)
        return dict(zip(pairs, pairs, strict=True)), end

    return decoder


def _array(wide: bool) -> _Decoder:
    def decoder(data: bytes, position: int, depth: int) -> tuple[Any, int]:
        if depth >= _DEPTH_LIMIT:
            raise CodecError(f"nested deeper than {_DEPTH_LIMIT}")
        count, start = _sizes(data, position, wide)
        descriptor, described = None, data[start] == _DESCRIBED
        if described:
            descriptor, start = _decode(data, start + 1, depth + 1)
        item, start = _DECODERS[data[start]], start + 1
        if count > len(data):
            raise CodecError(f"an array of {count} items in {len(data)} bytes")
        items = Array()
        for _ in range(count):
            value, start = item(data, start, depth + 1)
            items.append(Described(descriptor, value) if described else value)
        return items, start

    return decoder


def _described(data: bytes, position: int, depth: int) -> tuple[Any, int]:
    if depth >= _DEPTH_LIMIT:
        raise CodecError(f"nested deeper than {_DEPTH_LIMIT}")
    descriptor, position = _decode(data, position, depth + 1)
    value, position = _decode(data, position, depth + 1)
    return Described(descriptor, value), position


def _binary(data: bytes) -> bytes:
    return data


def _string(data: bytes) -> str:
    return data.decode()


def _symbol(data: bytes) -> Symbol:
    return Symbol(data.decode("ascii"))


def _truth(value: int) -> bool:
    return value == 1


_DECODERS: list[_Decoder] = [_unknown] * 256
for _code, _decoder in {
    _DESCRIBED: _described,
    _NULL: _constant(None),
    _TRUE: _constant(True),
    _FALSE: _constant(False),
    0x43: _constant(UInt(0)),
    0x44: _constant(ULong(0)),
    0x50: _octet(UByte),
    0x51: _fixed(_S8, Byte),
    0x52: _octet(UInt),
    0x53: _octet(ULong),
    0x54: _fixed(_S8, Int),
    0x55: _fixed(_S8),
    0x56: _octet(_truth),
    0x60: _fixed(_U16, UShort),
    0x61: _fixed(_S16, Short),
    0x70: _fixed(_U32, UInt),
    0x71: _fixed(_S32, Int),
    0x72: _fixed(_F32, Float),
    0x73: _char,
    0x74: _opaque(0x74, 4),
    0x80: _fixed(_U64, ULong),
    0x81: _fixed(_S64),
    0x82: _fixed(_F64),
    0x83: _fixed(_S64, Timestamp),
    0x84: _opaque(0x84, 8),
    0x94: _opaque(0x94, 16),
    0x98: _uuid,
    0xA0: _variable8(_binary),
    0xA1: _variable8(_string),
    0xA3: _variable8(_symbol),
    0xB0: _variable32(_binary),
    0xB1: _variable32(_string),
    0xB3: _variable32(_symbol),
    _LIST8: _list(False),
    _LIST32: _list(True),
    _MAP8: _map(False),
    _MAP32: _map(True),
    _ARRAY8: _array(False),
    _ARRAY32: _array(True),
}.items():
    _DECODERS[_code] = _decoder
_DECODERS[0x45] = lambda data, position, depth: ([], position)

# ---------------------------------------------------------------------------------------------------------- encoding


def encode(value: Any) -> bytes:
    """The bytes of a value, in the shortest form of its type."""
    try:
        return _ENCODERS[type(value)](value)
    except KeyError:
        raise CodecError(f"no AMQP type for {type(value).__name__}") from None
    except (struct.error, OverflowError, UnicodeEncodeError) as error:
        raise CodecError(f"{value!r:.60} is out of the bounds of its AMQP type: {error}") from error


def encode_list(fields: list[bytes]) -> bytes:
    """A list of fields that are encoded already."""
    if not fields:
        return b"\x45"
    return _compound(_LIST8, _LIST32, len(fields), b"".join(fields))


def encode_array(code: int, items: list[bytes]) -> bytes:
    """An array whose items are encoded already, without the format code that they share."""
    return _compound(_ARRAY8, _ARRAY32, len(items), bytes((code,)) + b"".join(items))


def _compound(short: int, wide: int, count: int, body: bytes) -> bytes:
    size = len(body)
    if size < 255 and count < 256:
        return bytes((short, size + 1, count)) + body
    return bytes((wide,)) + _U32.pack(size + 4) + _U32.pack(count) + body


def _variable(short: int, wide: int, data: bytes) -> bytes:
    size = len(data)
    if size < 256:
        return bytes((short, size)) + data
    return bytes((wide,)) + _U32.pack(size) + data


def _long(value: int) -> bytes:
    return b"\x55" + _S8.pack(value) if -128 <= value <= 127 else b"\x81" + _S64.pack(value)


def _int(value: int) -> bytes:
    return b"\x54" + _S8.pack(value) if -128 <= value <= 127 else b"\x71" + _S32.pack(value)


def _uint(value: int) -> bytes:
    if value == 0:
        return b"\x43"
    return bytes((0x52, value)) if 0 < value < 256 else b"\x70" + _U32.pack(value)


def _ulong(value: int) -> bytes:
    if value == 0:
        return b"\x44"
    return bytes((0x53, value)) if 0 < value < 256 else b"\x80" + _U64.pack(value)


def _map_bytes(value: dict[Any, Any]) -> bytes:
    body = b"".join(encode(key) + encode(item) for key, item in value.items())
    return _compound(_MAP8, _MAP32, 2 * len(value), body)


# An array's items share one format code, so each is written in its type's full width.
_WIDE: dict[type, tuple[int, Callable[[Any], bytes]]] = {
    bool: (0x56, lambda value: b"\x01" if value else b"\x00"),
    int: (0x81, _S64.pack),
    Byte: (0x51, _S8.pack),
    Short: (0x61, _S16.pack),
    Int: (0x71, _S32.pack),
    UByte: (0x50, lambda value: bytes((value,))),
    UShort: (0x60, _U16.pack),
    UInt: (0x70, _U32.pack),
    ULong: (0x80, _U64.pack),
    Float: (0x72, _F32.pack),
    float: (0x82, _F64.pack),
    Timestamp: (0x83, _S64.pack),
    Char: (0x73, lambda value: value.encode("utf-32-be")),
    uuid.UUID: (0x98, lambda value: value.bytes),
    bytes: (0xB0, lambda value: _U32.pack(len(value)) + value),
    str: (0xB1, lambda value: _U32.pack(len(value.encode())) + value.encode()),
    Symbol: (0xB3, lambda value: _U32.pack(len(value)) + value.encode("ascii")),
}


def _array_bytes(items: Array) -> bytes:
    if not items:
        return encode_array(_NULL, [])
    kind = type(items[0])
    if any(type(item) is not kind for item in items):
        raise CodecError("the items of an array must be of one type")
    if kind not in _WIDE:
        raise CodecError(f"arrays of {kind.__name__} are not supported")
    code, pack = _WIDE[kind]
    return encode_array(code, [pack(item) for item in items])


_ENCODERS: dict[type, Callable[[Any], bytes]] = {
    type(None): lambda value: b"\x40",
    bool: lambda value: b"\x41" if value else b"\x42",
    int: _long,
    Byte: lambda value: b"\x51" + _S8.pack(value),
    Short: lambda value: b"\x61" + _S16.pack(value),
    Int: _int,
    UByte: lambda value: b"\x50" + struct.pack(">B", value),
    UShort: lambda value: b"\x60" + _U16.pack(value),
    UInt: _uint,
    ULong: _ulong,
    Float: lambda value: b"\x72" + _F32.pack(value),
    float: lambda value: b"\x82" + _F64.pack(value),
    Timestamp: lambda value: b"\x83" + _S64.pack(value),
    Char: lambda value: b"\x73" + value.encode("utf-32-be"),
    uuid.UUID: lambda value: b"\x98" + value.bytes,
    bytes: lambda value: _variable(0xA0, 0xB0, value),
    bytearray: lambda value: _variable(0xA0, 0xB0, bytes(value)),
    str: lambda value: _variable(0xA1, 0xB1, value.encode()),
    Symbol: lambda value: _variable(0xA3, 0xB3, value.encode("ascii")),
    list: lambda value: encode_list([encode(item) for item in value]),
    dict: _map_bytes,
    Array: _array_bytes,
    Described: lambda value: b"\x00" + encode(value.descriptor) + encode(value.value),
    Opaque: lambda value: bytes((value.code,)) + value.data,
}
