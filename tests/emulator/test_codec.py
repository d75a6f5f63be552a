"""The codec against itself, against the SDK's own, and against an independent one: that of Qpid Proton."""

from __future__ import annotations

import math
import os
import struct
import uuid
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from kombu_paired.emulator.wire.codec import (
    Array,
    Byte,
    Char,
    CodecError,
    Described,
    Float,
    Int,
    Short,
    Symbol,
    Timestamp,
    UByte,
    UInt,
    ULong,
    UShort,
    decode,
    encode,
)

try:
    import proton
except ImportError:
    proton = None


def integers(kind: type, bits: int, signed: bool) -> st.SearchStrategy[Any]:
    low, high = (-(1 << bits - 1), (1 << bits - 1) - 1) if signed else (0, (1 << bits) - 1)
    return st.integers(low, high).map(kind)


TEXT = st.text(st.characters(exclude_categories=["Cs"]), max_size=40)
ASCII = st.text(st.characters(min_codepoint=32, max_codepoint=126), max_size=40)
SCALARS: dict[str, st.SearchStrategy[Any]] = {
    "null": st.none(),
    "boolean": st.booleans(),
    "byte": integers(Byte, 8, True),
    "short": integers(Short, 16, True),
    "int": integers(Int, 32, True),
    "long": integers(int, 64, True),
    "ubyte": integers(UByte, 8, False),
    "ushort": integers(UShort, 16, False),
    "uint": integers(UInt, 32, False),
    "ulong": integers(ULong, 64, False),
    "float": st.floats(width=32, allow_nan=False).map(Float),
    "double": st.floats(allow_nan=False),
    "timestamp": integers(Timestamp, 64, True),
    "uuid": st.uuids(),
    "binary": st.binary(max_size=40) | st.binary(min_size=250, max_size=260),
    "string": TEXT,
    "symbol": ASCII.map(Symbol),
    "char": st.characters(exclude_categories=["Cs"]).map(Char),
}
SCALAR = st.one_of(*SCALARS.values())
ARRAYS = st.one_of(
    *(st.lists(SCALARS[name], max_size=20).map(Array) for name in SCALARS if name not in ("null", "char"))
)
VALUES = st.recursive(
    SCALAR | ARRAYS,
    lambda inner: (
        st.lists(inner, max_size=5)
        | st.dictionaries(TEXT, inner, max_size=5)
        | st.dictionaries(ASCII.map(Symbol), inner, max_size=5)
        | st.builds(Described, st.integers(0, 2**64 - 1).map(ULong) | ASCII.map(Symbol), inner)
    ),
    max_leaves=8,
)


def same(one: Any, other: Any) -> bool:
    """Equal in type too, all the way down."""
    if type(one) is not type(other):
        return False
    if isinstance(one, dict):
        return list(one) == list(other) and all(same(one[key], other[key]) for key in one)
    if isinstance(one, list | tuple):
        return len(one) == len(other) and all(map(same, one, other))
    return bool(one == other)


@given(VALUES)
def test_what_is_encoded_decodes_to_the_same_value_and_type(value: Any) -> None:
    data = encode(value)
    decoded, end = decode(data)
    assert same(decoded, value)
    assert end == len(data)


@given(VALUES, st.binary(max_size=20), st.binary(max_size=20))
def test_a_value_is_found_in_the_middle_of_others(value: Any, before: bytes, after: bytes) -> None:
    data = encode(value)
    assert decode(before + data + after, len(before))[1] == len(before) + len(data)


@given(st.binary(max_size=200))
def test_bytes_that_are_not_amqp_raise_one_kind_of_error(data: bytes) -> None:
    try:
        value, end = decode(data)
    except CodecError:
        return
    assert 0 < end <= len(data) or value in (None, [])


@given(VALUES, st.data())
def test_a_value_cut_short_is_an_error(value: Any, data: st.DataObject) -> None:
    whole = encode(value)
    cut = data.draw(st.integers(0, len(whole) - 1))
    with pytest.raises(CodecError):
        decode(whole[:cut])


def known_to_the_sdk(value: Any) -> bool:
    """It has no characters, and leaves a byte behind an empty array."""
    if isinstance(value, dict):
        return all(map(known_to_the_sdk, value.values()))
    if isinstance(value, list | tuple):
        return all(map(known_to_the_sdk, value)) and (bool(value) or not isinstance(value, Array))
    return not isinstance(value, Char)


@given(VALUES.filter(known_to_the_sdk))
def test_the_decoder_of_the_sdk_reads_what_is_encoded(value: Any) -> None:
    sdk = pytest.importorskip("azure.servicebus._pyamqp._decode")
    data = encode(value)
    rest, _ = sdk._DECODE_BY_CONSTRUCTOR[data[0]](memoryview(data)[1:])
    assert not rest


def test_nesting_has_a_limit() -> None:
    deep: Any = []
    for _ in range(100):
        deep = [deep]
    with pytest.raises(CodecError, match="nested"):
        decode(encode(deep))


@pytest.mark.parametrize("value", [object(), {1, 2}, 2**70, Byte(300), UInt(-1), Symbol("ä"), Array([1, "two"])])
def test_what_has_no_amqp_type_is_refused(value: Any) -> None:
    with pytest.raises(CodecError):
        encode(value)


def to_proton(value: Any) -> Any:
    """The same value in the words of the other codec."""
    if isinstance(value, Array):
        codes = {int: "LONG", bool: "BOOL", bytes: "BINARY", str: "STRING", float: "DOUBLE", uuid.UUID: "UUID"}
        kind = codes.get(type(value[0]), type(value[0]).__name__.upper()) if value else "NULL"
        return proton.Array(proton.UNDESCRIBED, getattr(proton.Data, kind), *map(to_proton, value))
    if isinstance(value, list):
        return [to_proton(item) for item in value]
    if isinstance(value, dict):
        return {to_proton(key): to_proton(item) for key, item in value.items()}
    if isinstance(value, Described):
        return proton.Described(to_proton(value.descriptor), to_proton(value.value))
    names = {Byte: "byte", Short: "short", Int: "int32", UByte: "ubyte", UShort: "ushort", UInt: "uint", ULong: "ulong"}
    names |= {Float: "float32", Timestamp: "timestamp", Symbol: "symbol", Char: "char"}
    kind = names.get(type(value))
    return value if kind is None else getattr(proton, kind)(value)


# Proton's Python side cannot read a uuid.
PROTON_VALUES = st.recursive(
    st.one_of(*(SCALARS[name] for name in SCALARS if name not in ("binary", "uuid"))) | st.binary(max_size=300),
    lambda inner: st.lists(inner, max_size=5) | st.dictionaries(TEXT, inner, max_size=5),
    max_leaves=8,
)


@pytest.mark.skipif(proton is None and not os.environ.get("CI"), reason="python-qpid-proton is not installed")
class TestAgainstProton:
    @given(PROTON_VALUES)
    def test_it_reads_what_is_encoded(self, value: Any) -> None:
        data = proton.Data()
        assert data.decode(encode(value)) == len(encode(value))
        data.rewind()
        data.next()
        assert data.get_object() == to_proton(value)

    @given(PROTON_VALUES)
    def test_what_it_encodes_is_read(self, value: Any) -> None:
        data = proton.Data()
        data.put_object(to_proton(value))
        assert same(decode(bytes(data.encode()))[0], value)

    @given(st.sampled_from(["long", "uint", "string", "symbol", "timestamp"]), st.data())
    def test_arrays_both_ways(self, name: str, data: st.DataObject) -> None:
        value = Array(data.draw(st.lists(SCALARS[name], min_size=1, max_size=20)))
        theirs = proton.Data()
        theirs.put_object(to_proton(value))
        assert same(decode(bytes(theirs.encode()))[0], value)
        theirs.clear()
        theirs.decode(encode(value))
        theirs.rewind()
        theirs.next()
        assert theirs.get_object() == to_proton(value)


def test_not_a_number_stays_one() -> None:
    assert math.isnan(decode(encode(math.nan))[0])
    assert decode(b"\x82" + struct.pack(">d", 1.5))[0] == 1.5
