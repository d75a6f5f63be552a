"""Messages whose callers got an error although a namespace may have them. Pure."""

from __future__ import annotations

import threading

from kombu_paired.message import Message

__all__ = ("Doubts",)

#: Messages that are remembered; older ones are forgotten.
LIMIT = 10_000


class Doubts:
    """Ids of messages in doubt: Kombu and Celery send again what raised, and that copy is to be marked."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._ids: dict[str, None] = {}

    def add(self, message: Message) -> None:
        """The caller got an error."""
        found = message.message_id
        if found is not None:
            with self._lock:
                self._ids[found] = None
                if len(self._ids) > LIMIT:
                    del self._ids[next(iter(self._ids))]

    def take(self, message: Message) -> bool:
        """Whether it is in doubt; it is sent again, and asked for once."""
        if not self._ids:
            return False
        found = message.message_id
        with self._lock:
            return found in self._ids and self._ids.pop(found or "") is None
