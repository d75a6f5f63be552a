"""What a consumer holds: messages under lock, until the service has heard what becomes of each, and has agreed.

The lock of a message is its own, and not the link's: when the link is gone (the service detaches one that was idle for
ten minutes, and closes connections now and then) what came over it is renewed and settled by the token of its lock,
over the next one. Sessions are locked by their link, and lost with it.
"""

from __future__ import annotations

import itertools
import logging
import threading
import time
import uuid
from collections import OrderedDict, deque
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any

from azure.servicebus.exceptions import (
    MessageLockLostError,
    MessageNotFoundError,
    OperationTimeoutError,
    SessionLockLostError,
)

from kombu_paired.brokers.servicebus.ahead import KEEP_AHEAD, Pace
from kombu_paired.brokers.servicebus.amqp_links import ReceiverLink
from kombu_paired.brokers.servicebus.kinds import AWAY, kind_of, wait_of
from kombu_paired.brokers.servicebus.settling import RELEASE, Outcome, renew, settle
from kombu_paired.failures import FailureKind

__all__ = ("Holding", "lock_has_ended")

logger = logging.getLogger(__name__)

#: A lock is renewed when this part of it is left.
RENEW_AT = 0.5
#: Seconds that renewing a lock may take.
RENEW_PATIENCE = 10.0
#: Seconds that the answer to a settlement may take.
SETTLE_PATIENCE = 10.0
#: Settlements that may wait for their answers at a time. If a worker dies, so many tasks that are done may run again.
MOST_UNDER_WAY = 100
#: Seconds before a renewal or a settlement that was refused is tried again, where the service does not say how long.
TRY_AGAIN = 0.5
#: What the service need not be waited for with.
IN_BACKGROUND = frozenset({"complete", "abandon", "release"})
#: What it says when there is nothing to settle any more.
LOST = (MessageLockLostError, MessageNotFoundError, SessionLockLostError)


@dataclass(eq=False)
class _Held:
    """A message that was received and is not settled yet, the link that it came by, and when (monotonic)."""

    received: Any
    link: ReceiverLink
    renew_at: float
    since: float
    is_delivered: bool = False


@dataclass(eq=False)
class _Settlement:
    """What becomes of a message, and how far the service has heard of it.

    Attributes:
        link: that it came by; None if it is to be settled by the token of its lock.
        not_before: when it may be tried (monotonic).
        answer: what the service's answer will be written into, once it has been told.
        sent_at: when it was (monotonic).
    """

    received: Any
    outcome: Outcome
    link: ReceiverLink | None
    not_before: float = 0.0
    answer: dict[str, Any] = field(default_factory=dict)
    sent_at: float = 0.0


class Holding:
    """What one fetcher has received and not settled yet.

    Any thread says what becomes of a message. The fetcher's own tells the service, and renews the locks meanwhile. What
    was fetched ahead is held, too, until it is handed out.

    Arguments:
        queue: as the consumer calls it.
        changed: called when there is something to settle.
    """

    def __init__(self, queue: str, changed: Callable[[], None]) -> None:
        self._queue = queue
        self._changed = changed
        self._lock = threading.RLock()
        self._name, self._numbers = uuid.uuid4(), itertools.count(1)  # of delivery tags
        self._held: dict[str, _Held] = {}
        self._ahead: OrderedDict[str, dict[str, Any]] = OrderedDict()  # of those: raw messages by tag
        self._pace = Pace()
        self._locked_for = float("inf")  # seconds that messages are locked for
        self._to_settle: deque[_Settlement] = deque()
        self._under_way: list[_Settlement] = []
        self._has_warned = False

    def __len__(self) -> int:
        return len(self._held)

    @property
    def ahead(self) -> int:
        """How many messages wait here for the consumer to have room."""
        return len(self._ahead)

    @property
    def handed_out(self) -> int:
        """How many the consumer was given and has not settled."""
        return len(self._held) - len(self._ahead)

    @property
    def ahead_wanted(self) -> int:
        """How many should be here, or on their way, beyond those that the consumer has room for."""
        with self._lock:
            return self._pace.ahead(self._locked_for)

    @property
    def is_full(self) -> bool:
        """So much is unanswered that no more should be taken."""
        return len(self._under_way) + len(self._to_settle) >= MOST_UNDER_WAY

    @property
    def is_settled(self) -> bool:
        """Nothing waits to be settled, or for an answer."""
        return not self._to_settle and not self._under_way

    @property
    def lock_left(self) -> float:
        """Seconds until the first lock ends of what is held, or waits to be settled; infinite if nothing is."""
        with self._lock:
            locked: list[_Held | _Settlement] = [*self._held.values(), *self._to_settle, *self._under_way]
            return min((_lock_left(each.received) for each in locked), default=float("inf"))

    # -- for any thread -----------------------------------------------------------------------------------------

    def deliver(self, tag: str) -> bool:
        """The consumer takes a message over; False if it is not held any more, or somebody else may hold it by now."""
        held = self._held.get(tag)
        if held is None:
            return False
        if lock_has_ended(held.received):
            self._pop(tag)
            self.pass_over(held.received)
            return False
        held.is_delivered = True
        return True

    def hand_out(self) -> tuple[str, dict[str, Any]] | None:
        """The first of those that were fetched ahead: tag and raw message; None if there is none."""
        with self._lock:
            while self._ahead:
                tag, raw = self._ahead.popitem(last=False)
                received = self._held[tag].received
                if not lock_has_ended(received):
                    return tag, raw
                self._pop(tag)
                self.pass_over(received)
        return None

    def settle(self, tag: str, outcome: Outcome) -> bool:
        """Have a message settled soon; False if it is not held any more."""
        with self._lock:
            held = self._pop(tag)
            if held is None:
                return False
            if held.is_delivered:
                self._pace.settled()
            self._to_settle.append(_Settlement(held.received, outcome, held.link))
        self._changed()
        return True

    def give_back(self) -> None:
        """Have all of it come again."""
        self._give_back(lambda held: True)

    def give_back_undelivered(self) -> None:
        """Have come again what no consumer took over."""
        self._give_back(lambda held: not held.is_delivered)

    def _give_back(self, which: Callable[[_Held], bool]) -> None:
        for tag in [tag for tag, held in list(self._held.items()) if which(held)]:
            self.settle(tag, RELEASE)

    # -- for the fetcher's --------------------------------------------------------------------------------------

    def hold(self, link: ReceiverLink, received: Any, raw: dict[str, Any] | None = None) -> str:
        """Keep a message that was received; its delivery tag.

        Arguments:
            raw: it is to be handed out, as this.
        """
        tag = f"{self._name}.{next(self._numbers)}"
        now = time.monotonic()
        left = _lock_left(received)
        with self._lock:
            self._held[tag] = _Held(received, link, time.time() + max(left, 1.0) * RENEW_AT, now)
            if raw is not None:
                self._ahead[tag] = raw
            self._locked_for = left
        return tag

    def give_back_late(self) -> None:
        """What was fetched ahead for a consumer that has become slow is for others."""
        with self._lock:
            first = next(iter(self._ahead), None)
            if first is None or self._held[first].since + KEEP_AHEAD > time.monotonic():
                return
            for tag in list(self._ahead):
                self.settle(tag, RELEASE)

    def _pop(self, tag: str) -> _Held | None:
        with self._lock:
            self._ahead.pop(tag, None)
            return self._held.pop(tag, None)

    def pass_over(self, received: Any) -> None:
        """A message waited beyond its lock, so that somebody else has it, or will: it is not delivered."""
        log = logger.debug if self._has_warned else logger.warning
        self._has_warned = True
        log(
            "a message %s of %s waited here beyond its lock, and comes again. If many do, see whether this machine's "
            "clock is ahead",
            received.message_id,
            self._queue,
        )

    def settle_now(self, link: ReceiverLink, received: Any, outcome: Outcome) -> None:
        """Settle a message, and wait for the answer. What is refused comes again; a link that broke in it raises."""
        try:
            settle(link, received, outcome)
        except Exception as exc:
            if kind_of(exc) in AWAY:
                raise
            logger.warning("%s of a message %s in %s: %s", outcome.operation, received.message_id, self._queue, exc)

    def settle_waiting(self, link: ReceiverLink) -> None:
        """Hear what the service has answered, and tell it what it is to be told.

        Raises:
            Exception: the link is of no use any more; all that it was told without an answer is told to the next one.
        """
        self._read_answers(link)
        now = time.monotonic()
        for each in [each for each in list(self._to_settle) if each.not_before <= now]:
            self._tell(link, each)
            self._to_settle.remove(each)

    def _tell(self, link: ReceiverLink, settlement: _Settlement) -> None:
        received, outcome = settlement.received, settlement.outcome
        try:
            if settlement.link is not link:
                link.settle_by_token(received, outcome.operation, outcome.arguments)
            elif outcome.operation in IN_BACKGROUND:
                settlement.answer = link.begin_settling(received, outcome.operation)
                settlement.sent_at = time.monotonic()
                self._under_way.append(settlement)
            else:
                settle(link, received, outcome)
        except Exception as exc:
            if kind_of(exc) in AWAY:
                raise
            self._refused(settlement, exc)

    def _read_answers(self, link: ReceiverLink) -> None:
        now = time.monotonic()
        unanswered: list[_Settlement] = []
        for each in self._under_way:
            if not each.answer["settled"]:
                unanswered.append(each)
                continue
            with self._lock:
                self._pace.answered(now - each.sent_at)
            try:
                link.end_settling(each.received, each.outcome.operation, each.answer)
            except Exception as exc:
                self._refused(each, exc)
        self._under_way = unanswered
        if unanswered and unanswered[0].sent_at < now - SETTLE_PATIENCE:
            raise OperationTimeoutError(message=f"no answer to a settlement in {self._queue}")

    def _refused(self, settlement: _Settlement, exc: Exception) -> None:
        """Try again while the lock lasts; the link takes no second word about a message, so by its token."""
        received = settlement.received
        if isinstance(exc, LOST) or kind_of(exc) is FailureKind.REJECTED or lock_has_ended(received):
            logger.warning(
                "%s of a message %s in %s is refused, and unless it was settled before, it comes again: %s",
                settlement.outcome.operation,
                received.message_id,
                self._queue,
                exc,
            )
            return
        logger.debug("%s of a message in %s is tried again: %r", settlement.outcome.operation, self._queue, exc)
        settlement.link = None
        settlement.not_before = time.monotonic() + _wait_within(_lock_left(received), exc)
        self._to_settle.append(settlement)

    def renew_due(self, link: ReceiverLink) -> None:
        """Renew the locks whose time it is."""
        now = time.time()
        for tag, held in list(self._held.items()):
            if held.renew_at > now:
                continue
            try:
                renew(link, held.received, RENEW_PATIENCE)
                held.renew_at = time.time() + max(_lock_left(held.received), 1.0) * RENEW_AT
            except Exception as exc:
                if kind_of(exc) in AWAY:
                    raise
                if isinstance(exc, LOST) or lock_has_ended(held.received):
                    logger.warning("the lock of a message of %s is lost, and it may be run twice: %s", self._queue, exc)
                    self._pop(tag)
                else:
                    held.renew_at = now + _wait_within(_lock_left(held.received), exc)

    def link_is_gone(self) -> None:
        """What it was told without an answer is told to the next one."""
        with self._lock:
            for each in self._under_way:
                each.link = None
                self._to_settle.append(each)
            self._under_way = []

    def lose(self) -> int:
        """There will be no other link; how many messages come again by themselves."""
        with self._lock:
            lost = len(self._held) + len(self._to_settle) + len(self._under_way)
            self._held.clear()
            self._ahead.clear()
            self._to_settle.clear()
            self._under_way = []
        return lost


def lock_has_ended(received: Any) -> bool:
    """Whether the lock of a message has ended, as far as this clock can say."""
    until = received.locked_until_utc
    return until is not None and float(until.timestamp()) <= time.time()


def _wait_within(lock_left: float, exc: BaseException) -> float:
    """Seconds before another try: as many as the service asks for, but it is too late when the lock has ended."""
    return min(wait_of(exc) or TRY_AGAIN, max(lock_left / 2, TRY_AGAIN))


def _lock_left(received: Any) -> float:
    """Seconds, as far as this clock can say; without an end where the session is locked, and not the message."""
    until = received.locked_until_utc
    return float("inf") if until is None else float(until.timestamp()) - time.time()
