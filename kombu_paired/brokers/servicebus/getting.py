"""Messages that are asked for one at a time."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from kombu_paired.brokers.servicebus.amqp_links import ReceiverLink
from kombu_paired.brokers.servicebus.settling import COMPLETE, Outcome, settle
from kombu_paired.brokers.servicebus.wire import is_ping

__all__ = ("Getting",)

#: Seconds to wait for a message.
GET_WAIT = 1.0


class Getting:
    """What ``basic_get`` takes, over a link per queue. For one thread.

    Arguments:
        new_link: makes a receiver link to a queue, and a queue that does not last; not open.
    """

    def __init__(self, new_link: Callable[[str], ReceiverLink]) -> None:
        self._new_link = new_link
        self._links: dict[str, ReceiverLink] = {}
        self._held: dict[str, tuple[ReceiverLink, Any]] = {}

    def receive(self, queue: str, timeout: float) -> Any:
        """The next message; None if there is none.

        Arguments:
            timeout: seconds that opening a link may take.
        """
        link = self._link(queue, timeout)
        for received in link.receive(1, GET_WAIT):
            if not is_ping(received):
                return received
            settle(link, received, COMPLETE)
        return None

    def _link(self, queue: str, timeout: float) -> ReceiverLink:
        link = self._links.get(queue)
        if link is None or not link.is_alive():
            link = self._new_link(queue)
            link.open(timeout)
            self._links[queue] = link
        return link

    def hold(self, tag: str, queue: str, received: Any) -> None:
        """It was received, and is to be settled by this tag."""
        self._held[tag] = (self._links[queue], received)

    def settle(self, tag: str, outcome: Outcome) -> bool:
        """Settle a message; False if it is none of those that are held."""
        held = self._held.pop(tag, None)
        if held is None:
            return False
        settle(*held, outcome)
        return True

    def drop(self) -> None:
        """Let go of all links; what is held comes back when its lock ends."""
        for link in self._links.values():
            link.drop()
