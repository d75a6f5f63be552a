"""Messages that Kombu lets a transport keep, and send together (Kombu 5.7)."""

from __future__ import annotations

from typing import Any

from kombu.exceptions import BatchPublishError

from kombu_paired.assembling import address
from kombu_paired.message import Message

__all__ = ("PublishBatch",)


class PublishBatch:
    """A publish batch: messages are kept until it is flushed, then sent together.

    Arguments:
        channel: the channel that sends them. Kombu compares it with the one that it publishes on.
        max_size: so many of them flush it.
    """

    def __init__(self, channel: Any, max_size: int) -> None:
        self.channel = channel
        self.max_size = max_size
        self._messages: list[Message] = []
        self._unusable: str | None = None

    def publish(self, message: Message, *, exchange: str = "", routing_key: str = "", **kwargs: Any) -> None:
        self._check_usable()
        address(message, exchange, routing_key, bool(kwargs.get("mandatory")))
        self._messages.append(message)
        if len(self._messages) >= self.max_size:
            self.flush()

    def flush(self) -> None:
        """Send what is kept.

        Raises:
            BatchPublishError: some of it may not have been sent; the cause says why.
        """
        self._check_usable()
        messages, self._messages = self._messages, []
        if not messages:
            return
        try:
            self.channel.send_together(messages)
        except Exception as exc:
            self._unusable = "failed"
            raise BatchPublishError(f"a publish batch failed; delivery is uncertain: {exc}") from exc

    def discard(self) -> None:
        self._messages.clear()
        self._unusable = "aborted"

    def close(self) -> None:
        self._messages.clear()
        self._unusable = self._unusable or "closed"

    def _check_usable(self) -> None:
        if self._unusable:
            raise BatchPublishError(f"the publish batch is {self._unusable}: open another one")
