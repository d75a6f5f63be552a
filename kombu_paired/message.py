"""A message on its way, and its two translations: to the backlog and back. Pure.

In the backlog a message is addressed to a backlog queue. Its own destination, and the properties that would make
that broker act on it too early, are moved aside into string headers, and put back by the syphon (docs/architecture.md,
rules 12 to 14). Names that begin with ``x-ms-`` are those of the .NET library's documents.
"""

from __future__ import annotations

import math
import re
import uuid
import zlib
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field, replace
from datetime import datetime
from functools import lru_cache
from typing import Any

from kombu_paired.declarations import Declaration, Entity, decode_declarations, encode_declarations
from kombu_paired.errors import ExpiredInBacklog, MalformedBacklogMessage, MessageTooLarge

__all__ = (
    "BACKLOG_MARK",
    "LARGEST_GROWTH",
    "ONCE",
    "Diversion",
    "Message",
    "diversion_of",
    "from_backlog",
    "marked_maybe_duplicate",
    "readdressed",
    "to_backlog",
)

#: What is in the name of every backlog queue, between the primary's name and its number.
BACKLOG_MARK = "/x-servicebus-transfer/"

TRANSIENT, PERSISTENT = 1, 2

PATH = "x-ms-path"
EXCHANGE = "x-paired-exchange"
ROUTING_KEY = "x-paired-routing-key"
DELIVERY_MODE = "x-paired-delivery-mode"
MANDATORY = "x-paired-mandatory"
BODY_ENCODING = "x-paired-body-encoding"
FIRST_ATTEMPT = "x-paired-first-attempt"
DIVERTED_AT = "x-paired-diverted-at"
DIVERTED_BY = "x-paired-diverted-by"
DIVERTED_FOR = "x-paired-diverted-for"
MAYBE_DUPLICATE = "x-paired-maybe-duplicate"
DECLARE = "x-paired-declare"
#: A header of a message of which one copy is enough, however often it is sent; its value is its copies' alone.
ONCE = "x-paired-once"
#: A header of the application's own that has one of our names is kept under this prefix.
KEPT = "x-paired-kept-"

#: Property -> alias: what a broker would act on.
ALIASES = {
    "session_id": "x-ms-sessionid",
    "expiration": "x-ms-timetolive",
    "scheduled_enqueue_time_utc": "x-ms-scheduledenqueuetimeutc",
    "DelaySeconds": "x-paired-delay",  # SQS and pgmq; the first in two spellings
    "delay_seconds": "x-paired-delay-seconds",
}
_OURS = frozenset({PATH, *ALIASES.values()})

#: Where Kombu's native delayed delivery publishes (after a prefix, if there is one), and its routing keys: the seconds
#: in binary digits, then the routing key of the destination. All zeros go straight through.
_DELAYED = ("celery_delayed_27",)
_DELAY = re.compile(r"((?:[01]\.){28})")

#: An encoding takes at most so many bytes for one of :attr:`Message.size`: JSON, for a letter that it escapes.
LARGEST_GROWTH = 6


@dataclass
class Message:
    """A message as the application sends it, before any broker's form.

    Attributes:
        body: the encoded payload.
        exchange, routing_key: the destination; the default exchange is ``""``.
        priority: 0 to 9, or None.
        headers: application headers, passed on untouched.
        properties: what else Kombu sends (delivery mode, correlation id, reply-to, ``expiration`` in milliseconds as a
            string, ``message_id``, …).
        mandatory: the caller wants it back if it cannot be routed.
    """

    body: bytes | str
    exchange: str = ""
    routing_key: str = ""
    priority: int | None = None
    content_type: str | None = None
    content_encoding: str | None = None
    headers: dict[str, Any] = field(default_factory=dict)
    properties: dict[str, Any] = field(default_factory=dict)
    mandatory: bool = False

    @property
    def entity(self) -> Entity:
        """Where it goes; how long Kombu's native delayed delivery keeps it on the way makes no other entity of it."""
        if self.exchange and self.is_delayed:
            return Entity(self.exchange, _DELAY.sub("", self.routing_key, count=1))
        return Entity(self.exchange, self.routing_key)

    @property
    def is_delayed(self) -> bool:
        """By Kombu's native delayed delivery, whose exchanges and queues only workers declare."""
        return self.exchange.endswith(_DELAYED)

    @property
    def is_transient(self) -> bool:
        """Delivery mode 1: worth nothing later, so it is never diverted."""
        return self.properties.get("delivery_mode") == TRANSIENT

    @property
    def message_id(self) -> str | None:
        """The id it has, or the one it would get: Celery's task id."""
        found = self.properties.get("message_id") or self.headers.get("id")
        found = found or self.properties.get("correlation_id")
        return str(found) if found else None

    @property
    def once(self) -> str | None:
        """What its copies have in common, and no other message, if one of them is enough; else None.

        A task's retry is another message, which has its id, and its headers but for the number of retries.
        """
        token = self.headers.get(ONCE)
        return f"{token}:{self.message_id}:{self.headers.get('retries') or 0}" if token else None

    @property
    def size(self) -> int:
        """Bytes of body, headers and properties, near enough to compare with a limit."""
        facts = [*self.headers, *self.headers.values(), *self.properties, *self.properties.values()]
        octets = sum(len(fact) for fact in facts if isinstance(fact, bytes))
        texts = "".join(str(fact) for fact in facts if not isinstance(fact, bytes))
        return _length(self.body) + _length(texts) + octets

    def with_headers(self, more: Mapping[str, Any]) -> Message:
        """The same message with these headers besides."""
        return Message(
            self.body,
            self.exchange,
            self.routing_key,
            self.priority,
            self.content_type,
            self.content_encoding,
            {**self.headers, **more},
            self.properties,
            self.mandatory,
        )

    def identified(self) -> Message:
        """The same message with a message id that will never change again."""
        if self.properties.get("message_id"):
            return self
        message_id = self.message_id or str(uuid.uuid4())
        return replace(self, properties={**self.properties, "message_id": message_id})


@dataclass(frozen=True)
class Diversion:
    """Why, when and by whom a message was diverted.

    Attributes:
        first_attempt: when the application sent it; its time to live counts from here (seconds since 1970, UTC).
        at: when it was diverted (seconds since 1970, UTC).
        by: ``host/pid`` of the sender.
        reason: the failure kind and its text, without secrets.
        maybe_duplicate: the primary may have stored it before it failed.
        declarations: what the syphon declares before it sends.
    """

    first_attempt: float
    at: float
    by: str
    reason: str
    maybe_duplicate: bool = False
    declarations: tuple[Declaration, ...] = ()


def to_backlog(
    message: Message,
    queue: str,
    diversion: Diversion,
    *,
    max_size: int | None = None,
    size_of: Callable[[Message], int] | None = None,
) -> Message:
    """The form in which a message waits in a backlog queue.

    Arguments:
        queue: the backlog queue's name.
        max_size: bytes the secondary accepts; a larger message is compressed. None: no limit.
        size_of: bytes a message takes there; by default :attr:`Message.size`.

    Raises:
        MessageTooLarge: it does not fit even compressed.
    """
    message = message.identified()
    headers = {_kept_name(name): value for name, value in message.headers.items()}
    headers[PATH] = message.entity.path
    headers[EXCHANGE] = message.exchange
    headers[ROUTING_KEY] = message.routing_key
    headers[FIRST_ATTEMPT] = repr(diversion.first_attempt)
    headers[DIVERTED_AT] = repr(diversion.at)
    headers[DIVERTED_BY] = diversion.by
    headers[DIVERTED_FOR] = diversion.reason
    if diversion.maybe_duplicate:
        headers[MAYBE_DUPLICATE] = "true"
    if diversion.declarations:
        headers[DECLARE] = encode_declarations(diversion.declarations)
    if message.mandatory:
        headers[MANDATORY] = "true"
    properties = dict(message.properties)
    for name, alias in ALIASES.items():
        if properties.get(name) is not None:
            headers[alias] = _as_text(properties.pop(name))
    if properties.get("delivery_mode") != PERSISTENT:
        headers[DELIVERY_MODE] = repr(properties.get("delivery_mode"))
        properties["delivery_mode"] = PERSISTENT
    # Mandatory: a backlog queue that somebody deleted must not swallow the message.
    stored = replace(message, exchange="", routing_key=queue, headers=headers, properties=properties, mandatory=True)
    return _fitted(stored, max_size, size_of or (lambda fitted: fitted.size))


def from_backlog(stored: Message, now: float) -> Message:
    """The message as it was, with what is left of its time to live and of its delay, counted from the send.

    A Celery task whose time ran out comes back without a time to live: it says itself when it expires, and the worker
    revokes it and tells so.

    Arguments:
        now: seconds since 1970, UTC.

    Raises:
        MalformedBacklogMessage: no destination in it, or it cannot be restored.
        ExpiredInBacklog: its time to live has run out, and nobody else would notice.
    """
    headers = stored.headers
    exchange = headers.get(EXCHANGE, "")
    if not all(isinstance(each, str) for each in (headers.get(PATH), headers.get(ROUTING_KEY), exchange)):
        raise MalformedBacklogMessage("NoPath", f"no {PATH} header says where the message should go")
    properties = dict(stored.properties)
    body = _restored_body(stored.body, headers.get(BODY_ENCODING))
    if DELIVERY_MODE in headers:
        _restore_delivery_mode(properties, str(headers[DELIVERY_MODE]))
    for name, alias in ALIASES.items():
        if alias in headers:
            restored = _RESTORE[name](str(headers[alias]), headers, now)
            if restored is not None:
                properties[name] = restored
    return Message(
        body,
        exchange,
        _with_delay_left(exchange, headers[ROUTING_KEY], headers, now),
        stored.priority,
        stored.content_type,
        stored.content_encoding,
        _application_headers(headers),
        properties,
        mandatory=MANDATORY in headers,
    )


def readdressed(stored: Message, queue: str, only: str | None = None) -> Message:
    """A message of the backlog, addressed to another queue of the secondary.

    Arguments:
        queue: that queue's name.
        only: the queue at home that it goes to from now on, and not to whatever its exchange leads to: there are copies
            for the others. None leaves its destination as it is.
    """
    headers = stored.headers
    if only is not None:
        headers = {**headers, PATH: only, EXCHANGE: "", ROUTING_KEY: only}
    return replace(stored, exchange="", routing_key=queue, headers=headers, mandatory=True)


def marked_maybe_duplicate(message: Message) -> Message:
    """A message, in the backlog or on its way, that says from now on that a namespace may have it already."""
    return message.with_headers({MAYBE_DUPLICATE: "true"})


def diversion_of(stored: Message) -> Diversion:
    """Why a message is in the backlog.

    Raises:
        MalformedBacklogMessage: the headers are not those that :func:`to_backlog` writes.
    """
    headers = stored.headers
    declare = headers.get(DECLARE)
    return Diversion(
        first_attempt=_seconds(headers, FIRST_ATTEMPT),
        at=_seconds(headers, DIVERTED_AT),
        by=str(headers.get(DIVERTED_BY, "")),
        reason=str(headers.get(DIVERTED_FOR, "")),
        maybe_duplicate=MAYBE_DUPLICATE in headers,
        declarations=tuple(decode_declarations(str(declare))) if declare else (),
    )


def _fitted(stored: Message, max_size: int | None, size_of: Callable[[Message], int]) -> Message:
    if max_size is None or LARGEST_GROWTH * stored.size < max_size:
        return stored
    size = size_of(stored)
    if size <= max_size:
        return stored
    is_text = isinstance(stored.body, str)
    plain = stored.body.encode() if isinstance(stored.body, str) else stored.body
    small = replace(
        stored,
        body=zlib.compress(plain),
        headers={**stored.headers, BODY_ENCODING: "zlib+text" if is_text else "zlib"},
    )
    small_size = size_of(small)
    if small_size > max_size:
        raise MessageTooLarge(
            f"message {stored.message_id} to {stored.headers[PATH]!r} takes {size} bytes in the backlog "
            f"({small_size} compressed), and the secondary namespace accepts {max_size}"
        )
    return small


def _restored_body(body: bytes | str, encoding: object) -> bytes | str:
    if encoding is None:
        return body
    try:
        plain = zlib.decompress(body)  # type: ignore[arg-type]
        return plain.decode() if encoding == "zlib+text" else plain
    except (TypeError, ValueError, zlib.error) as exc:
        raise MalformedBacklogMessage("MalformedBody", f"the body is not {encoding!r}: {exc}") from exc


def _restore_delivery_mode(properties: dict[str, Any], text: str) -> None:
    if text == "None":
        properties.pop("delivery_mode", None)
        return
    try:
        properties["delivery_mode"] = int(text)
    except ValueError as exc:
        raise MalformedBacklogMessage("MalformedHeader", f"{DELIVERY_MODE} is {text!r}") from exc


def _spent(headers: Mapping[str, Any], now: float) -> float:
    """Seconds since the send; none by a clock that is behind the sender's."""
    return max(0.0, now - _seconds(headers, FIRST_ATTEMPT))


def _with_delay_left(exchange: str, routing_key: str, headers: Mapping[str, Any], now: float) -> str:
    """The routing key with what is left of a native delay, in whole seconds: a worker waits for the ``eta`` itself."""
    found = _DELAY.match(routing_key) if exchange.endswith(_DELAYED) else None
    if found is None:
        return routing_key
    delay = int(found[1].replace(".", ""), 2)
    left = max(0, math.floor(delay - _spent(headers, now)))
    return "".join(f"{digit}." for digit in f"{left:028b}") + routing_key[found.end() :]


def _restored_expiration(text: str, headers: Mapping[str, Any], now: float) -> str | None:
    try:
        time_to_live = int(text)
    except ValueError:
        return text  # as the application wrote it: the primary is to judge it
    spent = 1000 * _spent(headers, now)
    if spent < time_to_live:
        return str(time_to_live - int(spent))
    if headers.get("task") and headers.get("expires"):  # Celery's
        return None
    raise ExpiredInBacklog("TTLExpiredException", f"its {time_to_live} ms to live ran out in the backlog")


def _restored_delay(text: str, headers: Mapping[str, Any], now: float) -> int | str:
    try:
        delay = int(text)
    except ValueError:
        return text
    return max(0, math.floor(delay - _spent(headers, now)))


def _restored_schedule(text: str, headers: Mapping[str, Any], now: float) -> datetime:
    try:
        return datetime.fromisoformat(text)
    except ValueError as exc:
        alias = ALIASES["scheduled_enqueue_time_utc"]
        raise MalformedBacklogMessage("MalformedHeader", f"{alias} is {text!r}") from exc


def _restored_session(text: str, headers: Mapping[str, Any], now: float) -> str:
    return text


_RESTORE: dict[str, Callable[[str, Mapping[str, Any], float], Any]] = {
    "expiration": _restored_expiration,
    "scheduled_enqueue_time_utc": _restored_schedule,
    "session_id": _restored_session,
    "DelaySeconds": _restored_delay,
    "delay_seconds": _restored_delay,
}


def _is_ours(name: str) -> bool:
    return name in _OURS or name.startswith("x-paired-")


def _kept_name(name: str) -> str:
    return KEPT + name if _is_ours(name) else name


@lru_cache(1024)
def _restored_name(name: str) -> str | None:
    """What the application calls a header; None if it is ours."""
    if name.startswith(KEPT):
        return name.removeprefix(KEPT)
    return None if _is_ours(name) else name


def _application_headers(headers: Mapping[str, Any]) -> dict[str, Any]:
    kept = {}
    for name, value in headers.items():
        restored = _restored_name(name)
        if restored is not None:
            kept[restored] = value
    return kept


def _seconds(headers: Mapping[str, Any], name: str) -> float:
    try:
        seconds = float(headers[name])
    except (KeyError, TypeError, ValueError, OverflowError):
        seconds = math.nan
    if not math.isfinite(seconds):
        raise MalformedBacklogMessage("MalformedHeader", f"{name} is {headers.get(name)!r}, not seconds")
    return seconds


def _as_text(value: Any) -> str:
    return value.isoformat() if isinstance(value, datetime) else str(value)


def _length(value: object) -> int:
    if isinstance(value, bytes):
        return len(value)
    text = str(value)
    return len(text) if text.isascii() else len(text.encode("utf-8", "replace"))
