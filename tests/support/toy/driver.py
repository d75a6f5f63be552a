"""The driver of the toy broker: the one file that one more broker takes (docs/contributing.md, Add a broker)."""

from __future__ import annotations

import socket
from collections.abc import Sequence
from typing import Any

from kombu_paired.brokers.driver import Driver
from kombu_paired.brokers.forms import message_of
from kombu_paired.brokers.kombu import KombuNamespace
from kombu_paired.brokers.links import KombuSender, Link
from kombu_paired.brokers.receiving import KombuReceiver
from kombu_paired.brokers.roles import Receiver, Sender
from kombu_paired.brokers.sockets import TimelySocket
from kombu_paired.deadline import Deadline
from kombu_paired.declarations import Entity
from kombu_paired.errors import NamespaceFailure
from kombu_paired.failures import FailureKind
from kombu_paired.message import Message
from tests.support.toy.transport import ToyError

__all__ = ("Toy", "ToySender")

_WORDS = {
    "missing": FailureKind.MISSING,
    "denied": FailureKind.UNAUTHORIZED,
    "full": FailureKind.FAULT,
}


class Toy(Driver):
    """The toy broker."""

    keeps_unsettled = True
    tested = True
    has_host = True
    port = 7777
    transport = "tests.support.toy.transport:Transport"

    def link(self, namespace: KombuNamespace) -> Link:
        return ToyLink(namespace)

    def sender(self, namespace: KombuNamespace) -> Sender:
        return ToySender(namespace)

    def receiver(self, namespace: KombuNamespace, queues: Sequence[str], prefetch: int, timeout: float) -> Receiver:
        return ToyReceiver(namespace, queues, timeout)

    def kind_of(self, exc: BaseException) -> FailureKind | None:
        return _WORDS[exc.word] if isinstance(exc, ToyError) else None

    def concerns_all(self, exc: BaseException) -> bool:
        return isinstance(exc, ToyError) and exc.word == "full"

    def limit_answers(self, connection: Any, seconds: float) -> None:
        for channel in connection.channels:
            channel.line.sock.settimeout(seconds)


class ToyLink(Link):
    """A link whose socket keeps to the deadline of each call."""

    def make_timely(self, transport: Any, until: Deadline) -> None:
        def held(sock: socket.socket) -> TimelySocket:
            sock.settimeout(self.namespace.send_timeout)
            return TimelySocket(sock, until)

        transport.held = held

    def has_queue(self, name: str, timeout: float) -> bool:
        return self.count(name, timeout) is not None

    def count(self, name: str, timeout: float) -> int | None:
        try:
            with self.within(timeout):
                return super().count(name, timeout)
        except ToyError as error:
            if error.word == "missing":
                return None
            raise

    def peek(self, name: str, timeout: float) -> Message | None:
        with self.within(timeout):
            found = self.channel.line.ask("look", queue=name)
        return message_of(self.channel.Message(found[1], channel=self.channel)) if found else None

    def probe(self, entity: Entity | None, timeout: float) -> None:
        with self.within(timeout):
            self.channel.line.ask("knock")

    def hung_up(self) -> bool:
        """Whether the broker has ended the connection. It says nothing else without being asked."""
        return self.is_open and self.channel.line.sock.has_arrived()


class ToySender(KombuSender):
    link: ToyLink

    def send(self, message: Message, timeout: float) -> None:
        if self.link.hung_up():
            raise self._failed(ConnectionResetError("the broker has hung up")).of_nothing_stored()
        super().send(message, timeout)

    def _failed(self, exc: Exception) -> NamespaceFailure:
        failure = super()._failed(exc)
        return failure.of_nothing_stored() if isinstance(exc, ToyError) else failure


class ToyReceiver(KombuReceiver):
    """It finds out at once whether there are such queues."""

    pause = 0.1

    def look_at(self, queue: str) -> None:
        self._channel.line.ask("size", queue=queue)
