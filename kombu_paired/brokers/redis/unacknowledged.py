"""Unacknowledged messages of a consumer, noted in Redis as Kombu notes them."""

from __future__ import annotations

from typing import Any

from kombu.transport import redis, virtual
from kombu.utils.encoding import bytes_to_str
from redis.exceptions import OutOfMemoryError

__all__ = ("Puts", "QoS")


class Puts:
    """Stands in for a pipeline, to find out where Kombu would put a message that it restores, and how."""

    def __init__(self) -> None:
        self.command = ""
        self.keys: list[str] = []
        self.items: list[str] = []

    def lpush(self, key: str, item: str) -> None:
        self._add("LPUSH", key, item)

    def rpush(self, key: str, item: str) -> None:
        self._add("RPUSH", key, item)

    def _add(self, command: str, key: str, item: str) -> None:
        self.command = command
        self.keys.append(key)
        self.items.append(item)


class QoS(redis.QoS):  # type: ignore[misc]
    """Unacknowledged messages; what its channel has taken is noted in Redis already.

    What removes a note does so in no transaction and first of all: a Redis whose memory is full lets it pass.
    """

    def append(self, message: Any, delivery_tag: str) -> None:
        if self.channel.noted == delivery_tag:
            self.channel.noted = None
            virtual.QoS.append(self, message, delivery_tag)
        else:
            super().append(message, delivery_tag)

    def ack(self, delivery_tag: str) -> None:
        with self.channel.upkeep("take an acknowledgement, so that its message will come again"):
            self._remove_from_indices(delivery_tag).execute()
        virtual.QoS.ack(self, delivery_tag)

    def reject(self, delivery_tag: str, requeue: bool = False) -> None:
        with self.channel.upkeep("take a message back, so that it will come later"):
            if requeue:
                self.restore_by_tag(delivery_tag, leftmost=True)
            else:
                self._remove_from_indices(delivery_tag).execute()
        virtual.QoS.ack(self, delivery_tag)

    def restore_unacked(self, client: Any = None) -> None:
        with self.channel.upkeep("take messages back, so that they will come later"):
            super().restore_unacked(client)

    def restore_by_tag(self, tag: str | bytes, client: Any = None, leftmost: bool = False) -> None:
        tag = bytes_to_str(tag)
        try:
            if not self.channel.restore_note(tag, leftmost):
                super().restore_by_tag(tag, client, leftmost)
        except ValueError as exc:  # noted as it lay in the queue: no JSON, and its consumer died before it saw that
            self.channel.bury_note(tag, exc)

    def restore_visible(self, start: int = 0, num: int | None = 10, interval: int = 10) -> None:
        with self.channel.upkeep("give back what vanished consumers held"):
            try:
                super().restore_visible(start, num, interval)
            except OutOfMemoryError:  # of the mutex, whose only use is that one consumer does this and not all
                for tag in self.channel.overdue_notes(self.visibility_timeout, num or 1000):
                    self.restore_by_tag(tag)
