"""The two reasons to try again on the same namespace: a link that died in its sleep, and a broker that is busy."""

from __future__ import annotations

from collections.abc import Callable
from typing import TypeVar

from kombu_paired.deadline import Deadline
from kombu_paired.errors import NamespaceFailure
from kombu_paired.failures import FailureKind
from kombu_paired.pairing.call import Call
from kombu_paired.pairing.link_pool import Lent

__all__ = ("THROTTLE_WAITS", "Patience", "on_a_living_link")

#: Waits that a namespace gets from a call when it says that it is busy, before the message goes elsewhere. One that
#: asks for shorter waits gets more of them, which take as long.
THROTTLE_WAITS = 3

Answer = TypeVar("Answer")


def on_a_living_link(lent: Lent, attempt: Callable[[Deadline], Answer], deadline: Deadline) -> Answer:
    """Do something on a link; once more, on a fresh one, if it may only have been dead.

    A connection that was idle may have died in its sleep. If it is sure that the broker saw nothing, that is no failure
    yet.

    Arguments:
        attempt: does it on the link, which connects anew after a failure.

    Raises:
        NamespaceFailure: of the last attempt.
    """
    if lent.sender.is_fresh:
        return attempt(deadline)
    try:
        return attempt(deadline)
    except NamespaceFailure as failure:
        if failure.kind is not FailureKind.UNREACHABLE or failure.maybe_stored:
            raise
    lent.pool.drop_idle()  # the others have slept as long
    return attempt(deadline)


class Patience:
    """Waits for one side while it says that it is busy.

    Arguments:
        side: ``primary`` or ``secondary``.
        seconds: of one wait; at most, where the broker says how long.
        sleep: how to wait.
        tell: hears of each wait before it begins, and how long it will be.
    """

    def __init__(
        self,
        side: str,
        seconds: float,
        sleep: Callable[[float], None],
        tell: Callable[[NamespaceFailure, float], None] | None = None,
    ) -> None:
        self._side = side
        self._seconds = seconds
        self._sleep = sleep
        self._tell = tell

    def outwait(
        self,
        failure: NamespaceFailure | None,
        attempt: Callable[[], NamespaceFailure | None],
        call: Call,
        deadline: Deadline,
    ) -> NamespaceFailure | None:
        """What remains of a failure, after a wait and another attempt for each that only says that it is busy.

        Arguments:
            deadline: of the attempts; a wait is not their own time.
        """
        while failure is not None and failure.kind is FailureKind.THROTTLED:
            wait = self._seconds if failure.wait is None else min(failure.wait, self._seconds)
            if not self._is_patient(call, wait):
                break
            call.waits += ((self._side, wait),)
            if self._tell is not None:
                self._tell(failure, wait)
            deadline.postpone(wait)
            self._sleep(wait)
            failure = attempt()
        return failure

    def _is_patient(self, call: Call, wait: float) -> bool:
        """Whether a call may wait once more for this side."""
        waited = [seconds for side, seconds in call.waits if side == self._side]
        return len(waited) < THROTTLE_WAITS or 0 < wait <= THROTTLE_WAITS * self._seconds - sum(waited)
