"""Receivers of one queue, of which a failure of that queue alone is a failure."""

from __future__ import annotations

from collections.abc import Sequence

from kombu_paired.brokers.roles import KeepsBacklog, Received, Receiver
from kombu_paired.errors import NamespaceFailure

__all__ = ("open_receiver", "receive_from")


def open_receiver(namespace: KeepsBacklog, queue: str, prefetch: int, timeout: float) -> Receiver:
    """A receiver of one queue.

    Raises:
        NamespaceFailure: of the link, or of the queue.
    """
    made = namespace.receiver([queue], prefetch, timeout)
    try:
        made.raise_failure()
    except NamespaceFailure:
        made.close()
        raise
    return made


def receive_from(receiver: Receiver, limit: int, timeout: float) -> Sequence[Received]:
    """What it receives; raises as :func:`open_receiver` does."""
    received = receiver.receive(limit, timeout)
    receiver.raise_failure()
    return received
