"""Kinds of failure, and what each one means for a send.

The kind alone decides; whoever can tell a driver's exception apart (a namespace) names the kind, and nobody
else looks at exceptions (docs/architecture.md, rule 5; docs/failure-kinds.md has the table).
"""

from __future__ import annotations

import enum

__all__ = ("FailureKind", "Response")


class Response(enum.Enum):
    """What the sender does with the message that failed."""

    DIVERT = "divert"  # to a backlog queue
    WAIT = "wait"  # throttle_wait, then send again
    DECLARE = "declare"  # the entity, once, then send again
    RAISE = "raise"


class FailureKind(enum.Enum):
    """How an attempt on a namespace failed."""

    UNREACHABLE = "unreachable"
    TIMEOUT = "timeout"
    FAULT = "fault"
    THROTTLED = "throttled"
    UNAUTHORIZED = "unauthorized"
    REJECTED = "rejected"
    MISSING = "missing"

    @property
    def counts(self) -> bool:
        """Whether it counts towards failing the entity over."""
        return _COUNTS[self]

    @property
    def response(self) -> Response:
        """What becomes of the message."""
        return _RESPONSE[self]


_COUNTS = dict.fromkeys(FailureKind, False) | {
    FailureKind.UNREACHABLE: True,
    FailureKind.TIMEOUT: True,
    FailureKind.FAULT: True,
}

_RESPONSE = {
    FailureKind.UNREACHABLE: Response.DIVERT,
    FailureKind.TIMEOUT: Response.DIVERT,
    FailureKind.FAULT: Response.DIVERT,
    FailureKind.THROTTLED: Response.WAIT,
    FailureKind.UNAUTHORIZED: Response.RAISE,
    FailureKind.REJECTED: Response.RAISE,
    FailureKind.MISSING: Response.DECLARE,
}
