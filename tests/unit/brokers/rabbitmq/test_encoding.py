"""The bytes of a message are those that py-amqp writes, and what comes back is what py-amqp would read."""

from __future__ import annotations

import struct
from datetime import datetime, timezone
from decimal import Decimal
from types import SimpleNamespace
from typing import Any

import amqp
import pytest
from amqp import spec
from amqp.exceptions import FrameSyntaxError
from amqp.method_framing import frame_writer
from amqp.serialization import decode_properties_basic, dumps
from hypothesis import given
from hypothesis import strategies as st

from kombu_paired.brokers.rabbitmq.encoding import decode_properties, publish_frames
from kombu_paired.message import Message

LARGEST = 4096

texts = st.text(max_size=300)
short_texts = st.text(max_size=60)
rare = (
    st.integers(-(2**63), 2**63 - 1)
    | st.binary(max_size=50)
    | st.decimals(-1000, 1000, places=2)
    | st.datetimes(datetime(1970, 1, 2), datetime(2200, 1, 1)).map(lambda at: at.replace(microsecond=0))
)
scalars = st.none() | st.booleans() | st.integers(-(2**31), 2**31 + 1) | st.floats(allow_nan=False) | texts | rare
values = st.recursive(
    scalars, lambda inner: st.lists(inner, max_size=4) | st.dictionaries(short_texts, inner, max_size=4), max_leaves=8
)
headers = st.dictionaries(short_texts, values, max_size=12)
properties = st.fixed_dictionaries(
    {},
    optional={
        "delivery_mode": st.sampled_from([1, 2]),
        "correlation_id": short_texts,
        "reply_to": short_texts,
        "expiration": st.integers(0, 10**9).map(str),
        "message_id": short_texts | st.none(),
        "timestamp": st.integers(0, 2**40),
        "type": short_texts,
        "user_id": short_texts,
        "app_id": short_texts,
        "cluster_id": short_texts,
        "body_encoding": short_texts,  # none of AMQP's
    },
)
messages = st.builds(
    Message,
    body=st.binary(max_size=3 * LARGEST) | st.text(max_size=LARGEST),
    exchange=short_texts,
    routing_key=short_texts,
    priority=st.none() | st.integers(0, 9),
    content_type=st.none() | st.just("application/json"),
    content_encoding=st.sampled_from(["utf-8", "utf-16"]),
    headers=headers,
    properties=properties,
)


def written_by_amqp(channel: int, message: Message, mandatory: bool) -> bytes:
    written: list[bytes] = []
    connection = SimpleNamespace(frame_max=LARGEST, bytes_sent=0)
    write = frame_writer(connection, SimpleNamespace(write=lambda data: written.append(bytes(data))))
    content = amqp.Message(
        message.body,
        priority=message.priority,
        content_type=message.content_type,
        content_encoding=message.content_encoding,
        application_headers=message.headers,
        **message.properties,
    )
    arguments = dumps("Bssbb", (0, message.exchange, message.routing_key, mandatory, False))
    write(1, channel, spec.Basic.Publish, arguments, content)
    return b"".join(written)


def encoded(message: Message) -> bytes:
    """Its properties alone."""
    frames = publish_frames(1, message, False, LARGEST)
    _, _, size = struct.unpack_from(">BHI", frames)
    _, _, header = struct.unpack_from(">BHI", frames, 8 + size)
    return frames[8 + size + 7 :][:header]


@given(st.integers(1, 65535), messages, st.booleans())
def test_a_message_is_written_as_py_amqp_writes_it(channel, message, mandatory):
    assert publish_frames(channel, message, mandatory, LARGEST) == written_by_amqp(channel, message, mandatory)


@given(messages)
def test_properties_are_read_as_py_amqp_reads_them(message):
    payload = encoded(message)
    expected, _ = decode_properties_basic(payload, 12)
    found = decode_properties(payload, 12)
    assert found == expected
    assert repr(found) == repr(expected)  # of the same types too: 1 is True for ==


@pytest.mark.parametrize(
    "item", [b"s\xff\xfe", b"b\xff", b"u\0\1", b"f\x3f\x80\0\0", b"x\0\0\0\1a", b"l\xff\xff\xff\xff\xff\xff\xfc\x18"]
)
def test_what_only_other_clients_write_is_read_too(item):
    table = b"\1a" + item + b"\1bI\0\0\0\5"
    payload = bytes(12) + b"\x20\0" + struct.pack(">I", len(table)) + table
    expected, _ = decode_properties_basic(payload, 12)
    assert decode_properties(payload, 12) == expected
    assert expected["application_headers"]["b"] == 5


def test_a_text_without_an_encoding_is_utf_8_and_says_so():
    message = Message("é", routing_key="q")
    assert publish_frames(1, message, False, LARGEST).count("é".encode()) == 1
    assert decode_properties(encoded(message), 12)["content_encoding"] == "utf-8"


@pytest.mark.parametrize(
    ("changes", "error"),
    [
        ({"headers": {"when": object()}}, FrameSyntaxError),
        ({"headers": {"when": [1, object()]}}, FrameSyntaxError),
        ({"headers": {"n" * 256: 1}}, struct.error),
        ({"routing_key": "k" * 256}, struct.error),
        ({"properties": {"correlation_id": 5}}, TypeError),
        ({"headers": {"large": 2**63}}, struct.error),
        ({"body": "é", "content_encoding": "ascii"}, UnicodeEncodeError),
        ({"body": "é", "content_encoding": "nobody's"}, LookupError),
    ],
)
def test_what_amqp_has_no_form_for_is_an_error_and_not_half_a_message(changes: dict[str, Any], error: type[Exception]):
    with pytest.raises(error):
        publish_frames(1, Message(**{"body": b"", "routing_key": "q", **changes}), True, LARGEST)


def test_the_header_that_has_no_form_is_named():
    with pytest.raises(FrameSyntaxError, match="moment"):
        publish_frames(1, Message(b"", headers={"moment": object()}), False, LARGEST)


def test_rare_types_are_as_they_were():
    written = {
        "price": Decimal("1.25"),
        "at": datetime(2026, 11, 30, tzinfo=timezone.utc),
        "bytes": b"\xff",
        "list": [b"\xff"],
    }
    found = decode_properties(encoded(Message(b"", headers=written)), 12)["application_headers"]
    assert found == {**written, "at": datetime(2026, 11, 30)}
