"""Forms of a message: as a channel sends it, as it was received, as it lies in a dead-letter queue."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

from kombu_paired.brokers.roles import DEAD_LETTER_SUFFIX, DeadLetter
from kombu_paired.message import PERSISTENT, Message

__all__ = ("OF_THE_DELIVERY", "as_dead_letter", "float_or_none", "message_of", "prepare", "publish")


def prepare(channel: Any, message: Message) -> Any:
    """The message in the form that a channel sends."""
    return channel.prepare_message(
        message.body,
        message.priority,
        message.content_type,
        message.content_encoding,
        message.headers,
        dict(message.properties),  # virtual channels write into it
    )


def publish(channel: Any, message: Message, **arguments: Any) -> None:
    """Send a message through a channel, the way Kombu's producer does."""
    channel.basic_publish(
        prepare(channel, message),
        exchange=message.exchange,
        routing_key=message.routing_key,
        **arguments,
    )


#: Properties that belong to one delivery and not to the message.
OF_THE_DELIVERY = frozenset(
    {"delivery_info", "delivery_tag", "body_encoding", "content_type", "content_encoding", "application_headers"}
)


def message_of(raw: Any) -> Message:
    """The neutral form of a Kombu message that was received."""
    properties = {key: value for key, value in (raw.properties or {}).items() if key not in OF_THE_DELIVERY}
    return Message(
        body=raw.body,
        priority=properties.pop("priority", None),
        content_type=raw.content_type,
        content_encoding=raw.content_encoding,
        headers=dict(raw.headers or {}),
        properties=properties,
    )


def as_dead_letter(letter: DeadLetter) -> Message:
    """A message as it lies in the dead-letter queue of its backlog queue."""
    stored = letter.received.message
    reasons = {"DeadLetterReason": letter.reason, "DeadLetterErrorDescription": letter.description}
    return replace(
        stored,
        exchange="",
        routing_key=letter.received.queue + DEAD_LETTER_SUFFIX,
        headers={**stored.headers, **reasons},
        properties={**stored.properties, "delivery_mode": PERSISTENT},
    )


def float_or_none(value: object) -> float | None:
    """A number that a header may hold."""
    try:
        return float(value)  # type: ignore[arg-type]
    except (TypeError, ValueError):
        return None
