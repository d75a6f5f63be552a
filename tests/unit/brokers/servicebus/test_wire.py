"""Messages as they lie in the service: through the SDK's own encoder and decoder, there and back."""

from __future__ import annotations

import json
from dataclasses import replace
from datetime import datetime, timedelta, timezone

import pytest
from azure.servicebus import ServiceBusMessage, ServiceBusMessageBatch, ServiceBusReceivedMessage
from azure.servicebus._pyamqp._decode import decode_payload
from azure.servicebus._pyamqp._encode import encode_payload
from azure.servicebus._transport._pyamqp_transport import PyamqpTransport
from hypothesis import given
from hypothesis import strategies as st
from kombu import Connection
from kombu.transport import virtual
from kombu.utils.encoding import bytes_to_str
from kombu.utils.json import dumps, loads

from kombu_paired.brokers.forms import message_of, prepare
from kombu_paired.brokers.servicebus.compat import sections_of
from kombu_paired.brokers.servicebus.ids import message_id
from kombu_paired.brokers.servicebus.wire import (
    body_length,
    body_of,
    encoded_size,
    from_envelope,
    is_ping,
    new_ping,
    received_backlog_message,
    to_backlog_form,
    to_envelope,
)
from kombu_paired.errors import ExpiredInBacklog
from kombu_paired.message import Diversion, Message, diversion_of, from_backlog, to_backlog
from tests.unit.test_message import diversions, identified_messages

QUEUE = "main/x-servicebus-transfer/3"


def encoded(outgoing):
    """The bytes that the SDK sends."""
    if isinstance(outgoing, ServiceBusMessage):
        outgoing = outgoing.raw_amqp_message
    output = bytearray()
    encode_payload(output, sections_of(outgoing))
    return bytes(output)


def arrived(outgoing):
    """A message as the SDK gives it to a receiver."""
    return ServiceBusReceivedMessage.from_bytes(encoded(outgoing))


@pytest.fixture(scope="module")
def channel():
    """One that encodes bodies as virtual channels do."""
    with Connection("memory://") as connection, connection.channel() as opened:
        yield opened


def raw_of(channel, message):
    """What a virtual channel hands to its transport."""
    raw = prepare(channel, message)
    channel._inplace_augment_message(raw, message.exchange, message.routing_key)
    return raw


def delivered(channel, raw):
    """A message as a consumer of Kombu gets it."""
    raw["properties"].setdefault("delivery_tag", "tag")
    return message_of(virtual.Message(raw, channel=channel))


def task(**properties):
    return {
        "body": "W10=",
        "headers": {"id": "task-1", "task": "shop.record", "eta": "2031-02-03T04:05:06+02:00"},
        "content-type": "application/json",
        "content-encoding": "utf-8",
        "properties": {"correlation_id": "c-1", "body_encoding": "base64", **properties},
    }


# -- the stock transport's envelope -----------------------------------------------------------------------------


def as_stock_reads(received):
    """The steps of ``kombu.transport.azureservicebus.Channel._get``."""
    body = received.body if isinstance(received.body, bytes) else b"".join(received.body)
    raw = loads(bytes_to_str(body))
    raw["properties"]["delivery_info"]["azure_queue_name"] = "orders"
    return raw


def comparable(message):
    """As far as the envelope keeps a message: tuples are lists there, and no priority comes back as 0."""
    body = message.body.encode() if isinstance(message.body, str) else message.body
    properties = {key: value for key, value in message.properties.items() if key not in ("delivery_mode", "priority")}
    return replace(
        message, body=body, exchange="", routing_key="", priority=None, mandatory=False, properties=properties
    )


of_kombu = st.builds(
    Message,
    body=st.binary() | st.text(),
    exchange=st.text(),
    routing_key=st.text(),
    content_type=st.none() | st.text(),
    content_encoding=st.none() | st.text(),
    headers=st.dictionaries(st.text(), st.none() | st.booleans() | st.integers() | st.text() | st.binary()),
    properties=st.fixed_dictionaries(
        {},
        optional={
            "correlation_id": st.text(),
            "reply_to": st.text(),
            "message_id": st.text(),
            "expiration": st.integers(1, 10**14).map(str),
        },
    ),
)


@given(of_kombu)
def test_the_stock_transport_reads_what_ours_writes(channel, message):
    got = delivered(channel, as_stock_reads(arrived(to_envelope(raw_of(channel, message)))))
    assert comparable(got) == comparable(message)


@given(of_kombu)
def test_ours_reads_what_the_stock_transport_writes(channel, message):
    stock = ServiceBusMessage(dumps(raw_of(channel, message)))  # its ``_put``
    assert comparable(delivered(channel, from_envelope(arrived(stock)))) == comparable(message)


@given(of_kombu)
def test_ours_reads_what_it_wrote_and_writes_what_the_stock_transport_does(channel, message):
    raw = raw_of(channel, message)
    received = arrived(to_envelope(raw))
    assert body_of(received) == dumps(raw).encode()
    assert comparable(delivered(channel, from_envelope(received))) == comparable(message)


@given(of_kombu)
def test_what_is_made_in_one_step_is_what_the_sdk_makes_and_shorter(channel, message):
    message.properties.pop("expiration", None)
    outgoing = to_envelope(raw_of(channel, message))
    short = encoded(outgoing)
    long = bytearray()
    encode_payload(long, PyamqpTransport.to_outgoing_amqp_message(outgoing))
    assert decode_payload(memoryview(short)) == decode_payload(memoryview(bytes(long)))
    assert len(short) < len(long)
    assert encoded_size(outgoing) == len(short)


def test_in_a_batch_it_is_the_sdk_s_own(channel):
    outgoing = to_envelope(task(message_id="m-1", session_id="s-1"))
    batch = ServiceBusMessageBatch()
    batch.add_message(outgoing)
    assert len(batch) == 1
    assert outgoing.properties.group_id == "s-1"


# -- the service's own properties -------------------------------------------------------------------------------


def test_the_properties_of_the_service_say_what_they_are_made_for():
    received = arrived(to_envelope(task(message_id="m-1", session_id="s-1", expiration="90000")))

    assert (received.message_id, received.correlation_id, received.session_id) == ("m-1", "c-1", "s-1")
    assert (received.content_type, received.subject) == ("application/json", "shop.record")
    assert received.time_to_live == timedelta(seconds=90)
    assert received.scheduled_enqueue_time_utc is None


def test_the_message_id_is_the_tasks_with_a_mark_of_the_send():
    raw = task()
    received = arrived(to_envelope(raw))
    assert received.message_id == message_id(raw["headers"], raw["properties"], raw["body"])
    assert received.message_id.startswith("task-1.")
    assert from_envelope(received)["properties"] == {**raw["properties"], "delivery_info": {}}


def test_a_backlog_message_has_an_id_of_the_send_too():
    """Whoever turns duplicate detection on for a backlog queue must not lose the second try of a task either."""
    tries = [Message(b"x", "", "orders", headers={"id": "task-1", "retries": n}) for n in (0, 1, 1)]
    stored = [arrived(to_backlog_form(to_backlog(each, QUEUE, Diversion(1, 2, "h/7", "no")))) for each in tries]
    first, second, again = (each.message_id for each in stored)
    assert first != second == again


of_tasks = st.builds(
    Message,
    body=st.binary() | st.text(),
    routing_key=st.just("orders"),
    headers=st.fixed_dictionaries(
        {"id": st.uuids().map(str)},
        optional={
            "retries": st.integers(0, 9),
            "task": st.text(),
            "eta": st.none() | st.text(),
            "traceparent": st.text(),
        },
    ),
    properties=st.fixed_dictionaries({}, optional={"correlation_id": st.text(), "expiration": st.just("90000")}),
)


@given(identified_messages | of_tasks, diversions)
def test_what_comes_home_has_the_message_id_that_the_primary_send_would_have_had(channel, message, diversion):
    straight = arrived(to_envelope(raw_of(channel, message))).message_id
    stored = received_backlog_message(arrived(to_backlog_form(to_backlog(message, QUEUE, diversion))))
    try:
        home = from_backlog(stored, diversion.first_attempt)
    except ExpiredInBacklog:
        return
    assert arrived(to_envelope(raw_of(channel, home))).message_id == straight


@pytest.mark.parametrize(
    ("session", "wanted"), [("s", "s"), (7, "7"), ("", None), (None, None), ("x" * 200, "x" * 200)]
)
def test_a_session_id_is_never_left_out(session, wanted):
    """Too long a one is the service's to refuse: without it, the message would be of no session."""
    assert arrived(to_envelope(task(session_id=session))).session_id == wanted


@pytest.mark.parametrize("content_type", ["application/json", None, "tëxt/plain", 7, "", "x" * 300])
def test_a_content_type_that_the_service_cannot_have_is_in_the_envelope_alone(content_type):
    raw = {"body": "", "headers": {}, "properties": {}, "content-type": content_type}
    received = arrived(to_envelope(raw))
    assert received.content_type in (content_type or None, None)
    assert from_envelope(received)["content-type"] == content_type


@pytest.mark.parametrize(
    ("expiration", "wanted"),
    [
        ("60000", timedelta(minutes=1)),
        (60000, timedelta(minutes=1)),
        ("1", timedelta(seconds=1)),
        ("0", timedelta(seconds=1)),
        ("-5", timedelta(seconds=1)),
        ("4294967295", timedelta(milliseconds=4294967295)),
        ("soon", None),
        ("1.5", None),
        ("", None),
        (None, None),
    ],
)
def test_the_time_to_live_is_kombus_expiration(expiration, wanted):
    """Milliseconds. What the SDK would drop for being shorter than a second lives for a second."""
    assert arrived(to_envelope(task(expiration=expiration))).time_to_live == wanted


@pytest.mark.parametrize("days", [50, 400, 10**6, 10**8])
def test_a_life_longer_than_its_field_is_said_by_its_end(days):
    """Shorter than it is would be a message lost; one that outlives its end is judged by who receives it."""
    before = datetime.now(timezone.utc).timestamp()
    received = arrived(to_envelope(task(expiration=str(days * 86_400_000))))

    assert received.time_to_live is None
    properties = received.raw_amqp_message.properties
    assert properties.creation_time / 1000 == pytest.approx(before, abs=5)
    end = min(before + days * 86_400, datetime(9999, 12, 31, 23, 59, 59, tzinfo=timezone.utc).timestamp())
    assert properties.absolute_expiry_time / 1000 == pytest.approx(end, abs=5)


@pytest.mark.parametrize("expiration", ["9" * 18, "9" * 30, "9" * 5000])
def test_a_life_without_an_end_is_none(expiration):
    assert arrived(to_envelope(task(expiration=expiration))).time_to_live is None


@pytest.mark.parametrize(
    "when",
    [
        datetime(2031, 2, 3, 2, 5, 6, tzinfo=timezone.utc),
        datetime(2031, 2, 3, 2, 5, 6),
        datetime(2031, 2, 3, 4, 5, 6, tzinfo=timezone(timedelta(hours=2))),
        "2031-02-03T02:05:06+00:00",
        "2031-02-03T02:05:06Z",
        "2031-02-03T02:05:06",
        "2031-02-03T04:05:06+02:00",
    ],
    ids=str,
)
def test_a_schedule_is_in_utc(when):
    received = arrived(to_envelope(task(scheduled_enqueue_time_utc=when)))
    assert received.scheduled_enqueue_time_utc == datetime(2031, 2, 3, 2, 5, 6, tzinfo=timezone.utc)


def test_an_eta_is_a_schedule_only_if_wanted():
    assert arrived(to_envelope(task())).scheduled_enqueue_time_utc is None
    scheduled = arrived(to_envelope(task(), schedule_eta=True))
    assert scheduled.scheduled_enqueue_time_utc == datetime(2031, 2, 3, 2, 5, 6, tzinfo=timezone.utc)


def test_a_schedule_that_is_none_is_refused():
    with pytest.raises(ValueError, match="someday"):
        to_envelope(task(scheduled_enqueue_time_utc="someday"))


# -- what is no envelope ----------------------------------------------------------------------------------------

MALFORMED = {
    "nothing": b"",
    "no text": b"\xff\xfe",
    "no JSON": b"hello",
    "half of it": b'{"body": "eA==", "hea',
    "a list": b"[1, 2]",
    "a number": b"7",
    "a text": b'"body"',
    "no body": json.dumps({"headers": {}, "properties": {}}).encode(),
    "no headers": json.dumps({"body": "", "properties": {}}).encode(),
    "no properties": json.dumps({"body": "", "headers": {}}).encode(),
    "properties that are none": json.dumps({"body": "", "headers": {}, "properties": [1]}).encode(),
    "headers that are none": json.dumps({"body": "", "headers": "x", "properties": {}}).encode(),
    "no delivery info": json.dumps({"body": "", "headers": {}, "properties": {"delivery_info": 7}}).encode(),
    "no base64": json.dumps({"body": "eA=", "headers": {}, "properties": {"body_encoding": "base64"}}).encode(),
    "a list for a body": json.dumps({"body": [1], "headers": {}, "properties": {"body_encoding": "base64"}}).encode(),
    "an encoding of tomorrow": json.dumps({"body": "x", "headers": {}, "properties": {"body_encoding": "x"}}).encode(),
    "a type of tomorrow": b'{"body": "", "headers": {"x": {"__type__": "?", "__value__": 1}}, "properties": {}}',
    "very deep": b"[" * 200_000,
}


@pytest.mark.parametrize("body", MALFORMED.values(), ids=MALFORMED.keys())
def test_what_is_no_envelope_says_so_and_nothing_else(body):
    with pytest.raises(ValueError, match="envelope"):
        from_envelope(arrived(ServiceBusMessage(body)))


@given(
    st.binary()
    | st.recursive(
        st.none() | st.integers() | st.text(),
        lambda x: (
            st.lists(x)
            | st.dictionaries(st.sampled_from(["body", "headers", "properties", "delivery_info", "body_encoding"]), x)
        ),
    ).map(lambda value: json.dumps(value).encode())
)
def test_whatever_comes_is_an_envelope_that_can_be_delivered_or_a_value_error(channel, body):
    try:
        raw = from_envelope(arrived(ServiceBusMessage(body)))
    except ValueError:
        return
    delivered(channel, raw)


def test_a_body_in_parts_is_one():
    whole = dumps(task()).encode()
    parts = arrived(ServiceBusMessage(whole[:7]))
    parts._raw_amqp_message._data_body = [whole[:7], whole[7:50], whole[50:]]
    assert from_envelope(parts)["headers"]["id"] == "task-1"


# -- the backlog's form -----------------------------------------------------------------------------------------


@given(identified_messages, diversions)
def test_a_message_comes_out_of_the_backlog_as_it_went_in(message, diversion):
    stored = to_backlog(message, QUEUE, diversion)

    got = received_backlog_message(arrived(to_backlog_form(stored)))

    assert got == replace(stored, exchange="", routing_key="", mandatory=False)
    assert from_backlog(got, diversion.first_attempt) == message
    assert diversion_of(got) == diversion


def test_whoever_looks_into_a_backlog_queue_sees_the_names_of_the_documents():
    message = Message(
        b"\x00\xff" * 100,
        routing_key="orders",
        content_type="application/json",
        headers={"task": "shop.record", "id": "t-1", "secret": "payload of the application"},
        properties={"message_id": "m-1", "correlation_id": "c-1", "session_id": "s-1", "expiration": "5000"},
    )
    stored = to_backlog(message, QUEUE, Diversion(1.0, 2.0, "host/7", "unreachable"))

    received = arrived(to_backlog_form(stored))

    shown = {key.decode(): value.decode() for key, value in received.application_properties.items()}
    assert shown == {
        "x-ms-path": "orders",
        "x-ms-sessionid": "s-1",
        "x-ms-timetolive": "5000",
        "x-paired-form": "1",
    }
    assert (received.message_id, received.correlation_id, received.subject) == ("m-1", "c-1", "shop.record")
    assert received.content_type == "application/json"


def test_the_broker_of_the_backlog_gets_nothing_to_act_upon():
    message = Message(
        b"x",
        routing_key="orders",
        properties={
            "message_id": "m-1",
            "session_id": "s-1",
            "expiration": "5000",
            "scheduled_enqueue_time_utc": datetime(2031, 1, 1, tzinfo=timezone.utc),
        },
    )
    received = arrived(to_backlog_form(to_backlog(message, QUEUE, Diversion(1.0, 2.0, "host/7", "unreachable"))))
    assert (received.session_id, received.time_to_live, received.scheduled_enqueue_time_utc) == (None, None, None)


def test_what_fits_the_primary_fits_the_backlog(channel):
    """Its form is smaller than the envelope's, by more than what the diversion adds."""
    for length in (4_000, 60_000, 190_000):
        message = Message(bytes(range(256)) * (length // 256), routing_key="orders", properties={"message_id": "m"})
        at_home = encoded_size(to_envelope(raw_of(channel, message)))
        stored = to_backlog(message, QUEUE, Diversion(1e9 / 3, 1e9 / 7, "a-host-with-a-name/123456", "unreachable: …"))
        assert encoded_size(to_backlog_form(stored)) < at_home


@given(identified_messages, diversions)
def test_the_size_that_is_held_against_the_limit_is_that_of_what_is_sent(message, diversion):
    outgoing = to_backlog_form(to_backlog(message, QUEUE, diversion))
    assert encoded_size(outgoing) == len(encoded(outgoing)) > body_length(outgoing)


@pytest.mark.parametrize(
    "body",
    [b"", b"\n", b"{}\nx", b"[]\nx", b"no JSON\nx", b'{"headers": 7}\nx', b"\xff\nx", b"[" * 200_000 + b"\n"],
    ids=lambda body: repr(body[:20]),
)
def test_a_damaged_backlog_message_is_shown_as_it_is(body, caplog):
    damaged = ServiceBusMessage(
        body, application_properties={"x-paired-form": "1", "x-ms-path": "orders"}, message_id="m-1"
    )

    got = received_backlog_message(arrived(damaged))

    assert (got.body, got.message_id, got.headers["x-ms-path"]) == (body, "m-1", "orders")
    assert "m-1" in caplog.text


def test_a_message_that_somebody_else_put_there_is_shown_as_it_is():
    theirs = ServiceBusMessage(
        b"\xff", application_properties={"x-ms-path": "orders", "n": 7}, content_type="text/plain", message_id="m"
    )
    got = received_backlog_message(arrived(theirs))
    assert got == Message(
        b"\xff", content_type="text/plain", headers={"x-ms-path": "orders", "n": 7}, properties={"message_id": "m"}
    )


def test_a_dead_letter_has_its_reasons_beside_the_applications_headers():
    stored = to_backlog(Message(b"x", routing_key="orders", headers={"a": 1}), QUEUE, Diversion(1, 2, "h/7", "no"))
    outgoing = to_backlog_form(stored)
    outgoing.application_properties |= {"DeadLetterReason": "NoPath", "DeadLetterErrorDescription": "nobody knows ☃"}

    got = received_backlog_message(arrived(outgoing))

    assert (got.headers["DeadLetterReason"], got.headers["a"]) == ("NoPath", 1)
    assert got.headers["DeadLetterErrorDescription"] == "nobody knows ☃"


# -- pings ------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("session", [None, "kombu-paired.ping"])
def test_a_ping_is_one_to_the_letter_of_the_documents(session):
    ping = arrived(new_ping(in_session=session is not None))

    assert is_ping(ping)
    assert (body_of(ping), ping.time_to_live) == (b"", timedelta(seconds=1))
    assert (ping.content_type, ping.session_id) == ("application/vnd.ms-servicebus-ping", session)


def test_a_task_is_no_ping():
    assert not is_ping(arrived(to_envelope(task())))
    assert not is_ping(arrived(ServiceBusMessage(b"")))
