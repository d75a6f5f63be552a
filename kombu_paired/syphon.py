"""The syphon: moves backlog messages to their entities on the primary, one message pump per backlog queue.

A message is settled in the backlog only after the primary has it, confirmed and routed. A process that dies in between
leaves a duplicate with the same message id, and never a gap. Any number of syphons may run at once.
"""

from __future__ import annotations

import logging
import threading
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any, TypeVar

from tenacity import (
    RetryCallState,
    Retrying,
    retry_if_exception_type,
    stop_when_event_set,
    wait_random_exponential,
)
from tenacity.nap import sleep_using_event

from kombu_paired.declarations import Entity
from kombu_paired.errors import MalformedBacklogMessage, NamespaceFailure
from kombu_paired.events import EventKind
from kombu_paired.failures import FailureKind
from kombu_paired.message import DECLARE, Diversion, Message, diversion_of, from_backlog
from kombu_paired.namespaces.base import DeadLetter, Received, Receiver, Role, Sender
from kombu_paired.pairing import Pairing
from kombu_paired.pairing.doubts import Doubts

__all__ = ("Destinations", "MessagePump", "Syphon")

logger = logging.getLogger(__name__)

#: Messages moved at a time: enough that the wait for confirms is shared by many.
BATCH = 250
#: Messages a receiver fetches ahead.
PREFETCH = 2 * BATCH
#: Seconds between tries on a namespace that is away: at first, and at most.
FIRST_WAIT, LONGEST_WAIT = 0.5, 5.0
#: Seconds for which a failing destination is left alone: at first, and at most.
FIRST_REST, LONGEST_REST = 2.0, 60.0
#: Seconds for which a destination may be missing, with nothing that declares it, before its messages are dead letters.
MISSING_GRACE = 300.0
#: Messages that a syphon keeps in mind as maybe delivered; beyond that it forgets the oldest.
MOST_DOUBTS = 100_000
#: Seconds between two looks at the namespaces' state.
WATCH_INTERVAL = 0.5

Answer = TypeVar("Answer")


class Destinations:
    """Which entities of the primary fail at the moment, and until when each is left alone. Pure but for its clock."""

    def __init__(self, clock: Callable[[], float] = time.monotonic) -> None:
        self._clock = clock
        self._lock = threading.Lock()
        self._resting: dict[Entity, tuple[float, float, float]] = {}  # failing since, rest, until

    def is_resting(self, entity: Entity) -> bool:
        if not self._resting:
            return False
        with self._lock:
            found = self._resting.get(entity)
            return found is not None and self._clock() < found[2]

    def failed(self, entity: Entity) -> float:
        """It failed: let it rest, longer each time. Returns for how many seconds it has been failing."""
        with self._lock:
            now = self._clock()
            since, rest, until = self._resting.get(entity, (now, FIRST_REST / 2, now))
            if now >= until:
                rest = min(2 * rest, LONGEST_REST)
                self._resting[entity] = (since, rest, now + rest)
            return now - since

    def worked(self, entity: Entity) -> None:
        if self._resting:
            with self._lock:
                self._resting.pop(entity, None)

    def next_wake(self) -> float:
        """Seconds until the first of them is tried again; 0 when none rests."""
        with self._lock:
            if not self._resting:
                return 0.0
            return max(0.0, min(until for _, _, until in self._resting.values()) - self._clock())


@dataclass(eq=False)
class _Parcel:
    """A backlog message, translated.

    Attributes:
        maybe_duplicate: the primary may have it already.
    """

    received: Received
    message: Message
    diversion: Diversion
    maybe_duplicate: bool


class Syphon:
    """The pumps of one pairing, and a watch over its two namespaces.

    Arguments:
        pairing: whose backlog to move.
        poll: seconds of one long poll; the pairing's ``syphon_poll`` by default.
    """

    def __init__(self, pairing: Pairing, *, poll: float | None = None) -> None:
        self.pairing = pairing
        self.poll = poll or pairing.options.syphon_poll
        self.destinations = Destinations()
        self.doubts = Doubts(MOST_DOUBTS)
        self.stopping = threading.Event()
        self._primary_works = threading.Event()
        self._threads: list[threading.Thread] = []
        self._pumps: list[MessagePump] = []

    @property
    def is_running(self) -> bool:
        return bool(self._threads) and not self.stopping.is_set()

    def start(self) -> None:
        """Start the pumps; each waits until the primary answers a probe."""
        if self._threads:
            return
        self._pumps = [MessagePump(self, queue) for queue in self.pairing.backlog_queue_names]
        targets = [("watch", self._watch), *((pump.queue.rsplit("/", 1)[-1], pump.run) for pump in self._pumps)]
        for label, target in targets:
            name = f"kombu-paired-syphon-{self.pairing.name}-{label}"
            self._threads.append(threading.Thread(target=target, name=name, daemon=True))
        self.pairing.when_closing(self.stop)
        for thread in self._threads:
            thread.start()
        logger.info("syphon of pairing %s started: %d backlog queues", self.pairing.name, len(self._pumps))
        self.pairing.emit(EventKind.SYPHON_STARTED)

    def stop(self, timeout: float = 1.5) -> None:
        """Stop; a batch under way is finished if that takes no longer than ``timeout`` seconds."""
        if self.stopping.is_set():
            return
        self.stopping.set()
        self._primary_works.set()
        for pump in self._pumps:
            pump.interrupt()
        deadline = time.monotonic() + timeout
        for thread in self._threads:
            if thread is not threading.current_thread() and thread.is_alive():
                thread.join(max(deadline - time.monotonic(), 0))
        self.pairing.emit(EventKind.SYPHON_STOPPED)

    @property
    def has_seen_empty(self) -> bool:
        """Every pump's last poll found its queue empty."""
        return bool(self._pumps) and all(pump.found_empty for pump in self._pumps)

    # -- for the pumps ------------------------------------------------------------------------------------------

    def wait_for_primary(self) -> bool:
        """Wait until the primary works; False if the syphon stops before."""
        self._primary_works.wait()
        return not self.stopping.is_set()

    @property
    def primary_works(self) -> bool:
        return self._primary_works.is_set()

    def primary_failed(self, failure: NamespaceFailure) -> None:
        """A pump found out that the primary as a whole does not work: all wait, one probes."""
        if self._primary_works.is_set() and not self.stopping.is_set():
            logger.warning("syphon of pairing %s waits: %s. The backlog stays where it is", self.pairing.name, failure)
            self._primary_works.clear()

    def patiently(self, operation: Callable[[], Answer], what: str) -> Answer:
        """Try until it works, with growing pauses; a stop of the syphon ends it with the last failure."""

        def tell(state: RetryCallState) -> None:
            if state.attempt_number == 1 and state.outcome is not None:
                logger.warning("syphon of pairing %s %s: %s", self.pairing.name, what, state.outcome.exception())

        retrying = Retrying(
            retry=retry_if_exception_type(NamespaceFailure),
            wait=wait_random_exponential(multiplier=FIRST_WAIT, max=LONGEST_WAIT),
            sleep=sleep_using_event(self.stopping),
            stop=stop_when_event_set(self.stopping),
            before_sleep=tell,
            reraise=True,
        )
        return retrying(operation)

    # -- the watch ----------------------------------------------------------------------------------------------

    def _watch(self) -> None:
        """Probe a primary that is away; fault the pairing when one of its halves is gone for good."""
        half_open_since: float | None = None
        while not self.stopping.is_set():
            half_open_since = self._check_halves(half_open_since)
            if not self._primary_works.is_set():
                self._probe_primary()
            self.stopping.wait(WATCH_INTERVAL)

    def _probe_primary(self) -> None:
        pairing = self.pairing

        def probe() -> None:
            if not pairing.primary.closed:
                pairing.primary.probe(None, pairing.options.send_timeout)

        try:
            self.patiently(probe, "waits for the primary")
        except NamespaceFailure:
            return  # stopping
        self._primary_works.set()

    def _check_halves(self, since: float | None) -> float | None:
        """No half-open pairing lives on (docs/architecture.md, rule 22)."""
        primary, secondary = self.pairing.primary, self.pairing.secondary
        if primary.closed == secondary.closed:
            return None
        since = since or time.monotonic()
        if time.monotonic() - since >= self.pairing.options.close_timeout:
            self._fault(primary if secondary.closed else secondary)
        return since

    def _fault(self, survivor: Role) -> None:
        text = f"{survivor.label} is faulted, since its partner was closed {self.pairing.options.close_timeout:g} s ago"
        logger.error("pairing %s: %s", self.pairing.name, text)
        survivor.close()
        self.pairing.emit(EventKind.FAULTED, detail=text)
        self.pairing.close()  # so that the next connection gets a whole one; this syphon stops with it


class MessagePump:
    """Moves the messages of one backlog queue, a batch at a time.

    Attributes:
        queue: the backlog queue.
        found_empty: its last poll found nothing.
    """

    def __init__(self, syphon: Syphon, queue: str) -> None:
        self.queue = queue
        self.found_empty = False
        self._syphon = syphon
        self._pairing = syphon.pairing
        self._receiver: Receiver | None = None
        self._sender: Sender | None = None
        self._declared: set[str] = set()

    def interrupt(self) -> None:
        """Make a long poll return."""
        receiver = self._receiver
        if receiver is not None:
            receiver.interrupt()

    def run(self) -> None:
        """Pump until the syphon stops; no failure ends it."""
        while self._syphon.wait_for_primary():
            try:
                self._syphon.patiently(self._open_receiver, f"cannot receive from {self.queue}")
                self._pump()
            except NamespaceFailure as failure:
                logger.info("syphon of pairing %s, %s: %s", self._pairing.name, self.queue, failure)
                self._syphon.stopping.wait(FIRST_WAIT)
            except Exception:
                logger.exception("syphon of pairing %s, %s: unexpected; it goes on", self._pairing.name, self.queue)
                self._syphon.stopping.wait(LONGEST_WAIT)
            finally:
                self._close()

    def _open_receiver(self) -> None:
        pairing = self._pairing
        try:
            self._receiver = pairing.secondary.receiver(self.queue, PREFETCH, pairing.options.send_timeout)
        except NamespaceFailure as failure:
            if failure.kind is FailureKind.MISSING and pairing.options.create_backlog_queues:
                pairing.secondary.ensure_backlog_queues([self.queue], True, pairing.options.send_timeout)
            raise

    def _pump(self) -> None:
        """Move batches until the primary fails or the syphon stops; what is not settled then goes back."""
        syphon, receiver = self._syphon, self._receiver
        assert receiver is not None
        while syphon.primary_works and not syphon.stopping.is_set():
            batch = receiver.receive(BATCH, syphon.poll)
            self.found_empty = not batch and not syphon.stopping.is_set()
            self._pairing.emit(EventKind.POLLED, entity=self.queue, detail=f"{len(batch)} messages")
            if batch:
                self._tell_received(batch)
                self._move(receiver, batch)
            else:
                self._close_sender()

    def _close(self) -> None:
        self.found_empty = False
        receiver, self._receiver = self._receiver, None
        if receiver is not None:
            receiver.close()
        self._close_sender()

    def _close_sender(self) -> None:
        sender, self._sender = self._sender, None
        self._declared.clear()
        if sender is not None:
            sender.close()

    # -- one batch ----------------------------------------------------------------------------------------------

    def _move(self, receiver: Receiver, batch: Sequence[Received]) -> None:
        parcels, letters = self._unpack(batch)
        resting = [each for each in parcels if self._syphon.destinations.is_resting(each.message.entity)]
        going = [each for each in parcels if not self._syphon.destinations.is_resting(each.message.entity)]
        failures = self._deliver(going)
        delivered = [each for each, failure in zip(going, failures, strict=True) if failure is None]
        failed = [(each, failure) for each, failure in zip(going, failures, strict=True) if failure is not None]
        doubtful = self._doubt(failed)
        self._complete(receiver, delivered)
        back, hopeless = self._sort_out(failed)
        # While the primary is away all go back with the link, as they are; the doubtful not before they are marked.
        self._mark(receiver, doubtful)
        back = [each for each in back if each not in doubtful]
        self._dead_letter(receiver, letters + hopeless)
        if self._syphon.primary_works:
            self._abandon(receiver, resting + back, len(batch))

    def _doubt(self, failed: Sequence[tuple[_Parcel, NamespaceFailure]]) -> list[_Parcel]:
        """Those of which it is unknown whether the primary stored them, and the backlog does not say so yet."""
        doubtful = [each for each, failure in failed if failure.maybe_stored and not each.diversion.maybe_duplicate]
        for each in doubtful:
            each.maybe_duplicate = True
        self._syphon.doubts.add(*(each.message for each in doubtful))
        return doubtful

    def _complete(self, receiver: Receiver, delivered: Sequence[_Parcel]) -> None:
        try:
            receiver.complete([each.received for each in delivered])
        except NamespaceFailure:  # they will come again
            self._syphon.doubts.add(*(each.message for each in delivered))
            self._tell_delivered(delivered)
            raise
        self._syphon.doubts.settle(*(each.message for each in delivered))
        self._tell_delivered(delivered)

    def _unpack(self, batch: Sequence[Received]) -> tuple[list[_Parcel], list[DeadLetter]]:
        now = time.time()
        parcels, letters = [], []
        for received in batch:
            try:
                message, diversion = from_backlog(received.message, now), diversion_of(received.message)
                in_doubt = diversion.maybe_duplicate or received.again or message in self._syphon.doubts
                parcels.append(_Parcel(received, message, diversion, in_doubt))
            except MalformedBacklogMessage as exc:
                letters.append(DeadLetter(received, exc.reason, exc.description))
        return parcels, letters

    def _deliver(self, parcels: Sequence[_Parcel]) -> list[NamespaceFailure | None]:
        """Send to the primary, confirmed and routed; one answer each."""
        if not parcels:
            return []
        if self._sender is None:
            self._sender = self._pairing.primary.sender()
        timeout = self._pairing.options.send_timeout
        failures: list[NamespaceFailure | None] = self._declare(parcels, self._sender)
        ready = [index for index, failure in enumerate(failures) if failure is None]
        outcomes = self._sender.send_batch([parcels[index].message for index in ready], timeout) if ready else []
        twice = self._sender.maybe_twice.copy() if ready else set()
        for index, outcome in zip(ready, outcomes, strict=True):
            if outcome is not None and outcome.kind is FailureKind.MISSING:
                outcome = self._declare_and_send_again(parcels[index], self._sender, outcome)
            failures[index] = outcome
        for parcel in parcels if twice else ():
            parcel.maybe_duplicate |= parcel.message.message_id in twice
        return failures

    def _declare(self, parcels: Sequence[_Parcel], sender: Sender) -> list[NamespaceFailure | None]:
        """What the senders declared, once per link."""
        if sender.is_fresh:
            self._declared.clear()
        failed: dict[str, NamespaceFailure] = {}
        failures: list[NamespaceFailure | None] = []
        for parcel in parcels:
            text = str(parcel.received.message.headers.get(DECLARE, ""))
            if text and text not in self._declared and text not in failed:
                failure = self._declare_one(parcel, sender)
                if failure is None:
                    self._declared.add(text)
                else:
                    failed[text] = failure
            failures.append(failed.get(text))
        return failures

    def _declare_one(self, parcel: _Parcel, sender: Sender) -> NamespaceFailure | None:
        try:
            sender.declare(parcel.diversion.declarations, self._pairing.options.send_timeout)
        except NamespaceFailure as failure:
            if failure.kind is not FailureKind.REJECTED:
                return failure
            # It is there, declared in another way by somebody who has his reasons: the send will tell.
            logger.info("syphon: the declarations of %s were refused: %s", parcel.message.entity.path, failure)
        return None

    def _declare_and_send_again(
        self, parcel: _Parcel, sender: Sender, missing: NamespaceFailure
    ) -> NamespaceFailure | None:
        if not parcel.diversion.declarations:
            return missing
        failure = self._declare_one(parcel, sender)
        if failure is not None:
            return failure
        [outcome] = sender.send_batch([parcel.message], self._pairing.options.send_timeout)
        return outcome

    def _sort_out(self, failed: Sequence[tuple[_Parcel, NamespaceFailure]]) -> tuple[list[_Parcel], list[DeadLetter]]:
        """Which failures are the namespace's, which a destination's, and which a message's own."""
        back: list[_Parcel] = []
        hopeless: list[DeadLetter] = []
        for parcel, failure in failed:
            if failure.kind is FailureKind.REJECTED:
                hopeless.append(DeadLetter(parcel.received, "Rejected", str(failure)))
                continue
            back.append(parcel)
            if failure.whole_namespace or failure.kind in (FailureKind.UNREACHABLE, FailureKind.TIMEOUT):
                self._syphon.primary_failed(failure)
            elif self._syphon.primary_works and not self._probe_says_away(failure):
                failing_for = self._let_rest(parcel.message.entity, failure)
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
        failing_for = destinations.failed(entity)
        if not was_resting:
            logger.warning(
                "syphon of pairing %s leaves %s alone for a while: %s", self._pairing.name, entity.path, failure
            )
        return failing_for

    def _dead_letter(self, receiver: Receiver, letters: Sequence[DeadLetter]) -> None:
        if not letters:
            return
        receiver.dead_letter(letters)
        for letter in letters:
            logger.error(
                "syphon of pairing %s: message %s of %s is a dead letter: %s: %s",
                self._pairing.name,
                letter.received.message.message_id,
                self.queue,
                letter.reason,
                letter.description,
            )
            self._tell(EventKind.DEAD_LETTERED, letter.received.message, detail=letter.reason)

    def _abandon(self, receiver: Receiver, parcels: Sequence[_Parcel], batch_size: int) -> None:
        """Put messages behind the others. If there are no others, wait, so that they do not go round and round."""
        if not parcels:
            return
        # A copy has lost what the broker knew of the original: that somebody held it before.
        self._mark(receiver, [each for each in parcels if each.maybe_duplicate])
        receiver.abandon([each.received for each in parcels if not each.maybe_duplicate])
        self._tell_abandoned([each for each in parcels if not each.maybe_duplicate])
        if len(parcels) == batch_size:
            self._syphon.stopping.wait(min(max(self._syphon.destinations.next_wake(), 0.1), FIRST_REST))

    def _mark(self, receiver: Receiver, parcels: Sequence[_Parcel]) -> None:
        """Put messages behind the others that say from now on that the primary may have them."""
        if parcels:
            receiver.abandon([each.received for each in parcels], maybe_duplicate=True)
            self._tell_abandoned(parcels)

    def _tell_abandoned(self, parcels: Sequence[_Parcel]) -> None:
        for parcel in parcels:
            self._tell(EventKind.ABANDONED, parcel.received.message)

    def _tell_received(self, batch: Sequence[Received]) -> None:
        if self._pairing.anyone_wants(EventKind.RECEIVED_FROM_BACKLOG):
            for received in batch:
                self._tell(EventKind.RECEIVED_FROM_BACKLOG, received.message)

    def _tell_delivered(self, parcels: Sequence[_Parcel]) -> None:
        for parcel in parcels:
            self._syphon.destinations.worked(parcel.message.entity)
        if not parcels or not self._pairing.anyone_wants(EventKind.SYPHONED):
            return
        now = time.time()
        for parcel in parcels:
            self._pairing.emit(
                EventKind.SYPHONED,
                entity=parcel.message.entity.path,
                message_id=parcel.message.message_id,
                route=self._route,
                size=parcel.received.message.size,
                seconds=now - parcel.diversion.at,
                first_attempt=parcel.diversion.first_attempt,
                maybe_duplicate=parcel.maybe_duplicate,
            )

    @property
    def _route(self) -> str:
        return "backlog/" + self.queue.rsplit("/", 1)[-1]

    def _tell(self, kind: EventKind, message: Message, **facts: Any) -> None:
        self._pairing.emit(kind, entity=self.queue, message_id=message.message_id, route=self._route, **facts)
