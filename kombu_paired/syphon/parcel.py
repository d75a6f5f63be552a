"""A backlog message, translated: what the primary gets, and what is known of its detour."""

from __future__ import annotations

import time
from collections.abc import Sequence
from dataclasses import dataclass
from functools import cached_property

from kombu_paired.brokers.roles import DeadLetter, Received
from kombu_paired.declarations import Entity
from kombu_paired.errors import MalformedBacklogMessage
from kombu_paired.message import Diversion, Message, diversion_of, from_backlog
from kombu_paired.pairing.doubts import Doubts

__all__ = ("Parcel", "unpack")


@dataclass(eq=False)
class Parcel:
    """A backlog message, translated.

    Attributes:
        maybe_duplicate: the primary may have it already.
        began: when it was sent (seconds since 1970, UTC); None before.
    """

    received: Received
    message: Message
    diversion: Diversion
    maybe_duplicate: bool
    began: float | None = None

    @cached_property
    def entity(self) -> Entity:
        """Where it goes."""
        return self.message.entity


def unpack(batch: Sequence[Received], doubts: Doubts) -> tuple[list[Parcel], list[DeadLetter]]:
    """The parcels of a batch, and the letters that are none: malformed, or expired."""
    now = time.time()
    parcels, letters = [], []
    for received in batch:
        try:
            message, diversion = from_backlog(received.message, now), diversion_of(received.message)
            in_doubt = diversion.maybe_duplicate or received.again or message in doubts
            parcels.append(Parcel(received, message, diversion, in_doubt))
        except MalformedBacklogMessage as exc:
            letters.append(DeadLetter(received, exc.reason, exc.description))
    return parcels, letters
