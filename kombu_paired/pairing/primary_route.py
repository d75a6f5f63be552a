"""The way to the primary. It reports what happened there as values; what follows from them is for others to decide."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any, NamedTuple, TypeVar

from kombu_paired.brokers.roles import Primary
from kombu_paired.deadline import Deadline
from kombu_paired.declarations import Declaration, DeclarationBook, Entity
from kombu_paired.errors import MessageTooLarge, NamespaceFailure
from kombu_paired.failures import FailureKind, Response
from kombu_paired.message import LARGEST_GROWTH, Message, marked_maybe_duplicate
from kombu_paired.options import PairedNamespaceOptions
from kombu_paired.pairing.call import Call
from kombu_paired.pairing.clocks import Clocks
from kombu_paired.pairing.link_pool import Lent
from kombu_paired.pairing.reach import GLANCE, NamespaceReach
from kombu_paired.pairing.retrying import Patience, on_a_living_link
from kombu_paired.pairing.route import Route

__all__ = ("Declared", "PrimaryRoute", "SentTogether")

Answer = TypeVar("Answer")

#: Part of ``send_timeout`` that a primary has for a declaration when the last that is known of it is a failure: Kombu
#: has napped before, and the send that follows has a time limit, too.
DECLARING_AFTER_A_FAILURE = 0.5


class Declared(NamedTuple):
    """What became of a declaration.

    Attributes:
        answer: the broker's.
        failure: why there is none.
    """

    answer: Any = None
    failure: NamespaceFailure | None = None


class SentTogether(NamedTuple):
    """What became of a batch.

    Attributes:
        outcomes: one for each message; None for success.
        tried: when the try began; None if others' failure was enough.
    """

    outcomes: Sequence[NamespaceFailure | None]
    tried: float | None


class PrimaryRoute(Route):
    """Sends, declares and probes on the primary, each within its time.

    Arguments:
        namespace: the primary.
        book: what the application declared.
        options: the settings.
        clocks: the time.
        waits: hears of each wait for a busy primary before it begins.
    """

    namespace: Primary

    def __init__(
        self,
        namespace: Primary,
        book: DeclarationBook,
        options: PairedNamespaceOptions,
        clocks: Clocks,
        waits: Callable[[NamespaceFailure, float], None],
    ) -> None:
        super().__init__(namespace, NamespaceReach(2 * options.send_timeout, clocks.monotonic, wait=clocks.wait))
        self._book = book
        self._timeout = options.send_timeout
        self._clock = clocks.monotonic
        self._patience = Patience(namespace.side, options.throttle_wait, clocks.sleep, waits)

    # -- a message ----------------------------------------------------------------------------------------------

    def send(self, call: Call, seconds: float, *, sharing: bool = False) -> NamespaceFailure | None:
        """Send; the failure that remains after what its kind allows to try again.

        Arguments:
            seconds: at most; a wait for a busy namespace comes on top.
            sharing: the message can go elsewhere, so that a failure which others found is enough.
        """
        part, began = call.deadline.part(seconds), self._clock()
        known = self.reach.known_failure() if sharing else self.reach.verdict(part.left / 2)
        if known is not None and sharing:
            return known
        failure = known or self._attempt(call, part)
        if failure is not None:
            failure = self._try_again(call, part, failure)
        call.primary = began
        return failure

    def _try_again(self, call: Call, part: Deadline, failure: NamespaceFailure) -> NamespaceFailure | None:
        """What remains of a failure: a missing entity is declared, once, and a busy namespace is waited for."""
        has_declared = False

        def again() -> NamespaceFailure | None:
            return self.reach.verdict(part.left / 2) or self._attempt(call, part)

        def attempt() -> NamespaceFailure | None:
            return declaring(again())

        def declaring(found: NamespaceFailure | None) -> NamespaceFailure | None:
            nonlocal has_declared
            if found is None or found.kind.response is not Response.DECLARE:
                return found
            if has_declared or not self._book.for_entity(call.message.entity):
                return found
            has_declared = True
            return again()

        return self._patience.outwait(declaring(failure), attempt, call, part)

    def _attempt(self, call: Call, deadline: Deadline) -> NamespaceFailure | None:
        message = marked_maybe_duplicate(call.message) if call.maybe_stored else call.message
        entity = message.entity

        def attempt(deadline: Deadline) -> None:
            sender = lent.sender
            try:
                if not sender.has_declared(entity):
                    sender.ensure_declared(entity, self._book, deadline.left)
                sender.send(message, deadline.left)
            except NamespaceFailure as failure:
                if not failure.kind.counts:
                    sender.forget_declared(entity)
                raise

        try:
            with self.links.lend() as lent:
                self._reaching(attempt, lent, deadline)
        except NamespaceFailure as failure:
            call.maybe_stored = call.maybe_stored or failure.maybe_stored
            return failure
        self.reach.reached()
        return None

    def require_room(self, message: Message) -> None:
        """What the primary would refuse must not wait in the backlog first.

        Raises:
            MessageTooLarge: it does not fit.
        """
        limit = self.namespace.max_message_size
        if limit is None or LARGEST_GROWTH * message.size < limit:
            return
        size = self.namespace.encoded_size(message)
        if size > limit:
            raise MessageTooLarge(
                f"message {message.message_id} to {message.entity.path!r} takes {size} bytes, and "
                f"{self.namespace.label} accepts {limit}"
            )

    # -- many messages ------------------------------------------------------------------------------------------

    def send_together(self, messages: Sequence[Message], *, sharing: bool) -> SentTogether:
        """Send many at once; each is tried once."""
        began = self._clock()
        known = self.reach.known_failure() if sharing else self.reach.verdict(self._timeout / 2)
        if known is not None:
            return SentTogether([known] * len(messages), None if sharing else began)
        return SentTogether(self._attempt_together(messages), began)

    def _attempt_together(self, messages: Sequence[Message]) -> Sequence[NamespaceFailure | None]:
        began = self._clock()

        def attempt(deadline: Deadline) -> list[NamespaceFailure | None]:
            for entity in {message.entity for message in messages}:
                lent.sender.ensure_declared(entity, self._book, deadline.left)
            return lent.sender.send_batch(messages, deadline.left)

        with self.links.lend() as lent:
            try:
                outcomes = self._reaching(attempt, lent, Deadline(self._timeout, self._clock))
            except NamespaceFailure as failure:  # before anything was sent
                outcomes = [failure] * len(messages)
            counted = [each for each in outcomes if each is not None and each.kind.counts]
            if not counted:
                self.reach.reached()
                return outcomes
            worst = next((each for each in counted if each.whole_namespace), counted[0])
            self.learn(worst, self._clock() - began)
            lent.drop()
            return outcomes

    # -- what is no message -------------------------------------------------------------------------------------

    def declare(self, declaration: Declaration, left: float) -> Declared:
        """Declare something, in so many seconds at most."""
        began = self._clock()
        seconds = min(self._timeout * (DECLARING_AFTER_A_FAILURE if self.reach.has_failed else 1.0), left)

        def attempt(deadline: Deadline) -> Any:
            return lent.sender.declare_one(declaration, self._book, deadline.left)

        try:
            with self.links.lend() as lent:
                answer = self._reaching(attempt, lent, Deadline(seconds, self._clock))
        except NamespaceFailure as failure:
            if failure.kind is FailureKind.TIMEOUT:  # so that the publish that follows need not wait again
                self.reach.failed(failure, self._clock() - began)
            return Declared(failure=failure)
        if declaration.is_question:
            self.reach.undecided()  # a virtual transport answers without asking the broker
        return Declared(answer)

    def probe(self, entity: Entity) -> NamespaceFailure | None:
        """Find out whether sends to an entity would work."""
        began = self._clock()
        try:
            self.namespace.probe(entity, self._timeout)
        except NamespaceFailure as failure:
            self.learn(failure, self._clock() - began)
            return failure
        except BaseException:
            self.reach.undecided()
            raise
        self.reach.reached()
        return None

    def _reaching(self, attempt: Callable[[Deadline], Answer], lent: Lent, deadline: Deadline) -> Answer:
        """Do something on a link, in as much time as that is worth now."""
        began = self._clock()
        if self.reach.silence is not None:
            deadline = deadline.part(GLANCE)
        try:
            return on_a_living_link(lent, attempt, deadline)
        except NamespaceFailure as failure:
            self.learn(failure, self._clock() - began)
            raise
        except BaseException:  # a time limit of the caller's own, say: nobody knows in which state the link is
            self.reach.undecided()
            raise
