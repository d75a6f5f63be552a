"""The pairing: one primary and one secondary, joined in one process. :meth:`Pairing.send` is the whole send path.

All connections, channels and threads of a process share it, and with it what is known of every entity's health.
"""

from __future__ import annotations

import atexit
import logging
import os
import socket
import threading
import time
from collections import deque
from collections.abc import Callable, Iterator, Sequence
from typing import Any

from kombu_paired import events, journal
from kombu_paired.circuit import CircuitState, EntityCircuits, NamespaceReach, Transition
from kombu_paired.declarations import DeclarationBook, Entity
from kombu_paired.errors import (
    BacklogUnavailable,
    ConfigurationError,
    MessageTooLarge,
    NamespaceFailure,
    NamespaceUnauthorized,
    PairingClosed,
    PrimaryUnavailable,
)
from kombu_paired.events import Event, EventKind, EventStream
from kombu_paired.failures import FailureKind, Response
from kombu_paired.message import BACKLOG_MARK, LARGEST_GROWTH, Diversion, Message, to_backlog
from kombu_paired.namespaces.base import Namespace, Sender
from kombu_paired.options import PairedNamespaceOptions
from kombu_paired.ping import Pinger
from kombu_paired.rotation import BacklogRotation

__all__ = ("BacklogSender", "Pairing", "SenderPool", "inherit", "shared")

logger = logging.getLogger(__name__)

#: Seconds for which not reaching a namespace is known to everybody.
FRESH = 2.0
#: Part of ``send_timeout`` that a primary has for a declaration when the last that is known of it is a failure: Kombu
#: has napped before, and the send that follows has a time limit, too.
SECOND_LOOK = 0.5
#: Waits that a namespace gets that says it is busy, before the message is diverted.
THROTTLE_WAITS = 3
#: Seconds for which :meth:`Pairing.close` says goodbye on idle connections; the rest is dropped.
GOODBYES = 1.0


class SenderPool:
    """Idle senders of one namespace; the one that was used last comes first."""

    def __init__(self, make: Callable[[], Any]) -> None:
        self._make = make
        self._idle: deque[Any] = deque()

    def take(self) -> Any:
        try:
            return self._idle.pop()
        except IndexError:
            return self._make()

    def give_back(self, sender: Any) -> None:
        self._idle.append(sender)

    def drop_idle(self) -> None:
        """Their connections are as dead as the one that just failed."""
        for sender in self._take_all():
            sender.drop()

    def close(self) -> None:
        """Say goodbye on the idle ones, as far as time allows."""
        deadline = time.monotonic() + GOODBYES
        for sender in self._take_all():
            if time.monotonic() < deadline:
                sender.close()
            else:
                sender.drop()

    def _take_all(self) -> Iterator[Any]:
        while True:
            try:
                yield self._idle.pop()
            except IndexError:
                return


class BacklogSender:
    """A sender to the secondary, and the backlog queue it stays with."""

    def __init__(self, sender: Sender) -> None:
        self.sender = sender
        self.queue: str | None = None

    def close(self) -> None:
        self.sender.close()

    def drop(self) -> None:
        self.sender.drop()


class Pairing:
    """Joins a primary to a secondary namespace.

    Arguments:
        name: the primary's name; it names the backlog queues.
        options: the settings.
        primary, secondary: the two namespaces.
        clock: monotonic seconds.
        wall_clock: seconds since 1970, UTC.
        sleep: how to wait while a namespace is busy.

    Attributes:
        events: what happens here; listeners of every pairing are in :data:`kombu_paired.events.everywhere`.
        book: what the application declared.
        backlog_queue_count: how many backlog queues are usable; 0 while the secondary has not been reached.
    """

    def __init__(
        self,
        name: str,
        options: PairedNamespaceOptions,
        primary: Namespace,
        secondary: Namespace,
        *,
        clock: Callable[[], float] = time.monotonic,
        wall_clock: Callable[[], float] = time.time,
        sleep: Callable[[float], None] = time.sleep,
    ) -> None:
        self.name = name
        self.options = options
        self.primary = primary
        self.secondary = secondary
        self.events = EventStream()
        if options.journal is not None:
            journal.keep(options.journal, options.journal_level, self.events)
        self.book = DeclarationBook()
        self.circuits = EntityCircuits(options.failover_interval, clock)
        self.rotation = BacklogRotation((), options.backlog_retry_interval, clock)
        self.closed = False
        self._clock = clock
        self._wall_clock = wall_clock
        self._sleep = sleep
        self._when_closing: list[Callable[[], None]] = []
        self._opening = threading.Lock()
        self._was_opened = False
        patience = 3 * options.send_timeout
        self._primary_reach = NamespaceReach(FRESH, patience, clock)
        self._secondary_reach = NamespaceReach(FRESH, patience, clock)
        self._senders = SenderPool(primary.sender)
        self._backlog_senders = SenderPool(lambda: BacklogSender(secondary.sender()))
        self._pinger = Pinger(self._ping, options.ping_interval, name=f"kombu-paired-ping-{name}", clock=clock)
        self._last_failure: NamespaceFailure | None = None
        self._stranded: deque[Message] = deque()
        self._sender_id = f"{socket.gethostname()}/{os.getpid()}"

    def __repr__(self) -> str:
        return f"<Pairing {self.name}: {self.primary.uri} + {self.secondary.uri}>"

    # -- opening and closing ------------------------------------------------------------------------------------

    @property
    def backlog_queue_count(self) -> int:
        return len(self.rotation)

    @property
    def backlog_queue_names(self) -> list[str]:
        """The backlog queues that the settings name, usable or not."""
        return [f"{self.name}{BACKLOG_MARK}{i}" for i in range(self.options.backlog_queue_count)]

    def open(self) -> None:
        """Make sure that the backlog queues exist, the first time it is called.

        A secondary that is away is a warning, and tried again when it is needed. So is a primary that is away: it
        is not even asked.

        Raises:
            NamespaceUnauthorized: the secondary refuses the credentials.
            ConfigurationError: it has no usable backlog queue.
            PairingClosed: the pairing was closed.
        """
        self._require_open()
        if self._was_opened:
            return
        failure = self._find_backlog_queues_once()
        self._was_opened = True
        if failure is not None:
            logger.warning(
                "pairing %s: %s. Nothing is lost while the primary namespace works, and the secondary is tried "
                "again when it is needed",
                self.name,
                failure,
            )

    def _find_backlog_queues_once(self) -> NamespaceFailure | None:
        """Find them unless somebody did; the failure if the secondary is away."""
        if not self._opening.acquire(timeout=self.options.send_timeout):
            return self._secondary_reach.fresh_failure() or self._no_backlog_queue()
        try:
            if not self.backlog_queue_count:
                self._find_backlog_queues()
        except NamespaceFailure as failure:
            if failure.kind is FailureKind.UNAUTHORIZED:
                raise self._unauthorized(failure) from failure.cause
            if not failure.kind.counts:
                raise ConfigurationError(f"{failure}; the pairing cannot use its backlog queues") from failure
            self._secondary_reach.failed(failure)
            return failure
        finally:
            self._opening.release()
        return None

    def _find_backlog_queues(self) -> None:
        options = self.options
        usable = self.secondary.ensure_backlog_queues(
            self.backlog_queue_names, options.create_backlog_queues, options.send_timeout
        )
        self._secondary_reach.reached()
        if not usable:
            raise ConfigurationError(
                f"none of the {options.backlog_queue_count} backlog queues {self.backlog_queue_names[0]} … exists on "
                f"{self.secondary.label}, and create_backlog_queues is False: create them, or let the pairing do it"
            )
        if len(usable) < options.backlog_queue_count:
            logger.warning(
                "pairing %s: %d of %d backlog queues are usable", self.name, len(usable), options.backlog_queue_count
            )
        self.rotation = BacklogRotation(usable, options.backlog_retry_interval, self._clock)

    def close(self) -> None:
        """Let go of everything, promptly. Messages are unaffected."""
        if self.closed:
            return
        self.closed = True
        self._say_what_is_lost()
        for stop in self._when_closing:
            stop()
        self._pinger.close()
        self._senders.close()
        self._backlog_senders.close()
        self.primary.close()
        self.secondary.close()
        self.emit(EventKind.CLOSED)

    def when_closing(self, stop: Callable[[], None]) -> None:
        """Call ``stop`` when the pairing is closed: what runs on it ends with it."""
        self._when_closing.append(stop)

    def _require_open(self) -> None:
        for namespace in (self.primary, self.secondary):
            if self.closed or namespace.closed:
                raise PairingClosed(
                    f"pairing {self.name} is closed ({namespace.label}): open a new connection to send again"
                )

    # -- sending ------------------------------------------------------------------------------------------------

    def send(self, message: Message) -> None:
        """Send a message to its entity on the primary, or to a backlog queue.

        Takes at most ``send_timeout`` on each of the two namespaces, and ``throttle_wait`` for each time one says
        that it is busy.

        Raises:
            BacklogUnavailable: neither namespace took it.
            NamespaceUnauthorized: a namespace refuses the credentials.
            MessageTooLarge: it does not fit the backlog.
            PairingClosed: the pairing was closed.
            Exception: what the plain transport would raise, for a message the primary rejects, for a transient one,
                and in general when ``divert_while_suspect`` is off.
        """
        if self.closed or self.primary.closed or self.secondary.closed:
            self._require_open()
        started = self._wall_clock()
        if self._is_worth_nothing_later(message):
            self._send_transient(message)
            return
        if self.circuits and self._is_failed_over(message.entity):
            self._divert(message, started, None)
            return
        failure = self._try_primary(message)
        if failure is None:
            self._sent(message, started)
        else:
            self._failed(message, started, failure)

    def divert_stranded(self, message: Message, failure: NamespaceFailure) -> None:
        """Divert a message that a consumer took out of a primary which then failed: nobody else knows of it.

        If the secondary does not take it, it waits here until the primary is reached.
        """
        logger.warning("pairing %s: a message of %s was just being taken: %s", self.name, message.entity.path, failure)
        try:
            self._failed(message, self._wall_clock(), failure)
        except Exception as exc:
            self._keep_stranded(message, exc)

    def _send_what_is_stranded(self) -> None:
        while self._stranded:
            try:
                message = self._stranded.popleft()
            except IndexError:
                return  # another thread has it
            try:
                self.send(message)
            except Exception as exc:
                self._keep_stranded(message, exc)
                return

    def _keep_stranded(self, message: Message, reason: Exception) -> None:
        self._stranded.appendleft(message)
        logger.error(
            "pairing %s: %d messages that were just being taken wait in this process until the primary is reached: %s",
            self.name,
            len(self._stranded),
            reason,
        )

    def _say_what_is_lost(self) -> None:
        if self._stranded:
            logger.critical(
                "pairing %s: messages that neither namespace took are lost with this process: %s",
                self.name,
                ", ".join(f"{message.message_id} of {message.entity.path}" for message in self._stranded),
            )

    def send_batch(self, messages: Sequence[Message]) -> None:
        """Send many at once, with the promises of :meth:`send` for each of them."""
        started = self._wall_clock()
        healthy: list[Message] = []
        others: list[Message] = []
        for message in messages:
            simple = (
                not self._is_worth_nothing_later(message)
                and self.circuits.state(message.entity) is CircuitState.HEALTHY
            )
            (healthy if simple else others).append(message)
        if healthy:
            for message, failure in zip(healthy, self._try_primary_with(healthy), strict=True):
                if failure is None:
                    self._sent(message, started)
                elif failure.kind.counts:
                    self._failed(message, started, failure)
                else:
                    others.append(message)  # alone, so that it waits, is declared or raises on its own account
        for message in others:
            self.send(message)

    def declare(self, operation: str, arguments: dict[str, Any]) -> Any:
        """Declare something on the primary, and remember it.

        While the primary is away it is only noted: a diverted message carries it, and a new link repeats it.

        Returns:
            The broker's answer; None if it was only noted.

        Raises:
            Exception: what the plain transport would raise when the primary refuses.
        """
        declaration = self.book.note(operation, arguments)
        if self._is_known_away():
            return None
        share = SECOND_LOOK if self._primary_reach.has_failed else 1.0
        sender: Sender = self._senders.take()
        try:
            # An answer proves nothing: a virtual transport gives one without asking the broker.
            answer = self._reaching_primary(
                lambda left: sender.declare_one(declaration, self.book, left * share), sender
            )
        except NamespaceFailure as failure:
            if failure.kind is FailureKind.TIMEOUT:
                self._primary_reach.failed(failure)  # so that the publish that follows need not wait again
            if failure.kind.counts:
                sender.drop()
                return None
            self._senders.give_back(sender)
            raise self._as_raised(failure) from failure.cause
        self._senders.give_back(sender)
        return answer

    def require_sendable(self) -> None:
        """Raise what a send would raise, when it is known that neither namespace can be reached.

        Kombu waits between two tries to connect, and only there: this is what its retry policy waits for.

        Raises:
            BacklogUnavailable: both are away.
        """
        secondary = self._secondary_reach.fresh_failure()
        if secondary is None:
            return
        primary = self._primary_reach.fresh_failure()
        if primary is not None or self.circuits.failed_over():
            raise BacklogUnavailable(self._both(primary, secondary))

    def primary_was_reached(self) -> None:
        """A consumer has just connected to it: it is not away as a whole."""
        self._primary_reach.reached()
        self._send_what_is_stranded()

    def mark_healthy(self, entity: Entity) -> None:
        """Restore an entity by hand; a failure that counts will suspect it again."""
        self._note(entity, self.circuits.restored(entity), detail="by hand")

    def _is_worth_nothing_later(self, message: Message) -> bool:
        """Transient by its delivery mode, or by its exchange: Celery's remote control only says it that way."""
        return message.is_transient or (bool(message.exchange) and self.book.is_transient(message.exchange))

    def _is_failed_over(self, entity: Entity) -> bool:
        return self._note(entity, self.circuits.asked(entity)).after is CircuitState.FAILED_OVER

    def _is_known_away(self) -> bool:
        """The primary as a whole, by a fresh failure, or by one that pings have not disproved."""
        if not self._primary_reach.has_failed:
            return False
        return self._primary_reach.fresh_failure() is not None or bool(self.circuits.failed_over())

    def _send_transient(self, message: Message) -> None:
        known = self._primary_reach.last_failure if self._is_known_away() else None
        failure = known or self._try_primary(message)
        if failure is None:
            return
        if failure.kind is FailureKind.FAULT and self.book.is_transient(message.exchange):
            # A worker that starts greets the others, and would end; it is there to empty a broker in alarm.
            logger.info("pairing %s: remote control to %s is dropped: %s", self.name, message.entity.path, failure)
        elif known is not None:
            raise PrimaryUnavailable(
                f"{self.primary.label} is away, and a transient message to {message.entity.path!r} is worth nothing "
                "later"
            )
        else:
            raise self._as_raised(failure) from failure.cause

    def _failed(self, message: Message, started: float, failure: NamespaceFailure) -> None:
        """The primary did not take the message: divert it, or raise."""
        if failure.kind.response is Response.RAISE or failure.kind is FailureKind.MISSING:
            raise self._as_raised(failure) from failure.cause
        entity = message.entity
        if failure.kind.counts:
            self._last_failure = failure
            self._note(entity, self.circuits.failed(entity), failure)
        self._emit_message(EventKind.SEND_FAILED, message, started, failure=failure, route="primary")
        is_over = self.circuits.state(entity) is CircuitState.FAILED_OVER
        if not is_over and not self.options.divert_while_suspect:
            raise self._as_raised(failure) from failure.cause
        self._divert(message, started, failure)

    def _sent(self, message: Message, started: float) -> None:
        if self.circuits:
            self._note(message.entity, self.circuits.succeeded(message.entity))
        if self.anyone_wants(EventKind.SENT):
            self._emit_message(EventKind.SENT, message, started, route="primary")

    def _try_primary(self, message: Message) -> NamespaceFailure | None:
        """Send to the primary; the failure that remains after what its kind allows to try again."""
        waits, has_declared = 0, False
        while True:
            failure = self._primary_reach.known_failure() or self._attempt(message)
            if failure is None:
                return None
            if failure.kind.response is Response.WAIT and waits < THROTTLE_WAITS:
                waits += 1
                logger.warning("%s; waiting %g s", failure, self.options.throttle_wait)
                self._sleep(self.options.throttle_wait)
            elif failure.kind.response is Response.DECLARE and not has_declared and self._can_declare(message):
                has_declared = True
            else:
                return failure

    def _can_declare(self, message: Message) -> bool:
        return bool(self.book.for_entity(message.entity))

    def _attempt(self, message: Message) -> NamespaceFailure | None:
        sender: Sender = self._senders.take()
        entity = message.entity

        def attempt(left: float) -> None:
            deadline = self._clock() + left
            sender.ensure_declared(entity, self.book, left)
            sender.send(message, max(deadline - self._clock(), 0.001))

        try:
            self._reaching_primary(attempt, sender)
        except NamespaceFailure as failure:
            if failure.kind.counts:
                sender.drop()
            else:
                sender.forget_declared(entity)
                self._senders.give_back(sender)
            return failure
        self._primary_reach.reached()
        self._senders.give_back(sender)
        return None

    def _try_primary_with(self, messages: Sequence[Message]) -> list[NamespaceFailure | None]:
        known = self._primary_reach.known_failure()
        if known is not None:
            return [known] * len(messages)
        sender: Sender = self._senders.take()

        def attempt(left: float) -> list[NamespaceFailure | None]:
            deadline = self._clock() + left
            for entity in {message.entity for message in messages}:
                sender.ensure_declared(entity, self.book, max(deadline - self._clock(), 0.001))
            return sender.send_batch(messages, max(deadline - self._clock(), 0.001))

        try:
            outcomes: list[NamespaceFailure | None] = self._reaching_primary(attempt, sender)
            self._primary_reach.reached()
        except NamespaceFailure as failure:
            outcomes = [failure] * len(messages)
        for outcome in outcomes:
            if outcome is not None and outcome.whole_namespace:
                self._primary_reach.failed(outcome)
        if any(each is not None and each.kind.counts for each in outcomes):
            sender.drop()
        else:
            self._senders.give_back(sender)
        return outcomes

    def _reaching_primary(self, attempt: Callable[[float], Any], sender: Sender) -> Any:
        """Do something on the primary within ``send_timeout``.

        An old connection may have died in its sleep. If it is sure that the broker saw nothing, that is no failure
        yet: one try on a fresh connection follows.
        """
        deadline = self._clock() + self.options.send_timeout
        was_fresh = sender.is_fresh
        try:
            answer = attempt(self.options.send_timeout)
        except NamespaceFailure as failure:
            if was_fresh or failure.maybe_stored or failure.kind is not FailureKind.UNREACHABLE:
                self._learn(failure)
                raise
            self._senders.drop_idle()
            try:
                answer = attempt(max(deadline - self._clock(), 0.001))
            except NamespaceFailure as second:
                self._learn(second)
                raise
        return answer

    def _learn(self, failure: NamespaceFailure) -> None:
        """What one failure says about the namespace as a whole."""
        if failure.whole_namespace:
            self._primary_reach.failed(failure)
        elif failure.kind is FailureKind.TIMEOUT or failure.kind is FailureKind.UNREACHABLE:
            self._primary_reach.undecided()
        else:
            self._primary_reach.reached()
        if failure.kind is FailureKind.UNREACHABLE:
            self._senders.drop_idle()

    # -- diverting ----------------------------------------------------------------------------------------------

    def _divert(self, message: Message, started: float, failure: NamespaceFailure | None) -> None:
        """Send to a backlog queue, whichever takes it within ``send_timeout``."""
        self._require_room_at_home(message)
        diversion = Diversion(
            first_attempt=started,
            at=self._wall_clock(),
            by=self._sender_id,
            reason=str(failure) if failure else f"{FailureKind.UNREACHABLE.value}: failed over",
            maybe_duplicate=bool(failure and (failure.maybe_stored or failure.kind is FailureKind.TIMEOUT)),
            declarations=tuple(self.book.for_entity(message.entity)),
        )
        deadline = self._clock() + self.options.send_timeout
        last = self._secondary_reach.known_failure()
        if last is None and not self.backlog_queue_count:
            last = self._find_backlog_queues_once()
        if last is None:
            last = self._divert_by(deadline, message, diversion, failure)
        if last is None:
            return
        self._emit_message(EventKind.BACKLOG_UNAVAILABLE, message, started, failure=last)
        raise BacklogUnavailable(self._both(failure, last)) from last.cause

    def _divert_by(
        self, deadline: float, message: Message, diversion: Diversion, why: NamespaceFailure | None
    ) -> NamespaceFailure | None:
        """Try backlog queues until one takes the message; else the last failure."""
        backlog: BacklogSender = self._backlog_senders.take()
        last: NamespaceFailure | None = None
        rejected_by: list[str] = []
        while True:
            backlog.queue = self.rotation.pick(backlog.queue)
            left = deadline - self._clock()
            if backlog.queue is None or (left <= 0 and last is not None):
                backlog.close()
                return last or self._no_backlog_queue()
            stored = self._for_backlog(message, backlog.queue, diversion)
            last = self._store_patiently(backlog, stored, max(left, 0.001))
            if last is None:
                self._backlog_senders.give_back(backlog)
                self._diverted(stored, message, backlog.queue, diversion, why)
                return None
            if last.kind is FailureKind.UNAUTHORIZED:
                backlog.close()
                raise self._unauthorized(last) from last.cause
            if last.kind is FailureKind.REJECTED:
                rejected_by.append(backlog.queue)
            if len(rejected_by) == 2:  # it is the message's fault and not the queues'
                backlog.close()
                for queue in rejected_by:
                    self.rotation.readmit(queue)
                raise self._as_raised(last) from last.cause
            if last.whole_namespace or last.kind is FailureKind.THROTTLED:
                backlog.close()
                self._secondary_reach.failed(last)
                return last

    def _for_backlog(self, message: Message, queue: str, diversion: Diversion) -> Message:
        secondary = self.secondary
        return to_backlog(
            message, queue, diversion, max_size=secondary.max_message_size, size_of=secondary.encoded_size
        )

    def _require_room_at_home(self, message: Message) -> None:
        """What the primary would refuse must not wait in the backlog first."""
        limit = self.primary.max_message_size
        if limit is None or LARGEST_GROWTH * message.size < limit:
            return
        size = self.primary.encoded_size(message)
        if size > limit:
            raise MessageTooLarge(
                f"message {message.message_id} to {message.entity.path!r} takes {size} bytes, and {self.primary.label} "
                f"accepts {limit}"
            )

    def _store_patiently(self, backlog: BacklogSender, stored: Message, timeout: float) -> NamespaceFailure | None:
        """Store it, waiting a few times for a secondary that says it is busy."""
        for _ in range(THROTTLE_WAITS):
            failure = self._store(backlog, stored, timeout)
            if failure is None or failure.kind is not FailureKind.THROTTLED:
                return failure
            self._sleep(self.options.throttle_wait)
        return self._store(backlog, stored, timeout)

    def _store(self, backlog: BacklogSender, stored: Message, timeout: float) -> NamespaceFailure | None:
        """One try on one backlog queue; a failure that is the queue's own pulls it."""
        assert backlog.queue is not None
        deadline = self._clock() + timeout
        was_fresh = backlog.sender.is_fresh
        try:
            backlog.sender.send(stored, timeout)
        except NamespaceFailure as failure:
            if not was_fresh and not failure.maybe_stored and failure.kind is FailureKind.UNREACHABLE:
                self._backlog_senders.drop_idle()
                return self._store(backlog, stored, max(deadline - self._clock(), 0.001))
            if not failure.whole_namespace and failure.kind not in (FailureKind.UNAUTHORIZED, FailureKind.THROTTLED):
                self._pull(backlog.queue, failure)
            return failure
        self._secondary_reach.reached()
        if self.rotation.readmit(backlog.queue):
            logger.info("pairing %s: backlog queue %s works again", self.name, backlog.queue)
            self.emit(EventKind.BACKLOG_READMITTED, entity=backlog.queue)
        return None

    def _pull(self, queue: str, failure: NamespaceFailure) -> None:
        if self.rotation.pull(queue):
            logger.warning(
                "pairing %s: backlog queue %s failed and is left alone for %g s: %s",
                self.name,
                queue,
                self.options.backlog_retry_interval,
                failure,
            )
            self.emit(EventKind.BACKLOG_PULLED, entity=queue, failure=failure.kind.value, detail=str(failure))

    def _diverted(
        self, stored: Message, message: Message, queue: str, diversion: Diversion, why: NamespaceFailure | None
    ) -> None:
        now = self._wall_clock()
        self.emit(
            EventKind.DIVERTED,
            entity=message.entity.path,
            message_id=stored.message_id,
            route="backlog/" + queue.rsplit("/", 1)[-1],
            size=stored.size if self.anyone_wants(EventKind.DIVERTED) else None,
            failure=why.kind.value if why else None,
            seconds=now - diversion.first_attempt,
            first_attempt=diversion.first_attempt,
            maybe_duplicate=diversion.maybe_duplicate,
        )

    def _no_backlog_queue(self) -> NamespaceFailure:
        if self.backlog_queue_count:
            text = f"all {self.backlog_queue_count} backlog queues failed within backlog_retry_interval"
        else:
            text = "no backlog queue is known yet, since the secondary could not be reached"
        return NamespaceFailure(FailureKind.UNREACHABLE, self.secondary.label, LookupError(text))

    # -- pings --------------------------------------------------------------------------------------------------

    def _ping(self, entity: Entity) -> bool:
        """Probe a failed-over entity; True if it works again."""
        started = self._wall_clock()
        failure = self._primary_reach.known_failure()
        if failure is None:
            try:
                self.primary.probe(entity, self.options.send_timeout)
            except NamespaceFailure as found:
                failure = self._last_failure = found
                self._learn(found)
            else:
                self._primary_reach.reached()
        self.emit(
            EventKind.PING,
            entity=entity.path,
            failure=failure.kind.value if failure else None,
            seconds=self._wall_clock() - started,
            detail=str(failure) if failure else "",
        )
        if failure is not None:
            logger.info("pairing %s: ping of %s: %s", self.name, entity.path, failure)
            return False
        self._note(entity, self.circuits.restored(entity))
        self._send_what_is_stranded()
        return True

    # -- telling ------------------------------------------------------------------------------------------------

    def _note(
        self, entity: Entity, transition: Transition, failure: NamespaceFailure | None = None, detail: str = ""
    ) -> Transition:
        """Log and tell a change of an entity's state, and have it pinged while it is failed over."""
        if transition.before is transition.after:
            return transition
        path = entity.path
        why = str(failure) if failure else detail
        kind = failure.kind.value if failure else None
        if transition.enters(CircuitState.SUSPECT):
            logger.warning("pairing %s: %s is suspect: %s", self.name, path, why)
            self.emit(EventKind.SUSPECT, entity=path, failure=kind, detail=why)
        elif transition.enters(CircuitState.FAILED_OVER):
            logger.error(
                "pairing %s: %s is failed over to %s; pinged every %g s. %s",
                self.name,
                path,
                self.secondary.uri,
                self.options.ping_interval,
                why,
            )
            self.emit(EventKind.FAILED_OVER, entity=path, failure=kind, detail=why)
            self._pinger.watch(entity)
        else:
            logger.warning("pairing %s: %s is restored %s", self.name, path, why)
            self._pinger.forget(entity)
            if self.circuits.state(entity) is CircuitState.FAILED_OVER:  # another thread's failure came in between
                self._pinger.watch(entity)
            self.emit(EventKind.RESTORED, entity=path, detail=why)
        return transition

    def _emit_message(
        self,
        kind: EventKind,
        message: Message,
        started: float,
        *,
        failure: NamespaceFailure | None = None,
        route: str = "",
    ) -> None:
        if self.anyone_wants(kind):
            self.emit(
                kind,
                entity=message.entity.path,
                message_id=message.message_id,
                route=route,
                size=message.size,
                failure=failure.kind.value if failure else None,
                seconds=self._wall_clock() - started,
                first_attempt=started,
                detail=str(failure) if failure else "",
            )

    def anyone_wants(self, kind: EventKind) -> bool:
        """Whether an event of this kind is worth building."""
        return self.events.wants(kind) or events.everywhere.wants(kind)

    def emit(self, kind: EventKind, **facts: Any) -> None:
        """Tell listeners of this pairing, and of all."""
        if self.anyone_wants(kind):
            event = Event(kind, self._wall_clock(), self.name, **facts)
            self.events.emit(event)
            events.everywhere.emit(event)

    def _both(self, primary: NamespaceFailure | None, secondary: NamespaceFailure) -> str:
        first = str(primary) if primary else f"failed over; at last {self._last_failure}"
        return f"neither namespace took the message. {first}; {secondary}"

    def _as_raised(self, failure: NamespaceFailure) -> BaseException:
        """What the caller gets: the driver's own error, except where it would not say which side failed."""
        if failure.kind is FailureKind.UNAUTHORIZED:
            return self._unauthorized(failure)
        return failure.cause

    def _unauthorized(self, failure: NamespaceFailure) -> NamespaceUnauthorized:
        return NamespaceUnauthorized(
            f"{failure}. Check the user, password, rights and virtual host in the URL of the "
            f"{'primary (broker_url)' if failure.namespace.startswith('primary') else 'secondary (option secondary)'}"
        )


_registry: dict[Any, Pairing] = {}
_registry_lock = threading.Lock()
#: What a child process inherited and must not touch: closing it would close the parent's connections.
_inherited: list[Any] = []


def shared(key: Any, make: Callable[[], Pairing]) -> Pairing:
    """The pairing of this process for a key; made on first use, and again after a fork or when it was closed."""
    pairing = _registry.get(key)
    if pairing is not None and not pairing.closed:
        return pairing
    with _registry_lock:
        pairing = _registry.get(key)
        if pairing is None or pairing.closed:
            pairing = _registry[key] = make()
        return pairing


def inherit(thing: Any) -> None:
    """Keep something of the parent process alive and untouched in this child."""
    _inherited.append(thing)


def _start_clean_after_fork() -> None:
    global _registry_lock
    _registry_lock = threading.Lock()
    _inherited.extend(_registry.values())
    _registry.clear()


def _close_all() -> None:
    for pairing in list(_registry.values()):
        pairing.close()


os.register_at_fork(after_in_child=_start_clean_after_fork)
atexit.register(_close_all)
