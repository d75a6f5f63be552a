"""The clients that speak AMQP, all at once."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator

from kombu_paired.emulator.broker.errors import Refusal, idle
from kombu_paired.emulator.server.connection import AmqpConnection
from kombu_paired.emulator.server.sessions import Link

__all__ = ("Connections",)


class Connections:
    """The connections that there are."""

    def __init__(self) -> None:
        self._connections: set[AmqpConnection] = set()

    def __len__(self) -> int:
        return len([connection for connection in self._connections if not connection.over])

    @property
    def addresses(self) -> Counter[str]:
        """How many links there are to and from each entity; requests of tokens and of the management apart."""
        return Counter(link.address for link in self._links() if not link.is_for_requests)

    def add(self, connection: AmqpConnection) -> None:
        """A client is there. Those that are gone are forgotten on this occasion."""
        self._connections = {each for each in self._connections if not each.over} | {connection}

    def pump(self) -> None:
        """Let every link send what it can."""
        for link in self._links():
            link.pump()

    def wake(self) -> None:
        """Let every link go on with what a fault has held up."""
        for link in self._links():
            link.wake()

    def detach(self, path: str, refusal: Refusal) -> None:
        """End every link to an entity."""
        for link in self._links():
            if link.is_of(path):
                link.detach(refusal)

    def detach_idle(self, entity: str | None) -> None:
        """End the links to an entity, or to all, as the service ends those that are idle.

        Those to a ``$management``, which another use keeps alive, are left out unless they are named.
        """
        for link in self._links():
            asked_for = link.address.lower() == (entity or "").lower().strip("/")
            if asked_for or (not link.is_for_requests and (entity is None or link.is_of(entity))):
                link.detach(idle(link.address))

    def keep_house(self, now: float) -> None:
        """Close what has been idle for too long."""
        for connection in list(self._connections):
            connection.keep_house(now)

    def _links(self) -> Iterator[Link]:
        for connection in list(self._connections):
            if not connection.over:
                yield from connection.links()
