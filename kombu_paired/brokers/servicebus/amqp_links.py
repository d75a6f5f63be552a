"""Links to the service, over the SDK's senders and receivers; each step of them is bounded in time.

The SDK waits for ever on a server that accepts a connection and stays silent, whatever timeout it is given, and its
links are not for two threads. So opening happens in a thread that can be given up, a link that failed is never used
again, and to let go of one means to shut its socket first: whoever waits on it wakes up.
"""

from __future__ import annotations

import logging
import math
import threading
import time
from collections.abc import Callable, Mapping, Sequence
from typing import Any

from azure.servicebus.exceptions import (
    MessagingEntityNotFoundError,
    OperationTimeoutError,
    ServiceBusConnectionError,
)

from kombu_paired.brokers.bell import Bell, is_readable
from kombu_paired.brokers.servicebus import compat, compat_receiving
from kombu_paired.brokers.servicebus.bounded import bounded
from kombu_paired.brokers.servicebus.compat_sharing import Board, share_connection
from kombu_paired.brokers.servicebus.kinds import refused_token, token_status, was_refused_as_link
from kombu_paired.brokers.servicebus.trunk import Station
from kombu_paired.brokers.servicebus.trunks import wait_for_any
from kombu_paired.deadline import LEAST

__all__ = ("ReceiverLink", "SenderLink", "wait_for_input")

logger = logging.getLogger(__name__)

#: Bytes a message may have where the service has not said otherwise: Basic and Standard.
STANDARD_MESSAGE = 262_144
#: What ``$cbs`` answers to a token for an entity that nobody has.
NOT_FOUND = 404
#: Seconds the SDK waits for further messages once it has one.
FURTHER_WAIT = 0.01
#: What is taken in before messages are handed on.
FRAMES_AT_ONCE = 20
#: By how many seconds the SDK may overstep the time limit of a send: it looks at the clock between two reads.
OVERSTEP = 0.2


class _Link:
    """A sender or receiver of the SDK. For one thread, but for :meth:`drop`.

    Arguments:
        make: makes it; takes the seconds that it may take to open.
        path: of what it is a link to.
        board: gives it a place on a connection that it shares; None: it has one of its own.

    Attributes:
        was_let_in: it could not be opened although the service let us in: an entity is at fault, not the namespace.
    """

    def __init__(self, make: Callable[[float], Any], path: str, board: Board | None = None) -> None:
        self.path = path
        self._board = board
        self.was_let_in = False
        self._make = make
        self._raw: Any = None
        self._opening: Any = None
        self._dropped = False

    @property
    def is_open(self) -> bool:
        return self._raw is not None

    def open(self, timeout: float) -> None:
        """Connect and attach.

        Raises:
            Exception: what the SDK raises; ``OperationTimeoutError`` when the service stays silent.
        """

        def connect() -> None:
            raw = self._opening = self._make(timeout)
            with compat.without_naps(raw, self._share):
                compat.open_without_tries(raw)
            self._raw, self._opening = raw, None
            if self._dropped:  # given up meanwhile
                _shut(raw)

        try:
            bounded(connect, timeout, f"opening {self.path}", give_up=self._give_up_opening)
        except BaseException as exc:
            status = token_status(exc)
            is_missing = status == NOT_FOUND
            self.was_let_in = self.was_let_in or was_refused_as_link(exc) or is_missing
            self.drop()
            if is_missing:  # the SDK speaks of authentication, which would end a consumer's connection
                raise MessagingEntityNotFoundError(message=f"there is no {self.path}") from exc
            if status is not None:  # nor does it say what was answered
                raise refused_token(exc, self.path) from exc
            raise

    def _share(self, handler: Any) -> None:
        if self._board is not None:
            share_connection(handler, self._board)

    def _give_up_opening(self) -> None:
        self.was_let_in = compat.has_let_in(self._opening)
        self.drop()

    def opened(self) -> Any:
        """The SDK's sender or receiver.

        Raises:
            ServiceBusConnectionError: it is not open.
        """
        raw = self._raw
        if raw is None:
            raise ServiceBusConnectionError(message=f"the link to {self.path} is closed")
        return raw

    def is_alive(self) -> bool:
        """Whether the other side has closed it, as far as is known without asking; handles what it has sent."""
        raw = self._raw
        sock = compat.socket_of(raw)
        if sock is None:  # it broke, and the SDK would connect anew, for as long as that takes
            return False
        try:
            while _has_input(sock):
                if not compat.take_in(raw):
                    return False
            return compat.is_attached(raw)
        except AttributeError:  # another version of the SDK: a send will tell
            return True
        except Exception as exc:
            logger.debug("%s is dead: %r", self.path, exc)
            return False

    def drop(self) -> None:
        """Let go at once, from any thread; whoever waits on it wakes up with an error."""
        self._dropped = True
        raw, self._raw = self._raw, None
        if raw is not None:
            _shut(raw)
        else:
            _wake(self._opening)  # what was begun there is the opening thread's to clean up

    def close(self) -> None:
        """Say goodbye, behind the caller's back: it can take the SDK a second."""
        raw, self._raw = self._raw, None
        if raw is not None:
            _close_behind(raw)


class SenderLink(_Link):
    """Sends to one queue or topic."""

    _until = math.inf

    def open(self, timeout: float) -> None:
        super().open(timeout)
        compat.stop_when(self._raw, self._too_late)
        compat.read_every_outcome(self._raw)

    def _too_late(self) -> OperationTimeoutError | None:
        if time.monotonic() <= self._until:
            return None
        return OperationTimeoutError(message=f"no answer that could be read to a send to {self.path}")

    @property
    def is_usable(self) -> bool:
        """Open, and alive as far as is known."""
        return self.is_open and self.is_alive()

    def send(self, message: Any, timeout: float) -> None:
        """Send a message, or a batch, and wait until the service has it."""
        self._until = time.monotonic() + max(timeout, LEAST)
        compat.send(self.opened(), message, max(timeout - OVERSTEP, LEAST))

    @property
    def max_message_size(self) -> int:
        """Bytes that the service accepts here."""
        return compat.max_message_size_of(self._raw) or STANDARD_MESSAGE

    def new_batch(self) -> Any:
        """An empty batch of the SDK, as large as the service accepts."""
        return self._raw.create_message_batch()


class ReceiverLink(_Link):
    """Receives from one queue or subscription. What it received is settled by :mod:`.settling`."""

    _is_receiving = False
    _was_woken = False
    _can_wake = False
    _keeps = False
    _asked_for = 0

    def open(self, timeout: float) -> None:
        super().open(timeout)
        compat_receiving.wait_for_further(self._raw, FURTHER_WAIT)
        compat_receiving.do_without_keep_alive(self._raw)
        self._can_wake = compat_receiving.interruptible(self._raw, lambda: self._is_receiving and self._was_woken)

    def wake(self) -> None:
        """Let a receive of another thread return soon, with what it has; no later one waits.

        What arrives on a link that is dropped instead is nobody's until its lock ends.
        """
        self._was_woken = True
        if not self._can_wake:  # another version of the SDK
            self.drop()

    @property
    def credit(self) -> int:
        """How many messages the service may still send without being asked again; -1 if that is not known."""
        return compat_receiving.credit_of(self._raw)

    def ask_for(self, count: int) -> None:
        """Give the service credit for so many, which is a receive in its books; 0: no more than is on its way."""
        self._asked_for = count
        compat_receiving.ask_for(self.opened(), count)

    def fetch(self, wait: float, bell: Bell) -> list[Any]:
        """The messages that have come, and with them answers to settlements.

        Arguments:
            wait: so many seconds for anything to come,
            bell: or until somebody rings.

        Raises:
            Exception: what the SDK raises; the link is of no use any more.
        """
        raw = self.opened()
        if not self._keeps:  # another version of the SDK
            return self.receive(max(self._asked_for, 1), wait)
        compat_receiving.keep_up(raw)
        sock = compat.socket_of(raw)
        if sock is None:
            raise ServiceBusConnectionError(message=f"the link to {self.path} was closed")
        if not compat_receiving.has_buffered(raw) and not wait_for_any([sock], wait, bell):
            compat_receiving.beat(raw)
        is_alive, left = True, FRAMES_AT_ONCE
        while is_alive and left and _has_more(raw):
            is_alive = compat.take_in(raw)
            left -= 1
        messages: list[Any] = compat_receiving.received(raw)
        if not messages and not (is_alive and compat.is_attached(raw)):
            compat_receiving.keep_up(raw)  # it may know why
            raise ServiceBusConnectionError(message=f"the link to {self.path} was closed")
        return messages

    @property
    def has_input(self) -> bool:
        """Fetching would find something: a message, an answer, the end."""
        sock = compat.socket_of(self._raw)
        return sock is None or compat_receiving.has_buffered(self._raw) or _has_input(sock)

    def receive(self, limit: int, timeout: float) -> list[Any]:
        """Up to so many messages; waits so long for the first."""
        raw = self.opened()
        self._be_patient(True)
        self._is_receiving = True
        try:
            messages = list(raw.receive_messages(max_message_count=limit, max_wait_time=max(timeout, LEAST)))
        finally:
            self._is_receiving = False
            self._be_patient(False)
        if not messages and compat.is_deaf(raw):
            raise ServiceBusConnectionError(message=f"the link to {self.path} was closed")
        return messages

    def keep_what_comes(self) -> None:
        """It is for :meth:`fetch`, and not for :meth:`receive`."""
        self._keeps = compat_receiving.keep_what_comes(self.opened())

    def give_back_what_comes(self) -> None:
        """It is about to be closed, and what is on its way is for others."""
        self.ask_for(0)
        compat_receiving.give_back_what_comes(self.opened())

    def _be_patient(self, is_patient: bool) -> None:
        """Who waits for what may come some day lets those read first, on a connection that is shared, who wait for an
        answer.
        """
        sock = compat.socket_of(self._raw)
        if isinstance(sock, Station):
            sock.is_patient = is_patient

    def begin_settling(self, message: Any, operation: str) -> dict[str, Any]:
        """Tell what becomes of a message that came over this link, and wait for nothing: see :mod:`.compat`."""
        return compat_receiving.begin_settling(self.opened(), message, operation)

    def end_settling(self, message: Any, operation: str, answer: Mapping[str, Any]) -> None:
        """Read the answer; what the service refuses raises."""
        compat_receiving.end_settling(self.opened(), message, operation, answer)

    def settle_by_token(self, message: Any, operation: str, arguments: Mapping[str, str]) -> None:
        """Settle a message that came over another link, or of which this one has spoken already."""
        compat_receiving.settle_by_token(self.opened(), message, operation, arguments)

    def peek(self, limit: int, timeout: float) -> list[Any]:
        """The oldest ones, left where they are."""
        peek = self.opened().peek_messages
        found: list[Any] = bounded(
            lambda: list(peek(limit, timeout=timeout)), timeout, f"looking into {self.path}", give_up=self.drop
        )
        return found


def _has_more(raw: Any) -> bool:
    sock = compat.socket_of(raw)
    return sock is not None and (compat_receiving.has_buffered(raw) or _has_input(sock))


def _has_input(sock: Any) -> bool:
    return sock.has_input() if isinstance(sock, Station) else is_readable(sock)


def wait_for_input(links: Sequence[ReceiverLink], seconds: float, bell: Bell) -> None:
    """Wait so many seconds for something to come on one of these links, or until somebody rings."""
    if not any(link.has_input for link in links):
        wait_for_any([compat.socket_of(link.opened()) for link in links], seconds, bell)


def _shut(raw: Any) -> None:
    """Let go of it without waiting for anything."""
    _wake(raw)
    _close_behind(raw)


def _wake(raw: Any) -> None:
    """Shut the socket, so that nobody waits on it."""
    sock = compat.socket_of(raw)
    try:
        if sock is not None:
            sock.shutdown(2)
    except (OSError, AttributeError, TypeError) as exc:
        logger.debug("shutting a socket: %r", exc)


def _close_behind(raw: Any) -> None:
    def close() -> None:
        try:
            raw.close()
        except Exception as exc:
            logger.debug("closing a link: %r", exc)

    threading.Thread(target=close, name="kombu-paired-closing", daemon=True).start()
