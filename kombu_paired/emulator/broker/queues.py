"""One queue as its receivers see it: peek-lock, settlement, deferral, sessions. Pure.

A subscription is a queue too, and so is a dead-letter queue; a topic keeps its scheduled messages in one.
Who receives, and over what, is not known here.
"""

from __future__ import annotations

import heapq
import uuid
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass, field
from functools import partial

from kombu_paired.emulator.broker.entities import QueueOptions
from kombu_paired.emulator.broker.errors import Condition, Refusal, lock_lost
from kombu_paired.emulator.broker.journals import Journal
from kombu_paired.emulator.broker.messages import Lock, Message, Outcome, State
from kombu_paired.emulator.broker.stock import Stock
from kombu_paired.emulator.broker.timetable import Timetable

__all__ = ("Queue",)


@dataclass(slots=True)
class _Session:
    """The messages of one session, and who has it locked."""

    ready: list[int] = field(default_factory=list)
    state: bytes | None = None
    owner: object = None
    until: float = 0.0


class Queue(Stock):
    """The messages of one queue, subscription or dead-letter queue.

    Arguments:
        path, options, clock, journal, dead_letter, timetable: as :class:`.Stock` has them.
        on_ready: called when a message can be received.

    Attributes:
        attached: how many receivers it has.
    """

    dead_letter: Queue | None

    def __init__(
        self,
        path: str,
        options: QueueOptions,
        clock: Callable[[], float],
        journal: Journal | None = None,
        dead_letter: Queue | None = None,
        on_ready: Callable[[Queue], None] | None = None,
        timetable: Timetable | None = None,
    ) -> None:
        super().__init__(path, options, clock, journal, dead_letter, timetable)
        self.attached = 0
        self._on_ready = on_ready or (lambda queue: None)
        self._ready: list[int] = []
        self._sessions: dict[str, _Session] = {}
        self._locks: dict[uuid.UUID, Lock] = {}

    def _make_ready(self, message: Message) -> None:
        ready = self._ready
        if self.options.requires_session:
            ready = self._sessions.setdefault(message.envelope.session_id or "", _Session()).ready
        heapq.heappush(ready, message.sequence)
        self._on_ready(self)

    def purge(self) -> None:
        super().purge()
        self._locks.clear()

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
            self._timetable.at(until, partial(self._lock_expired, token))
        message.lock = token
        lock = self._locks[token] = Lock(token, message, until, session)
        return lock

    def renew(self, token: uuid.UUID) -> float:
        """Start the lock's time again; until when it lasts now."""
        lock = self._lock_of(token)
        lock.until = self._clock() + self.options.lock_duration
        self._timetable.at(lock.until, partial(self._lock_expired, token))
        return lock.until

    def _lock_of(self, token: uuid.UUID) -> Lock:
        self.tick()
        if token not in self._locks:
            raise lock_lost(self.path)
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

    def _lock_expired(self, token: uuid.UUID) -> None:
        lock = self._locks.get(token)
        if lock is None or lock.until > self._clock():
            return
        del self._locks[token]
        lock.message.lock = None
        self._return(lock.message, counted=True)

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
        session = self._sessions.setdefault(session_id, _Session())
        if session.owner is not None and session.owner is not owner:
            raise Refusal(
                Condition.SESSION_CANNOT_BE_LOCKED, f"the session {session_id!r} is locked by another receiver"
            )
        session.owner = owner
        self.renew_session(session_id)
        return session_id

    def _alive(self, session: _Session) -> bool:
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
        self._timetable.at(session.until, partial(self._session_expired, session_id))
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

    def restore_session_state(self, session_id: str, state: bytes | None) -> None:
        """Put a state back that a store kept."""
        self._sessions.setdefault(session_id, _Session()).state = state

    def session_ids(self) -> list[str]:
        """The sessions with messages or a state."""
        with_messages = {message.envelope.session_id or "" for message in self._messages.values()}
        with_state = {key for key, session in self._sessions.items() if session.state is not None}
        return sorted(with_messages | with_state) if self.options.requires_session else []

    def _session(self, session_id: str) -> _Session:
        session = self._sessions.get(session_id)
        if session is None or session.owner is None:
            raise Refusal(Condition.SESSION_LOCK_LOST, f"the lock on the session {session_id!r} is lost")
        return session

    def _session_expired(self, session_id: str) -> None:
        session = self._sessions.get(session_id)
        if session is not None and session.owner is not None and session.until <= self._clock():
            self._free(session_id, session, counted=True)

    def _free(self, session_id: str, session: _Session, counted: bool) -> None:
        session.owner = None
        for token in [token for token, lock in self._locks.items() if lock.session == session_id]:
            message = self._locks.pop(token).message
            message.lock = None
            self._return(message, counted)
        self._on_ready(self)
