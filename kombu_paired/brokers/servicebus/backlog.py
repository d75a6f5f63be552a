"""The backlog queues of a namespace: made, found, looked into."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor

from kombu_paired.brokers.forms import float_or_none
from kombu_paired.brokers.roles import BacklogDepth
from kombu_paired.brokers.servicebus.names import entity_name
from kombu_paired.brokers.servicebus.transport import Transport
from kombu_paired.brokers.servicebus.wire import received_backlog_message
from kombu_paired.deadline import Deadline
from kombu_paired.failures import FailureKind
from kombu_paired.message import DIVERTED_AT, Message

__all__ = ("attachable", "create_missing", "depths")

#: Queues that are looked into side by side.
LOOKS_AT_ONCE = 10


def create_missing(transport: Transport, names: Sequence[str], timeout: float, share: float) -> None:
    """Create those that do not exist.

    Arguments:
        share: part of the timeout that finding out which these are may take.
    """
    deadline = Deadline(timeout)
    there = transport.entities.existing(names, timeout * share)
    for name in names:
        if name not in there:
            transport.entities.create_backlog_queue(name, deadline.left)


def attachable(
    transport: Transport,
    names: Sequence[str],
    timeout: float,
    kind_of: Callable[[BaseException], FailureKind],
) -> list[str]:
    """Those that one can send to: to know more takes the right to manage.

    Raises:
        Exception: what the first one failed with, if there is none, and not all are missing.
    """

    def attach(name: str) -> BaseException | None:
        link = transport.clients.sender(name)
        try:
            link.open(timeout)
        except Exception as exc:
            return exc
        finally:
            link.close()
        return None

    with ThreadPoolExecutor(len(names)) as pool:
        outcomes = list(pool.map(attach, names))
    usable = [name for name, outcome in zip(names, outcomes, strict=True) if outcome is None]
    others = [exc for exc in outcomes if exc is not None and kind_of(exc) is not FailureKind.MISSING]
    if not usable and others:
        raise others[0]
    return usable


def depths(transport: Transport, names: Sequence[str], timeout: float) -> list[BacklogDepth]:
    """How much waits in each of them, and since when."""
    deadline = Deadline(timeout)
    with ThreadPoolExecutor(LOOKS_AT_ONCE) as pool:
        return list(pool.map(lambda name: _depth(transport, name, deadline), names))


def _depth(transport: Transport, name: str, deadline: Deadline) -> BacklogDepth:
    counts = transport.entities.counts(entity_name(name), deadline.left)
    if counts is None:
        return BacklogDepth(name, None)
    waiting, dead = counts
    oldest = _peek(transport, name, deadline) if waiting else None
    dead_letter = _peek(transport, name, deadline, dead_letters=True) if dead else None
    return BacklogDepth(
        name,
        waiting,
        oldest_diverted_at=float_or_none(oldest.headers.get(DIVERTED_AT)) if oldest else None,
        dead_letters=dead,
        dead_letter_reason=str(dead_letter.headers.get("DeadLetterReason", "")) if dead_letter else None,
    )


def _peek(transport: Transport, name: str, deadline: Deadline, *, dead_letters: bool = False) -> Message | None:
    link = transport.clients.receiver(entity_name(name), dead_letters=dead_letters)
    link.open(deadline.left)
    try:
        found = link.peek(1, deadline.left)
    finally:
        link.close()
    return received_backlog_message(found[0]) if found else None
