"""Messages as they lie in the service.

An application's message has the stock Kombu transport's form: the body is a JSON envelope with the payload in base64.
Beside it the service's own properties say what they are made for: message id (``ids``), correlation id, content type,
subject (the task's name), time to live, session, schedule.

A backlog message has a form of its own, because what fits the primary has to fit the backlog: its first line is JSON
(headers, properties), and the rest is the payload as it is, a quarter shorter than base64. The aliases of the documents
(``x-ms-path`` and so on) are application properties besides, for whoever looks into the queue.
"""

from __future__ import annotations

import logging
import time
import uuid
from collections.abc import Mapping
from datetime import datetime, timedelta, timezone
from typing import Any, TypeAlias

from azure.servicebus.amqp import AmqpAnnotatedMessage
from kombu.transport.virtual import Channel
from kombu.utils.json import JSONEncoder, loads

from kombu_paired.brokers.forms import OF_THE_DELIVERY
from kombu_paired.brokers.servicebus import compat
from kombu_paired.brokers.servicebus.ids import LONGEST_ID, message_id
from kombu_paired.message import EXCHANGE, Message
from kombu_paired.registration import PING_CONTENT_TYPE

__all__ = (
    "Outgoing",
    "body_length",
    "body_of",
    "encoded_size",
    "from_envelope",
    "is_ping",
    "new_ping",
    "received_backlog_message",
    "to_backlog_form",
    "to_envelope",
)

logger = logging.getLogger(__name__)

#: The application property that says that a message has the backlog's form.
FORM = "x-paired-form"
FORM_OF_BACKLOG = "1"
#: The annotation that holds a message back (the SDK's reference).
SCHEDULE = b"x-opt-scheduled-enqueue-time"
#: The SDK drops a time to live below a second.
SHORTEST_LIFE = timedelta(seconds=1)
#: The longest time to live that fits its field, in milliseconds; a longer one is said by the time of its end.
LONGEST_HEADER = 2**32 - 1
#: The last second that the service knows, in milliseconds since 1970.
END_OF_TIME = 253_402_300_799_000
#: The session of a ping that needs one.
PING_SESSION = "kombu-paired.ping"
#: Bytes of a message without its body, where the SDK does not say.
ROUGHLY = 2048
#: How long a ping lives (the documents of paired namespaces).
PING_LIFE = timedelta(seconds=1)


#: A message on its way to the service.
Outgoing: TypeAlias = AmqpAnnotatedMessage | compat.PlainMessage

#: Kombu's ``dumps``, without a new encoder for each message.
_encode = JSONEncoder().encode


def to_envelope(raw: Mapping[str, Any], *, schedule_eta: bool = False) -> Outgoing:
    """An application's message.

    Arguments:
        raw: as Kombu's virtual channels make it, with the body encoded.
        schedule_eta: let the service hold back a task until its ``eta``.
    """
    headers, properties = raw.get("headers") or {}, raw["properties"]
    body = _encode(raw).encode()
    shown = {
        "message_id": message_id(headers, properties, raw["body"]),
        "correlation_id": _id(properties.get("correlation_id")),
        "content_type": _symbol(raw.get("content-type")),
        "subject": _id(headers.get("task")),
        "group_id": _session(properties.get("session_id")),
    }
    life, schedule = _life(properties.get("expiration")), _schedule(properties, headers, schedule_eta)
    if life is None and schedule is None:
        return compat.PlainMessage(body, shown)
    return _outgoing(body, shown, life=life, schedule=schedule)


def _outgoing(
    body: str | bytes,
    properties: dict[str, Any],
    *,
    application_properties: dict[str, Any] | None = None,
    life: timedelta | None = None,
    schedule: datetime | None = None,
) -> AmqpAnnotatedMessage:
    """A message of the SDK. Its ServiceBusMessage, set property by property, takes three times as long to make."""
    milliseconds = 0 if life is None else int(life.total_seconds() * 1000)
    if milliseconds > LONGEST_HEADER:
        created = int(time.time() * 1000)
        properties |= {"creation_time": created, "absolute_expiry_time": min(created + milliseconds, END_OF_TIME)}
        milliseconds = 0
    return AmqpAnnotatedMessage(
        data_body=body,
        properties=properties,
        application_properties=application_properties,
        header={"time_to_live": milliseconds} if milliseconds else None,
        annotations=None if schedule is None else {SCHEDULE: schedule},
    )


def from_envelope(received: Any) -> dict[str, Any]:
    """The virtual channel's form of a message that was received.

    Raises:
        ValueError: it is not one that this transport or the stock one sent.
    """
    try:
        raw = loads(body_of(received).decode())
        properties, headers = raw["properties"], raw["headers"]
        if not isinstance(properties.setdefault("delivery_info", {}), dict) or not isinstance(headers, dict | None):
            raise TypeError("delivery info or headers are no dict")
        body, encoding = raw["body"], properties.get("body_encoding")
        if body and encoding:
            Channel.codecs[encoding].decode(body)  # what cannot be decoded would end the worker
    except (LookupError, TypeError, AttributeError, ValueError, RecursionError) as exc:
        raise ValueError(f"no envelope: {exc!r}") from exc
    return raw  # type: ignore[no-any-return]


def to_backlog_form(message: Message) -> AmqpAnnotatedMessage:
    """A message for a backlog queue."""
    head = {
        "headers": message.headers,
        "properties": message.properties,
        "priority": message.priority,
        "content_type": message.content_type,
        "content_encoding": message.content_encoding,
        "text": isinstance(message.body, str),
    }
    payload = message.body.encode() if isinstance(message.body, str) else message.body
    shown = {
        key: value
        for key, value in message.headers.items()
        if key.startswith("x-ms-") and isinstance(value, str) and _is_encodable(key + value)
    }
    return _outgoing(
        _encode(head).encode() + b"\n" + payload,
        {
            "message_id": message_id(message.headers, message.properties, message.body),
            "correlation_id": _id(message.properties.get("correlation_id")),
            "content_type": _symbol(message.content_type),
            "subject": _id(message.headers.get("task")),
        },
        application_properties={**shown, FORM: FORM_OF_BACKLOG},
    )


def received_backlog_message(received: Any) -> Message:
    """The neutral form of what lies in a backlog queue, whoever wrote it."""
    given = {_text(key): _text(value) for key, value in (received.application_properties or {}).items()}
    if given.get(FORM) == FORM_OF_BACKLOG:
        try:
            return _from_backlog_form(received, given)
        except (ValueError, KeyError, TypeError, AttributeError, RecursionError) as exc:
            logger.warning("a backlog message %s cannot be read: %r", received.message_id, exc)
    elif (stood_in := _from_stand_in_queue(received)) is not None:
        return stood_in
    properties = {"message_id": received.message_id, "correlation_id": received.correlation_id}
    return Message(
        body=body_of(received),
        content_type=received.content_type,
        headers=given,
        properties={key: value for key, value in properties.items() if value is not None},
    )


def _from_backlog_form(received: Any, given: Mapping[str, Any]) -> Message:
    line, _, payload = body_of(received).partition(b"\n")
    head = loads(line.decode())
    reasons = {key: value for key, value in given.items() if key.startswith("DeadLetter")}
    return Message(
        body=payload.decode() if head["text"] else payload,
        priority=head["priority"],
        content_type=head["content_type"],
        content_encoding=head["content_encoding"],
        headers={**head["headers"], **reasons},
        properties=dict(head["properties"]),
    )


def _from_stand_in_queue(received: Any) -> Message | None:
    """What lies in a stand-in queue, in an envelope, for Kombu's consumers; None if it is something else."""
    try:
        raw = from_envelope(received)
    except ValueError:
        return None
    if EXCHANGE not in (raw["headers"] or {}):
        return None
    encoding = raw["properties"].get("body_encoding")
    properties = {key: value for key, value in raw["properties"].items() if key not in OF_THE_DELIVERY}
    return Message(
        body=Channel.codecs[encoding].decode(raw["body"]) if encoding else raw["body"],
        priority=properties.pop("priority", None),
        content_type=raw.get("content-type"),
        content_encoding=raw.get("content-encoding"),
        headers=raw["headers"],
        properties=properties,
    )


def new_ping(*, in_session: bool = False) -> AmqpAnnotatedMessage:
    """A ping to the letter of the documents: empty, of its own content type, with a second to live.

    Arguments:
        in_session: for an entity that takes nothing without a session id.
    """
    properties = {
        "message_id": str(uuid.uuid4()),
        "content_type": PING_CONTENT_TYPE,
        "group_id": PING_SESSION if in_session else None,
    }
    return _outgoing(b"", properties, life=PING_LIFE)


def is_ping(received: Any) -> bool:
    """Whether it is one, and no message for anybody."""
    return bool(received.content_type == PING_CONTENT_TYPE)


def encoded_size(message: Outgoing) -> int:
    """Bytes of a message as it is sent."""
    size = compat.encoded_size(message)
    return body_length(message) + ROUGHLY if size is None else size


def body_length(message: Outgoing) -> int:
    """Bytes of its body."""
    return sum(len(part) for part in message.body)


def body_of(received: Any) -> bytes:
    """The whole body."""
    body = received.body
    return body if isinstance(body, bytes) else b"".join(body)


def _id(value: object) -> str | None:
    """Fit for a property of the service, else left out: the envelope has it in any case."""
    text = str(value) if value else ""
    return text if text and len(text) <= LONGEST_ID and _is_encodable(text) else None


def _session(value: object) -> str | None:
    """Never left out: without it, or cut, the message would be of no session or of another."""
    return str(value) if value else None


def _symbol(value: object) -> str | None:
    return value if value and isinstance(value, str) and value.isascii() else None


def _is_encodable(text: str) -> bool:
    try:
        text.encode()
    except UnicodeEncodeError:  # half a character
        return False
    return True


def _life(expiration: object) -> timedelta | None:
    """Kombu's ``expiration``: milliseconds, as a string."""
    if expiration is None:
        return None
    try:
        return max(timedelta(milliseconds=int(str(expiration))), SHORTEST_LIFE)
    except (ValueError, OverflowError):
        return None


def _schedule(properties: Mapping[str, Any], headers: Mapping[str, Any], schedule_eta: bool) -> datetime | None:
    wanted = properties.get("scheduled_enqueue_time_utc") or (headers.get("eta") if schedule_eta else None)
    if not wanted:
        return None
    when = wanted if isinstance(wanted, datetime) else datetime.fromisoformat(str(wanted).replace("Z", "+00:00"))
    return (when if when.tzinfo else when.replace(tzinfo=timezone.utc)).astimezone(timezone.utc)


def _text(value: Any) -> Any:
    return value.decode("utf-8", "replace") if isinstance(value, bytes) else value
