"""What a kind of broker can do for a pairing, and how one works with it.

A broker is added by a file with its driver, and a line in :data:`kombu_paired.namespaces.drivers.DRIVERS`.
"""

from __future__ import annotations

import sys
from abc import ABC, abstractmethod
from importlib.util import find_spec
from typing import TYPE_CHECKING, Any, ClassVar

from kombu.utils.url import parse_url

from kombu_paired.failures import FailureKind
from kombu_paired.message import Message
from kombu_paired.namespaces.base import Receiver, Sender
from kombu_paired.namespaces.naming import named_by_server

if TYPE_CHECKING:
    from kombu_paired.namespaces.kombu import KombuNamespace
    from kombu_paired.namespaces.links import Link

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
        tested: the conformance suite runs against it.
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
    tested: ClassVar[bool] = False
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
    def receiver(self, namespace: KombuNamespace, queue: str, prefetch: int, timeout: float) -> Receiver:
        """A connected receiver of a backlog queue.

        Raises:
            NamespaceFailure: the namespace cannot be reached, or there is no such queue.
        """

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

    # -- its consumers ------------------------------------------------------------------------------------------

    def consumer_options(self, connect_timeout: float, send_timeout: float) -> dict[str, Any]:
        """Transport options of a consumer's connection, unless the user gives others."""
        return {}

    @abstractmethod
    def hurry(self, connection: Any, seconds: float) -> None:
        """Let no answer that a consumer's connection waits for, while it closes, take longer than this.

        Raises:
            Exception: the connection is broken; whoever closes it does not mind.
        """

    # -- its URLs -----------------------------------------------------------------------------------------------

    def host_of(self, url: str) -> str | None:
        """The host to connect to; None where there is none, or it is not known how the transport finds it."""
        if not self.has_host or _is_compound(url):
            return None
        return parse_url(url)["hostname"] or None

    def address_of(self, url: str) -> tuple[Any, ...]:
        """What two URLs of one namespace have in common: first two facts of the server, then the place on it.

        Raises:
            ConfigurationError: the URL makes no sense.
        """
        port = self._usual_port(url)
        if port is None:
            return (url,)
        parts = parse_url(url)
        host = parts["hostname"] or "localhost"
        host = "127.0.0.1" if host == "localhost" else host
        place = str(parts["virtual_host"] or "").strip("/") or "0"
        return (host, parts["port"] or port, place)

    def primary_name(self, url: str) -> str:
        """A name for a primary that no other has which might use the same secondary."""
        return named_by_server(url, self._usual_port(url))

    def _usual_port(self, url: str) -> int | None:
        return None if _is_compound(url) else self.port


def _is_compound(url: str) -> bool:
    """A scheme of two parts, like ``redis+socket``: Kombu hands the rest to the driver as it is."""
    return "+" in url.partition("://")[0]
