"""One message on its way, and how much time its call has."""

from __future__ import annotations

import threading
from dataclasses import dataclass
from typing import NamedTuple

from kombu_paired.deadline import Deadline
from kombu_paired.message import Message
from kombu_paired.pairing.clocks import Clocks
from kombu_paired.pairing.doubts import Doubts
from kombu_paired.pairing.last_send import LastSend
from kombu_paired.pairing.reach import GLANCE

__all__ = ("MOMENT", "Call", "Calls")

#: Seconds after which a namespace that failed may have come back.
MOMENT = 0.1
#: What two steps of one call have between them at most (seconds): Kombu declares just before it publishes, which is
#: milliseconds, but for a machine that has other things to do.
BETWEEN_STEPS = 1.0


@dataclass(slots=True)
class Call:
    """One message on its way.

    Attributes:
        message: as the application sends it.
        started: when (seconds since 1970, UTC).
        deadline: when the call must be over.
        maybe_stored: a namespace may have the message by now, so that every copy from here on is marked.
        primary, secondary: when its last try there began; None if it had none.
        waits: which side was busy, so that it waited, and for how long (seconds), each time.
    """

    message: Message
    started: float
    deadline: Deadline
    maybe_stored: bool = False
    primary: float | None = None
    secondary: float | None = None
    waits: tuple[tuple[str, float], ...] = ()

    def is_worth_a_try(self, tried: float | None, now: float) -> bool:
        """A side had no try, or one so long ago that it may have come back, and there is time left."""
        return not self.deadline.is_over and (tried is None or now - tried > MOMENT)

    def leaving_a_glance(self, send_timeout: float) -> float:
        """Seconds for one side. What remains is for the other one, which may have come back meanwhile."""
        left = self.deadline.left
        return min(left - min(GLANCE, send_timeout / 4, left / 2), send_timeout)


class _InVain(NamedTuple):
    """Steps ahead of a message that failed: when the first one began, and the last one ended."""

    since: float
    at: float


class Calls:
    """The calls of all threads. What one spends in vain on opening or declaring, its message does not have.

    Arguments:
        send_timeout: seconds on each side.
        clocks: the time.
        last_send: is told when one begins.
    """

    def __init__(self, send_timeout: float, clocks: Clocks, last_send: LastSend) -> None:
        self._send_timeout = send_timeout
        self._clock = clocks.monotonic
        self._wall_clock = clocks.wall
        self._doubts = Doubts()
        self._in_vain = threading.local()
        self._last_send = last_send

    def begin(self, message: Message) -> Call:
        """The call that sends a message, by this thread."""
        now = self._clock()
        self._last_send.note(now)
        seconds = 2 * self._send_timeout
        if getattr(self._in_vain, "last", None) is not None:
            seconds, self._in_vain.last = self.left(now), None
        deadline = Deadline(seconds, self._clock)
        return Call(message, self._wall_clock(), deadline, maybe_stored=self._doubts.take(message))

    def again(self, message: Message, seconds: float, maybe_stored: bool) -> Call:
        """A call for a message that waited here: nobody waits for it."""
        return Call(message, self._wall_clock(), Deadline(seconds, self._clock), maybe_stored)

    def raised(self, call: Call) -> None:
        """Its caller got an error, and may send the message again: if this copy may be stored, that one is marked."""
        if call.maybe_stored:
            self._doubts.add(call.message)

    def spend_in_vain(self, began: float) -> None:
        """This thread has opened or declared in vain since then: it was for the message that follows."""
        self._in_vain.last = _InVain(self._began(began), self._clock())

    def left(self, now: float, reserved: float = 0.0) -> float:
        """Seconds that this thread's call has for its next step: some, in any case."""
        timeout = self._send_timeout
        return max(2 * timeout - (now - self._began(now)) - reserved, timeout / 4)

    def _began(self, now: float) -> float:
        """When the call did that this thread is in."""
        last: _InVain | None = getattr(self._in_vain, "last", None)
        return last.since if last is not None and now - last.at < BETWEEN_STEPS else now
