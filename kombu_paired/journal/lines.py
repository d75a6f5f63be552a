"""Which events are written, and as which lines."""

from __future__ import annotations

import math
from json.encoder import encode_basestring_ascii as _quoted

from kombu_paired.events import Event, EventKind
from kombu_paired.journal.format import JOURNAL_VERSION
from kombu_paired.secrets import without_secrets_in_urls

__all__ = ("PER_MESSAGE", "kinds_of", "line_of")

#: Characters of a detail.
LONGEST_DETAIL = 1000

#: Events that happen for each message, and so are left out at level ``transitions``. What went wrong for good
#: (a dead letter, a message that nobody took) is not among them: an operator wants it.
PER_MESSAGE = frozenset(
    {
        EventKind.SENT,
        EventKind.SEND_FAILED,
        EventKind.DIVERTED,
        EventKind.RECEIVED_FROM_BACKLOG,
        EventKind.SYPHONED,
        EventKind.HANDED_OUT,
        EventKind.ABANDONED,
        EventKind.CONSUMED,
    }
)


def kinds_of(level: str) -> frozenset[EventKind]:
    """The events that are written at a level: ``transitions`` or ``messages``."""
    return frozenset(EventKind) - (PER_MESSAGE if level == "transitions" else frozenset())


def line_of(event: Event, host: str, pid: int, number: int) -> str:
    """An event as a line, without its end. Fields that say nothing are left out.

    Put together by hand, in less than half the time of a dict and an encoder: every message pays for it.
    """
    line = f'{{"v":{JOURNAL_VERSION},"time":{_microseconds(event.time) or 0}'
    if (first_attempt := _microseconds(event.first_attempt)) is not None:
        line += f',"first_attempt":{first_attempt}'
    line += f',"host":{_quoted(host)},"pid":{pid},"seq":{number}'
    line += f',"event":"{event.kind.value}","pairing":{_quoted(event.pairing)}'
    if event.entity:
        line += f',"entity":{_quoted(str(event.entity))}'
    if event.message_id is not None:
        line += f',"message_id":{_quoted(event.message_id)}'
    if event.route:
        line += f',"route":{_quoted(event.route)}'
    if event.size is not None:
        line += f',"bytes":{event.size}'
    if event.failure is not None:
        line += f',"failure":{_quoted(event.failure)}'
    if event.seconds is not None and math.isfinite(ms := 1000 * event.seconds):
        line += f',"ms":{ms:.3f}'
    if event.maybe_duplicate:
        line += ',"maybe_duplicate":true'
    if event.detail:
        line += f',"detail":{_quoted(without_secrets_in_urls(event.detail)[:LONGEST_DETAIL])}'
    return line + "}"


def _microseconds(seconds: float | None) -> int | None:
    """None for what 64 bits cannot hold: a foreign message may claim any time."""
    return round(seconds * 1_000_000) if seconds is not None and abs(seconds) < 2**63 / 1_000_000 else None
