"""One receiver per consumed queue, in a thread of its own.

It fetches ahead as far as there is room, renews the locks of what it holds, and settles where it received: settling
beside a second thread that receives on the same connection stalls each time (measured: 0.2 s). An empty queue costs the
others nothing.
"""

from __future__ import annotations

import logging
import math
import threading
import time
import uuid
from collections import deque
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

from azure.servicebus import NEXT_AVAILABLE_SESSION
from azure.servicebus.exceptions import OperationTimeoutError, ServiceBusError

from kombu_paired.failures import FailureKind
from kombu_paired.namespaces.servicebus.kinds import kind_of
from kombu_paired.namespaces.servicebus.sdk import ReceiverLink
from kombu_paired.namespaces.servicebus.wire import from_envelope, is_ping

__all__ = ("Fetcher", "Held")

logger = logging.getLogger(__name__)

#: Seconds to wait for a message: while something is held, that may have to be settled, and while nothing is.
BUSY_WAIT, IDLE_WAIT = 0.1, 0.25
#: Seconds after which the service is asked again for what it was asked for before. Each time is a receive in its books;
#: but a link that never asks is closed after ten minutes.
ASK_AGAIN = 60.0
#: A lock is renewed when this part of it is left.
RENEW_AT = 0.5
#: Seconds before a queue that cannot be received from is tried again: at first, and at most.
FIRST_PAUSE, LONGEST_PAUSE = 0.5, 10.0
#: Seconds that opening a link or renewing a lock may take.
PATIENCE = 10.0
#: Kinds that end the connection: a worker connects again. Others concern one queue, which is tried again.
ENDING = frozenset({FailureKind.UNREACHABLE, FailureKind.TIMEOUT})


@dataclass
class Held:
    """A message that was received and is not settled yet."""

    fetcher: Fetcher
    received: Any
    renew_at: float
    is_delivered: bool = False


class Fetcher:
    """Receives from one queue.

    Arguments:
        queue: as the consumer calls it.
        new_link: makes a receiver link, not open; its argument is a session or None.
        room: how many messages there is room for.
        deliver: takes ``(queue, raw message, delivery tag or None)``.
        fail: takes the exception after which the connection is of no use.
        missing: called when there is no such queue; makes it again if it is ours to make.
        no_ack: messages are gone once they are received.
    """

    def __init__(
        self,
        queue: str,
        new_link: Callable[[Any], ReceiverLink],
        *,
        room: Callable[[Fetcher], int],
        deliver: Callable[[str, dict[str, Any], str | None], None],
        fail: Callable[[BaseException], None],
        missing: Callable[[str], None],
        no_ack: bool,
    ) -> None:
        self.queue = queue
        self.buffered = 0
        self.held: dict[str, Held] = {}
        self._new_link = new_link
        self._room = room
        self._deliver = deliver
        self._fail = fail
        self._missing = missing
        self._no_ack = no_ack
        self._changed = threading.Condition()
        self._to_settle: deque[tuple[str, Any, dict[str, Any]]] = deque()
        self._cancelled = False
        self._stopping = False
        self._link: ReceiverLink | None = None
        self._has_sessions = False
        self._asked = -math.inf
        self._thread = threading.Thread(target=self._run, name=f"kombu-paired-fetch-{queue}", daemon=True)

    def start(self) -> None:
        self._thread.start()

    # -- for the consumer ---------------------------------------------------------------------------------------

    def settle(self, tag: str, operation: str, **arguments: Any) -> bool:
        """``complete``, ``abandon`` or ``dead_letter`` a held message; False if it is not held any more."""
        with self._changed:
            held = self.held.pop(tag, None)
            if held is None:
                return False
            self._to_settle.append((operation, held.received, arguments))
            self._changed.notify()
        return True

    def wake(self) -> None:
        """There may be room again."""
        with self._changed:
            self._changed.notify()

    def taken(self) -> None:
        """The consumer took a message over: there is room for another."""
        with self._changed:
            self.buffered -= 1
            self._changed.notify()

    def cancel(self) -> None:
        """Fetch no more, and give back what was not delivered; what was can still be settled."""
        with self._changed:
            self._cancelled = True
            self._changed.notify()
        self._give_back(lambda held: not held.is_delivered)

    def stop(self) -> None:
        """Settle what is to be settled, give back the rest, and end."""
        self.cancel()
        self._give_back(lambda held: True)
        with self._changed:
            self._stopping = True
            self._changed.notify()
        if self._no_ack:  # nothing to settle, and nothing that comes now is worth waiting for
            self.drop()

    def join(self, timeout: float) -> None:
        """Wait for the end; then let go, whatever state the link is in."""
        self._thread.join(max(timeout, 0))
        if self._thread.is_alive():
            self.drop()

    def drop(self) -> None:
        """Let go at once; what is held comes back when its lock ends."""
        self._stopping = self._cancelled = True
        link = self._link
        if link is not None:
            link.drop()
        self.wake()

    def _give_back(self, which: Callable[[Held], bool]) -> None:
        for tag in [tag for tag, held in list(self.held.items()) if which(held)]:
            self.settle(tag, "abandon")

    # -- the thread ---------------------------------------------------------------------------------------------

    def _run(self) -> None:
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
                if kind in ENDING:
                    if fresh_try:  # the service closes what is idle: that is no failure yet
                        self._fail(exc)
                        return
                    fresh_try = True
                    continue
                self._tell(kind, exc, has_warned)
                has_warned = True
                with self._changed:
                    self._changed.wait_for(lambda: self._stopping, pause)
                pause = min(2 * pause, LONGEST_PAUSE)
            finally:
                if self._stopping:
                    self._let_go()

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
                self._asked = -math.inf
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
        self._settle_all(link)
        if self._stopping or (self._cancelled and not self.held):
            self._finish(link)
            return False
        self._renew_due(link)
        room = 0 if self._cancelled else self._room(self)
        if room <= 0:
            with self._changed:
                if not self._to_settle and not self._stopping:
                    self._changed.wait(BUSY_WAIT)
            return True
        now = time.monotonic()
        ask = room != link.credit or now - self._asked >= ASK_AGAIN
        if ask:
            self._asked = now
        messages = link.receive(room, BUSY_WAIT if self.held else IDLE_WAIT, ask=ask)
        for received in messages:
            self._take(link, received)
        if self._has_sessions and not messages and not self.held and not self._to_settle:
            link.close()
            self._open()  # this session is empty: the next one
        return True

    def _take(self, link: ReceiverLink, received: Any) -> None:
        if is_ping(received):
            self._settle_now(link, "complete", received)
            return
        if self._cancelled:  # it came too late to be delivered, and must not wait for the end of a warm shutdown
            self._settle_now(link, "abandon", received)
            return
        try:
            raw = from_envelope(received)
        except ValueError as exc:
            logger.error(
                "a message %s in %s cannot be read (%s); it is a dead letter", received.message_id, self.queue, exc
            )
            self._settle_now(
                link, "dead_letter", received, reason="MalformedMessage", error_description=str(exc)[:1024]
            )
            return
        with self._changed:
            self.buffered += 1
        if self._no_ack:
            self._deliver(self.queue, raw, None)
            return
        tag = str(uuid.uuid4())
        raw["properties"]["delivery_tag"] = tag
        raw["properties"]["delivery_info"]["redelivered"] = bool(received.delivery_count)
        self.held[tag] = Held(self, received, _renewal_time(received))
        self._deliver(self.queue, raw, tag)

    def _settle_now(self, link: ReceiverLink, operation: str, received: Any, **arguments: Any) -> None:
        if self._no_ack:
            return
        try:
            link.settle(operation, received, **arguments)
        except Exception as exc:
            if kind_of(exc) in ENDING:
                raise
            logger.warning("%s of a message %s in %s: %s", operation, received.message_id, self.queue, exc)

    def _settle_all(self, link: ReceiverLink) -> None:
        while self._to_settle:
            operation, received, arguments = self._to_settle[0]
            self._settle_now(link, operation, received, **arguments)
            self._to_settle.popleft()

    def _renew_due(self, link: ReceiverLink) -> None:
        now = time.time()
        for tag, held in list(self.held.items()):
            if held.renew_at > now:
                continue
            try:
                link.renew(held.received, PATIENCE)
                held.renew_at = _renewal_time(held.received)
            except Exception as exc:
                if kind_of(exc) in ENDING:
                    raise
                logger.warning("the lock of a message of %s is lost, and it may be run twice: %s", self.queue, exc)
                self.held.pop(tag, None)

    def _finish(self, link: ReceiverLink) -> None:
        self._settle_all(link)
        link.close()

    def _let_go(self) -> None:
        """The link is of no use, and with it the locks that it holds: those messages come back by themselves."""
        link, self._link = self._link, None
        if link is not None:
            link.drop()
        with self._changed:
            lost = len(self.held) + len(self._to_settle)
            self.held.clear()
            self._to_settle.clear()
        if lost and not self._no_ack:
            logger.warning("the link to %s is lost: %d messages come again when their locks end", self.queue, lost)


def _renewal_time(received: Any) -> float:
    until = received.locked_until_utc
    if until is None:
        return float("inf")
    now = time.time()
    return now + max(float(until.timestamp()) - now, 1.0) * RENEW_AT
