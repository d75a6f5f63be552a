"""The clients that speak AMQP, all at once."""

from __future__ import annotations

from collections.abc import Iterator

from kombu_paired.emulator.broker.errors import Refusal
from kombu_paired.emulator.server.connection import AmqpConnection
from kombu_paired.emulator.server.sessions import Link

__all__ = ("Connections",)


class Connections:
    """The connections that there are."""

    def __init__(self) -> None:
        self._connections: set[AmqpConnection] = set()

    def __len__(self) -> int:
        return len([connection for connection in self._connections if not connection.over])

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
        key = path.lower().strip("/")
        for link in self._links():
            mine = link.address.lower()
            if mine == key or mine.startswith((f"{key}/$", f"{key}/subscriptions/")):
                link.detach(refusal)

    def keep_house(self, now: float) -> None:
        """Close what has been idle for too long."""
        for connection in list(self._connections):
            connection.keep_house(now)

    def _links(self) -> Iterator[Link]:
        for connection in list(self._connections):
            yield from connection.links()
