"""Receiving as many messages as there must be."""

from __future__ import annotations

import time
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from azure.servicebus import ServiceBusReceivedMessage, ServiceBusReceiver

__all__ = ("receive",)


def receive(receiver: ServiceBusReceiver, count: int, seconds: float = 20) -> list[ServiceBusReceivedMessage]:
    """As many, in their order. The SDK's own call returns what it has when nothing came for a moment."""
    deadline = time.monotonic() + seconds
    got: list[ServiceBusReceivedMessage] = []
    while len(got) < count and (left := deadline - time.monotonic()) > 0:
        got += receiver.receive_messages(count - len(got), max_wait_time=left)
    return got
