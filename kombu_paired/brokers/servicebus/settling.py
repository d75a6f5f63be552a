"""Settling: how the service is told what became of a message, and how its lock is kept until it is."""

from __future__ import annotations

import logging
from collections.abc import Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, field
from typing import Any

from azure.servicebus.exceptions import MessageLockLostError

from kombu_paired.brokers.servicebus import compat_receiving
from kombu_paired.brokers.servicebus.amqp_links import ReceiverLink
from kombu_paired.brokers.servicebus.bounded import bounded

__all__ = ("ABANDON", "COMPLETE", "RELEASE", "Outcome", "dead_letter", "renew", "settle", "settle_all")

logger = logging.getLogger(__name__)


@dataclass(frozen=True)
class Outcome:
    """What becomes of a message."""

    operation: str
    arguments: Mapping[str, str] = field(default_factory=dict)


#: It is done with.
COMPLETE = Outcome("complete")
#: It comes again, and that is one more delivery of those that its queue allows.
ABANDON = Outcome("abandon")
#: It comes again as if it had never come: nobody has begun with it, or who did was told to stop.
RELEASE = Outcome("release")


def dead_letter(reason: str, description: str) -> Outcome:
    """It goes to the dead-letter queue, where an operator finds it with these words."""
    return Outcome("dead_letter", {"reason": reason, "error_description": description})


def settle(link: ReceiverLink, message: Any, outcome: Outcome) -> None:
    """Settle a message that came over this link."""
    getattr(link.opened(), f"{outcome.operation}_message")(message, **outcome.arguments)


def settle_all(link: ReceiverLink, settlements: Sequence[tuple[Any, Outcome]], timeout: float) -> None:
    """Settle many at once. The answer to the last one is waited for; the service answers in turn.

    Raises:
        Exception: what the SDK raises; ``OperationTimeoutError`` when the service stays silent.
    """

    def settle_each() -> None:
        raw = link.opened()
        for message, outcome in settlements:
            compat_receiving.settling_blindly(raw, message is not settlements[-1][0])
            with suppress(MessageLockLostError):  # it comes again
                settle(link, message, outcome)

    if settlements:
        bounded(settle_each, timeout, f"settling in {link.path}", give_up=link.drop)


def renew(link: ReceiverLink, message: Any, timeout: float) -> None:
    """Lock a message, or the session that it belongs to, anew."""
    raw = link.opened()
    session = getattr(raw, "session", None)
    if session is not None:
        session.renew_lock(timeout=timeout)
    else:
        raw.renew_message_lock(message, timeout=timeout)
