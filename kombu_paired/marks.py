"""What a message says of its way to the task that it starts: whether it was diverted, and whether there may be two.

It says so in headers, which a worker hands on to the task's request, and a retry to the next message.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from kombu_paired.message import DIVERTED_AT, MAYBE_DUPLICATE, Message

__all__ = ("marked", "maybe_duplicate", "was_diverted")


def maybe_duplicate(request: Any) -> bool:
    """Whether a task's message may have been stored twice, so that another copy may have run before.

    A copy that is not marked was stored before the one that is. So this one need look whether it ran before, and the
    other ones need not (``docs/duplicates.md`` says what that does not cover). Retries of a marked task are marked, and
    so is what it publishes while it runs: the next task of a chain has the same id the second time.

    Arguments:
        request: ``self.request`` of a bound task; a worker's request, as Celery's signals have it; or a Kombu message.
    """
    return MAYBE_DUPLICATE in _headers_of(request)


def was_diverted(request: Any) -> bool:
    """Whether a task's message, or the one that it is a retry of, went through the backlog.

    Arguments:
        request: as for :func:`maybe_duplicate`.
    """
    return DIVERTED_AT in _headers_of(request)


def marked(message: Message, diverted_at: float, in_doubt: bool) -> Message:
    """A message of the backlog as its task is to see it.

    Arguments:
        diverted_at: when it was diverted (seconds since 1970, UTC).
        in_doubt: a namespace may have it already.
    """
    marks = {DIVERTED_AT: repr(diverted_at)}
    if in_doubt:
        marks[MAYBE_DUPLICATE] = "true"
    return message.with_headers(marks)


def _headers_of(request: Any) -> Mapping[str, Any]:
    return getattr(request, "headers", None) or getattr(request, "request_dict", None) or {}
