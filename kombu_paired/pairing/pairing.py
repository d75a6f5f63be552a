"""The pairing: one primary and one secondary, joined in one process. :meth:`Pairing.send` is the whole send path.

All connections, channels and threads of a process share it, and with it what is known of every entity's health.
"""

from __future__ import annotations

import atexit
import os
import socket
import threading
import time
from collections.abc import Callable, Sequence
from dataclasses import replace
from functools import partial
from typing import Any, NamedTuple, TypeVar

from kombu_paired import journal
from kombu_paired.deadline import Deadline
from kombu_paired.declarations import Declaration, DeclarationBook, Entity
from kombu_paired.errors import (
    BacklogUnavailable,
    ConfigurationError,
    MessageTooLarge,
    NamespaceFailure,
    NamespaceUnauthorized,
    PairingClosed,
    PrimaryUnavailable,
)
from kombu_paired.events import EventKind, EventStream
from kombu_paired.failures import FailureKind, Response
from kombu_paired.message import (
    BACKLOG_MARK,
    LARGEST_GROWTH,
    Diversion,
    Message,
    marked_maybe_duplicate,
    to_backlog,
)
from kombu_paired.namespaces.base import Namespace
from kombu_paired.options import PairedNamespaceOptions
from kombu_paired.pairing.call import Call
from kombu_paired.pairing.circuit import CircuitState, EntityCircuits, Transition
from kombu_paired.pairing.doubts import Doubts
from kombu_paired.pairing.link_pool import Lent, LinkPool
from kombu_paired.pairing.pinger import Pinger
from kombu_paired.pairing.reach import GLANCE, NamespaceReach, Wait
from kombu_paired.pairing.retrying import Patience, on_a_living_link
from kombu_paired.pairing.rotation import BacklogRotation
from kombu_paired.pairing.stranded import Stranded, StrandedMessages
from kombu_paired.pairing.teller import Teller

__all__ = ("Pairing", "inherit", "shared")

Answer = TypeVar("Answer")

#: Part of ``send_timeout`` that a primary has for a declaration when the last that is known of it is a failure: Kombu
#: has napped before, and the send that follows has a time limit, too.
SECOND_LOOK = 0.5
#: How often a call looks again at namespaces that have both failed it, while the one it tried first may be back.
LOOKS = 2
#: Seconds after which a namespace that failed may have come back.
MOMENT = 0.1
#: What two steps of one call have between them at most (seconds): Kombu declares just before it publishes, which is
#: milliseconds, but for a machine that has other things to do.
BETWEEN_STEPS = 1.0
#: Seconds that :meth:`Pairing.close` has for what is stranded.
LAST_TRY = 0.7


class _InVain(NamedTuple):
    """Steps ahead of a message that failed: when the first one began, and the last one ended."""

    since: float
    at: float


class _Lost(NamedTuple):
    """A transient message that its entity did not take, and when."""

    at: float
    entity: Entity
    failure: NamespaceFailure


class Pairing:
    """Joins a primary to a secondary namespace.

    Arguments:
        name: the primary's name; it names the backlog queues.
        options: the settings.
        primary, secondary: the two namespaces.
        clock: monotonic seconds.
        wall_clock: seconds since 1970, UTC.
        sleep: how to wait while a namespace is busy.
        wait: how to wait on a condition for what another thread finds out.

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
        wait: Wait = threading.Condition.wait,
    ) -> None:
        self.name = name
        self.options = options
        self.primary = primary
        self.secondary = secondary
        self.events = EventStream()
        if options.journal is not None:
            journal.keep(options.journal, options.journal_level, self.events)
        self._teller = Teller(name, options, secondary.uri, self.events, wall_clock)
        self.book = DeclarationBook()
        self.circuits = EntityCircuits(options.failover_interval, clock)
        self.rotation = BacklogRotation((), options.backlog_retry_interval, clock)
        self.closed = False
        self._clock = clock
        self._wall_clock = wall_clock
        self._when_closing: list[Callable[[], None]] = []
        self._lock = threading.Lock()
        self._is_closing = False
        self._was_opened = False
        longest = 2 * options.send_timeout
        self._primary_reach = NamespaceReach(longest, clock, wait=wait)
        self._secondary_reach = NamespaceReach(longest, clock, known=False, wait=wait)
        self._links = LinkPool(primary.sender)
        self._backlog_links = LinkPool(secondary.sender)
        self._primary_patience = Patience(primary.side, options.throttle_wait, sleep, self._teller.waits)
        self._secondary_patience = Patience(secondary.side, options.throttle_wait, sleep)
        self._pinger = Pinger(self._ping, options.ping_interval, name=f"kombu-paired-ping-{name}", clock=clock)
        self._last_failure: NamespaceFailure | None = None
        self._stranded = StrandedMessages(self._send_stranded, longest, name)
        self._doubts = Doubts()
        self._in_vain = threading.local()
        self._lost = threading.local()
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
        began = self._clock()
        failure = self._find_backlog_queues_once()
        self._was_opened = True
        if failure is not None:
            self._spend_in_vain(began)
            self._teller.secondary_is_away(failure)

    def _find_backlog_queues_once(self) -> NamespaceFailure | None:
        """Find them, unless another thread is about to; the failure if the secondary is away."""
        deadline = Deadline(self.options.send_timeout, self._clock)
        failure = self._secondary_reach.verdict(deadline.left / 2)
        if failure is not None:
            return failure
        if self.backlog_queue_count:  # another thread has found them meanwhile
            self._secondary_reach.undecided()
            return None
        try:
            return self._find_backlog_queues(deadline)
        except BaseException:
            self._secondary_reach.undecided()
            raise

    def _find_backlog_queues(self, deadline: Deadline) -> NamespaceFailure | None:
        """Find them, or the failure of a secondary that is away or busy.

        Raises:
            NamespaceUnauthorized, ConfigurationError: waiting would not help.
        """
        options, began = self.options, self._clock()
        try:
            usable = self.secondary.ensure_backlog_queues(
                self.backlog_queue_names, options.create_backlog_queues, deadline.left
            )
        except NamespaceFailure as failure:
            if failure.kind is FailureKind.UNAUTHORIZED:
                raise self._unauthorized(failure) from failure.cause
            if failure.kind is FailureKind.THROTTLED:
                self._secondary_reach.reached()
                return failure
            if not failure.kind.counts:
                raise ConfigurationError(f"{failure}; the pairing cannot use its backlog queues") from failure
            self._secondary_reach.failed(failure, self._clock() - began)
            return failure
        self._use(usable)
        self._secondary_reach.reached()
        return None

    def _use(self, usable: Sequence[str]) -> None:
        options = self.options
        if not usable:
            raise ConfigurationError(
                f"none of the {options.backlog_queue_count} backlog queues {self.backlog_queue_names[0]} … exists on "
                f"{self.secondary.label}, and create_backlog_queues is False: create them, or let the pairing do it"
            )
        with self._lock:
            if self.backlog_queue_count:
                return  # another thread was as quick
            self.rotation = BacklogRotation(usable, options.backlog_retry_interval, self._clock)
        self._teller.found_backlog_queues(len(usable))

    def close(self) -> None:
        """Let go of everything, promptly. Messages are unaffected, but for those that wait here for a namespace."""
        with self._lock:
            if self._is_closing:
                return
            self._is_closing = True
        if not self._stranded.close(LAST_TRY):  # nobody is there to say goodbye to
            self._links.drop_idle()
            self._backlog_links.drop_idle()
        self.closed = True
        for stop in self._when_closing:
            stop()
        self._pinger.close()
        self._links.close()
        self._backlog_links.close()
        self.primary.close()
        self.secondary.close()
        self._teller.closed()

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

        Takes at most ``send_timeout`` on each of the two namespaces, over all that is done there, and ``throttle_wait``
        for each time one says that it is busy.

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
        call = self._call(message)
        try:
            self._send(call)
        except Exception:
            if call.maybe_stored:
                self._doubts.add(message)
            raise

    def divert_stranded(self, message: Message, failure: NamespaceFailure) -> None:
        """Divert a message that a consumer took out of a primary which then failed: nobody else knows of it.

        If no namespace takes it, it waits here and is sent again and again.
        """
        self._teller.was_just_being_taken(message, failure)
        call = self._call(message)
        call.maybe_stored = failure.maybe_stored
        try:
            self._failed(call, failure)
        except Exception as exc:
            self._stranded.keep(Stranded(message, call.maybe_stored), exc)

    def send_batch(self, messages: Sequence[Message]) -> None:
        """Send many at once, with the promises of :meth:`send` for each of them."""
        self._require_open()
        healthy: list[Message] = []
        others: list[Message] = []
        for message in messages:
            simple = (
                not self._is_worth_nothing_later(message)
                and self.circuits.state(message.entity) is CircuitState.HEALTHY
            )
            (healthy if simple else others).append(message)
        if healthy:
            others += self._send_together(healthy)
        for message in others:
            self.send(message)

    def _send_together(self, messages: Sequence[Message]) -> list[Message]:
        """Send to the primary; what waits, is declared or raises on its own account is left to go alone."""
        started, began, timeout = self._wall_clock(), self._clock(), self.options.send_timeout
        reach, sharing = self._primary_reach, self.options.divert_while_suspect
        known = reach.known_failure() if sharing else reach.verdict(timeout / 2)
        outcomes = [known] * len(messages) if known else self._attempt_together(messages)
        tried = None if known and sharing else began
        alone = []
        for message, failure in zip(messages, outcomes, strict=True):
            if failure is None:
                self._sent(message, started)
            elif failure.kind.counts:
                deadline = Deadline(2 * timeout, self._clock)
                self._failed(Call(message, started, deadline, failure.maybe_stored, tried), failure)
            else:
                alone.append(message)
        return alone

    def declare(self, operation: str, arguments: dict[str, Any]) -> Any:
        """Declare something on the primary, and remember it.

        While the primary is away it is only noted: a diverted message carries it, and a new link repeats it.

        Returns:
            The broker's answer; None if it was only noted.

        Raises:
            Exception: what the plain transport would raise when the primary refuses.
        """
        declaration = self.book.note(operation, arguments)
        if declaration.is_question:
            known = self._primary_reach.verdict(self.options.send_timeout / 2)
            return None if known else self._declare(declaration)
        if self._is_known_away():
            self._spend_in_vain(self._clock())
            return None
        return self._declare(declaration)

    def _declare(self, declaration: Declaration) -> Any:
        began, timeout = self._clock(), self.options.send_timeout
        seconds = timeout * (SECOND_LOOK if self._primary_reach.has_failed else 1.0)
        seconds = min(seconds, self._left_of_call(began, reserved=timeout / 2))  # that is for the message
        try:
            with self._links.lend() as lent:
                answer = self._reaching_primary(
                    lambda deadline: lent.sender.declare_one(declaration, self.book, deadline.left),
                    lent,
                    Deadline(seconds, self._clock),
                )
        except NamespaceFailure as failure:
            took = self._clock() - began
            if failure.kind is FailureKind.TIMEOUT:
                self._primary_reach.failed(failure, took)  # so that the publish that follows need not wait again
            if failure.kind.counts:
                self._spend_in_vain(began)
                return None
            raise self._as_raised(failure) from failure.cause
        if declaration.is_question:
            self._primary_reach.undecided()  # a virtual transport answers without asking the broker
        return answer

    def require_sendable(self, *, may_wait: bool = True) -> None:
        """Raise what the last send raised, while nothing better is known of either namespace.

        Kombu pauses between two tries of a send only if it cannot connect in between: this is what its retry policy
        waits for. Without a policy it tries for ever.

        Arguments:
            may_wait: the caller has nothing better to do; a worker has.

        Raises:
            BacklogUnavailable: both were away when they were asked last.
            PrimaryUnavailable: this thread's message is a transient one, and the caller may not wait.
            Exception: what the primary's own transport raised for it, when the caller may.
        """
        lost: _Lost | None = getattr(self._lost, "last", None)
        self._lost.last = None
        if lost is not None and self._clock() - lost.at < MOMENT:
            if may_wait:
                raise self._as_raised(lost.failure) from lost.failure.cause
            raise self._worth_nothing_later(lost.entity)
        primary = self._primary_reach.failure or (self._last_failure if self.circuits.failed_over() else None)
        secondary = self._secondary_reach.failure
        if primary is not None and secondary is not None:
            raise BacklogUnavailable(self._both(primary, secondary))

    def primary_was_reached(self) -> None:
        """A consumer has just connected to it: it is not away as a whole."""
        self._primary_reach.reached()
        self._stranded.hurry()

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
        return self._primary_reach.fresh_failure is not None or bool(self.circuits.failed_over())

    def _call(self, message: Message) -> Call:
        deadline = Deadline(self._left_of_call(self._clock()), self._clock)
        self._in_vain.last = None
        return Call(message, self._wall_clock(), deadline, maybe_stored=self._doubts.take(message))

    def _spend_in_vain(self, began: float) -> None:
        """This thread has opened or declared in vain since then: it was for the message that follows."""
        self._in_vain.last = _InVain(self._call_began(began), self._clock())

    def _call_began(self, now: float) -> float:
        """When the call did that this thread is in."""
        last: _InVain | None = getattr(self._in_vain, "last", None)
        return last.since if last is not None and now - last.at < BETWEEN_STEPS else now

    def _left_of_call(self, now: float, reserved: float = 0.0) -> float:
        """Seconds that this thread's call has for its next step: some, in any case."""
        timeout = self.options.send_timeout
        return max(2 * timeout - (now - self._call_began(now)) - reserved, timeout / 4)

    def _send(self, call: Call) -> None:
        message = call.message
        if self._is_worth_nothing_later(message):
            self._send_transient(call)
        elif self.circuits and self._is_failed_over(message.entity):
            self._divert(call, None)
        else:
            half = call.deadline.left / 2
            failure = self._try_primary(call, half, sharing=self.options.divert_while_suspect)
            if failure is None:
                self._sent(message, call.started, call.maybe_stored)
            else:
                self._failed(call, failure)

    def _send_stranded(self, stranded: Stranded, seconds: float) -> None:
        self._require_open()
        deadline = Deadline(seconds, self._clock)
        self._send(Call(stranded.message, self._wall_clock(), deadline, stranded.maybe_stored))

    def _send_transient(self, call: Call) -> None:
        message = call.message
        silence = self._primary_reach.silence
        failure = silence or self._try_primary(call, call.deadline.left / 2)
        if failure is None:
            return
        if failure.kind is FailureKind.FAULT and self.book.is_transient(message.exchange):
            # A worker that starts greets the others, and would end; it is there to empty a broker in alarm.
            self._teller.remote_control_is_dropped(message, failure)
        elif silence is not None:
            raise self._worth_nothing_later(message.entity)
        else:
            self._lost.last = _Lost(self._clock(), message.entity, failure)
            raise self._as_raised(failure) from failure.cause

    def _worth_nothing_later(self, entity: Entity) -> PrimaryUnavailable:
        return PrimaryUnavailable(
            f"{self.primary.label} is away, and a transient message to {entity.path!r} is worth nothing later"
        )

    def _failed(self, call: Call, failure: NamespaceFailure) -> None:
        """The primary did not take the message: divert it, or raise."""
        self._raise_what_diverting_would_hide(failure)
        entity = call.message.entity
        self._count(entity, failure)
        self._teller.send_failed(call.message, call.started, failure)
        is_over = self.circuits.state(entity) is CircuitState.FAILED_OVER
        if not is_over and not self.options.divert_while_suspect:
            raise self._as_raised(failure) from failure.cause
        self._divert(call, failure)

    def _raise_what_diverting_would_hide(self, failure: NamespaceFailure) -> None:
        if failure.kind.response is Response.RAISE or failure.kind is FailureKind.MISSING:
            raise self._as_raised(failure) from failure.cause

    def _count(self, entity: Entity, failure: NamespaceFailure) -> None:
        if failure.kind.counts:
            self._last_failure = failure
            self._note(entity, self.circuits.failed(entity), failure)

    def _sent(self, message: Message, started: float, doubt: bool = False) -> None:
        if self.circuits:
            self._note(message.entity, self.circuits.succeeded(message.entity))
        if self._teller.wants(EventKind.SENT):
            self._teller.sent(message, started, doubt)

    def _try_primary(self, call: Call, seconds: float, *, sharing: bool = False) -> NamespaceFailure | None:
        """Send to the primary; the failure that remains after what its kind allows to try again.

        Arguments:
            seconds: at most; a wait for a busy namespace comes on top.
            sharing: the message can go elsewhere, so that a failure which others found is enough.
        """
        part, began = call.deadline.part(seconds), self._clock()
        known = self._primary_reach.known_failure() if sharing else self._primary_reach.verdict(part.left / 2)
        if known is not None and sharing:
            return known
        failure = known or self._attempt(call, part)
        if failure is not None:
            failure = self._try_primary_again(call, part, failure)
        call.primary = began
        return failure

    def _try_primary_again(self, call: Call, part: Deadline, failure: NamespaceFailure) -> NamespaceFailure | None:
        """What remains of a failure: a missing entity is declared, once, and a busy namespace is waited for."""
        has_declared = False

        def again() -> NamespaceFailure | None:
            return self._primary_reach.verdict(part.left / 2) or self._attempt(call, part)

        def attempt() -> NamespaceFailure | None:
            return declaring(again())

        def declaring(found: NamespaceFailure | None) -> NamespaceFailure | None:
            nonlocal has_declared
            if found is None or found.kind.response is not Response.DECLARE:
                return found
            if has_declared or not self.book.for_entity(call.message.entity):
                return found
            has_declared = True
            return again()

        return self._primary_patience.outwait(declaring(failure), attempt, call, part)

    def _declarations_for(self, message: Message) -> tuple[Declaration, ...]:
        """What the message needs at home, and then its answer."""
        reply_to = str(message.properties.get("reply_to") or "")
        return (*self.book.for_entity(message.entity), *self.book.for_reply(reply_to))

    def _attempt(self, call: Call, deadline: Deadline) -> NamespaceFailure | None:
        message = marked_maybe_duplicate(call.message) if call.maybe_stored else call.message
        entity = message.entity

        def attempt(deadline: Deadline) -> None:
            try:
                lent.sender.ensure_declared(entity, self.book, deadline.left)
                lent.sender.send(message, deadline.left)
            except NamespaceFailure:
                lent.sender.forget_declared(entity)
                raise

        try:
            with self._links.lend() as lent:
                self._reaching_primary(attempt, lent, deadline)
        except NamespaceFailure as failure:
            call.maybe_stored = call.maybe_stored or failure.maybe_stored
            return failure
        self._primary_reach.reached()
        return None

    def _attempt_together(self, messages: Sequence[Message]) -> list[NamespaceFailure | None]:
        began = self._clock()

        def attempt(deadline: Deadline) -> list[NamespaceFailure | None]:
            for entity in {message.entity for message in messages}:
                lent.sender.ensure_declared(entity, self.book, deadline.left)
            return lent.sender.send_batch(messages, deadline.left)

        with self._links.lend() as lent:
            try:
                deadline = Deadline(self.options.send_timeout, self._clock)
                outcomes = self._reaching_primary(attempt, lent, deadline)
            except NamespaceFailure as failure:  # before anything was sent
                outcomes = [failure] * len(messages)
            counted = [each for each in outcomes if each is not None and each.kind.counts]
            if not counted:
                self._primary_reach.reached()
                return outcomes
            worst = next((each for each in counted if each.whole_namespace), counted[0])
            self._learn(self._primary_reach, worst, self._clock() - began)
            lent.drop()
            return outcomes

    def _reaching_primary(self, attempt: Callable[[Deadline], Answer], lent: Lent, deadline: Deadline) -> Answer:
        """Do something on the primary, in as much time as that is worth now."""
        began = self._clock()
        if self._primary_reach.silence is not None:
            deadline = deadline.part(GLANCE)
        try:
            return on_a_living_link(lent, attempt, deadline)
        except NamespaceFailure as failure:
            self._learn(self._primary_reach, failure, self._clock() - began)
            raise
        except BaseException:  # a time limit of the caller's own, say: nobody knows in which state the link is
            self._primary_reach.undecided()
            raise

    def _learn(self, reach: NamespaceReach, failure: NamespaceFailure, took: float) -> None:
        """What one failure says about the namespace as a whole."""
        if failure.whole_namespace:
            reach.failed(failure, took)
        elif failure.kind is FailureKind.TIMEOUT or failure.kind is FailureKind.UNREACHABLE:
            reach.undecided()
        else:
            reach.reached()
        if failure.kind is FailureKind.UNREACHABLE:
            pool = self._links if reach is self._primary_reach else self._backlog_links
            pool.drop_idle()

    # -- diverting ----------------------------------------------------------------------------------------------

    def _divert(self, call: Call, failure: NamespaceFailure | None) -> None:
        """Send to a backlog queue, whichever takes it.

        If none does, each namespace that was not tried just now is tried again before the caller hears of it.

        Arguments:
            failure: of the primary; None if it was not asked.
        """
        self._require_room_at_home(call.message)
        last = self._try_secondary(call, failure)
        for _ in range(LOOKS):
            if last is None or not self._is_worth_a_try(call, call.primary):
                break
            again = self._try_primary(call, self._leaving_a_glance(call))
            if again is None:
                self._taken_after_all(call)
                return
            failure = again
            self._raise_what_diverting_would_hide(failure)
            self._count(call.message.entity, failure)
            if self._is_worth_a_try(call, call.secondary):
                last = self._try_secondary(call, failure)
        if last is None:
            return
        doubt = call.maybe_stored  # and the caller may well send it again, with the same id
        self._teller.backlog_unavailable(call.message, call.started, last, doubt)
        raise BacklogUnavailable(self._both(failure, last)) from last.cause

    def _is_worth_a_try(self, call: Call, tried: float | None) -> bool:
        """It had no try, or one so long ago that the namespace may have come back, and there is time left."""
        return not call.deadline.is_over and (tried is None or self._clock() - tried > MOMENT)

    def _leaving_a_glance(self, call: Call) -> float:
        """Seconds for one namespace. What remains is for the other one, which may have come back meanwhile."""
        left, timeout = call.deadline.left, self.options.send_timeout
        return min(left - min(GLANCE, timeout / 4, left / 2), timeout)

    def _taken_after_all(self, call: Call) -> None:
        entity = call.message.entity
        self._note(entity, self.circuits.restored(entity), detail="by a message that it took")
        self._teller.sent(call.message, call.started, call.maybe_stored)

    def _try_secondary(self, call: Call, why: NamespaceFailure | None) -> NamespaceFailure | None:
        """Store it in the backlog; the failure if that is not possible."""
        reach, began, timeout = self._secondary_reach, self._clock(), self.options.send_timeout
        seconds = call.deadline.left if call.primary is None else self._leaving_a_glance(call)
        part = call.deadline.part(min(seconds, timeout))
        last = reach.verdict(part.left / 2)
        if last is None:
            part = part.part(reach.worth(part.left))
            try:
                if not self.backlog_queue_count:
                    find = partial(self._find_backlog_queues, part)
                    last = self._secondary_patience.outwait(find(), find, call, part)
                last = last or self._divert_by(part, call, why)
            except BaseException:
                reach.undecided()
                raise
        call.secondary = began
        return last

    def _divert_by(self, deadline: Deadline, call: Call, why: NamespaceFailure | None) -> NamespaceFailure | None:
        """Try backlog queues until one takes the message; else the last failure."""
        with self._backlog_links.lend() as lent:
            last = self._store_somewhere(deadline, lent, call, why)
            if last is not None and last.kind.counts:
                lent.drop()
        return last

    def _store_somewhere(
        self, deadline: Deadline, lent: Lent, call: Call, why: NamespaceFailure | None
    ) -> NamespaceFailure | None:
        diversion = Diversion(
            first_attempt=call.started,
            at=self._wall_clock(),
            by=self._sender_id,
            reason=str(why) if why else f"{FailureKind.UNREACHABLE.value}: failed over",
            declarations=self._declarations_for(call.message),
        )
        last: NamespaceFailure | None = None
        tried: list[str] = []
        rejected_by: list[str] = []
        while True:
            lent.queue = self.rotation.pick(lent.queue, tried)
            if lent.queue is None or (tried and deadline.is_over):
                return last or self._no_backlog_queue()
            diversion = replace(diversion, maybe_duplicate=call.maybe_stored)
            stored = self._for_backlog(call.message, lent.queue, diversion)
            store = partial(self._store, lent, stored, deadline)
            last = self._secondary_patience.outwait(store(), store, call, deadline)
            if last is None:
                self._teller.diverted(stored, call.message.entity, call.started, diversion.maybe_duplicate, why)
                return None
            tried.append(lent.queue)
            call.maybe_stored = call.maybe_stored or last.maybe_stored
            if last.kind is FailureKind.REJECTED:
                rejected_by.append(lent.queue)
            if len(rejected_by) == 2:  # it is the message's fault and not the queues'
                for queue in rejected_by:
                    self.rotation.readmit(queue)
                raise self._as_raised(last) from last.cause
            if last.kind is FailureKind.UNAUTHORIZED:
                raise self._unauthorized(last) from last.cause
            if last.whole_namespace or last.kind is FailureKind.THROTTLED:
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

    def _store(self, lent: Lent, stored: Message, deadline: Deadline) -> NamespaceFailure | None:
        """One try on one backlog queue; a failure that is the queue's own pulls it."""
        assert lent.queue is not None
        began = self._clock()
        try:
            on_a_living_link(lent, lambda deadline: lent.sender.send(stored, deadline.left), deadline)
        except NamespaceFailure as failure:
            self._learn(self._secondary_reach, failure, self._clock() - began)
            is_the_queues_own = not failure.whole_namespace and failure.kind not in (
                FailureKind.UNAUTHORIZED,
                FailureKind.THROTTLED,
            )
            if is_the_queues_own and self.rotation.pull(lent.queue):
                self._teller.pulled(lent.queue, failure)
            return failure
        self._secondary_reach.reached()
        if self.rotation.readmit(lent.queue):
            self._teller.readmitted(lent.queue)
        return None

    def _no_backlog_queue(self) -> NamespaceFailure:
        if self.backlog_queue_count:
            text = f"none of {self.backlog_queue_count} backlog queues took it in time"
        else:
            text = "no backlog queue is known yet, since the secondary could not be reached"
        return NamespaceFailure(FailureKind.UNREACHABLE, self.secondary.label, LookupError(text))

    # -- pings --------------------------------------------------------------------------------------------------

    def _ping(self, entity: Entity) -> bool:
        """Probe a failed-over entity; True if it works again."""
        started, reach = self._wall_clock(), self._primary_reach
        failure = reach.silence or reach.verdict(self.options.send_timeout / 2) or self._probe(entity)
        self._teller.pinged(entity, started, failure)
        if failure is not None:
            return False
        self._note(entity, self.circuits.restored(entity))
        self._stranded.hurry()
        return True

    def _probe(self, entity: Entity) -> NamespaceFailure | None:
        began = self._clock()
        try:
            self.primary.probe(entity, self.options.send_timeout)
        except NamespaceFailure as failure:
            self._last_failure = failure
            self._learn(self._primary_reach, failure, self._clock() - began)
            return failure
        except BaseException:
            self._primary_reach.undecided()
            raise
        self._primary_reach.reached()
        return None

    # -- telling ------------------------------------------------------------------------------------------------

    def _note(
        self, entity: Entity, transition: Transition, failure: NamespaceFailure | None = None, detail: str = ""
    ) -> Transition:
        """Tell a change of an entity's state, and have it pinged while it is failed over."""
        if transition.before is transition.after:
            return transition
        if transition.after is CircuitState.HEALTHY:
            self._pinger.forget(entity)
            if self.circuits.state(entity) is CircuitState.FAILED_OVER:  # another thread's failure came in between
                self._pinger.watch(entity)
        self._teller.changed(entity, transition, failure, detail)
        if transition.after is CircuitState.FAILED_OVER:
            self._pinger.watch(entity)
        return transition

    def anyone_wants(self, kind: EventKind) -> bool:
        """Whether an event of this kind is worth building."""
        return self._teller.wants(kind)

    def emit(self, kind: EventKind, **facts: Any) -> None:
        """Tell listeners of this pairing, and of all."""
        self._teller.emit(kind, **facts)

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
