"""The ping task: finds out when a failed-over entity works again."""

from __future__ import annotations

import logging
import random
import threading
import time
from collections.abc import Callable

from kombu_paired.declarations import Entity

__all__ = ("Pinger",)

logger = logging.getLogger("kombu_paired.ping")  # the name that settings of logs know

#: How much earlier or later a ping comes: the first one of an entity, since a fleet fails over in the same second and
#: is not to ping in the same second; and each other one, so that processes do not fall into step.
SPREAD, JITTER = 0.5, 0.1


class Pinger:
    """Pings entities one after the other in one thread, which runs only while there is one to ping.

    Arguments:
        ping: pings an entity; True when it works again.
        interval: seconds between two pings of an entity, give or take a tenth; to the first one, give or take a half.
        name: of the thread.
        clock: monotonic seconds.
    """

    def __init__(
        self, ping: Callable[[Entity], bool], interval: float, *, name: str, clock: Callable[[], float] = time.monotonic
    ) -> None:
        self._ping = ping
        self._interval = interval
        self._name = name
        self._clock = clock
        self._changed = threading.Condition()
        self._due: dict[Entity, float] = {}
        #: Being pinged, and not yet forgotten or watched anew meanwhile.
        self._pinging: Entity | None = None
        self._closed = False
        self._thread: threading.Thread | None = None

    def watch(self, entity: Entity, *, at_once: bool = False) -> None:
        """Ping an entity from now on, first after one interval on average, or at once."""
        with self._changed:
            if self._closed or entity in self._due:
                return
            self._due[entity] = self._clock() if at_once else self._next_time(SPREAD)
            if self._thread is None:
                thread = threading.Thread(target=self._run, name=self._name, daemon=True)
                thread.start()
                self._thread = thread
            self._changed.notify()

    def forget(self, entity: Entity) -> None:
        """Ping it no more."""
        with self._changed:
            self._due.pop(entity, None)
            if self._pinging == entity:
                self._pinging = None
            self._changed.notify()

    def close(self) -> None:
        """Stop at once; a ping that is under way ends by its own time limit."""
        with self._changed:
            self._closed = True
            self._due.clear()
            self._changed.notify()

    def _run(self) -> None:
        while True:
            entity = self._wait_for_next()
            if entity is None:
                return
            try:
                works = self._ping(entity)
            except Exception:
                logger.exception("the ping of %s failed in an unexpected way; it goes on", entity)
                works = False
            self._reschedule(entity, works)

    def _wait_for_next(self) -> Entity | None:
        with self._changed:
            while self._due:
                entity, due = min(self._due.items(), key=lambda item: item[1])
                wait = due - self._clock()
                if wait <= 0:
                    del self._due[entity]
                    self._pinging = entity
                    return entity
                self._changed.wait(wait)
            self._thread = None
            return None

    def _reschedule(self, entity: Entity, works: bool) -> None:
        with self._changed:
            is_watched, self._pinging = self._pinging == entity, None
            if works:
                # A namespace that is back is back for all: no need for the others to wait their turn.
                self._due.update({other: self._clock() for other in self._due if other != entity})
            elif is_watched and not self._closed:
                self._due.setdefault(entity, self._next_time(JITTER))

    def _next_time(self, jitter: float) -> float:
        return self._clock() + self._interval * random.uniform(1 - jitter, 1 + jitter)
