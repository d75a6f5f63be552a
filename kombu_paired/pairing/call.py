"""One message on its way, and what is known of it by now."""

from __future__ import annotations

from dataclasses import dataclass

from kombu_paired.deadline import Deadline
from kombu_paired.message import Message

__all__ = ("Call",)


@dataclass(slots=True)
class Call:
    """One message on its way.

    Attributes:
        message: as the application sends it.
        started: when (seconds since 1970, UTC).
        deadline: when the call must be over.
        maybe_stored: a namespace may have the message by now, so that every copy from here on is marked.
        primary, secondary: when its last try there began; None if it had none.
        waits: which side was busy, so that it waited, each time.
    """

    message: Message
    started: float
    deadline: Deadline
    maybe_stored: bool = False
    primary: float | None = None
    secondary: float | None = None
    waits: tuple[str, ...] = ()
