"""The pairing: one primary and one secondary, joined in one process. :meth:`Pairing.send` is the whole send path.

All connections, channels and threads of a process share it, and with it what is known of every entity's health.
"""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Sequence
from typing import Any

from kombu_paired import journal
from kombu_paired.brokers.roles import Primary, Secondary
from kombu_paired.deadline import Deadline
from kombu_paired.declarations import Declaration, DeclarationBook, Entity, as_it_is
from kombu_paired.errors import NamespaceFailure, PairingClosed
from kombu_paired.events import EventKind, EventStream
from kombu_paired.failures import FailureKind
from kombu_paired.message import BACKLOG_MARK, Message
from kombu_paired.options import PairedNamespaceOptions
from kombu_paired.pairing.backlog_route import BacklogRoute
from kombu_paired.pairing.call import MOMENT, Call, Calls
from kombu_paired.pairing.circuit import CircuitState
from kombu_paired.pairing.clocks import Clocks
from kombu_paired.pairing.failover import Failover
from kombu_paired.pairing.isolation import Isolation
from kombu_paired.pairing.last_send import LastSend
from kombu_paired.pairing.primary_route import PrimaryRoute
from kombu_paired.pairing.raising import as_raised, neither_took_it, not_diverted, raise_what_diverting_would_hide
from kombu_paired.pairing.reach import Wait
from kombu_paired.pairing.stand_in_queues import StandInQueues
from kombu_paired.pairing.stranded import Stranded, StrandedMessages
from kombu_paired.pairing.teller import Teller
from kombu_paired.pairing.transients import Lost, Transients
from kombu_paired.stand_in import StandIn

__all__ = ("Pairing",)

#: Seconds that :meth:`Pairing.close` has for what is stranded.
LAST_TRY = 0.7
#: Seconds after which :meth:`Pairing.close` begins no goodbye: one takes half a second to a broker that is frozen, and
#: a syphon whose batch is under way may have waited for it before.
CLOSING = 1.3


class Pairing:
    """Joins a primary to a secondary namespace.

    It decides where a message goes. The routes take it there and say what happened, and the teller tells of it.

    Arguments:
        name: the primary's name; it names the backlog queues.
        options: the settings.
        primary, secondary: the two namespaces.
        clock: monotonic seconds.
        wall_clock: seconds since 1970, UTC.
        sleep: how to wait while a namespace is busy.
        wait: how to wait on a condition for what another thread finds out.
        last_send: when a new message was sent last; by this process, if it is not shared with others.

    Attributes:
        events: what happens here; listeners of every pairing are in :data:`kombu_paired.events.everywhere`.
        book: what the application declared.
        circuits: the health of entities.
        isolation: what operators have left alone, in the whole fleet.
        concerns: the entity whose health another one shares: that of a queue, where an exchange leads to it alone and
            the primary is one whose queues fail alone. Events name that one, too.
        rotation: the usable backlog queues.
        stand_in: when the workers of this process consume from the secondary; None if they never do.
        stand_in_queues: those of the secondary from which they do.
    """

    def __init__(
        self,
        name: str,
        options: PairedNamespaceOptions,
        primary: Primary,
        secondary: Secondary,
        *,
        clock: Callable[[], float] = time.monotonic,
        wall_clock: Callable[[], float] = time.time,
        sleep: Callable[[float], None] = time.sleep,
        wait: Wait = threading.Condition.wait,
        last_send: LastSend | None = None,
    ) -> None:
        clocks = Clocks(clock, wall_clock, sleep, wait)
        self.name = name
        self.options = options
        self.primary = primary
        self.secondary = secondary
        self.events = EventStream()
        if options.journal is not None:
            journal.keep(options.journal, options.journal_level, self.events)
        self.book = DeclarationBook()
        self.closed = False
        self._clock = clock
        self._wall_clock = wall_clock
        self._when_closing: list[Callable[[], None]] = []
        self._lock = threading.Lock()
        self._is_closing = False
        self._was_opened = False
        self._last_send = last_send or LastSend()
        self._calls = Calls(options.send_timeout, clocks, self._last_send)
        self.concerns: Callable[[Entity], Entity] = self.book.queue_of if primary.fails_by_queue else as_it_is
        self._teller = Teller(name, options, secondary.uri, self.events, wall_clock, self.concerns)
        self._primary_route = PrimaryRoute(primary, self.book, options, clocks, self._teller.waits)
        self._backlog_route = BacklogRoute(secondary, self.backlog_queue_names, self.book, options, clocks)
        self.rotation = self._backlog_route.rotation
        self._stranded = StrandedMessages(self._send_stranded, 2 * options.send_timeout, name)
        self._failover = Failover(
            name,
            self._primary_route,
            options,
            self._teller,
            clocks,
            self._stranded.try_now,
            self.concerns,
            self.book.queue_of,
        )
        self.circuits = self._failover.circuits
        self.isolation = Isolation(secondary, name, options, clocks, self._failover.isolate)
        self._transients = Transients()
        self.stand_in = None if options.stand_in_after is None else StandIn(options.stand_in_after, clock)
        self.stand_in_queues = StandInQueues(secondary, name, options.send_timeout)

    def __repr__(self) -> str:
        return f"<Pairing {self.name}: {self.primary.uri} + {self.secondary.uri}>"

    # -- opening and closing ------------------------------------------------------------------------------------

    @property
    def backlog_queue_count(self) -> int:
        """How many backlog queues are usable; 0 while the secondary has not been reached."""
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
        usable, failure = self._backlog_route.find_queues()
        if failure is not None and failure.kind is FailureKind.UNAUTHORIZED:
            raise as_raised(failure) from failure.cause
        self._was_opened = True
        if usable is not None:
            self._teller.found_backlog_queues(usable)
        if failure is not None:
            self._calls.spend_in_vain(began)
            self._teller.secondary_is_away(failure)

    def close(self) -> None:
        """Let go of everything, promptly. Messages are unaffected, but for those that wait here for a namespace."""
        with self._lock:
            if self._is_closing:
                return
            self._is_closing = True
        deadline = Deadline(CLOSING)
        routes = (self._primary_route, self._backlog_route)
        if not self._stranded.close(LAST_TRY):  # nobody is there to say goodbye to
            for route in routes:
                route.links.drop_idle()
        self.closed = True
        self.isolation.close()
        for stop in self._when_closing:
            stop()
        self._failover.close()
        for route in routes:
            route.links.close(deadline)
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
        call = self._calls.begin(message)
        try:
            self._send(call)
        except Exception:
            self._calls.raised(call)
            raise

    def since_last_send(self) -> float:
        """Seconds since a new message was last sent, by any process that shares this moment; infinite before that."""
        return self._last_send.since(self._clock())

    def divert_stranded(self, message: Message, failure: NamespaceFailure) -> None:
        """Divert a message that a consumer took out of a primary which then failed: nobody else knows of it.

        If no namespace takes it, it waits here and is sent again and again.
        """
        self._teller.was_just_being_taken(message, failure)
        call = self._calls.begin(message)
        call.maybe_stored = failure.maybe_stored
        try:
            self._failed(call, failure)
        except Exception as exc:
            self._stranded.keep(Stranded(message, call.maybe_stored), exc)

    def send_batch(self, messages: Sequence[Message]) -> None:
        """Send many at once, with the promises of :meth:`send` for each of them."""
        self._require_open()
        self.isolation.watch()
        healthy: list[Message] = []
        others: list[Message] = []
        for message in messages:
            simple = not self._is_transient(message) and self._failover.state(message.entity) is CircuitState.HEALTHY
            (healthy if simple else others).append(message)
        if healthy:
            others += self._send_together(healthy)
        for message in others:
            self.send(message)

    def _send_together(self, messages: Sequence[Message]) -> list[Message]:
        """Send to the primary; what waits, is declared or raises on its own account is left to go alone."""
        started = self._wall_clock()
        self._last_send.note(self._clock())
        outcomes, tried = self._primary_route.send_together(messages, sharing=self.options.divert_while_suspect)
        alone = []
        for message, failure in zip(messages, outcomes, strict=True):
            if failure is None:
                self._sent(message, started)
            elif failure.kind.counts:
                deadline = Deadline(2 * self.options.send_timeout, self._clock)
                self._failed(Call(message, started, deadline, failure.maybe_stored, tried), failure)
            else:
                alone.append(message)
        return alone

    def _send_stranded(self, stranded: Stranded, seconds: float) -> None:
        self._require_open()
        self._send(self._calls.again(stranded.message, seconds, stranded.maybe_stored))

    def _send(self, call: Call) -> None:
        message = call.message
        if self._is_transient(message):
            self._send_transient(call)
            return
        if not self.isolation.is_watched:  # an idle worker sends nothing else than what is transient
            self.isolation.watch()
        if self.circuits and self._failover.is_failed_over(message.entity):
            self._divert(call, None)
        else:
            half = call.deadline.left / 2
            failure = self._primary_route.send(call, half, sharing=self.options.divert_while_suspect)
            if failure is None:
                self._sent(message, call.started, call.maybe_stored)
            else:
                self._failed(call, failure)

    def _is_transient(self, message: Message) -> bool:
        """By its delivery mode, or by its exchange: Celery's remote control only says it that way."""
        return message.is_transient or (bool(message.exchange) and self.book.is_transient(message.exchange))

    def _sent(self, message: Message, started: float, doubt: bool = False) -> None:
        if self.circuits:
            self._failover.succeeded(message.entity)
        if self._teller.hears_of_sends:
            self._teller.sent(message, started, doubt)

    def _send_transient(self, call: Call) -> None:
        """Send what is worth nothing later, so that it is not diverted."""
        message = call.message
        stands_in = self.stand_in is not None and self.stand_in.is_due
        if stands_in and self._backlog_route.pass_on(message, self.name, call.deadline.left / 2):
            return  # a frozen primary would be waited for each time, in the thread that consumes
        silence = self._primary_route.reach.silence
        failure = silence or self._primary_route.send(call, call.deadline.left / 2)
        may_pass_on = self.stand_in is not None and failure is not None and failure.kind.counts
        if failure is None or (may_pass_on and self._backlog_route.pass_on(message, self.name, call.deadline.left)):
            return
        if failure.kind is FailureKind.FAULT and self.book.is_transient(message.exchange):
            # A worker that starts greets the others, and would end; it is there to empty a broker in alarm.
            self._teller.remote_control_is_dropped(message, failure)
        elif silence is not None:
            raise not_diverted(self.primary.label, message.entity)
        elif self.book.is_transient(message.exchange) and self._transients.has_tried_for_long(self._clock()):
            raise not_diverted(self.primary.label, message.entity) from failure.cause
        else:
            self._transients.last = Lost(self._clock(), message.entity, failure)
            raise as_raised(failure) from failure.cause

    # -- diverting ----------------------------------------------------------------------------------------------

    def _failed(self, call: Call, failure: NamespaceFailure) -> None:
        """The primary did not take the message: divert it, or raise."""
        raise_what_diverting_would_hide(failure)
        is_over = self._failover.count(call.message.entity, failure)
        self._teller.send_failed(call, failure)
        if not is_over and not self.options.divert_while_suspect:
            raise as_raised(failure) from failure.cause
        self._divert(call, failure)

    def _divert(self, call: Call, failure: NamespaceFailure | None) -> None:
        """Send to a backlog queue, whichever takes it.

        If none does, each namespace that was not tried just now is tried again, while there is time, before the caller
        hears of it.

        Arguments:
            failure: of the primary; None if it was not asked.
        """
        self._primary_route.require_room(call.message)
        last = self._store(call, failure)
        while last is not None and call.is_worth_a_try(call.primary, self._clock()):
            again = self._primary_route.send(call, call.leaving_a_glance(self.options.send_timeout))
            if again is None:
                self._failover.restore(call.message.entity, "by a message that it took")
                self._teller.sent(call.message, call.started, call.maybe_stored)
                return
            failure = again
            raise_what_diverting_would_hide(failure)
            self._failover.count(call.message.entity, failure)
            if call.is_worth_a_try(call.secondary, self._clock()):
                last = self._store(call, failure)
        if last is None:
            return
        self._teller.backlog_unavailable(call, last)
        raise neither_took_it(failure, last, self._failover.last_failure) from last.cause

    def _store(self, call: Call, why: NamespaceFailure | None) -> NamespaceFailure | None:
        """Store it in the backlog; the failure if that is not possible now."""
        was_asked = call.primary is not None  # the primary, which may be back soon
        seconds = call.leaving_a_glance(self.options.send_timeout) if was_asked else call.deadline.left
        stored = self._backlog_route.store(call, why, seconds)
        self._teller.stored(call, stored, why)
        if stored.too_large is not None:
            raise stored.too_large
        if stored.failure is not None and stored.is_final:
            raise as_raised(stored.failure) from stored.failure.cause
        return stored.failure

    # -- declaring, and what else is asked ----------------------------------------------------------------------

    def declare(self, operation: str, arguments: dict[str, Any]) -> Any:
        """Declare something on the primary, and remember it.

        While the primary is away, or this is isolated, it is only noted: a diverted message carries it, and a new link
        repeats it.

        Returns:
            The broker's answer; None if it was only noted.

        Raises:
            Exception: what the plain transport would raise when the primary refuses.
        """
        declaration, reach = self.book.note(operation, arguments), self._primary_route.reach
        if self.circuits.isolated.has(declaration.name):
            return None
        if declaration.is_question:
            known = reach.verdict(self.options.send_timeout / 2)
            return None if known else self._declare(declaration)
        # Away as a whole: by a fresh failure, or by one that pings have not disproved.
        if reach.has_failed and (reach.fresh_failure is not None or self.circuits.failed_over()):
            self._calls.spend_in_vain(self._clock())
            return None
        return self._declare(declaration)

    def _declare(self, declaration: Declaration) -> Any:
        began = self._clock()
        left = self._calls.left(began, reserved=self.options.send_timeout / 2)  # that is for the message
        answer, failure = self._primary_route.declare(declaration, left)
        if failure is None:
            return answer
        if failure.kind.counts:
            self._calls.spend_in_vain(began)
            return None
        raise as_raised(failure) from failure.cause

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
        lost = self._transients.take()
        if lost is not None and self._clock() - lost.at < MOMENT:
            if may_wait:
                raise as_raised(lost.failure) from lost.failure.cause
            raise not_diverted(self.primary.label, lost.entity)
        last = self._failover.last_failure
        primary = self._primary_route.reach.failure or (last if self.circuits.failed_over() else None)
        secondary = self._backlog_route.reach.failure
        if primary is not None and secondary is not None:
            raise neither_took_it(primary, secondary, last)

    def primary_was_reached(self) -> None:
        """A consumer has just connected to it: it is not away as a whole."""
        self._primary_route.reach.reached()
        self._stranded.try_now()

    def mark_healthy(self, entity: Entity) -> None:
        """Restore an entity by hand; a failure that counts will suspect it again."""
        self._failover.restore(entity, "by hand")

    # -- telling ------------------------------------------------------------------------------------------------

    def anyone_wants(self, kind: EventKind) -> bool:
        """Whether an event of this kind is worth building."""
        return self._teller.wants(kind)

    def emit(self, kind: EventKind, **facts: Any) -> None:
        """Tell listeners of this pairing, and of all."""
        self._teller.emit(kind, **facts)
