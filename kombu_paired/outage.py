"""Whether a server that we can do without is away, as one process sees it. Pure: the clock is injected.

The namespaces of a pairing have :mod:`kombu_paired.pairing.circuit`. A result server is simpler: nothing is diverted,
so all there is to know is whether it is away, since when, and who is to say so.
"""

from __future__ import annotations

import threading
from collections.abc import Callable

__all__ = ("Outage",)


class Outage:
    """It begins with the first failure and ends when somebody reached the server; both are told to one caller alone.

    Arguments:
        clock: monotonic seconds.
    """

    def __init__(self, clock: Callable[[], float]) -> None:
        self._clock = clock
        self._lock = threading.Lock()
        self._since: float | None = None
        self.reason: BaseException | None = None

    @property
    def is_on(self) -> bool:
        return self._since is not None

    @property
    def seconds(self) -> float:
        """How long it has lasted; 0 while there is none."""
        since = self._since
        return 0.0 if since is None else self._clock() - since

    def begins(self, reason: BaseException) -> bool:
        """A failure: True for the one caller with whom the outage begins."""
        with self._lock:
            self.reason = reason
            if self._since is not None:
                return False
            self._since = self._clock()
            return True

    def ends(self) -> float | None:
        """The server answers: for the one caller with whom the outage ends, how long it lasted."""
        with self._lock:
            if self._since is None:
                return None
            lasted = self._clock() - self._since
            self._since = self.reason = None
            return lasted
