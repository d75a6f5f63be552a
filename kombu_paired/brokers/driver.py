"""What a kind of broker can do for a pairing, and how one works with it.

A broker is added by a file with its driver, and a line in :data:`kombu_paired.brokers.drivers.DRIVERS`.
"""

from __future__ import annotations

import sys
from abc import ABC, abstractmethod
from collections.abc import Mapping, Sequence
from importlib.util import find_spec
from typing import TYPE_CHECKING, Any, ClassVar

from kombu_paired.brokers.roles import Receiver, Sender
from kombu_paired.brokers.turn import Turn
from kombu_paired.failures import FailureKind
from kombu_paired.message import Message
from kombu_paired.urls import BrokerUrl

if TYPE_CHECKING:
    from kombu_paired.brokers.kombu import KombuNamespace
    from kombu_paired.brokers.links import Link

__all__ = ("Driver",)


class Driver(ABC):
    """One kind of broker. It keeps nothing: what it makes belongs to the namespace that it is made for.

    What it can do is asked before anybody knows whether its package is there, so that is imported in the methods that
    need it, or by the modules that those import.

    Attributes:
        confirmed: a send returns only when the broker has the message.
        routed: a message that no queue would get is noticed.
        keeps_unsettled: a message whose consumer is killed comes back; without it, no secondary.
        outlives_restart: a stored message survives that the broker is killed, as it is configured by default.
        names_with_slashes: a backlog queue's name can be one of its queues; without it, no secondary at all.
        may_be_primary: an application may send to it and receive from it.
        stands_in: workers may consume from it while their primary is away.
        keeps_notices: entities of its primary can be isolated by hand.
        syphons_by_itself: each process that sends to it runs a syphon, unless it is told not to: no other machine can.
        tested: the conformance suite runs against it.
        fails_by_queue: a queue fails alone, and a message to an exchange that leads to one queue is sent to that queue.
        bills_calls: each call costs money, as :mod:`kombu_paired.pipeline.costs.charges` counts them.
        max_message_size: bytes a broker of this kind accepts; None if it depends.
        has_host: Kombu takes its URLs apart into host, port, user and password.
        port: where it listens if its URL does not say so; None if it must, or has none.
        package: what has to be installed, as it is imported; nothing if it comes with Kombu.
        extra: how that is installed, for pip.
        transport: import path of a transport of our own, used instead of Kombu's.
        consumer: import path of one that only consumers use.
    """

    confirmed: ClassVar[bool] = True
    routed: ClassVar[bool] = False
    keeps_unsettled: ClassVar[bool] = False
    outlives_restart: ClassVar[bool] = True
    names_with_slashes: ClassVar[bool] = True
    may_be_primary: ClassVar[bool] = True
    stands_in: ClassVar[bool] = False
    keeps_notices: ClassVar[bool] = False
    syphons_by_itself: ClassVar[bool] = False
    tested: ClassVar[bool] = False
    fails_by_queue: ClassVar[bool] = False
    bills_calls: ClassVar[bool] = False
    max_message_size: ClassVar[int | None] = None
    has_host: ClassVar[bool] = False
    port: ClassVar[int | None] = None
    package: str = ""
    extra: str = ""
    transport: ClassVar[str | None] = None
    consumer: ClassVar[str | None] = None

    @property
    def is_installed(self) -> bool:
        """Whether its package is there."""
        if not self.package or self.package in sys.modules:
            return True
        try:
            return find_spec(self.package) is not None
        except ModuleNotFoundError:  # not even the package around it
            return False

    # -- its links ----------------------------------------------------------------------------------------------

    def load(self) -> None:
        """Import what its links need, now: whoever makes a namespace has the time for it, and a send has not."""
        return None

    @abstractmethod
    def link(self, namespace: KombuNamespace) -> Link:
        """A new link, not connected."""

    @abstractmethod
    def sender(self, namespace: KombuNamespace) -> Sender:
        """A new sender, not connected."""

    @abstractmethod
    def receiver(self, namespace: KombuNamespace, queues: Sequence[str], prefetch: int, timeout: float) -> Receiver:
        """A connected receiver of backlog queues.

        Raises:
            NamespaceFailure: the namespace cannot be reached. A queue that fails alone is in its ``failed``.
        """

    def turn(self, url: str, primary: str) -> Turn | None:
        """Whose turn it is to bring home the backlog of a primary, where the processes of one machine take turns."""
        return None

    def encoded_size(self, namespace: KombuNamespace, message: Message) -> int:
        """Bytes that a message takes there, to be held against ``max_message_size``."""
        return message.size

    # -- its errors ---------------------------------------------------------------------------------------------

    @abstractmethod
    def kind_of(self, exc: BaseException) -> FailureKind | None:
        """The kind of an exception that is its own; None for others, whose family says it."""

    def concerns_all(self, exc: BaseException) -> bool:
        """Whether an exception tells of the broker as a whole: it is full, in alarm, loading, a replica."""
        return False

    def wait_of(self, exc: BaseException) -> float | None:
        """Seconds for which a broker that is busy asks to be left in peace, where its answer says so."""
        return None

    # -- its consumers ------------------------------------------------------------------------------------------

    def consumer_options(self, connect_timeout: float, send_timeout: float) -> dict[str, Any]:
        """Transport options of a consumer's connection, unless the user gives others."""
        return {}

    def stand_in_options(self, prefix: str) -> dict[str, Any]:
        """Transport options of a worker's connection that stands in: what it writes has names with this prefix."""
        return {}

    @abstractmethod
    def limit_answers(self, connection: Any, seconds: float) -> None:
        """Let no answer that a consumer's connection waits for, while it closes, take longer than this.

        Raises:
            Exception: the connection is broken; whoever closes it does not mind.
        """

    def sever(self, connection: Any) -> None:  # noqa: B027
        """End every wait for an answer that a consumer's connection is in, from another thread.

        Raises:
            Exception: the connection is broken already.
        """

    # -- its URLs -----------------------------------------------------------------------------------------------

    def host_of(self, url: str) -> str | None:
        """The host to connect to; None where there is none, or it is not known how the transport finds it."""
        found = BrokerUrl(url)
        return found.host if self.has_host and not found.is_compound else None

    def address_of(self, url: str) -> tuple[Any, ...]:
        """What two URLs of one namespace have in common: first two facts of the server, then the place on it.

        Raises:
            ConfigurationError: the URL makes no sense.
        """
        return BrokerUrl(url).address(self.port)

    def check_options(self, url: str, options: Mapping[str, Any]) -> None:
        """See that the transport options for a URL make sense; by default its transport judges them.

        Raises:
            ConfigurationError: they do not; the text says which, and what would.
        """
        return None

    def shown(self, url: str) -> str:
        """The address as people and journals are told it: without secrets, and with what tells it from others."""
        return BrokerUrl(url).shown()

    def primary_name(self, url: str) -> str:
        """A name for a primary that no other has which might use the same secondary."""
        return BrokerUrl(url).name(self.port)
