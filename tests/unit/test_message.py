"""A message's way into the backlog and back."""

from __future__ import annotations

import copy
import math
import random
import re
from dataclasses import replace
from datetime import datetime, timedelta, timezone

import pytest
from celery import Celery
from hypothesis import assume, example, given
from hypothesis import strategies as st
from kombu import Producer
from kombu.transport.native_delayed_delivery import calculate_routing_key
from kombu.utils.json import dumps

from kombu_paired.declarations import Declaration, Entity
from kombu_paired.errors import ExpiredInBacklog, MalformedBacklogMessage, MessageTooLarge, SendError
from kombu_paired.message import ONCE, Diversion, Message, diversion_of, from_backlog, to_backlog

NOW = 1_700_000_000.0
QUEUE = "main/x-servicebus-transfer/3"
WHY = Diversion(first_attempt=NOW, at=NOW + 0.5, by="web-1/4711", reason="primary: unreachable: refused")

OUR_NAMES = [
    "x-ms-path",
    "x-ms-sessionid",
    "x-ms-timetolive",
    "x-ms-scheduledenqueuetimeutc",
    "x-paired-delay",
    "x-paired-delay-seconds",
    "x-paired-exchange",
    "x-paired-routing-key",
    "x-paired-delivery-mode",
    "x-paired-mandatory",
    "x-paired-body-encoding",
    "x-paired-first-attempt",
    "x-paired-diverted-at",
    "x-paired-diverted-by",
    "x-paired-diverted-for",
    "x-paired-maybe-duplicate",
    "x-paired-declare",
]

# -- messages of which one copy is enough ---------------------------------------------------------------------------


def test_copies_that_came_different_ways_have_in_common_what_says_that_one_is_enough():
    message = Message("[]", routing_key="orders", headers={ONCE: "a-run", "id": "a-body"})
    home = from_backlog(to_backlog(message.identified(), QUEUE, WHY), NOW)
    assert home.once == message.once is not None


@pytest.mark.parametrize("other", [{ONCE: "another run"}, {"id": "another body"}, {"retries": 1}])
def test_other_messages_have_not(other):
    message = Message("[]", headers={ONCE: "a-run", "id": "a-body", "retries": 0})
    assert replace(message, headers=message.headers | other).once != message.once


def test_of_any_other_message_each_copy_is_as_good_as_the_next():
    assert Message("[]", headers={"id": "a-task"}).once is None


# -- any message ----------------------------------------------------------------------------------------------------

scalars = st.none() | st.booleans() | st.integers() | st.floats(allow_nan=False) | st.text() | st.binary()
values = st.recursive(scalars, lambda inner: st.lists(inner) | st.dictionaries(st.text(), inner), max_leaves=3)
colliding_names = st.builds(
    lambda nesting, name: "x-paired-kept-" * nesting + name,
    st.integers(0, 3),
    st.sampled_from([*OUR_NAMES, "", "x-", "x-paired-", "x-paired-anything", "x-ms-other", "kept-", "id"]),
)
headers = st.dictionaries(st.text() | colliding_names, values, max_size=4)

# Whole seconds: Python reads an offset of a few microseconds as none.
zones = st.none() | st.integers(-23 * 3600, 23 * 3600).map(lambda seconds: timezone(timedelta(seconds=seconds)))
schedules = st.datetimes(timezones=zones)
treated_properties = st.fixed_dictionaries(
    {},
    optional={
        "delivery_mode": st.sampled_from([2, 2, 1, 0, 3]),
        "expiration": st.none() | st.integers(1, 10**15).map(str) | st.sampled_from(["soon", "", "1.5"]),
        "session_id": st.none() | st.text(),
        "scheduled_enqueue_time_utc": st.none() | schedules,
        "message_id": st.none() | st.text(),
        "correlation_id": st.text(),
        "reply_to": st.text(),
    },
)
other_properties = st.dictionaries(
    st.text() | st.sampled_from(OUR_NAMES),
    values,
    max_size=2,
).map(lambda found: {key: value for key, value in found.items() if key != "message_id" and key not in _TREATED})
_TREATED = {"delivery_mode", "expiration", "session_id", "scheduled_enqueue_time_utc"}

messages = st.builds(
    Message,
    body=st.binary() | st.text(),
    exchange=st.text(),
    routing_key=st.text(),
    priority=st.none() | st.integers(0, 9),
    content_type=st.none() | st.text(),
    content_encoding=st.none() | st.text(),
    headers=headers,
    properties=st.builds(lambda other, treated: {**other, **treated}, other_properties, treated_properties),
    mandatory=st.booleans(),
)
identified_messages = messages.map(Message.identified)

arguments = st.dictionaries(st.text().filter(lambda key: not key.startswith("__")), st.text() | st.integers())
declarations = st.builds(
    Declaration, st.sampled_from(["exchange_declare", "queue_declare", "queue_bind", "exchange_bind"]), arguments
)
times = st.floats(0, 4e9)
diversions = st.builds(
    Diversion,
    first_attempt=times,
    at=times,
    by=st.text(),
    reason=st.text(),
    maybe_duplicate=st.booleans(),
    declarations=st.lists(declarations, max_size=3).map(tuple),
)


@pytest.fixture
def message():
    return Message(
        b'{"n": 1}',
        exchange="shop",
        routing_key="orders",
        content_type="application/json",
        content_encoding="utf-8",
        headers={"id": "task-1", "traceparent": "00-1-2-03"},
        properties={"delivery_mode": 2, "correlation_id": "task-1", "reply_to": "replies", "message_id": "m-1"},
    )


# -- there and back -------------------------------------------------------------------------------------------------


@given(identified_messages, diversions)
def test_a_message_comes_back_from_the_backlog_as_it_was(message, diversion):
    assert from_backlog(to_backlog(message, QUEUE, diversion), diversion.first_attempt) == message


@given(identified_messages, diversions)
def test_a_message_comes_back_as_it_was_when_it_had_to_be_compressed(message, diversion):
    message = replace(message, body=message.body * 0 + ("a" if isinstance(message.body, str) else b"a") * 5000)
    stored = to_backlog(message, QUEUE, diversion)
    compressed = to_backlog(message, QUEUE, diversion, max_size=stored.size - 1)
    assert compressed.size < stored.size
    assert from_backlog(compressed, diversion.first_attempt) == message


@given(identified_messages, st.integers(1, 3))
def test_even_a_message_that_was_diverted_several_times_over_comes_back(message, times_over):
    # A pairing whose primary is another pairing's backlog: all our headers are then the application's own.
    message = replace(message, properties={**message.properties, "expiration": None, "session_id": None})
    stored = message
    for _ in range(times_over):
        stored = to_backlog(stored, QUEUE, WHY)
    for _ in range(times_over):
        stored = from_backlog(stored, NOW)
    assert stored == message


@given(messages, diversions)
def test_diverting_changes_nothing_in_the_message_that_the_application_holds(message, diversion):
    before = copy.deepcopy(message)
    to_backlog(message, QUEUE, diversion)
    assert message == before


@given(identified_messages, diversions)
def test_coming_back_changes_nothing_in_the_stored_message(message, diversion):
    stored = to_backlog(message, QUEUE, diversion)
    before = copy.deepcopy(stored)
    from_backlog(stored, diversion.first_attempt)
    assert stored == before


@given(identified_messages, diversions)
def test_the_stored_message_is_a_persistent_and_mandatory_one_to_the_backlog_queue(message, diversion):
    stored = to_backlog(message, QUEUE, diversion)
    assert stored.entity == Entity("", QUEUE)
    assert stored.properties["delivery_mode"] == 2
    assert stored.mandatory


@given(identified_messages, diversions)
def test_the_backlogs_broker_sees_nothing_that_it_would_act_on_too_early(message, diversion):
    properties = to_backlog(message, QUEUE, diversion).properties
    for name in ("expiration", "session_id", "scheduled_enqueue_time_utc"):
        assert properties.get(name) is None


@given(identified_messages, diversions)
def test_every_header_that_is_added_is_a_string(message, diversion):
    stored = to_backlog(message, QUEUE, diversion, max_size=10**9)
    own = {f"x-paired-kept-{name}" for name in message.headers} | set(message.headers)
    added = {name: value for name, value in stored.headers.items() if name in OUR_NAMES or name not in own}
    assert added
    assert {type(value) for value in added.values()} == {str}


@given(identified_messages, diversions)
def test_what_the_broker_should_not_touch_is_untouched(message, diversion):
    stored = to_backlog(message, QUEUE, diversion)
    assert (stored.body, stored.content_type, stored.content_encoding, stored.priority) == (
        message.body,
        message.content_type,
        message.content_encoding,
        message.priority,
    )
    for name, value in message.headers.items():
        if name not in OUR_NAMES and not name.startswith("x-paired-"):
            assert stored.headers[name] == value
    for name, value in message.properties.items():
        if name not in _TREATED:
            assert stored.properties[name] == value


def test_the_headers_have_the_names_of_the_documents():
    schedule = datetime(2030, 1, 2, 3, 4, 5, tzinfo=timezone.utc)
    properties = {"session_id": "s", "expiration": "5000", "scheduled_enqueue_time_utc": schedule}
    stored = to_backlog(Message(b"", "shop", "orders", properties=properties), QUEUE, WHY)
    assert stored.headers["x-ms-path"] == "shop/orders"
    assert stored.headers["x-ms-sessionid"] == "s"
    assert stored.headers["x-ms-timetolive"] == "5000"
    assert stored.headers["x-ms-scheduledenqueuetimeutc"] == "2030-01-02T03:04:05+00:00"


@pytest.mark.parametrize("ours", OUR_NAMES)
def test_a_header_of_the_applications_own_with_one_of_our_names_is_kept_aside(message, ours):
    message.headers[ours] = {"the": "application's"}
    stored = to_backlog(message, QUEUE, replace(WHY, maybe_duplicate=True))
    assert stored.headers["x-paired-kept-" + ours] == {"the": "application's"}
    assert from_backlog(stored, NOW) == message


# -- why it was diverted --------------------------------------------------------------------------------------------


@given(identified_messages, diversions)
def test_the_diversion_can_be_read_again(message, diversion):
    assert diversion_of(to_backlog(message, QUEUE, diversion)) == diversion


@given(identified_messages, diversions)
def test_nothing_of_the_diversion_reaches_the_application(message, diversion):
    restored = from_backlog(to_backlog(message, QUEUE, diversion), diversion.first_attempt)
    assert set(restored.headers) == set(message.headers)


# -- time to live ---------------------------------------------------------------------------------------------------


@given(st.integers(1, 10**9), st.integers(0, 10**6))
def test_what_comes_back_has_the_time_to_live_that_is_left(time_to_live, seconds):
    message = Message(b"", routing_key="q", properties={"expiration": str(time_to_live), "message_id": "m"})
    stored = to_backlog(message, QUEUE, WHY)
    left = time_to_live - 1000 * seconds
    if left > 0:
        assert from_backlog(stored, NOW + seconds).properties["expiration"] == str(left)
    else:
        with pytest.raises(ExpiredInBacklog, match=f"{time_to_live} ms"):
            from_backlog(stored, NOW + seconds)


def test_time_to_live_counts_from_the_send_and_not_from_the_diversion():
    message = Message(b"", routing_key="q", properties={"expiration": "10000"})
    stored = to_backlog(message, QUEUE, replace(WHY, first_attempt=NOW, at=NOW + 8))
    assert from_backlog(stored, NOW + 9).properties["expiration"] == "1000"


def test_a_message_whose_time_is_exactly_up_is_expired():
    stored = to_backlog(Message(b"", routing_key="q", properties={"expiration": "1000"}), QUEUE, WHY)
    with pytest.raises(ExpiredInBacklog) as caught:
        from_backlog(stored, NOW + 1)
    assert caught.value.reason == "TTLExpiredException"


def test_a_clock_that_is_behind_the_senders_lengthens_no_life():
    stored = to_backlog(Message(b"", routing_key="q", properties={"expiration": "1000"}), QUEUE, WHY)
    assert from_backlog(stored, NOW - 3600).properties["expiration"] == "1000"


def test_a_message_without_a_time_to_live_may_wait_for_ever(message):
    assert from_backlog(to_backlog(message, QUEUE, WHY), NOW + 1e9) == message


def test_a_time_to_live_that_is_no_number_is_left_for_the_primary_to_judge():
    message = Message(b"", routing_key="q", properties={"expiration": "soon", "message_id": "m"})
    assert from_backlog(to_backlog(message, QUEUE, WHY), NOW + 1e6) == message


# -- what Celery says about time ------------------------------------------------------------------------------------


def celery_task(conf=None, **options):
    """The message that an application with these settings sends."""
    app = Celery("shop", broker="memory://", backend="cache+memory://", set_as_current=False)
    app.conf.update(conf or {})
    sent = []

    class Notes(Producer):
        def publish(self, body, **arguments):
            headers = arguments.pop("headers")
            if arguments.get("expiration") is not None:  # as Kombu's own does
                arguments["expiration"] = str(int(arguments["expiration"] * 1000))
            known = {name: arguments[name] for name in ("expiration", "correlation_id") if name in arguments}
            sent.append(Message(dumps(body), "", "celery", headers=headers, properties=known).identified())

    with app.connection_for_write() as connection:
        app.send_task("shop.record", (1,), producer=Notes(connection), **options)
    return sent[0]


MOMENT = datetime(2030, 1, 2, 3, 4, 5)
SOMEWHERE = timezone(timedelta(hours=5, minutes=45))


@pytest.mark.parametrize("conf", [{}, {"enable_utc": False}, {"timezone": "Asia/Kathmandu"}, {"task_protocol": 1}])
@pytest.mark.parametrize(
    "said",
    [
        {"countdown": 90},
        {"eta": MOMENT},
        {"eta": MOMENT.replace(tzinfo=SOMEWHERE)},
        {"expires": 7200},
        {"expires": MOMENT},
        {"expires": MOMENT.replace(tzinfo=SOMEWHERE)},
        {"countdown": 90, "expires": 7200},
    ],
)
def test_what_a_task_says_about_time_is_what_it_said_when_it_was_sent(conf, said):
    task = celery_task(conf, **said)
    if "task_protocol" not in conf:
        assert all(task.headers["eta" if name == "countdown" else name] for name in said)
    restored = from_backlog(to_backlog(task, QUEUE, WHY), NOW + 3600)
    assert (restored.headers, restored.body) == (task.headers, task.body)
    if "expires" in said:
        gone = int(task.properties["expiration"]) - int(restored.properties["expiration"])
        assert gone == 3_600_000


@pytest.mark.parametrize("expires", [2, MOMENT.replace(year=2020)])
def test_a_task_that_expired_in_the_backlog_is_left_for_its_worker_to_revoke(expires):
    task = celery_task(expires=expires)
    restored = from_backlog(to_backlog(task, QUEUE, WHY), NOW + 3600)
    assert "expiration" in task.properties
    assert "expiration" not in restored.properties  # a broker would drop it, and nobody would be told
    assert restored.headers == task.headers


DELAYED = "celery_delayed_27"
delays = st.integers(1, 2**28 - 1)
keys = st.text(min_size=1)


def delayed(delay, routing_key, exchange=DELAYED):
    return Message(b"", exchange, calculate_routing_key(delay, routing_key), properties={"message_id": "m"})


@given(delays, keys, st.floats(-1e6, 1e9), st.sampled_from([DELAYED, f"shop_{DELAYED}"]))
def test_a_native_delay_goes_on_while_the_message_waits(delay, routing_key, waited, exchange):
    message = delayed(delay, routing_key, exchange)
    restored = from_backlog(to_backlog(message, QUEUE, WHY), NOW + waited)
    left = delay - (NOW + waited - NOW)  # a float of this size has its own idea of a second
    assert restored.exchange == exchange
    if left >= 1:
        assert restored.routing_key == calculate_routing_key(min(delay, math.floor(left)), routing_key)
    else:
        assert restored.routing_key == "0." * 28 + routing_key  # through all levels at once
    assert replace(restored, routing_key=message.routing_key) == message


@given(delays, delays, keys)
def test_how_long_a_message_is_delayed_makes_no_other_entity_of_it(delay, other, routing_key):
    entity = delayed(delay, routing_key).entity
    assert entity == delayed(other, routing_key).entity == Entity(DELAYED, routing_key)
    assert to_backlog(delayed(delay, routing_key), QUEUE, WHY).headers["x-ms-path"] == f"{DELAYED}/{routing_key}"


@given(st.text(), st.text() | st.just("0." * 28 + "orders"))
def test_an_exchange_of_another_name_is_nobodys_delay(exchange, routing_key):
    assume(not exchange.endswith(DELAYED))
    message = Message(b"", exchange, routing_key, properties={"message_id": "m"})
    assert from_backlog(to_backlog(message, QUEUE, WHY), NOW + 3600) == message
    assert message.entity == Entity(exchange, routing_key)


@given(keys.filter(lambda key: not re.match(r"(?:[01]\.){28}", key)))
def test_a_routing_key_without_a_delay_stays_as_it_is(routing_key):
    message = Message(b"", DELAYED, routing_key, properties={"message_id": "m"})
    assert from_backlog(to_backlog(message, QUEUE, WHY), NOW + 3600) == message


@given(st.sampled_from(["DelaySeconds", "delay_seconds"]), st.integers(0, 900), st.floats(-1e6, 1e6))
def test_a_delay_of_sqs_goes_on_while_the_message_waits(spelling, delay, waited):
    message = Message(b"", routing_key="q", properties={spelling: delay, "message_id": "m"})
    stored = to_backlog(message, QUEUE, WHY)
    assert spelling not in stored.properties
    left = from_backlog(stored, NOW + waited).properties[spelling]
    assert left == min(delay, max(0, math.floor(delay - (NOW + waited - NOW))))


# -- message id -----------------------------------------------------------------------------------------------------


@given(messages)
def test_a_message_id_is_assigned_once_and_never_changes_again(message):
    once = message.identified()
    assert once.message_id
    assert once.identified() == once
    assert to_backlog(once, QUEUE, WHY).message_id == once.message_id
    assert to_backlog(once, QUEUE, WHY).message_id == to_backlog(once, "another", WHY).message_id
    assert from_backlog(to_backlog(once, QUEUE, WHY), NOW).message_id == once.message_id


@given(messages)
def test_a_message_that_has_an_id_keeps_it_and_one_that_gets_one_changes_in_nothing_else(message):
    identified = message.identified()
    if message.message_id:
        assert identified.message_id == message.message_id
    without = {key: value for key, value in message.properties.items() if key != "message_id"}
    assert replace(identified, properties=without) == replace(message, properties=without)


@pytest.mark.parametrize(
    ("headers", "properties", "expected"),
    [
        ({"id": "task"}, {"message_id": "own", "correlation_id": "c"}, "own"),
        ({"id": "task"}, {"correlation_id": "c"}, "task"),
        ({"id": "task"}, {"message_id": "", "correlation_id": "c"}, "task"),
        ({}, {"correlation_id": "c"}, "c"),
    ],
)
def test_the_message_id_is_its_own_or_celerys_task_id(headers, properties, expected):
    assert Message(b"", headers=headers, properties=properties).identified().message_id == expected


def test_two_messages_without_any_id_get_different_ones():
    message = Message(b"")
    assert message.message_id is None
    assert message.identified().message_id != message.identified().message_id


def test_a_message_to_the_backlog_is_always_identified():
    stored = to_backlog(Message(b"", routing_key="q"), QUEUE, WHY)
    assert stored.properties["message_id"]


# -- transient messages ---------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("properties", "expected"),
    [({}, False), ({"delivery_mode": 2}, False), ({"delivery_mode": None}, False), ({"delivery_mode": 1}, True)],
)
def test_delivery_mode_1_alone_makes_a_message_transient(properties, expected):
    assert Message(b"", properties=properties).is_transient is expected


# -- size -----------------------------------------------------------------------------------------------------------


@given(identified_messages)
def test_a_message_that_fits_is_stored_as_it_is(message):
    stored = to_backlog(message, QUEUE, WHY)
    assert to_backlog(message, QUEUE, WHY, max_size=stored.size) == stored


@given(identified_messages, st.binary(max_size=64) | st.text(min_size=1, max_size=64), st.integers(0, 400))
def test_whatever_the_limit_a_message_fits_and_comes_back_exactly_or_is_too_large(message, seed, room):
    message = replace(message, body=seed * 50)
    plain = to_backlog(message, QUEUE, WHY).size
    limit = plain - room
    try:
        stored = to_backlog(message, QUEUE, WHY, max_size=limit)
    except MessageTooLarge:
        return
    assert stored.size <= limit
    assert from_backlog(stored, NOW) == message


@pytest.mark.parametrize("body", [b"abc" * 100_000, "naïve €" * 40_000])
def test_a_compressible_body_is_compressed_near_the_limit_and_restored_exactly(message, body):
    message.body = body
    stored = to_backlog(message, QUEUE, WHY, max_size=256 * 1024)
    assert stored.size < 256 * 1024
    restored = from_backlog(stored, NOW)
    assert restored == message
    assert type(restored.body) is type(body)


def test_a_body_that_does_not_compress_is_too_large_and_the_text_names_the_sizes_and_the_limit(message):
    message.body = random.Random(1).randbytes(300_000)
    plain = to_backlog(message, QUEUE, WHY).size
    with pytest.raises(MessageTooLarge) as caught:
        to_backlog(message, QUEUE, WHY, max_size=262_144)
    text = str(caught.value)
    assert isinstance(caught.value, SendError)
    assert "m-1" in text
    assert "'shop/orders'" in text
    assert f"takes {plain} bytes" in text
    assert "accepts 262144" in text
    compressed = int(text.split("(")[1].split()[0])
    assert abs(compressed - plain) < 1000


def test_headers_count_too_and_cannot_be_compressed_away(message):
    message.headers["note"] = "a" * 300_000
    with pytest.raises(MessageTooLarge):
        to_backlog(message, QUEUE, WHY, max_size=262_144)


def test_size_counts_bytes_and_not_letters():
    assert Message("€", headers={"é": "ü"}, properties={"n": b"\xff"}).size == 3 + 2 + 2 + 1 + 1


# -- messages that nobody should have put there -----------------------------------------------------------------------


def damaged(message, **changes):
    stored = to_backlog(message, QUEUE, WHY)
    headers = {**stored.headers, **{name.replace("_", "-"): value for name, value in changes.items()}}
    return replace(stored, headers={name: value for name, value in headers.items() if value is not ...})


@pytest.mark.parametrize("path", [..., None, 7, b"orders", ["orders"]])
def test_a_message_without_a_path_is_malformed(message, path):
    with pytest.raises(MalformedBacklogMessage, match="x-ms-path") as caught:
        from_backlog(damaged(message, x_ms_path=path), NOW)
    assert caught.value.reason == "NoPath"


@pytest.mark.parametrize("routing_key", [..., None, 7, b"orders"])
def test_a_message_whose_routing_key_is_not_a_text_is_malformed(message, routing_key):
    with pytest.raises(MalformedBacklogMessage):
        from_backlog(damaged(message, x_paired_routing_key=routing_key), NOW)


@pytest.mark.parametrize("exchange", [7, b"shop", ["shop"], {}, False])
def test_a_message_whose_exchange_is_not_a_text_is_malformed(message, exchange):
    with pytest.raises(MalformedBacklogMessage):
        from_backlog(damaged(message, x_paired_exchange=exchange), NOW)


@pytest.mark.parametrize("encoding", ["zlib", "zlib+text", "gzip", "", 7, None.__class__, ["zlib"], "zlib+text+more"])
@pytest.mark.parametrize("body", [b"not compressed", "a text", b""])
def test_a_body_that_is_not_what_its_encoding_says_is_malformed(message, encoding, body):
    message.body = body
    with pytest.raises(MalformedBacklogMessage) as caught:
        from_backlog(damaged(message, x_paired_body_encoding=encoding), NOW)
    assert caught.value.reason == "MalformedBody"


def test_a_body_that_is_compressed_but_not_a_text_is_malformed(message):
    message.body = b"\xff" * 5000
    stored = to_backlog(message, QUEUE, WHY, max_size=2000)
    with pytest.raises(MalformedBacklogMessage):
        from_backlog(replace(stored, headers={**stored.headers, "x-paired-body-encoding": "zlib+text"}), NOW)


def test_a_body_of_which_the_end_is_missing_is_malformed(message):
    message.body = b"a" * 5000
    stored = to_backlog(message, QUEUE, WHY, max_size=2000)
    with pytest.raises(MalformedBacklogMessage):
        from_backlog(replace(stored, body=stored.body[:-1]), NOW)


@pytest.mark.parametrize("mode", ["persistent", "²", "9" * 5000, "2.0", "", ["1"], b"1"])
def test_a_delivery_mode_that_is_no_number_is_malformed(message, mode):
    with pytest.raises(MalformedBacklogMessage, match="x-paired-delivery-mode"):
        from_backlog(damaged(message, x_paired_delivery_mode=mode), NOW)


@pytest.mark.parametrize("when", ["tomorrow", "", 7, None, "2030-13-01"])
def test_a_schedule_that_is_no_time_is_malformed(message, when):
    with pytest.raises(MalformedBacklogMessage, match="x-ms-scheduledenqueuetimeutc"):
        from_backlog(damaged(message, x_ms_scheduledenqueuetimeutc=when), NOW)


@pytest.mark.parametrize("since", [..., None, "yesterday", [], "nan", "inf", "-inf", "1e400", 10**400, b"now"])
def test_a_time_to_live_with_no_time_to_count_from_is_malformed(message, since):
    message.properties["expiration"] = "5000"
    with pytest.raises(MalformedBacklogMessage, match="x-paired-first-attempt"):
        from_backlog(damaged(message, x_paired_first_attempt=since), NOW)


def test_a_time_to_live_that_counts_from_before_all_time_has_run_out(message):
    message.properties["expiration"] = "5000"
    with pytest.raises(ExpiredInBacklog):
        from_backlog(damaged(message, x_paired_first_attempt="-1e308"), NOW)


@pytest.mark.parametrize(
    "declarations",
    [
        "no json",
        "7",
        '"text"',
        "[7]",
        '["ab"]',
        '[["queue_declare"]]',
        '[["queue_declare", 7]]',
        '[["queue_declare", [[1, 2]]]]',
        '[[["queue_declare"], {}]]',
        '[["queue_delete", {"queue": "orders"}]]',
        '[["close", {}]]',
        '[["__init__", {}]]',
        '[["queue_declare", {"queue": {"__type__": "decimal", "__value__": "x"}}]]',
        '[["queue_declare", {"queue": {"__type__": "base64", "__value__": 7}}]]',
        '[["queue_declare", {"queue": {"__type__": "base64", "__value__": "7"}}]]',
        '[["queue_declare", {"queue": {"__type__": "uuid", "__value__": {}}}]]',
        '[["queue_declare", {"queue": {"__type__": "nothing", "__value__": 7}}]]',
        "[" * 200_000,
        '{"queue_declare": {}}',
        7,
        ["queue_declare"],
        b"[]",
    ],
    ids=lambda found: str(found)[:60],
)
def test_declarations_that_cannot_be_read_are_malformed(message, declarations):
    with pytest.raises(MalformedBacklogMessage) as caught:
        diversion_of(damaged(message, x_paired_declare=declarations))
    assert caught.value.reason == "MalformedDeclarations"


@pytest.mark.parametrize("name", ["x-paired-first-attempt", "x-paired-diverted-at"])
@pytest.mark.parametrize("value", [..., None, "soon", [], "nan", "inf", 10**400])
def test_a_diversion_without_its_times_is_malformed(message, name, value):
    with pytest.raises(MalformedBacklogMessage, match=name):
        diversion_of(damaged(message, **{name.replace("-", "_"): value}))


def translated(translate, *arguments):
    """What comes of a translation: its answer, or that the message is malformed. Anything else is raised."""
    try:
        return translate(*arguments)
    except MalformedBacklogMessage as exc:
        return exc


garbage = st.none() | st.integers() | st.floats() | st.text() | st.binary() | st.lists(st.text(), max_size=2) | values
garbage |= st.sampled_from(["zlib", "zlib+text", "None", "2", "²", "-inf", "nan", "1e999", "1_0", "[]", "[[]]", "{}"])
garbage_headers = st.dictionaries(st.sampled_from(OUR_NAMES) | colliding_names | st.text(), garbage, max_size=12)
addressed = garbage_headers.map(lambda found: {**found, "x-ms-path": "shop/orders", "x-paired-routing-key": "orders"})


@given(
    body=st.binary() | st.text(),
    headers=garbage_headers | addressed,
    properties=st.dictionaries(st.sampled_from(["delivery_mode", "expiration", "message_id"]) | st.text(), garbage),
    now=times,
)
@example(b"", {"x-ms-path": "q", "x-paired-routing-key": "q", "x-paired-delivery-mode": "²"}, {}, NOW)
@example(
    b"",
    {"x-ms-path": "q", "x-paired-routing-key": "q", "x-ms-timetolive": "9", "x-paired-first-attempt": "-1e308"},
    {},
    NOW,
)
def test_whatever_lies_in_a_backlog_queue_is_restored_or_malformed_and_nothing_else(body, headers, properties, now):
    stored = Message(body, routing_key=QUEUE, headers=headers, properties=properties)
    result = translated(from_backlog, stored, now)
    if isinstance(result, MalformedBacklogMessage):
        assert result.reason.isidentifier()
        assert result.description
    else:
        assert isinstance(result.exchange, str)
        assert isinstance(result.routing_key, str)
        assert isinstance(result.body, bytes | str)


@given(headers=garbage_headers, declare=garbage | st.text('[]{},:"_aqueue_declaretypv 0123456789'))
def test_whatever_is_said_of_a_diversion_is_read_or_malformed_and_nothing_else(headers, declare):
    headers = {"x-paired-first-attempt": "1", "x-paired-diverted-at": "2", **headers, "x-paired-declare": declare}
    result = translated(diversion_of, Message(b"", routing_key=QUEUE, headers=headers))
    if isinstance(result, MalformedBacklogMessage):
        assert result.reason.isidentifier()
    else:
        assert all(isinstance(key, str) for each in result.declarations for key in each.arguments)


def test_a_further_header_changes_nothing_else():
    whole = Message("{}", "shop", "orders", 5, "application/json", "utf-8", {"id": "a"}, {"reply_to": "b"}, True)
    assert None not in vars(whole).values()
    assert whole.with_headers({}) == whole
    assert whole.with_headers({"more": 1}) == replace(whole, headers={"id": "a", "more": 1})
