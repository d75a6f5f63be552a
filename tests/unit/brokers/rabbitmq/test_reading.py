"""Frames come in pieces of any size, and messages out of them as py-amqp would make them."""

from __future__ import annotations

import struct
from types import SimpleNamespace

import pytest
from amqp import spec
from amqp.exceptions import UnexpectedFrame
from amqp.method_framing import frame_handler
from amqp.serialization import dumps
from hypothesis import given
from hypothesis import strategies as st

from kombu_paired.brokers.rabbitmq.encoding import publish_frames
from kombu_paired.brokers.rabbitmq.reading import FrameReader, delivered, deliveries_first
from kombu_paired.message import Message

LARGEST = 256  # so that some bodies come in many frames
ACK = struct.pack(">HHQB", *spec.Basic.Ack, 7, 1)


def frame(kind, channel, payload):
    return struct.pack(">BHI", kind, channel, len(payload)) + payload + b"\xce"


def delivery(channel, message, method=spec.Basic.Deliver):
    """What a broker sends to a consumer."""
    published = publish_frames(channel, message, False, LARGEST)
    _, _, size = struct.unpack_from(">BHI", published)
    if method == spec.Basic.Deliver:
        arguments = dumps("sLbss", ("consumer", 9, True, "exchange", "key"))
    else:
        arguments = dumps("Lbssl", (9, True, "exchange", "key", 0))
    return frame(1, channel, struct.pack(">HH", *method) + arguments) + published[8 + size :]


messages = st.builds(
    Message,
    body=st.binary(max_size=3 * LARGEST),
    routing_key=st.just("q"),
    headers=st.dictionaries(st.text(max_size=9), st.integers(0, 9) | st.text(max_size=9), max_size=4),
)
parts = st.lists(
    st.one_of(
        st.builds(delivery, st.integers(1, 3), messages),
        st.builds(delivery, st.integers(1, 3), messages, st.just(spec.Basic.GetOk)),
        st.just(frame(8, 0, b"")),
        st.integers(1, 3).map(lambda channel: frame(1, channel, ACK)),
    ),
    max_size=6,
)


def reader_of(octets, sizes):
    """A reader to which they come in pieces of these sizes, with a timeout between any two."""
    pieces, begin = [], 0
    for size in [*sizes, len(octets)]:
        if octets[begin : begin + size]:
            pieces += [octets[begin : begin + size], None]
        begin += size
    pieces.append(b"")

    def receive(most):
        piece = pieces.pop(0)
        if piece is None:
            raise TimeoutError("timed out")
        return piece

    return FrameReader(receive)


def all_frames(reader):
    found = []
    while True:
        try:
            found.append(reader.read())
        except TimeoutError:
            continue
        except OSError:  # the end
            return found


@given(parts, st.lists(st.integers(1, 40), max_size=60))
def test_frames_are_the_same_in_whatever_pieces_they_come(parts, sizes):
    octets = b"".join(parts)
    found = all_frames(reader_of(octets, sizes))
    assert b"".join(frame(*each) for each in found) == octets


@given(parts)
def test_messages_are_made_of_them_as_py_amqp_makes_them(parts):
    ways = []
    for handler in (frame_handler, deliveries_first):
        connection, complete = SimpleNamespace(bytes_recv=0), []
        handle = handler(connection, lambda *what: complete.append(what))  # noqa: B023
        answers = [bool(handle(each)) for each in all_frames(reader_of(b"".join(parts), []))]
        what = [
            (channel, method, arguments, content and (content.properties, content.body))
            for channel, method, arguments, content in complete
        ]
        ways.append((answers, what, connection.bytes_recv))
    assert ways[0] == ways[1]


def test_what_was_read_of_a_frame_is_known_and_kept():
    reader = reader_of(frame(1, 1, ACK), [10])
    assert not reader.has_begun
    assert reader.at_hand() is None
    with pytest.raises(TimeoutError):
        reader.read()
    assert reader.has_begun
    assert reader.at_hand() is None
    assert reader.read() == (1, 1, ACK)
    assert not reader.has_begun


def test_several_frames_read_at_once_are_handed_out_without_another_read():
    reader = reader_of(2 * frame(1, 1, ACK), [])
    assert reader.read() == (1, 1, ACK)
    assert reader.has_begun
    assert reader.at_hand() == (1, 1, ACK)
    assert reader.at_hand() is None


def test_a_frame_that_does_not_end_where_it_should_is_an_error():
    with pytest.raises(UnexpectedFrame, match="0x61"):
        reader_of(frame(1, 1, ACK)[:-1] + b"a", []).read()


@pytest.mark.parametrize("kinds", [(1, 1), (1, 3), (1, 2, 2), (1, 2, 1)])
def test_parts_of_a_message_in_another_order_are_an_error(kinds):
    header = struct.pack(">HHQH", 60, 0, 5, 0)
    payloads = {
        1: struct.pack(">HH", *spec.Basic.Deliver) + dumps("sLbss", ("c", 1, False, "", "")),
        2: header,
        3: b"x",
    }
    handle = deliveries_first(SimpleNamespace(bytes_recv=0), lambda *what: None)
    for kind in kinds[:-1]:
        handle((kind, 1, payloads[kind]))
    with pytest.raises(UnexpectedFrame):
        handle((kinds[-1], 1, payloads[kinds[-1]]))


@given(st.text(max_size=60), st.integers(0, 2**64 - 1), st.booleans())
def test_the_arguments_of_a_delivery_are_read_as_they_were_written(consumer, tag, again):
    arguments = struct.pack(">HH", *spec.Basic.Deliver) + dumps("sLbss", (consumer, tag, again, "exchange", "key"))
    assert delivered(arguments) == (consumer, tag, again)
