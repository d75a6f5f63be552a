"""Messages that a namespace may have although nobody was told so. Pure."""

from __future__ import annotations

import threading

from kombu_paired.message import Message

__all__ = ("Doubts",)


class Doubts:
    """Ids of messages in doubt, of which one more copy is to be marked.

    A sender's are those whose callers got an error: Kombu and Celery send them again. A syphon's are those that the
    primary may have, or has, and that the backlog does not know of: a mark in the backlog outlives the process, and
    this is for a broker whose messages cannot be marked, and for a secondary that could not be told.

    Arguments:
        limit: messages that are remembered; older ones are forgotten.
    """

    def __init__(self, limit: int = 10_000) -> None:
        self._limit = limit
        self._lock = threading.Lock()
        self._ids: dict[str, None] = {}

    def __contains__(self, message: Message) -> bool:
        return bool(self._ids) and message.message_id in self._ids

    def add(self, *messages: Message) -> None:
        """They are in doubt from now on; one without an id cannot be told from others."""
        found = [each.message_id for each in messages]
        with self._lock:
            self._ids.update((each, None) for each in found if each is not None)
            while len(self._ids) > self._limit:
                del self._ids[next(iter(self._ids))]

    def settle(self, *messages: Message) -> None:
        """They are delivered, and out of the backlog."""
        if self._ids:
            with self._lock:
                for each in messages:
                    self._ids.pop(each.message_id or "", None)

    def take(self, message: Message) -> bool:
        """Whether it is in doubt; it is sent again, and asked for once."""
        if not self._ids:
            return False
        found = message.message_id
        with self._lock:
            return found in self._ids and self._ids.pop(found or "") is None
