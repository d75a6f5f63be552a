"""A message put together from what Kombu's producer, or Celery's command line, hands to a channel."""

from __future__ import annotations

from typing import Any

from kombu_paired.message import Message

__all__ = ("address", "as_message")


def as_message(given: Any) -> Message:
    """The message that ``celery amqp basic.publish`` means by a text, or by a message of py-amqp."""
    properties = dict(getattr(given, "properties", None) or {})
    return Message(
        body=getattr(given, "body", given),
        priority=properties.pop("priority", None),
        content_type=properties.pop("content_type", None),
        content_encoding=properties.pop("content_encoding", "utf-8"),
        headers=properties.pop("application_headers", None) or {},
        properties=properties,
    )


def address(message: Message, exchange: str, routing_key: str, mandatory: bool) -> None:
    """Write onto a message where it goes."""
    message.exchange = exchange or ""
    message.routing_key = routing_key or ""
    message.mandatory = mandatory
