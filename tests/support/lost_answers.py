"""For a worker on Redis (``-I tests.support.lost_answers``): each body of a chord is stored, and the answer is lost."""

from __future__ import annotations

from kombu_paired.brokers.redis.links import RedisSender
from kombu_paired.errors import NamespaceFailure
from kombu_paired.failures import FailureKind
from kombu_paired.message import Message

_send = RedisSender.send


def _send_and_lose_the_answer(self: RedisSender, message: Message, timeout: float) -> None:
    _send(self, message, timeout)
    if message.once is not None:
        # Of a kind that concerns no other message: each of them is to be tried.
        raise NamespaceFailure(FailureKind.FAULT, "the primary", ConnectionError("reset"), maybe_stored=True)


RedisSender.send = _send_and_lose_the_answer  # type: ignore[method-assign]
