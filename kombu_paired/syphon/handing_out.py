"""Hands the backlog out to workers that stand in: each message goes to the stand-ins of the queues it was meant for.

All whose queues are known are handed out, and not only those that somebody here consumes: whoever stays behind would be
in the way of the others, again and again. What lies in a stand-in queue comes home as the backlog does.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from kombu_paired.brokers.roles import Sender
from kombu_paired.declarations import Declaration, DeclarationBook
from kombu_paired.errors import NamespaceFailure
from kombu_paired.failures import FailureKind
from kombu_paired.message import Message, marked_maybe_duplicate, readdressed
from kombu_paired.pairing import Pairing
from kombu_paired.syphon.parcel import Parcel

__all__ = ("Handed", "HandingOut", "queues_of")


@dataclass(frozen=True)
class Handed:
    """What became of a parcel.

    Attributes:
        failure: why it could not be handed out; None if it was, or stays.
        stays: nobody knows to which queues it goes.
    """

    failure: NamespaceFailure | None = None
    stays: bool = False


def queues_of(parcel: Parcel) -> dict[str, dict[str, Any]]:
    """The queues at home that a message goes to, by what it says of them itself -> the arguments of each."""
    book = DeclarationBook()
    for each in parcel.diversion.declarations:
        book.note(each.operation, each.arguments)
    arguments = {each.name: each.arguments.get("arguments") or {} for each in _queues_in(parcel.diversion.declarations)}
    return {queue: arguments.get(queue, {}) for queue in book.queues_for(parcel.entity)}


def _queues_in(declarations: Sequence[Declaration]) -> list[Declaration]:
    return [each for each in declarations if each.operation == "queue_declare"]


def _in_doubt(failure: NamespaceFailure) -> NamespaceFailure:
    """The failure of one copy of a message, of which another one has arrived and will come again with it."""
    return NamespaceFailure(failure.kind, failure.namespace, failure.cause, maybe_stored=True)


class HandingOut:
    """One link to the secondary, over which messages go to stand-in queues.

    Arguments:
        pairing: whose backlog it is.
    """

    def __init__(self, pairing: Pairing) -> None:
        self._pairing = pairing
        self._timeout = pairing.options.send_timeout
        self._sender: Sender | None = None

    def hand_out(self, parcels: Sequence[Parcel]) -> list[Handed]:
        """Send them to stand-in queues, confirmed; one answer each.

        Raises:
            NamespaceFailure: the secondary failed as a whole.
        """
        copies: list[tuple[int, Message]] = []
        found: list[Handed] = []
        for index, parcel in enumerate(parcels):
            queues = queues_of(parcel)
            found.append(Handed(stays=not queues))
            copies += [(index, each) for each in self._copies(parcel, queues)]
        if not copies:
            return found
        failures = self._send([each for _, each in copies])
        arrived = {index for (index, _), failure in zip(copies, failures, strict=True) if failure is None}
        for (index, _), failure in zip(copies, failures, strict=True):
            if failure is not None:
                found[index] = Handed(_in_doubt(failure) if index in arrived else failure)
        return found

    def _copies(self, parcel: Parcel, queues: dict[str, dict[str, Any]]) -> list[Message]:
        stored = parcel.received.message
        if parcel.maybe_duplicate:
            stored = marked_maybe_duplicate(stored)
        names = {queue: self._pairing.stand_in_queues.ensure(queue, arguments) for queue, arguments in queues.items()}
        return [readdressed(stored, name, queue if len(names) > 1 else None) for queue, name in names.items()]

    def _send(self, messages: Sequence[Message]) -> list[NamespaceFailure | None]:
        if self._sender is None:
            self._sender = self._pairing.secondary.sender()
        failures = self._sender.send_batch(messages, self._timeout)
        for message, failure in zip(messages, failures, strict=True):
            if failure is not None and failure.kind is FailureKind.MISSING:
                self._pairing.stand_in_queues.forget(message.routing_key)
        return failures

    def close(self) -> None:
        """Let go of the link; the next batch gets another one."""
        sender, self._sender = self._sender, None
        if sender is not None:
            sender.close()
