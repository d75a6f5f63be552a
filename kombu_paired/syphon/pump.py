"""The message pump: moves the messages of all backlog queues, and decides what becomes of each.

What fails is the namespace's (the pump waits, and the watch probes), a destination's (it is left alone for a while),
or a message's own (it is a dead letter).
"""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence
from functools import partial
from typing import TYPE_CHECKING

from kombu_paired.brokers.roles import DeadLetter, Received, Receiver
from kombu_paired.declarations import Entity
from kombu_paired.errors import NamespaceFailure
from kombu_paired.failures import FailureKind
from kombu_paired.pairing.circuit import CircuitState
from kombu_paired.syphon.delivery import Delivery
from kombu_paired.syphon.destinations import FIRST_REST
from kombu_paired.syphon.handing_out import HandingOut
from kombu_paired.syphon.lookout import Lookout
from kombu_paired.syphon.parcel import Parcel, unpack
from kombu_paired.syphon.patience import FIRST_WAIT, LONGEST_WAIT, about, patiently
from kombu_paired.syphon.queues import Queues

if TYPE_CHECKING:
    from kombu_paired.syphon.syphon import Syphon

__all__ = ("MessagePump",)

#: Messages moved at a time: enough that the wait for confirms is shared by many, and few enough that a new message does
#: not wait for long behind them. More of them where the primary is far away.
BATCH, LARGEST_BATCH = 250, 500
#: Messages of each queue that a receiver fetches ahead.
PREFETCH = LARGEST_BATCH
#: Seconds for which a destination may be missing, with nothing that declares it, before its messages are dead letters.
MISSING_GRACE = 300.0


class MessagePump:
    """Moves the messages of all backlog queues, a batch at a time: one thread, and one link to each side.

    Arguments:
        queues: the backlog queues to begin with.
        clock: monotonic seconds.

    Attributes:
        queues: what it receives from.
        lookout: those of them that are somebody else's.
        found_empty: its last poll found nothing in any of them.
    """

    def __init__(self, syphon: Syphon, queues: Sequence[str], clock: Callable[[], float] = time.monotonic) -> None:
        pairing = syphon.pairing
        self.queues = Queues(queues, pairing.secondary, pairing.options, syphon.teller, clock)
        self.lookout = Lookout(self.queues)
        self.found_empty = False
        self._syphon = syphon
        self._pairing = pairing
        self._teller = syphon.teller
        self._delivery = Delivery(pairing.primary, pairing.options.send_timeout, self._teller, syphon.pace)
        self._handing_out = HandingOut(pairing)
        self._receiver: Receiver | None = None
        self._quiet_for = 0.0  # seconds, of one long poll
        self._received_at: float | None = None
        self._clock = clock

    @property
    def last_received(self) -> float | None:
        """Seconds since a message was received; None if none was."""
        return None if self._received_at is None else self._clock() - self._received_at

    def add(self, queue: str) -> None:
        """Move what is in this queue, too, from now on; from any thread."""
        self.queues.add(queue)
        self.interrupt()

    def remove(self, queue: str) -> None:
        """Leave this queue alone from now on."""
        self.queues.remove(queue)
        self.interrupt()

    def interrupt(self) -> None:
        """Make a long poll return."""
        receiver = self._receiver
        if receiver is not None:
            receiver.interrupt()

    def run(self) -> None:
        """Pump until the syphon stops; no failure ends it."""
        while self._syphon.wait_for_a_way():
            try:
                tell = partial(self._teller.tries_again, f"cannot receive from {self.queues}")
                self._receiver = patiently(self._open_receiver, self._syphon.stopping, tell)
                self._pump(self._receiver)
            except NamespaceFailure as failure:
                self._teller.interrupted(str(self.queues), failure)
                self._syphon.stopping.wait(about(FIRST_WAIT))
            except Exception:
                self._teller.unexpected(str(self.queues))
                self._syphon.stopping.wait(LONGEST_WAIT)
            finally:
                self._close()

    def _open_receiver(self) -> Receiver:
        return self.queues.open_receiver(self._syphon.pace.ahead(PREFETCH))

    def _pump(self, receiver: Receiver) -> None:
        """Move batches until the primary fails or the syphon stops; what is not settled then goes back.

        While workers of this process stand in, batches are handed out to them instead, until the primary is back.
        """
        syphon = self._syphon
        goes_home = syphon.primary_works
        while syphon.has_a_way and syphon.primary_works is goes_home and not syphon.stopping.is_set():
            self.queues.tend(receiver)
            patience = min(syphon.poll, self.queues.next_try)
            # The pace is the primary's: it stays at its first taste while that is away.
            batch = receiver.receive(self._at_a_time() if goes_home else BATCH, patience)
            if not batch:
                self._found_nothing(receiver, patience)
                continue
            self.found_empty = False
            self._quiet_for = 0.0
            self._received_at = self._clock()
            batch = self.lookout.sort_out(receiver, batch)
            if not batch:
                continue
            self._teller.polled(dict.fromkeys(each.queue for each in batch), batch)
            if goes_home:
                self._move_in_turn(receiver, batch)
            else:
                self._hand_out(receiver, batch)

    def _at_a_time(self) -> int:
        return self._syphon.pace.at_a_time(BATCH, LARGEST_BATCH)

    def _found_nothing(self, receiver: Receiver, waited: float) -> None:
        """In no queue; or it was interrupted, or a queue failed, and there is nothing to be said of the others."""
        self._delivery.close()
        self._handing_out.close()
        self._pairing.isolation.rest()
        self.found_empty = self.queues.are_fine(receiver) and not self._syphon.stopping.is_set()
        self._quiet_for += waited
        if self._quiet_for >= self._syphon.poll:
            self._quiet_for = 0.0
            self._teller.polled((each for each in self.queues.wanted if each not in receiver.failed), ())

    def _close(self) -> None:
        self.found_empty = False
        receiver, self._receiver = self._receiver, None
        if receiver is not None:
            receiver.close()
        self._delivery.close()
        self._handing_out.close()
        self._pairing.isolation.rest()

    # -- one batch ----------------------------------------------------------------------------------------------

    def _move_in_turn(self, receiver: Receiver, batch: Sequence[Received]) -> None:
        """Move a batch when the pace lets it; it goes back with the link if the primary fails before, or all stops."""
        syphon = self._syphon
        if self._pairing.isolation.look_if_due().is_everything:
            syphon.leave_alone()
            return
        while (wait := syphon.pace.ask(len(batch))) > 0:
            syphon.stopping.wait(wait)
            if syphon.stopping.is_set() or not syphon.primary_works:
                return
        with syphon.pace.turn(len(batch)):
            self._move(receiver, batch)

    def _move(self, receiver: Receiver, batch: Sequence[Received]) -> None:
        parcels, letters = unpack(batch, self._syphon.doubts)
        at_rest = set(filter(self._is_resting, {each.entity for each in parcels}))  # once: it may change at any moment
        resting = [each for each in parcels if each.entity in at_rest]
        going = [each for each in parcels if each.entity not in at_rest]
        failures = self._delivery.deliver(going, meanwhile=lambda: receiver.fetch(self._at_a_time()))
        delivered = [each for each, failure in zip(going, failures, strict=True) if failure is None]
        failed = [(each, failure) for each, failure in zip(going, failures, strict=True) if failure is not None]
        doubtful = self._doubt(failed)
        for entity in {each.entity for each in delivered}:
            self._syphon.destinations.worked(self._pairing.concerns(entity))
        self._complete(receiver, delivered, self._teller.delivered)
        back, hopeless = self._sort_out(failed)
        # While the primary is away all go back with the link, as they are; the doubtful not before they are marked.
        self._put_back(receiver, doubtful, mark=True)
        back = [each for each in back if each not in doubtful]
        self._dead_letter(receiver, letters + hopeless)
        if self._syphon.primary_works:
            self._abandon(receiver, resting + back, len(batch))

    def _is_resting(self, entity: Entity) -> bool:
        entity, destinations = self._pairing.concerns(entity), self._syphon.destinations
        if self._pairing.circuits.state(entity) is CircuitState.ISOLATED:
            destinations.busy(entity, self._pairing.isolation.interval)
        return destinations.is_resting(entity)

    def _doubt(self, failed: Sequence[tuple[Parcel, NamespaceFailure]]) -> list[Parcel]:
        """Those of which it is unknown whether the primary stored them, and the backlog does not say so yet."""
        doubtful = [each for each, failure in failed if failure.maybe_stored and not each.diversion.maybe_duplicate]
        for each in doubtful:
            each.maybe_duplicate = True
        self._syphon.doubts.add(*(each.message for each in doubtful))
        return doubtful

    def _sort_out(self, failed: Sequence[tuple[Parcel, NamespaceFailure]]) -> tuple[list[Parcel], list[DeadLetter]]:
        """Which failures are the namespace's, which a destination's, and which a message's own."""
        back: list[Parcel] = []
        hopeless: list[DeadLetter] = []
        for parcel, failure in failed:
            if failure.kind is FailureKind.REJECTED:
                hopeless.append(DeadLetter(parcel.received, "Rejected", str(failure)))
                continue
            back.append(parcel)
            if failure.whole_namespace or failure.kind in (FailureKind.UNREACHABLE, FailureKind.TIMEOUT):
                self._syphon.primary_failed(failure)
            elif self._syphon.primary_works and not self._probe_says_away(failure):
                failing_for = self._let_rest(self._pairing.concerns(parcel.entity), failure)
                given_up = failure.kind is FailureKind.MISSING and failing_for >= MISSING_GRACE
                if given_up and not parcel.message.is_delayed:  # that waits for a worker, which declares what it needs
                    back.pop()
                    hopeless.append(DeadLetter(parcel.received, "MissingEntity", str(failure)))
        return back, hopeless

    def _probe_says_away(self, failure: NamespaceFailure) -> bool:
        """A fault may be one queue's or the whole broker's (full, in alarm): ask it."""
        if failure.kind is not FailureKind.FAULT or self._syphon.destinations.next_wake():
            return False
        try:
            self._pairing.primary.probe(None, self._pairing.options.send_timeout)
        except NamespaceFailure as found:
            self._syphon.primary_failed(found)
            return True
        return False

    def _let_rest(self, entity: Entity, failure: NamespaceFailure) -> float:
        destinations = self._syphon.destinations
        was_resting = destinations.is_resting(entity)
        if failure.kind is FailureKind.THROTTLED:
            throttle_wait = self._pairing.options.throttle_wait
            self._syphon.pace.throttled()
            destinations.busy(entity, throttle_wait if failure.wait is None else min(failure.wait, throttle_wait))
            failing_for = 0.0
        else:
            failing_for = destinations.failed(entity)
        if not was_resting:
            self._teller.rests(entity, failure)
        return failing_for

    # -- one batch, while workers stand in ----------------------------------------------------------------------

    def _hand_out(self, receiver: Receiver, batch: Sequence[Received]) -> None:
        parcels, letters = unpack(batch, self._syphon.doubts)
        answers = list(zip(parcels, self._handing_out.hand_out(parcels), strict=True))
        failed = [(each, answer.failure) for each, answer in answers if answer.failure is not None]
        doubtful = self._doubt(failed)
        handed = [each for each, answer in answers if answer.failure is None and not answer.stays]
        self._complete(receiver, handed, self._teller.handed_out)
        self._dead_letter(receiver, letters)
        self._put_back(receiver, doubtful, mark=True)
        self._abandon(receiver, [each for each, _ in failed if each not in doubtful], len(batch))
        self._abandon(receiver, [each for each, answer in answers if answer.stays], len(batch))

    # -- settling -----------------------------------------------------------------------------------------------

    def _complete(
        self, receiver: Receiver, delivered: Sequence[Parcel], tell: Callable[[Sequence[Parcel]], None]
    ) -> None:
        """They are where they go. What cannot be settled comes again, and is marked then."""
        doubts = self._syphon.doubts
        try:
            receiver.complete([each.received for each in delivered])
        except NamespaceFailure:  # they will come again
            doubts.add(*(each.message for each in delivered))
            tell(delivered)
            raise
        doubts.add(*(each.message for each in delivered if each.received.queue in receiver.failed))
        doubts.settle(*(each.message for each in delivered if each.received.queue not in receiver.failed))
        tell(delivered)

    def _dead_letter(self, receiver: Receiver, letters: Sequence[DeadLetter]) -> None:
        if letters:
            receiver.dead_letter(letters)
            self._teller.dead_lettered([each for each in letters if each.received.queue not in receiver.failed])

    def _abandon(self, receiver: Receiver, parcels: Sequence[Parcel], batch_size: int) -> None:
        """Put messages behind the others. If there are no others, wait, so that they do not go round and round."""
        if not parcels:
            return
        # A copy has lost what the broker knew of the original: that somebody held it before.
        self._put_back(receiver, [each for each in parcels if each.maybe_duplicate], mark=True)
        self._put_back(receiver, [each for each in parcels if not each.maybe_duplicate])
        if len(parcels) == batch_size:
            next_wake = self._syphon.destinations.next_wake()
            self._syphon.stopping.wait(min(max(next_wake, 0.1), FIRST_REST))

    def _put_back(self, receiver: Receiver, parcels: Sequence[Parcel], *, mark: bool = False) -> None:
        """Put messages behind the others; marked, they say from now on that the primary may have them."""
        if parcels:
            receiver.abandon([each.received for each in parcels], maybe_duplicate=mark)
            self._teller.abandoned([each for each in parcels if each.received.queue not in receiver.failed])
