"""Whether the service answers, and lets us in; found out without storing anything.

A queue that nobody has is asked for: a service that says so works, whatever is wrong with one queue. But a key may be
good for one queue alone, and is refused at any other. Whoever is refused so asks for a queue that this process uses;
until one is known, the refusal proves nothing.
"""

from __future__ import annotations

import logging
from dataclasses import dataclass

from azure.servicebus.exceptions import ServiceBusError

from kombu_paired.brokers.servicebus.address import Address
from kombu_paired.brokers.servicebus.clients import Clients
from kombu_paired.brokers.servicebus.kinds import kind_of
from kombu_paired.deadline import Deadline
from kombu_paired.failures import FailureKind

__all__ = ("Asking",)

logger = logging.getLogger(__name__)

#: A queue that nobody has.
NOBODY = "kombu-paired.ping"


@dataclass
class _Reach:
    """Where credentials are good.

    Attributes:
        own: a queue or topic that this process uses; empty: none yet.
        is_narrow: they were refused elsewhere.
    """

    own: str
    is_narrow: bool


#: What this process knows of credentials, by address.
_reaches: dict[Address, _Reach] = {}


class Asking:
    """Asks the service, with one address and its credentials.

    Arguments:
        clients: how to reach it.
    """

    def __init__(self, clients: Clients) -> None:
        entity = clients.address.entity
        self._clients = clients
        self._reach = _reaches.setdefault(clients.address, _Reach(entity, is_narrow=bool(entity)))
        self._is_in_doubt = False

    def note_use(self, entity: str) -> None:
        """This process uses a queue or topic. The first is remembered."""
        self._reach.own = self._reach.own or entity

    def ask(self, timeout: float) -> None:
        """Find out whether the service answers, and lets us in.

        Raises:
            Exception: it does not.
        """
        reach = self._reach
        if reach.own and reach.is_narrow:
            self._ask_for(reach.own, timeout)
            return
        deadline = Deadline(timeout)
        try:
            self._ask_for(NOBODY, timeout)
        except ServiceBusError as exc:
            if kind_of(exc) is not FailureKind.UNAUTHORIZED:
                raise
            reach.is_narrow = True
            if not reach.own:
                raise
            self._ask_for(reach.own, deadline.left)

    def ask_for_any(self, timeout: float) -> None:
        """The same, for who does not know yet which queue it is going to use: a refusal is kept until it does."""
        try:
            self.ask(timeout)
        except ServiceBusError as exc:
            self._is_in_doubt = kind_of(exc) is FailureKind.UNAUTHORIZED and not self._reach.own
            if not self._is_in_doubt:
                raise
            logger.debug("%s: the credentials may be those of one queue (%r)", self._clients.address.place, exc)

    def be_sure_of(self, entity: str, timeout: float) -> None:
        """A queue is going to be used: if the credentials are in doubt, ask for it.

        Raises:
            Exception: the service does not let us in there either.
        """
        self.note_use(entity)
        if self._is_in_doubt:
            self.ask(timeout)
            self._is_in_doubt = False

    def _ask_for(self, entity: str, timeout: float) -> None:
        link = self._clients.sender(entity)
        try:
            link.open(timeout)
        except ServiceBusError as exc:  # no such entity; or the right to listen alone, which is enough for a worker
            kind = kind_of(exc)  # who has no right to a missing entity is not told that it is missing
            if kind is not FailureKind.MISSING and (kind is FailureKind.TIMEOUT or not link.was_let_in):
                raise
        finally:
            link.drop()
