"""Transient messages that a thread lost: what Kombu's own retries of them come to. Pure."""

from __future__ import annotations

import threading
from typing import NamedTuple

from kombu_paired.declarations import Entity
from kombu_paired.errors import NamespaceFailure

__all__ = ("Lost", "Transients")

#: Seconds for which remote control is tried again on a primary that refuses: Kombu would for ever, once it is
#: connected, and connecting in vain ends a plain one after so many (Celery's ``broker_connection_timeout``). And the
#: most between two tries, which Kombu makes every second.
REMOTE_CONTROL, BETWEEN_TRIES = 4.0, 2.0


class Lost(NamedTuple):
    """A transient message that its entity did not take, and when."""

    at: float
    entity: Entity
    failure: NamespaceFailure


class Transients(threading.local):
    """What the thread that asks has lost.

    Attributes:
        last: the last message, until somebody has heard of it.
    """

    last: Lost | None = None
    _tries: tuple[float, float] | None = None

    def take(self) -> Lost | None:
        """The last one, which is forgotten."""
        last, self.last = self.last, None
        return last

    def has_tried_for_long(self, now: float) -> bool:
        """Whether this thread has tried remote control in vain, again and again, for as long as it is worth."""
        since, at = self._tries or (now, now)
        if now - at > BETWEEN_TRIES:
            since = now
        self._tries = (since, now)
        return now - since >= REMOTE_CONTROL
