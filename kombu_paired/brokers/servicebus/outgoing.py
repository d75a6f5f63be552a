"""Open links that send, one per queue or topic.

Each has a connection of its own: nothing is as quick. Events, which a worker sends while it has nothing else to do,
share that of what it receives.
"""

from __future__ import annotations

import time
from typing import Any

from kombu_paired.brokers.servicebus.amqp_links import SenderLink
from kombu_paired.brokers.servicebus.clients import Clients

__all__ = ("Outgoing",)


class Outgoing:
    """Open links that send, one per entity. For one thread at a time.

    Attributes:
        was_let_in: the last one that could not be opened was not, although the service let us in.
    """

    def __init__(self, clients: Clients) -> None:
        self.was_let_in = False
        self._clients = clients
        self._links: dict[str, SenderLink] = {}

    @property
    def is_fresh(self) -> bool:
        """Nothing is open: a failure cannot be blamed on an old connection."""
        return not self._links

    def link(self, entity: str, timeout: float, *, is_for_events: bool = False) -> SenderLink:
        """An open link that is alive as far as is known."""
        link = self._links.get(entity)
        if link is not None and link.is_usable:
            return link
        if link is not None:
            self.drop(entity)
        self.was_let_in = False
        link = self._clients.sender(entity, shared=is_for_events)
        try:
            link.open(timeout)
        except BaseException:
            self.was_let_in = link.was_let_in
            raise
        self._links[entity] = link
        return link

    def send(self, entity: str, message: Any, timeout: float) -> None:
        """Send a message, and let go of a link that failed in it."""
        deadline = time.monotonic() + timeout
        link = self.link(entity, timeout)
        try:
            link.send(message, deadline - time.monotonic())
        except Exception:
            self.drop(entity)
            raise

    def drop(self, entity: str) -> None:
        """Let go of the link to an entity."""
        link = self._links.pop(entity, None)
        if link is not None:
            link.drop()

    def drop_all(self) -> None:
        """Let go of all."""
        for entity in list(self._links):
            self.drop(entity)

    def close(self) -> None:
        """Say goodbye to all."""
        links, self._links = list(self._links.values()), {}
        for link in links:
            link.close()
