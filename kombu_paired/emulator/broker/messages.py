"""A stored message, who has it locked, and how it looks to its receiver. Pure."""

from __future__ import annotations

import uuid
from dataclasses import dataclass
from enum import IntEnum
from typing import Any

from kombu_paired.emulator.wire.envelope import Envelope, timestamp, write_delivery

__all__ = ("Lock", "Message", "Outcome", "State", "delivery_of")


class State(IntEnum):
    """What a stored message waits for. The numbers are the service's."""

    ACTIVE = 0
    DEFERRED = 1
    SCHEDULED = 2


class Outcome(IntEnum):
    """What a receiver made of a message."""

    COMPLETE = 0
    ABANDON = 1
    DEFER = 2
    DEAD_LETTER = 3
    RELEASE = 4


@dataclass(slots=True)
class Message:
    """A stored message."""

    envelope: Envelope
    size: int
    sequence: int = 0
    enqueued: float = 0.0
    enqueued_sequence: int = 0
    expires: float | None = None
    scheduled: float | None = None
    delivery_count: int = 0
    state: State = State.ACTIVE
    dead_letter_source: str | None = None
    hops: int = 0
    lock: uuid.UUID | None = None

    def copy(self) -> Message:
        """The same message on its way into another queue."""
        return Message(self.envelope, self.size, hops=self.hops, enqueued_sequence=self.sequence)


@dataclass(slots=True)
class Lock:
    """A message that a receiver has."""

    token: uuid.UUID
    message: Message
    until: float
    session: str | None = None


def delivery_of(message: Message, lock: Lock | None = None) -> bytes:
    """The message as its receiver gets it, with the annotations that the broker writes on it."""
    annotations: dict[str, Any] = {
        "x-opt-sequence-number": message.sequence,
        "x-opt-enqueued-time": timestamp(message.enqueued),
        "x-opt-enqueue-sequence-number": message.enqueued_sequence,
        "x-opt-message-state": int(message.state),
    }
    if lock is not None:
        annotations["x-opt-locked-until"] = timestamp(lock.until)
    if message.dead_letter_source is not None:
        annotations["x-opt-deadletter-source"] = message.dead_letter_source
    return write_delivery(message.envelope, message.delivery_count, annotations)
