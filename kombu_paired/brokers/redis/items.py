"""Messages as they lie in a list, in the form that Kombu's Redis transport writes and reads."""

from __future__ import annotations

import base64
import json
from typing import Any

from kombu.utils.encoding import bytes_to_str
from kombu.utils.json import JSONEncoder, object_hook

from kombu_paired.brokers.compat import make_envelope
from kombu_paired.brokers.forms import prepare
from kombu_paired.brokers.redis.compat import list_of
from kombu_paired.message import Message

__all__ = ("item_of_message", "list_and_item", "message_of_item")

# As Kombu's dumps and loads, which make another of these for each message.
_encoder, _decoder = JSONEncoder(), json.JSONDecoder(object_hook=object_hook)


def message_of_item(item: bytes) -> Message:
    """The message in a list item that Kombu's Redis transport wrote; anything else is a body without headers."""
    try:
        raw = _decoder.decode(bytes_to_str(item))
        properties = dict(raw["properties"])
        body = raw["body"]
        if properties.pop("body_encoding", None) == "base64":
            body = base64.b64decode(body)
        for name in ("delivery_tag", "delivery_info"):
            properties.pop(name, None)
        return Message(
            body=body,
            priority=properties.pop("priority", None),
            content_type=raw.get("content-type"),
            content_encoding=raw.get("content-encoding"),
            headers=dict(raw.get("headers") or {}),
            properties=properties,
        )
    except (KeyError, TypeError, ValueError, AttributeError):
        return Message(body=item, content_type="application/octet-stream", content_encoding="binary")


def item_of_message(channel: Any, message: Message) -> str:
    """The list item for a message, as Kombu's Redis transport writes it."""
    return list_and_item(channel, message)[1]


def list_and_item(channel: Any, message: Message) -> tuple[str, str]:
    """The list that Kombu's Redis transport puts a message for one queue into, and what it puts there."""
    prepared = prepare(channel, message)
    make_envelope(channel, prepared, message.exchange, message.routing_key)
    return list_of(channel, message.routing_key, prepared), str(_encoder.encode(prepared))
