"""A receiver of one consumed queue, in a thread of its own.

It fetches as far as there is room, and some ahead, and settles where it received: settling beside a second thread that
receives on the same connection stalls each time (measured: 0.2 s). An empty queue costs the others nothing.
"""

from __future__ import annotations

import logging
import math
import threading
import time
from collections.abc import Callable
from typing import Any

from azure.servicebus import NEXT_AVAILABLE_SESSION
from azure.servicebus.exceptions import OperationTimeoutError, ServiceBusError

from kombu_paired.brokers.bell import Bell
from kombu_paired.brokers.servicebus.amqp_links import ReceiverLink
from kombu_paired.brokers.servicebus.holding import Holding, lock_has_ended
from kombu_paired.brokers.servicebus.kinds import AWAY, kind_of, wait_of
from kombu_paired.brokers.servicebus.settling import COMPLETE, RELEASE, Outcome, dead_letter
from kombu_paired.brokers.servicebus.wire import from_envelope, is_ping
from kombu_paired.failures import FailureKind

__all__ = ("Fetcher",)

logger = logging.getLogger(__name__)

#: Seconds to wait for the service, or the consumer: while something is held, whose lock ends, and while nothing is.
BUSY_WAIT, IDLE_WAIT = 0.1, 1.0
#: Seconds that a session is waited on for another message.
SESSION_WAIT = 0.25
#: Seconds after which the service is asked again for what it was asked for before. Each time is a receive in its books;
#: but a link that never asks is closed after ten minutes.
ASK_AGAIN = 60.0
#: It is asked when it should send this part more, or less, than it was asked for.
ROUGHLY = 4
#: Seconds before a queue that cannot be received from is tried again: at first, and at most.
FIRST_PAUSE, LONGEST_PAUSE = 0.5, 10.0
#: And this part at most of what is left of the first lock that ends.
PART_OF_LOCK = 0.25
#: Seconds that opening a link may take.
PATIENCE = 10.0


class Fetcher:
    """Receives from one queue.

    Arguments:
        queue: as the consumer calls it.
        new_link: makes a receiver link, not open; its argument is a session or None.
        room: how many messages to have on their way.
        hand_out: something was fetched that the consumer may have room for.
        deliver: takes ``(fetcher, raw message, delivery tag or None)``.
        fail: takes the exception after which the connection is of no use.
        missing: called when there is no such queue; makes it again if it is ours to make.
        no_ack: messages are gone once they are received.

    Attributes:
        buffered: how many messages it handed out that the consumer has not taken over.
        holding: those that are not settled.
    """

    def __init__(
        self,
        queue: str,
        new_link: Callable[[Any], ReceiverLink],
        *,
        room: Callable[[Fetcher], int],
        hand_out: Callable[[], None],
        deliver: Callable[[Fetcher, dict[str, Any], str | None], None],
        fail: Callable[[BaseException], None],
        missing: Callable[[str], None],
        no_ack: bool,
    ) -> None:
        self.queue = queue
        self.no_ack = no_ack
        self.buffered = 0
        self._new_link = new_link
        self._room = room
        self._hand_out = hand_out
        self._deliver = deliver
        self._fail = fail
        self._missing = missing
        self._bell = Bell()
        self._counting = threading.Lock()
        self.holding = Holding(queue, self._bell.ring)
        self._cancelled = False
        self._stopping = False
        self._link: ReceiverLink | None = None
        self._has_sessions = False
        self._asked = self._came = -math.inf
        self._thread = threading.Thread(target=self._run, name=f"kombu-paired-fetch-{queue}", daemon=True)

    def start(self) -> None:
        self._thread.start()

    # -- for the consumer ---------------------------------------------------------------------------------------

    @property
    def is_over(self) -> bool:
        """Its thread has ended: it was cancelled, and all that it held is settled, or its link is of no use."""
        return not self._thread.is_alive()

    def take_over(self, tag: str | None) -> bool:
        """The consumer takes a message over, and there is room for another; False if it is not held any more."""
        with self._counting:
            self.buffered -= 1
        if tag is None:
            self.wake()
        return tag is None or self.holding.deliver(tag)

    def wake(self) -> None:
        """There may be room again."""
        self._bell.ring()

    def hand_out(self) -> bool:
        """Hand out the first message that was fetched ahead; False if there is none."""
        found = self.holding.hand_out()
        if found is None:
            return False
        tag, raw = found
        raw["properties"]["delivery_tag"] = tag
        self._give(raw, tag)
        return True

    @property
    def ahead_wanted(self) -> int:
        """How many messages to fetch beyond those that there is room for.

        None where there are sessions: what is given back late would come after what followed it.
        """
        return 0 if self._has_sessions else self.holding.ahead_wanted

    def _give(self, raw: dict[str, Any], tag: str | None) -> None:
        with self._counting:
            self.buffered += 1
        self._deliver(self, raw, tag)

    def cancel(self) -> None:
        """Fetch no more, and give back what was not delivered; what was can still be settled."""
        self._cancelled = True
        self.wake()
        self.holding.give_back_undelivered()

    def stop(self) -> None:
        """Settle what is to be settled, give back the rest, and end."""
        self.cancel()
        self.holding.give_back()
        self._stopping = True
        self.wake()
        if self.no_ack:  # nothing to settle, and nothing that comes now is worth waiting for
            self.drop()

    def join(self, timeout: float) -> None:
        """Wait for the end; then let go, whatever state the link is in."""
        self._thread.join(timeout)
        if self._thread.is_alive():
            self.drop()

    def drop(self) -> None:
        """Let go at once; what is held comes back when its lock ends."""
        self._stopping = self._cancelled = True
        link = self._link
        if link is not None:
            link.drop()
        self.wake()

    # -- the thread ---------------------------------------------------------------------------------------------

    def _run(self) -> None:
        try:
            self._receive()
        finally:
            self._bell.close()

    def _receive(self) -> None:
        pause, has_warned, fresh_try = FIRST_PAUSE, False, False
        while not self._stopping:
            try:
                self._open()
                pause, has_warned = FIRST_PAUSE, False
                while self._step():
                    fresh_try = False
                return
            except Exception as exc:
                self._let_go()
                if self._stopping:
                    return
                kind = kind_of(exc) or FailureKind.FAULT
                if kind in AWAY:
                    if fresh_try:  # the service closes what is idle: that is no failure yet
                        self._lose()
                        self._fail(exc)
                        return
                    fresh_try = True
                    continue
                self._tell(kind, exc, has_warned)
                has_warned = True
                self._rest(wait_of(exc) or pause)
                pause = min(2 * pause, LONGEST_PAUSE)
            finally:
                if self._stopping:
                    self._let_go()

    def _rest(self, seconds: float) -> None:
        """Before another try; shorter as the locks of what is held, or to be settled, come to their end."""
        ends = time.monotonic() + min(seconds, max(self.holding.lock_left * PART_OF_LOCK, FIRST_PAUSE))
        while not self._stopping and (left := ends - time.monotonic()) > 0:
            self._bell.wait(left)

    def _tell(self, kind: FailureKind, exc: Exception, has_warned: bool) -> None:
        if kind is FailureKind.MISSING:
            try:
                self._missing(self.queue)
            except Exception as failed:
                logger.debug("%s could not be made again: %r", self.queue, failed)
        log = logger.debug if has_warned else logger.warning
        log("receiving from %s failed (%s: %s: %s); it is tried again", self.queue, kind.value, type(exc).__name__, exc)

    def _open(self) -> None:
        while not self._stopping:
            link = self._new_link(NEXT_AVAILABLE_SESSION if self._has_sessions else None)
            self._link = link
            try:
                link.open(PATIENCE)
                link.keep_what_comes()
                self._asked, self._came = -math.inf, time.monotonic()
                return
            except OperationTimeoutError:
                if not self._has_sessions:
                    raise
                # No session has a message: ask again.
            except ServiceBusError as exc:
                if self._has_sessions or "session" not in str(exc).lower():
                    raise
                self._has_sessions = True

    def _step(self) -> bool:
        """Settle, renew, receive, once; False when all is done."""
        link = self._link
        if link is None:
            return False
        if self._cancelled:
            self._give_back(link)
        self.holding.settle_waiting(link)
        if self._stopping or (self._cancelled and not self.holding):
            self._finish(link)
            return False
        self.holding.renew_due(link)
        if not self._has_sessions:
            self.holding.give_back_late()
        if self.holding.ahead:
            self._hand_out()
        self._ask(link)
        is_busy = self.holding or not self.holding.is_settled
        messages = link.fetch(BUSY_WAIT if is_busy or self._has_sessions else IDLE_WAIT, self._bell)
        for received in messages:
            self._take(link, received)
        if self._has_sessions:
            self._look_for_another_session(link, bool(messages))
        return True

    def _give_back(self, link: ReceiverLink) -> None:
        """Give back what came while the rest was. It must not come again here; what is on its way comes before answers.

        Where no answer is awaited the SDK sees to that when it closes the link.
        """
        if link.credit > 0 and (self.holding or not self.holding.is_settled):
            link.ask_for(0)
        if self._stopping:
            self.holding.give_back()
        else:
            self.holding.give_back_undelivered()

    def _ask(self, link: ReceiverLink) -> None:
        """Ask the service for as many as there is room for, if that is another number than it knows, and now and then.

        While too much is unanswered it is asked for nothing more; what it was asked for may come.
        """
        credit = link.credit
        room = 0 if self._cancelled else self._room(self)
        if room <= 0:
            if credit > 0:
                link.ask_for(0)
            return
        now = time.monotonic()
        is_other = credit <= 0 or abs(room - credit) > room // ROUGHLY
        if (is_other and not (self.holding.is_full and room > credit)) or now - self._asked >= ASK_AGAIN:
            self._asked = now
            link.ask_for(room)

    def _look_for_another_session(self, link: ReceiverLink, has_come: bool) -> None:
        now = time.monotonic()
        if has_come or self.holding or not self.holding.is_settled:
            self._came = now
        elif now - self._came >= SESSION_WAIT:
            link.close()
            self._open()

    def _take(self, link: ReceiverLink, received: Any) -> None:
        if is_ping(received):
            self._settle_now(link, received, COMPLETE)
            return
        if self._cancelled:  # it came too late to be delivered, and must not wait for the end of a warm shutdown
            if not self.no_ack:
                self.holding.settle(self.holding.hold(link, received), RELEASE)
            return
        if lock_has_ended(received):  # before it was read
            self.holding.pass_over(received)
            return
        try:
            raw = from_envelope(received)
        except ValueError as exc:
            logger.error(
                "a message %s in %s cannot be read (%s); it is a dead letter", received.message_id, self.queue, exc
            )
            self._settle_now(link, received, dead_letter("MalformedMessage", str(exc)[:1024]))
            return
        if self.no_ack:
            self._give(raw, None)
            return
        raw["properties"]["delivery_info"]["redelivered"] = bool(received.delivery_count)
        self.holding.hold(link, received, raw)
        self._hand_out()

    def _settle_now(self, link: ReceiverLink, received: Any, outcome: Outcome) -> None:
        if not self.no_ack:  # else it is gone already
            self.holding.settle_now(link, received, outcome)

    def _finish(self, link: ReceiverLink) -> None:
        """Settle what is left, and hear the answers; who waits for this thread waits no longer than he likes."""
        while not self.holding.is_settled:
            for received in link.fetch(BUSY_WAIT, self._bell):
                self._take(link, received)
            self.holding.settle_waiting(link)
        link.close()

    def _let_go(self) -> None:
        """The link is of no use. Locks outlive it, but for those of sessions."""
        link, self._link = self._link, None
        if link is not None:
            link.drop()
        self.holding.link_is_gone()
        if self._has_sessions or self._stopping:
            self._lose()

    def _lose(self) -> None:
        """Locks cannot be kept any more: those messages come back by themselves."""
        lost = self.holding.lose()
        if lost:
            logger.warning("the link to %s is lost: %d messages come again when their locks end", self.queue, lost)
