"""Where results are kept that could not be stored: a backlog queue of their own on the secondary.

It is not one of those that a syphon moves: what is in it is for no entity of the primary, and waits for another server.
Neither holds up the other. Each result backend has its own, so that no application stores what is another's.
"""

from __future__ import annotations

import hashlib
import time

from kombu_paired.deadline import Deadline
from kombu_paired.declarations import DeclarationBook
from kombu_paired.errors import ConfigurationError, MessageTooLarge, NamespaceFailure, PairingClosed
from kombu_paired.failures import FailureKind
from kombu_paired.message import BACKLOG_MARK, Message
from kombu_paired.pairing import Pairing
from kombu_paired.pairing.backlog_route import BacklogRoute
from kombu_paired.pairing.call import Call
from kombu_paired.pairing.clocks import Clocks
from kombu_paired.process import shared

__all__ = ("ResultBacklog", "queue_for", "result_backlog")

#: Seconds that a goodbye to the secondary may take.
GOODBYE = 0.5


def queue_for(pairing: str, backend: str) -> str:
    """The queue for the results of one backend.

    Arguments:
        backend: what tells it from others: its class and where it is, without secrets.
    """
    return f"{pairing}{BACKLOG_MARK}results-{hashlib.sha256(backend.encode()).hexdigest()[:8]}"


def result_backlog(pairing: Pairing, backend: str) -> ResultBacklog:
    """The one of this process."""
    queue = queue_for(pairing.name, backend)
    return shared((queue, pairing.secondary.uri), lambda: ResultBacklog(pairing, queue))


class ResultBacklog:
    """Keeps results in a queue of the secondary.

    Arguments:
        pairing: whose secondary; it ends with that.
        queue: the queue's name.
    """

    def __init__(self, pairing: Pairing, queue: str) -> None:
        self.queue = queue
        self.closed = False
        self._pairing = pairing
        self._timeout = pairing.options.send_timeout
        self._route = BacklogRoute(pairing.secondary, [queue], DeclarationBook(), pairing.options, Clocks())
        pairing.when_closing(self.close)

    def close(self) -> None:
        """Let go of the links to it."""
        self.closed = True
        self._route.links.close(Deadline(GOODBYE))

    def hang_up(self) -> None:
        """Nothing more has to be kept for now: a process that does its work needs no link to the secondary for this."""
        self._route.links.close_idle()

    def keep(self, message: Message, why: str) -> None:
        """Store a message there, within ``send_timeout``, and a wait for a secondary that is busy.

        Arguments:
            why: what the result server said, without secrets.

        Raises:
            NamespaceFailure: the secondary does not take it now.
            MessageTooLarge: it does not fit.
            ConfigurationError: the queue is not there, and may not be created.
            PairingClosed: the pairing was closed.
        """
        if self.closed:
            raise PairingClosed(f"pairing {self._pairing.name} is closed")
        call = Call(message, time.time(), Deadline(self._timeout))
        reason = NamespaceFailure(FailureKind.UNREACHABLE, "the result backend", ConnectionError(why))
        stored = self._route.store(call, reason, self._timeout)
        refused = stored.too_large or stored.failure
        if refused is not None:
            raise refused

    def __repr__(self) -> str:
        return f"<ResultBacklog {self.queue}>"


#: Why a result is not kept.
NOT_KEPT = (NamespaceFailure, MessageTooLarge, ConfigurationError, PairingClosed)
