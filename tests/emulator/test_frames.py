"""Frames, and the sections of messages."""

from __future__ import annotations

import contextlib
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from kombu_paired.emulator.wire import frames
from kombu_paired.emulator.wire.codec import CodecError, Described, Symbol, UInt, ULong, decode, encode
from kombu_paired.emulator.wire.envelope import Envelope, batch_items, read_request, write_delivery, write_response
from kombu_paired.emulator.wire.frames import Attach, Begin, Close, Detach, Disposition, End, Flow, Open, Transfer

U32 = st.integers(0, 2**32 - 1)


def make(kind: Any) -> Any:
    """A performative from its first fields."""
    return lambda fields: kind(*fields)


FRAMES = st.one_of(
    st.tuples(st.text(max_size=20), st.none() | st.text(max_size=9), U32, st.integers(0, 65535), U32).map(make(Open)),
    st.tuples(st.none() | st.integers(0, 65535), U32, U32, U32, U32).map(make(Begin)),
    st.tuples(
        st.text(max_size=20),
        U32,
        st.booleans(),
        st.integers(0, 2),
        st.integers(0, 1),
        st.text(max_size=9).map(frames.source),
        st.text(max_size=9).map(frames.target),
    ).map(make(Attach)),
    st.tuples(st.none() | U32, U32, U32, U32, st.none() | U32, st.none() | U32, st.none() | U32).map(make(Flow)),
    st.tuples(st.booleans(), U32, U32, st.booleans(), st.just(frames.ACCEPTED)).map(make(Disposition)),
    st.tuples(U32, st.booleans(), st.just(frames.amqp_error("amqp:not-found", "gone"))).map(make(Detach)),
    st.just(End()),
    st.sampled_from([Close(), Close(frames.amqp_error("amqp:connection:forced", ""))]),
)


@given(FRAMES, st.integers(0, 65535))
def test_a_frame_comes_back_as_it_was(performative: Any, channel: int) -> None:
    assert frames.decode_frame(frames.encode_frame(channel, performative)) == (channel, performative)


@given(FRAMES)
def test_the_sdk_reads_a_frame(performative: Any) -> None:
    sdk = pytest.importorskip("azure.servicebus._pyamqp._decode")
    data = frames.encode_frame(1, performative)
    code, fields = sdk.decode_frame(memoryview(data)[8:])
    assert code == data[10]
    assert len(fields) >= len([field for field in performative if field is not None])


@given(st.binary(max_size=3000), st.integers(64, 600), st.booleans(), U32)
def test_a_message_is_cut_into_frames_that_fit(payload: bytes, size: int, settled: bool, number: int) -> None:
    cut = frames.encode_transfers(3, 7, number, b"t" * 16, settled, payload, size)
    parts = [frames.decode_frame(frame)[1] for frame in cut]
    assert all(len(frame) <= size for frame in cut)
    assert b"".join(part.payload for part in parts) == payload
    assert [part.more for part in parts] == [True] * (len(parts) - 1) + [False]
    assert all(isinstance(p, Transfer) and p.delivery_id == number and p.settled is settled for p in parts)


@given(st.binary(min_size=8, max_size=100))
def test_nonsense_is_one_kind_of_error(data: bytes) -> None:
    with pytest.raises(CodecError):
        frames.decode_frame((len(data) + 1).to_bytes(4, "big") + data)


def message(**parts: Any) -> bytes:
    codes = {"header": 0x70, "annotations": 0x72, "properties": 0x73, "application": 0x74, "data": 0x75, "value": 0x77}
    return b"".join(encode(Described(ULong(codes[name]), value)) for name, value in parts.items())


def test_what_a_broker_needs_is_read_and_the_rest_stays_as_it_came() -> None:
    bare = message(
        properties=["id", None, "to", None, None, None, None, None, None, None, "session"],
        application={"a": UInt(1)},
        data=b"body\x00\x00",
    )
    read = Envelope.read(
        message(header=[True, None, UInt(1500)], annotations={Symbol("x-opt-partition-key"): "p"}) + bare
    )
    assert (read.message_id, read.to, read.session_id) == ("id", "to", "session")
    assert (read.durable, read.time_to_live, read.annotations) == (True, 1.5, {"x-opt-partition-key": "p"})
    assert read.application_properties() == {"a": 1}
    assert write_delivery(read, 2, {}).endswith(bare)


@pytest.mark.parametrize("parts", [{"data": b"x"}, {"properties": ["id"], "value": 1}, {"header": [True]}, {}])
def test_application_properties_are_added_where_there_were_none(parts: dict[str, Any]) -> None:
    added = Envelope.read(message(**parts)).with_application_properties({"DeadLetterReason": "why"})
    again = Envelope.read(write_delivery(added, 0, {}))
    assert again.application_properties() == {"DeadLetterReason": "why"}
    for name in ("data", "value"):
        if name in parts:
            assert again.bare.endswith(message(**{name: parts[name]}))


def test_a_batch_is_taken_apart() -> None:
    inner = [message(data=b"one"), message(properties=["2"], data=b"two")]
    batch = b"".join(message(data=each) for each in inner)
    assert batch_items(message(annotations={}) + batch) == inner


def test_requests_and_responses() -> None:
    request = message(properties=["7"], application={"operation": "put-token"}, value="token")
    assert read_request(request) == ("7", {"operation": "put-token"}, "token")
    answer = read_request(write_response("7", {"statusCode": 200}, {"a": 1}))
    assert answer == (None, {"statusCode": 200}, {"a": 1})


@given(st.binary(max_size=60))
def test_a_message_that_is_none_is_one_kind_of_error(data: bytes) -> None:
    with contextlib.suppress(CodecError):
        Envelope.read(data)
    assert decode(encode("still alive"))[0] == "still alive"
