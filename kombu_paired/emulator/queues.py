"""One queue: peek-lock, settlement, deferral, schedules, time to live, duplicates, sessions. Pure.

A subscription is a queue too, and so is a dead-letter queue; a topic keeps its scheduled messages in one.
The clock is injected and there is no I/O: who receives, and over what, is not known here.
"""

from __future__ import annotations

import heapq
import uuid
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass, field, replace
from enum import IntEnum
from functools import partial
from typing import Protocol

from kombu_paired.emulator.entities import QueueOptions
from kombu_paired.emulator.envelope import Envelope
from kombu_paired.emulator.errors import Condition, Refusal

__all__ = ("Counts", "Journal", "Lock", "Message", "NoJournal", "Outcome", "Queue", "State")


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


@dataclass(slots=True)
class Session:
    """The messages of one session, and who has it locked."""

    ready: list[int] = field(default_factory=list)
    state: bytes | None = None
    owner: object = None
    until: float = 0.0


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


class Journal(Protocol):
    """Where a queue writes down what must survive."""

    def message_saved(self, path: str, message: Message) -> None: ...
    def message_removed(self, path: str, sequence: int) -> None: ...
    def session_saved(self, path: str, session: str, state: bytes | None) -> None: ...
    def duplicate_saved(self, path: str, message_id: str, until: float) -> None: ...
    def sequence_reserved(self, path: str, sequence: int) -> None: ...


class NoJournal:
    """Nothing survives."""

    def message_saved(self, path: str, message: Message) -> None:
        """Nothing to do."""

    def message_removed(self, path: str, sequence: int) -> None:
        """Nothing to do."""

    def session_saved(self, path: str, session: str, state: bytes | None) -> None:
        """Nothing to do."""

    def duplicate_saved(self, path: str, message_id: str, until: float) -> None:
        """Nothing to do."""

    def sequence_reserved(self, path: str, sequence: int) -> None:
        """Nothing to do."""


_SEQUENCES_RESERVED = 1000


class Queue:
    """The messages of one queue, subscription or dead-letter queue.

    Arguments:
        path: its full name.
        options: its properties; the owner replaces them to change them.
        clock: seconds since 1970.
        journal: told of every change that must survive.
        dead_letter: where dead letters go; None in a dead-letter queue, whose messages stay where they are.
        outlet: takes each message that becomes active, for topics and forwarding; its false answer keeps it here.
        on_ready: called when a message can be received.
    """

    def __init__(
        self,
        path: str,
        options: QueueOptions,
        clock: Callable[[], float],
        journal: Journal | None = None,
        dead_letter: Queue | None = None,
        outlet: Callable[[Message], bool] | None = None,
        on_ready: Callable[[Queue], None] | None = None,
    ) -> None:
        self.path = path
        self.options = options
        self.dead_letter = dead_letter
        self.outlet = outlet
        self.attached = 0
        self.created = self.updated = self.accessed = clock()
        self.size = 0
        self._clock = clock
        self._journal: Journal = journal or NoJournal()
        self._on_ready = on_ready or (lambda queue: None)
        self._messages: dict[int, Message] = {}
        self._ready: list[int] = []
        self._sessions: dict[str, Session] = {}
        self._locks: dict[uuid.UUID, Lock] = {}
        self._due: list[tuple[float, int, Callable[[], None]]] = []
        self._ticket = 0
        self._history: dict[str, float] = {}
        self._next_sequence = 1
        self._reserved = 0

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
            self._at(message.scheduled, partial(self._begin, message.sequence))
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
            self._at(message.expires, partial(self._expire, message.sequence))
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

    def _make_ready(self, message: Message) -> None:
        ready = self._ready
        if self.options.requires_session:
            ready = self._sessions.setdefault(message.envelope.session_id or "", Session()).ready
        heapq.heappush(ready, message.sequence)
        self._on_ready(self)

    # ---------------------------------------------------------------------------------------------------- receiving

    def receive(self, session: str | None = None) -> Lock | None:
        """Lock the next message, or None."""
        message = self._next(session)
        if message is None:
            return None
        return self._lock(message, session)

    def receive_and_delete(self, session: str | None = None) -> Message | None:
        """Remove the next message, or None."""
        message = self._next(session)
        if message is not None:
            self._remove(message)
        return message

    def receive_deferred(self, sequences: Iterable[int], delete: bool, session: str | None) -> list[Lock]:
        """Lock, or remove, the deferred messages of these numbers; all or none."""
        messages = [self._messages.get(sequence) for sequence in sequences]
        found = [message for message in messages if message is not None and message.state is State.DEFERRED]
        if len(found) != len(messages) or any(message.lock for message in found):
            raise Refusal(Condition.MESSAGE_NOT_FOUND, "no deferred message has that sequence number")
        if not delete:
            return [self._lock(message, session) for message in found]
        for message in found:
            self._remove(message)
        return [Lock(uuid.UUID(int=0), message, 0.0) for message in found]

    def peek(self, start: int, count: int, session: str | None = None) -> list[Message]:
        """Up to ``count`` messages from a sequence number on, whatever their state, locked or not."""
        found = (self._messages[sequence] for sequence in sorted(self._messages) if sequence >= start)
        chosen = (message for message in found if session is None or message.envelope.session_id == session)
        return [message for message, _ in zip(chosen, range(count), strict=False)]

    def _next(self, session: str | None) -> Message | None:
        self.tick()
        ready = self._ready if session is None else self._session(session).ready
        self.accessed = self._clock()
        return next(self._pop(ready), None)

    def _pop(self, ready: list[int]) -> Iterator[Message]:
        while ready:
            message = self._messages.get(heapq.heappop(ready))
            if message is not None and message.state is State.ACTIVE and message.lock is None:
                yield message

    def _lock(self, message: Message, session: str | None) -> Lock:
        token = uuid.uuid4()
        until = self._clock() + self.options.lock_duration
        if session is not None:
            until = self._session(session).until
        else:
            self._at(until, partial(self._lock_expired, token))
        message.lock = token
        lock = self._locks[token] = Lock(token, message, until, session)
        return lock

    def renew(self, token: uuid.UUID) -> float:
        """Start the lock's time again; until when it lasts now."""
        lock = self._lock_of(token)
        lock.until = self._clock() + self.options.lock_duration
        self._at(lock.until, partial(self._lock_expired, token))
        return lock.until

    def _lock_of(self, token: uuid.UUID) -> Lock:
        self.tick()
        if token not in self._locks:
            raise Refusal(
                Condition.MESSAGE_LOCK_LOST,
                "The lock supplied is invalid. Either the lock expired, or the message has already been removed "
                f"from the queue, or was received by a different receiver instance. Reference: {self.path}",
            )
        return self._locks[token]

    # --------------------------------------------------------------------------------------------------- settlement

    def settle(self, token: uuid.UUID, outcome: Outcome, reason: str = "", description: str = "") -> None:
        """Do with a locked message as its receiver says."""
        message = self._lock_of(token).message
        del self._locks[token]
        message.lock = None
        if outcome is Outcome.COMPLETE:
            self._remove(message)
        elif outcome is Outcome.DEFER:
            message.state = State.DEFERRED
            self._journal.message_saved(self.path, message)
        elif outcome is Outcome.DEAD_LETTER:
            self._to_dead_letter(message, reason, description)
        else:
            self._return(message, counted=outcome is Outcome.ABANDON)

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

    def _lock_expired(self, token: uuid.UUID) -> None:
        lock = self._locks.get(token)
        if lock is None or lock.until > self._clock():
            return
        del self._locks[token]
        lock.message.lock = None
        self._return(lock.message, counted=True)

    def _expire(self, sequence: int) -> None:
        message = self._messages.get(sequence)
        if message is None or message.lock is not None or message.expires is None:
            return
        if self.options.dead_lettering_on_message_expiration:
            self._to_dead_letter(message, "TTLExpiredException", "The message expired and was dead lettered.")
        else:
            self._remove(message)

    # ----------------------------------------------------------------------------------------------------- sessions

    def accept_session(self, session_id: str | None, owner: object) -> str | None:
        """Lock a session, or the next one that has messages and no owner; None when there is none yet."""
        self.tick()
        if not self.options.requires_session:
            raise Refusal(Condition.NOT_ALLOWED, f"{self.path} has no sessions: receive without a session id")
        if session_id is None:
            free = [(min(s.ready), key) for key, s in self._sessions.items() if s.owner is None and self._alive(s)]
            if not free:
                return None
            session_id = min(free)[1]
        session = self._sessions.setdefault(session_id, Session())
        if session.owner is not None and session.owner is not owner:
            raise Refusal(
                Condition.SESSION_CANNOT_BE_LOCKED, f"the session {session_id!r} is locked by another receiver"
            )
        session.owner = owner
        self.renew_session(session_id)
        return session_id

    def _alive(self, session: Session) -> bool:
        """Whether a session has a message to receive; numbers of messages that are gone are dropped on the way."""
        session.ready[:] = [number for number in session.ready if number in self._messages]
        heapq.heapify(session.ready)
        return bool(session.ready)

    def renew_session(self, session_id: str) -> float:
        """Start a session lock's time again; until when it lasts now."""
        session = self._session(session_id)
        session.until = self._clock() + self.options.lock_duration
        for lock in self._locks.values():
            if lock.session == session_id:
                lock.until = session.until
        self._at(session.until, partial(self._session_expired, session_id))
        return session.until

    def session_lasts_until(self, session_id: str) -> float:
        """Until when a session is locked."""
        return self._session(session_id).until

    def owns_session(self, session_id: str, owner: object) -> bool:
        """Whether this owner still has the session."""
        self.tick()
        session = self._sessions.get(session_id)
        return session is not None and session.owner is owner

    def release_session(self, session_id: str, owner: object) -> None:
        """Give a session up. Its locked messages go back uncounted, as in the service."""
        session = self._sessions.get(session_id)
        if session is not None and session.owner is owner:
            self._free(session_id, session, counted=False)

    def session_state(self, session_id: str) -> bytes | None:
        """The state that its receivers keep with a session."""
        return self._session(session_id).state

    def set_session_state(self, session_id: str, state: bytes | None) -> None:
        """Replace it."""
        self._session(session_id).state = state
        self._journal.session_saved(self.path, session_id, state)

    def session_ids(self) -> list[str]:
        """The sessions with messages or a state."""
        with_messages = {message.envelope.session_id or "" for message in self._messages.values()}
        with_state = {key for key, session in self._sessions.items() if session.state is not None}
        return sorted(with_messages | with_state) if self.options.requires_session else []

    def _session(self, session_id: str) -> Session:
        session = self._sessions.get(session_id)
        if session is None or session.owner is None:
            raise Refusal(Condition.SESSION_LOCK_LOST, f"the lock on the session {session_id!r} is lost")
        return session

    def _session_expired(self, session_id: str) -> None:
        session = self._sessions.get(session_id)
        if session is not None and session.owner is not None and session.until <= self._clock():
            self._free(session_id, session, counted=True)

    def _free(self, session_id: str, session: Session, counted: bool) -> None:
        session.owner = None
        for token in [token for token, lock in self._locks.items() if lock.session == session_id]:
            message = self._locks.pop(token).message
            message.lock = None
            self._return(message, counted)
        self._on_ready(self)

    # ------------------------------------------------------------------------------------------------ time, counting

    def _at(self, when: float, action: Callable[[], None]) -> None:
        self._ticket += 1
        heapq.heappush(self._due, (when, self._ticket, action))

    def tick(self) -> None:
        """Do what is due."""
        now = self._clock()
        while self._due and self._due[0][0] <= now:
            heapq.heappop(self._due)[2]()

    def counts(self) -> Counts:
        """The runtime properties."""
        self.tick()
        by_state = dict.fromkeys(State, 0)
        for message in self._messages.values():
            by_state[message.state] += 1
        dead = 0 if self.dead_letter is None else len(self.dead_letter._messages)
        return Counts(by_state[State.ACTIVE], by_state[State.DEFERRED], by_state[State.SCHEDULED], dead, self.size)

    def purge(self) -> None:
        """Forget every message."""
        for message in list(self._messages.values()):
            self._remove(message)
        self._locks.clear()

    # ------------------------------------------------------------------------------------------------- from a store

    def restore(self, message: Message) -> None:
        """Put a message back that a store kept. Locks do not survive."""
        self._messages[message.sequence] = message
        self.size += message.size
        self._next_sequence = max(self._next_sequence, message.sequence + 1)
        if message.state is State.SCHEDULED and message.scheduled is not None:
            self._at(message.scheduled, partial(self._begin, message.sequence))
        if message.expires is not None:
            self._at(message.expires, partial(self._expire, message.sequence))
        if message.state is State.ACTIVE:
            self._make_ready(message)

    def restore_facts(
        self, sequence: int, sessions: dict[str, bytes | None], duplicates: list[tuple[str, float]]
    ) -> None:
        """Put back the rest of what a store kept."""
        self._next_sequence = max(self._next_sequence, sequence + 1)
        self._reserved = max(self._reserved, sequence)
        for key, state in sessions.items():
            self._sessions.setdefault(key, Session()).state = state
        self._history.update(sorted(duplicates, key=lambda entry: entry[1]))
