"""The message id that the service goes by when it detects duplicates. Pure.

It says which *send* a message is. A task's id says less: ``retry()`` sends another message with it, and so do
``replace()`` and whoever puts a task off, and duplicate detection would drop them. So the id is the task's, and a mark
made of what tells the sends of one task apart: its name, the number of the retry, the eta, how often it was replaced,
and the payload. A second try of the same send has the same mark, whoever makes it: the same process, another one, or a
syphon with what went through the backlog.
"""

from __future__ import annotations

import hashlib
import uuid
from collections.abc import Mapping
from typing import Any

__all__ = ("LONGEST_ID", "has_id", "message_id")

#: The longest message id, session id and correlation id that the service takes.
LONGEST_ID = 128
#: What tells two sends of one task apart, of Celery's headers. Others, as ``origin`` or a trace context, say who sends.
TELLING = ("task", "retries", "eta", "replaced_task_nesting")
#: Letters of a mark; it has to tell apart only what belongs to one task.
MARK = 16


def message_id(headers: Mapping[str, Any] | None, properties: Mapping[str, Any], body: object) -> str:
    """The id of a message: the application's own, or its task's (or conversation's) with a mark, or a new one.

    Arguments:
        body: the payload, in the form in which every try sends it.
    """
    own, owner = _text(properties.get("message_id")), _owner(headers, properties)
    if own and own != owner:
        return own if _fits(own) else _digest(own)
    if not owner:
        return str(uuid.uuid4())
    mark = _digest(*(repr((headers or {}).get(name)) for name in TELLING), body)[:MARK]
    found = f"{owner}.{mark}"
    return found if _fits(found) else f"{_digest(owner)}.{mark}"


def has_id(headers: Mapping[str, Any] | None, properties: Mapping[str, Any]) -> bool:
    """Whether every try gets the same id; without, it has to be given one that is kept."""
    return bool(_text(properties.get("message_id")) or _owner(headers, properties))


def _owner(headers: Mapping[str, Any] | None, properties: Mapping[str, Any]) -> str:
    """Who may send more than one message: a task, or a conversation (a task of Celery's first protocol)."""
    return _text((headers or {}).get("id")) or _text(properties.get("correlation_id"))


def _text(value: object) -> str:
    return str(value) if value else ""


def _fits(text: str) -> bool:
    try:
        text.encode()
    except UnicodeEncodeError:  # half a character
        return False
    return len(text) <= LONGEST_ID


def _digest(*parts: object) -> str:
    octets = (part if isinstance(part, bytes) else str(part).encode("utf-8", "surrogatepass") for part in parts)
    return hashlib.sha256(b"".join(b"%d:%b" % (len(each), each) for each in octets)).hexdigest()
