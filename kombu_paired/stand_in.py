"""Standing in: while the primary is away, workers consume from the secondary (docs/architecture.md, rules 30 and 31).

What stands there in a queue's stead is a *stand-in queue*, whose name begins with the primary's: plain queues of the
secondary are never touched, since that may be somebody else's primary. Pure but for its clock.
"""

from __future__ import annotations

import threading
import time
from collections.abc import Callable

__all__ = (
    "CAME_BY",
    "STAND_IN_MARK",
    "STAND_IN_ROUTE",
    "StandIn",
    "plain_name",
    "stand_in_exchange",
    "stand_in_name",
    "stand_in_register",
)

#: What is in the name of every stand-in queue, between the primary's name and that of the queue it stands in for.
STAND_IN_MARK = "/x-paired-standin/"
#: The route of what is told of a message in a stand-in queue, or from one.
STAND_IN_ROUTE = "stand-in"
#: The property in which a worker finds that route: of what a message has on receipt, Celery hands its properties on to
#: the process that runs the task, and sends none of them again when the task is retried.
CAME_BY = "x-paired-came-by"


def stand_in_name(primary: str, name: str) -> str:
    """What a queue of the primary is called on the secondary.

    Arguments:
        primary: the primary's name, which names the backlog queues, too.
    """
    return f"{primary}{STAND_IN_MARK}{name}"


def stand_in_exchange(primary: str, name: str) -> str:
    """What an exchange is called there: Kombu takes apart a Redis fanout's name at its slashes."""
    return stand_in_name(primary, name).replace("/", ".")


def stand_in_register(primary: str) -> str:
    """Where the secondary keeps the names of the stand-in queues: most brokers do not tell what they have."""
    return f"{primary}{STAND_IN_MARK.rstrip('/')}s"


def plain_name(primary: str, name: str) -> str | None:
    """What a stand-in queue is called at home; None if it is none of this primary's."""
    prefix = primary + STAND_IN_MARK
    return name.removeprefix(prefix) if name.startswith(prefix) else None


class StandIn:
    """Which side the workers of a process are to consume from, and which they do.

    Whoever asks the primary for something as a whole, a consumer that connects or a watch that probes, reports here.

    Arguments:
        after: seconds without the primary after which a worker stands in, and for which it stays, once it has changed
            sides: a primary that comes and goes moves nobody about.
        clock: monotonic seconds.
    """

    def __init__(self, after: float, clock: Callable[[], float] = time.monotonic) -> None:
        self.after = after
        self._clock = clock
        self._lock = threading.Lock()
        self._away_since: float | None = None
        self._changed_at = float("-inf")
        self._is_out = False  # its workers are with the secondary
        self._consuming: set[object] = set()
        self._listeners: list[Callable[[], None]] = []

    # -- what is known of the primary ---------------------------------------------------------------------------

    def failed(self) -> None:
        """The primary could not be reached."""
        with self._lock:
            if self._away_since is None:
                self._away_since = self._clock()

    def reached(self) -> None:
        """It answered."""
        self._away_since = None

    @property
    def is_away(self) -> bool:
        """The last that is known of the primary is that it does not answer."""
        return self._away_since is not None

    @property
    def wait(self) -> float:
        """Seconds until a worker may change sides: stand in if the primary is away, go home if it is not."""
        now, since = self._clock(), self._away_since
        waits = [self._changed_at + self.after - now]
        if since is not None:
            waits.append(since + self.after - now)
        return max(0.0, *waits)

    @property
    def is_due(self) -> bool:
        """Whether a worker that connects is to consume from the secondary."""
        return self.is_away and (self._is_out or self.wait == 0)

    @property
    def may_come_home(self) -> bool:
        """Whether one that stands in is to go back to the primary."""
        return not self.is_away and (not self._is_out or self.wait == 0)

    # -- what its workers do ------------------------------------------------------------------------------------

    @property
    def is_active(self) -> bool:
        """Whether a worker of this process consumes from the secondary."""
        return bool(self._consuming)

    def began(self, consumer: object) -> bool:
        """A worker's consumer stands in from now on; True if this changes the side of the process."""
        with self._lock:
            has_changed = self._turn(True)
            self._consuming.add(consumer)
        self._tell()
        return has_changed

    def ended(self, consumer: object) -> None:
        """A worker's consumer does not stand in any more: it came home, or was lost."""
        with self._lock:
            self._consuming.discard(consumer)
        self._tell()

    def came_home(self) -> bool:
        """A worker's consumer is with the primary; True if this changes the side of the process."""
        with self._lock:
            return self._turn(False)

    def when_changed(self, listener: Callable[[], None]) -> None:
        """Call ``listener`` when consumers begin, or cease, to stand in."""
        self._listeners.append(listener)

    def _turn(self, is_out: bool) -> bool:
        has_changed, self._is_out = self._is_out is not is_out, is_out
        if has_changed:
            self._changed_at = self._clock()
        return has_changed

    def _tell(self) -> None:
        for listener in list(self._listeners):
            listener()
