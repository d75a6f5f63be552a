"""The way to the backlog queues. It reports what happened there as values; what follows is for others to decide."""

from __future__ import annotations

import os
import socket
from collections.abc import Sequence
from dataclasses import dataclass, replace
from functools import partial
from typing import NamedTuple

from kombu_paired.brokers.roles import Secondary
from kombu_paired.deadline import Deadline
from kombu_paired.declarations import Declaration, DeclarationBook
from kombu_paired.errors import ConfigurationError, MessageTooLarge, NamespaceFailure
from kombu_paired.failures import FailureKind
from kombu_paired.message import Diversion, Message, to_backlog
from kombu_paired.options import PairedNamespaceOptions
from kombu_paired.pairing.call import Call
from kombu_paired.pairing.clocks import Clocks
from kombu_paired.pairing.link_pool import Lent
from kombu_paired.pairing.reach import NamespaceReach
from kombu_paired.pairing.retrying import Patience, on_a_living_link
from kombu_paired.pairing.rotation import BacklogRotation
from kombu_paired.pairing.route import Route
from kombu_paired.stand_in import stand_in_exchange

__all__ = ("BacklogRoute", "Found", "Pulled", "Stored")

#: Backlog queues that have to reject a message before it is the message's fault and not theirs.
REJECTIONS = 2


class Found(NamedTuple):
    """What a look for the backlog queues found.

    Attributes:
        usable: how many are, if it was this look that found them.
        failure: why none was found.
    """

    usable: int | None = None
    failure: NamespaceFailure | None = None


class Pulled(NamedTuple):
    """A backlog queue that failed and was taken out of the rotation.

    Attributes:
        queue: its name.
        failure: why.
        at: when (seconds since 1970, UTC).
    """

    queue: str
    failure: NamespaceFailure
    at: float


@dataclass(frozen=True)
class Stored:
    """What became of a message that was to be stored in the backlog.

    Attributes:
        message: as a backlog queue has it now; None if none has.
        failure: of the last try, if none has.
        is_final: the failure is for the caller to hear: nothing would help.
        too_large: it does not fit, so that it was not tried.
        maybe_duplicate: it is marked as that.
        usable: how many backlog queues are usable, if this was found out on the way.
        pulled: those that failed on the way.
        is_readmitted: the one that has it was on trial.
    """

    message: Message | None = None
    failure: NamespaceFailure | None = None
    is_final: bool = False
    too_large: MessageTooLarge | None = None
    maybe_duplicate: bool = False
    usable: int | None = None
    pulled: Sequence[Pulled] = ()
    is_readmitted: bool = False


class BacklogRoute(Route):
    """Finds the backlog queues, and stores messages in whichever takes them.

    Arguments:
        namespace: the secondary.
        wanted: the backlog queues that it may lead to.
        book: what the application declared.
        options: the settings.
        clocks: the time.

    Attributes:
        wanted: the backlog queues that it may lead to.
        rotation: those of them that are usable; empty while the secondary has not been reached.
    """

    namespace: Secondary

    def __init__(
        self,
        namespace: Secondary,
        wanted: Sequence[str],
        book: DeclarationBook,
        options: PairedNamespaceOptions,
        clocks: Clocks,
    ) -> None:
        reach = NamespaceReach(2 * options.send_timeout, clocks.monotonic, known=False, wait=clocks.wait)
        super().__init__(namespace, reach)
        self.wanted = wanted
        self.rotation = BacklogRotation((), options.backlog_retry_interval, clocks.monotonic)
        self._book = book
        self._may_create = options.create_backlog_queues
        self._timeout = options.send_timeout
        self._clock = clocks.monotonic
        self._wall_clock = clocks.wall
        self._patience = Patience(namespace.side, options.throttle_wait, clocks.sleep)
        self._by = f"{socket.gethostname()}/{os.getpid()}"

    # -- the queues ---------------------------------------------------------------------------------------------

    def find_queues(self) -> Found:
        """Find the backlog queues, unless another thread is about to.

        Raises:
            ConfigurationError: none can be used, and waiting would not help.
        """
        deadline = Deadline(self._timeout, self._clock)
        failure = self.reach.verdict(deadline.left / 2)
        if failure is not None:
            return Found(failure=failure)
        if self.rotation:  # another thread has found them meanwhile
            self.reach.undecided()
            return Found()
        try:
            return self._find(deadline)
        except BaseException:
            self.reach.undecided()
            raise

    def _find(self, deadline: Deadline) -> Found:
        began = self._clock()
        try:
            usable = self.namespace.ensure_backlog_queues(self.wanted, self._may_create, deadline.left)
        except NamespaceFailure as failure:
            self._learn_from_looking(failure, self._clock() - began)
            return Found(failure=failure)
        if not usable:
            raise ConfigurationError(
                f"none of the {len(self.wanted)} backlog queues {self.wanted[0]} … exists on "
                f"{self.namespace.label}, and create_backlog_queues is False: create them, or let the pairing do it"
            )
        is_first = self.rotation.use(usable)
        self.reach.reached()
        return Found(len(usable) if is_first else None)

    def _learn_from_looking(self, failure: NamespaceFailure, took: float) -> None:
        if failure.kind is FailureKind.UNAUTHORIZED:
            self.reach.undecided()
        elif failure.kind is FailureKind.THROTTLED:
            self.reach.reached()
        elif failure.kind.counts:
            self.reach.failed(failure, took)
        else:
            raise ConfigurationError(f"{failure}; the pairing cannot use its backlog queues") from failure

    # -- a message ----------------------------------------------------------------------------------------------

    def store(self, call: Call, why: NamespaceFailure | None, seconds: float) -> Stored:
        """Store a message in a backlog queue, whichever takes it.

        Arguments:
            why: the primary's failure; None if it was not asked.
            seconds: at most; a wait for a busy namespace comes on top.

        Raises:
            ConfigurationError: there is no backlog queue, and waiting would not help.
        """
        began, deadline = self._clock(), call.deadline.part(min(seconds, self._timeout))
        known = self.reach.verdict(deadline.left / 2)
        stored = Stored(failure=known) if known else self._find_and_store(call, why, deadline)
        call.secondary = began
        return stored

    def pass_on(self, message: Message, primary: str, seconds: float) -> bool:
        """Send what is worth nothing later to the stand-in of its exchange: remote control, its answers, events.

        Arguments:
            primary: the primary's name.
            seconds: at most.

        Returns:
            Whether the secondary has taken it.
        """
        declared = self._book.exchange(message.exchange)
        if declared is None or self.reach.known_failure() is not None:
            return False
        name = stand_in_exchange(primary, message.exchange)
        exchange = replace(declared, arguments={**declared.arguments, "exchange": name})
        began, deadline = self._clock(), Deadline(seconds, self._clock)

        def send(deadline: Deadline) -> None:
            lent.sender.declare_once([exchange], deadline.left)
            lent.sender.send(replace(message, exchange=name), deadline.left)

        with self.links.lend() as lent:
            try:
                on_a_living_link(lent, send, deadline)
            except NamespaceFailure as failure:
                lent.drop()
                self.learn(failure, self._clock() - began)
                return False
        self.reach.reached()
        return True

    def _find_and_store(self, call: Call, why: NamespaceFailure | None, deadline: Deadline) -> Stored:
        deadline = deadline.part(self.reach.worth(deadline.left))
        try:
            found = Found() if self.rotation else self._find_patiently(call, deadline)
            if found.failure is not None:
                return Stored(failure=found.failure, is_final=found.failure.kind is FailureKind.UNAUTHORIZED)
            stored = self._store_on_a_link(call, why, deadline)
        except BaseException:
            self.reach.undecided()
            raise
        if stored.is_final or stored.too_large:
            self.reach.undecided()
        return stored if found.usable is None else replace(stored, usable=found.usable)

    def _find_patiently(self, call: Call, deadline: Deadline) -> Found:
        found = Found()

        def find() -> NamespaceFailure | None:
            nonlocal found
            found = self._find(deadline)
            return found.failure

        self._patience.outwait(find(), find, call, deadline)
        return found

    def _store_on_a_link(self, call: Call, why: NamespaceFailure | None, deadline: Deadline) -> Stored:
        diversion = Diversion(
            first_attempt=call.started,
            at=self._wall_clock(),
            by=self._by,
            reason=str(why) if why else f"{FailureKind.UNREACHABLE.value}: failed over",
            declarations=self._declarations_for(call.message),
        )
        with self.links.lend() as lent:
            stored = self._store_somewhere(lent, call, diversion, deadline)
            if stored.failure is not None and (stored.failure.kind.counts or stored.is_final):
                lent.drop()
        return stored

    def _store_somewhere(self, lent: Lent, call: Call, diversion: Diversion, deadline: Deadline) -> Stored:
        """Try backlog queues until one takes the message; else the last failure."""
        last: NamespaceFailure | None = None
        tried: list[str] = []
        rejected_by: list[str] = []
        pulled: list[Pulled] = []
        while True:
            lent.queue = queue = self.rotation.pick(lent.queue, tried)
            if queue is None or (tried and deadline.is_over):
                return Stored(failure=last or self._no_queue(), pulled=pulled)
            diversion = replace(diversion, maybe_duplicate=call.maybe_stored)
            try:
                message = self._encoded(call.message, queue, diversion)
            except MessageTooLarge as exc:
                return Stored(too_large=exc, pulled=pulled)
            store = partial(self._store, lent, message, deadline, pulled)
            last = self._patience.outwait(store(), store, call, deadline)
            if last is None:
                return Stored(
                    message,
                    maybe_duplicate=diversion.maybe_duplicate,
                    pulled=pulled,
                    is_readmitted=self.rotation.readmit(queue),
                )
            tried.append(queue)
            call.maybe_stored = call.maybe_stored or last.maybe_stored
            if last.kind is FailureKind.REJECTED:
                rejected_by.append(queue)
            if len(rejected_by) == REJECTIONS:
                for rejecting in rejected_by:
                    self.rotation.readmit(rejecting)
            is_final = last.kind is FailureKind.UNAUTHORIZED or len(rejected_by) == REJECTIONS
            if is_final or last.whole_namespace or last.kind is FailureKind.THROTTLED:
                return Stored(failure=last, is_final=is_final, pulled=pulled)

    def _store(self, lent: Lent, message: Message, deadline: Deadline, pulled: list[Pulled]) -> NamespaceFailure | None:
        """One try on one backlog queue; a failure that is the queue's own pulls it."""
        began = self._clock()
        try:
            on_a_living_link(lent, lambda deadline: lent.sender.send(message, deadline.left), deadline)
        except NamespaceFailure as failure:
            self.learn(failure, self._clock() - began)
            if _is_of_the_queue(failure) and self.rotation.pull(message.routing_key):
                pulled.append(Pulled(message.routing_key, failure, self._wall_clock()))
            return failure
        self.reach.reached()
        return None

    def _encoded(self, message: Message, queue: str, diversion: Diversion) -> Message:
        secondary = self.namespace
        return to_backlog(
            message, queue, diversion, max_size=secondary.max_message_size, size_of=secondary.encoded_size
        )

    def _declarations_for(self, message: Message) -> tuple[Declaration, ...]:
        """What the message needs at home, and then its answer."""
        reply_to = str(message.properties.get("reply_to") or "")
        return (*self._book.for_entity(message.entity), *self._book.for_reply(reply_to))

    def _no_queue(self) -> NamespaceFailure:
        if self.rotation:
            text = f"none of {len(self.rotation)} backlog queues took it in time"
        else:
            text = "no backlog queue is known yet, since the secondary could not be reached"
        return NamespaceFailure(FailureKind.UNREACHABLE, self.namespace.label, LookupError(text))


def _is_of_the_queue(failure: NamespaceFailure) -> bool:
    """And not of the whole namespace, nor of the caller."""
    return not failure.whole_namespace and failure.kind not in (FailureKind.UNAUTHORIZED, FailureKind.THROTTLED)
