"""The messages that a queue has, and what becomes of them when nobody receives: schedules, time to live, duplicates.

Pure: the clock is injected, and there is no I/O but the journal's.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable, Iterable
from dataclasses import dataclass, replace
from functools import partial

from kombu_paired.emulator.broker.entities import QueueOptions
from kombu_paired.emulator.broker.errors import Condition, Refusal
from kombu_paired.emulator.broker.journals import Journal, NoJournal
from kombu_paired.emulator.broker.messages import Message, State
from kombu_paired.emulator.broker.timetable import Timetable
from kombu_paired.emulator.wire.envelope import Envelope

__all__ = ("Counts", "Stock")

_SEQUENCES_RESERVED = 1000


@dataclass(frozen=True)
class Counts:
    """The runtime properties of a queue."""

    active: int
    deferred: int
    scheduled: int
    dead_lettered: int
    size: int

    @property
    def total(self) -> int:
        return self.active + self.deferred + self.scheduled + self.dead_lettered


class Stock(ABC):
    """The messages of a queue. How they are received is the business of :class:`.Queue`.

    Arguments:
        path: its full name.
        options: its properties; the owner replaces them to change them.
        clock: seconds since 1970.
        journal: told of every change that must survive.
        dead_letter: where dead letters go; None in a dead-letter queue, whose messages stay where they are.
        timetable: what is due when, of all that tick together; None: of this one alone.

    Attributes:
        outlet: takes each message that becomes active, for topics and forwarding; its false answer keeps it here.
        created, updated, accessed: seconds since 1970.
        size: bytes, of all messages.
    """

    def __init__(
        self,
        path: str,
        options: QueueOptions,
        clock: Callable[[], float],
        journal: Journal | None = None,
        dead_letter: Stock | None = None,
        timetable: Timetable | None = None,
    ) -> None:
        self.path = path
        self.options = options
        self.dead_letter = dead_letter
        self.outlet: Callable[[Message], bool] | None = None
        self.created = self.updated = self.accessed = clock()
        self.size = 0
        self._clock = clock
        self._journal: Journal = journal or NoJournal()
        self._messages: dict[int, Message] = {}
        self._timetable = timetable or Timetable()
        self._history: dict[str, float] = {}
        self._next_sequence = 1
        self._reserved = 0

    @abstractmethod
    def _make_ready(self, message: Message) -> None:
        """Offer a message to whoever receives."""

    # ------------------------------------------------------------------------------------------------------ sending

    def check(self, envelope: Envelope, size: int) -> None:
        """Raise unless this queue takes the message."""
        limit = self.options.max_message_size_in_kilobytes * 1024
        if size > limit:
            raise Refusal(Condition.MESSAGE_SIZE_EXCEEDED, f"{size} bytes are more than {self.path} takes: {limit}")
        for name, value in (("message id", envelope.message_id), ("session id", envelope.session_id)):
            if value is not None and len(value) > 128:
                raise Refusal(Condition.ARGUMENT_ERROR, f"the {name} is longer than 128 characters")
        if self.options.requires_session and not envelope.session_id:
            raise Refusal(Condition.NOT_ALLOWED, f"{self.path} requires sessions: set the session id of the message")

    def check_room(self, size: int) -> None:
        """Raise when the queue is full."""
        if self.size + size > self.options.max_size_in_megabytes * 1024 * 1024:
            raise Refusal(
                Condition.RESOURCE_LIMIT_EXCEEDED,
                f"{self.path} has reached its size of {self.options.max_size_in_megabytes} MB",
            )

    def put(self, message: Message) -> int:
        """Store a message, and its sequence number; 0 for a duplicate, which is dropped."""
        now = self._clock()
        self.accessed = now
        if self._is_duplicate(message.envelope.message_id, now):
            return 0
        message.sequence = self._take_sequence()
        message.enqueued = now
        message.enqueued_sequence = message.enqueued_sequence or message.sequence
        if message.scheduled is not None and message.scheduled > now:
            message.state = State.SCHEDULED
            self._timetable.at(message.scheduled, partial(self._begin, message.sequence))
            self._keep(message)
            return message.sequence
        if self.outlet is not None and self.outlet(message):
            return message.sequence
        self._activate(message)
        return message.sequence

    def cancel_scheduled(self, sequences: Iterable[int]) -> None:
        """Remove scheduled messages; all or none."""
        found = [self._messages.get(sequence) for sequence in sequences]
        if any(message is None or message.state is not State.SCHEDULED for message in found):
            raise Refusal(Condition.MESSAGE_NOT_FOUND, "no scheduled message has that sequence number")
        for message in found:
            if message is not None:
                self._remove(message)

    def _take_sequence(self) -> int:
        sequence = self._next_sequence
        self._next_sequence += 1
        if sequence > self._reserved:
            self._reserved = sequence + _SEQUENCES_RESERVED
            self._journal.sequence_reserved(self.path, self._reserved)
        return sequence

    def _is_duplicate(self, message_id: str | None, now: float) -> bool:
        if not self.options.requires_duplicate_detection or message_id is None:
            return False
        while self._history and next(iter(self._history.values())) <= now:
            del self._history[next(iter(self._history))]
        if message_id in self._history:
            return True
        until = now + self.options.duplicate_detection_history_time_window
        self._history[message_id] = until
        self._journal.duplicate_saved(self.path, message_id, until)
        return False

    def _begin(self, sequence: int) -> None:
        """A scheduled message's time has come: it is enqueued as if it were sent now."""
        message = self._messages.get(sequence)
        if message is None or message.state is not State.SCHEDULED:
            return
        self._remove(message)
        message.sequence, message.enqueued = self._take_sequence(), self._clock()
        message.state = State.ACTIVE
        if self.outlet is None or not self.outlet(message):
            self._activate(message)

    def _activate(self, message: Message) -> None:
        lifetime = min(
            (limit for limit in (self.options.default_message_time_to_live, message.envelope.time_to_live) if limit),
            default=None,
        )
        if lifetime is not None and self.dead_letter is not None:
            message.expires = message.enqueued + lifetime
            self._timetable.at(message.expires, partial(self._expire, message.sequence))
        self._keep(message)
        self._make_ready(message)

    def _keep(self, message: Message) -> None:
        self._messages[message.sequence] = message
        self.size += message.size
        self._journal.message_saved(self.path, message)

    def _remove(self, message: Message) -> None:
        del self._messages[message.sequence]
        self.size -= message.size
        self._journal.message_removed(self.path, message.sequence)

    # -------------------------------------------------------------------------------------------- what nobody takes

    def _return(self, message: Message, counted: bool) -> None:
        """Give a message back to the queue."""
        if counted:
            message.delivery_count += 1
            if message.delivery_count >= self.options.max_delivery_count and self.dead_letter is not None:
                description = f"Message could not be consumed after {message.delivery_count} delivery attempts."
                self._to_dead_letter(message, "MaxDeliveryCountExceeded", description)
                return
            self._journal.message_saved(self.path, message)
        if message.expires is not None and message.expires <= self._clock():
            self._expire(message.sequence)
        elif message.state is State.ACTIVE:
            self._make_ready(message)

    def _to_dead_letter(self, message: Message, reason: str, description: str) -> None:
        if self.dead_letter is None:
            self._return(message, counted=False)
            return
        self._remove(message)
        self.put_dead_letter(message, reason, description)

    def put_dead_letter(self, message: Message, reason: str, description: str) -> None:
        """Store a message as a dead letter of this queue, with the reason in its application properties."""
        if self.dead_letter is None:
            return
        why = {"DeadLetterReason": reason, "DeadLetterErrorDescription": description}
        envelope = message.envelope.with_application_properties({key: text for key, text in why.items() if text})
        dead = replace(message, envelope=envelope, expires=None, scheduled=None, lock=None, state=State.ACTIVE)
        dead.dead_letter_source = self.path
        self.dead_letter.put(dead)

    def _expire(self, sequence: int) -> None:
        message = self._messages.get(sequence)
        if message is None or message.lock is not None or message.expires is None:
            return
        if self.options.dead_lettering_on_message_expiration:
            self._to_dead_letter(message, "TTLExpiredException", "The message expired and was dead lettered.")
        else:
            self._remove(message)

    # ----------------------------------------------------------------------------------------------- time, counting

    def tick(self) -> None:
        """Do what is due."""
        self._timetable.run(self._clock())

    def counts(self) -> Counts:
        """The runtime properties."""
        self.tick()
        by_state = dict.fromkeys(State, 0)
        for message in self._messages.values():
            by_state[message.state] += 1
        dead = 0 if self.dead_letter is None else len(self.dead_letter._messages)
        return Counts(by_state[State.ACTIVE], by_state[State.DEFERRED], by_state[State.SCHEDULED], dead, self.size)

    def peek(self, start: int, count: int, session: str | None = None) -> list[Message]:
        """Up to ``count`` messages from a sequence number on, whatever their state, locked or not."""
        found = (self._messages[sequence] for sequence in sorted(self._messages) if sequence >= start)
        chosen = (message for message in found if session is None or message.envelope.session_id == session)
        return [message for message, _ in zip(chosen, range(count), strict=False)]

    def purge(self) -> None:
        """Forget every message."""
        for message in list(self._messages.values()):
            self._remove(message)

    # ------------------------------------------------------------------------------------------------- from a store

    def restore(self, message: Message) -> None:
        """Put a message back that a store kept. Locks do not survive."""
        self._messages[message.sequence] = message
        self.size += message.size
        self._next_sequence = max(self._next_sequence, message.sequence + 1)
        if message.state is State.SCHEDULED and message.scheduled is not None:
            self._timetable.at(message.scheduled, partial(self._begin, message.sequence))
        if message.expires is not None:
            self._timetable.at(message.expires, partial(self._expire, message.sequence))
        if message.state is State.ACTIVE:
            self._make_ready(message)

    def restore_facts(self, sequence: int, duplicates: list[tuple[str, float]]) -> None:
        """Put back the rest of what a store kept."""
        self._next_sequence = max(self._next_sequence, sequence + 1)
        self._reserved = max(self._reserved, sequence)
        self._history.update(sorted(duplicates, key=lambda entry: entry[1]))
