"""How a process hears of what operators isolate: it looks at the notices on the secondary, every few seconds.

The processes that send look in a thread of their own, which waits otherwise: a send pays nothing for it. A syphon looks
when it has something to move.
"""

from __future__ import annotations

import logging
import random
import threading
from collections.abc import Callable

from kombu_paired.brokers.operating import Notices
from kombu_paired.brokers.roles import Secondary
from kombu_paired.deadline import Deadline
from kombu_paired.errors import NamespaceFailure
from kombu_paired.failures import FailureKind
from kombu_paired.isolation import ALL, Isolated
from kombu_paired.options import PairedNamespaceOptions
from kombu_paired.pairing.clocks import Clocks

__all__ = ("Isolation",)

logger = logging.getLogger("kombu_paired.pairing")

#: Seconds between two looks, at most, of a process that sends: who isolates something need not wait for long before
#: the broker is stopped. Where each look is charged they are as rare as pings.
LOOK_INTERVAL = 5.0
#: Seconds until the first look, on average: a program that sends one message and ends is spared it.
FIRST_LOOK = 1.0
#: How much rarer the looks are of who is not allowed to.
SELDOM = 12
#: How much earlier or later each comes, so that a fleet does not look in the same second.
JITTER = 0.2


class Isolation:
    """What is isolated, as far as this process has heard.

    Arguments:
        secondary: where the notices are.
        primary: the name of the primary that they are about.
        options: the settings.
        clocks: the time.
        learn: is told what is isolated, whenever that changes.

    Attributes:
        now: what is isolated, by the last look.
    """

    def __init__(
        self,
        secondary: Secondary,
        primary: str,
        options: PairedNamespaceOptions,
        clocks: Clocks,
        learn: Callable[[Isolated], None],
    ) -> None:
        self.now = Isolated()
        self.interval = options.ping_interval
        if not secondary.bills_calls:
            self.interval = min(self.interval, LOOK_INTERVAL)
        self._secondary = secondary
        self._primary = primary
        self._timeout = options.send_timeout
        self._may_create = options.create_backlog_queues
        self._clocks = clocks
        self._learn = learn
        self._notices: Notices | None = None
        self._is_looking = threading.Lock()
        self._looked_at = float("-inf")
        self._closing = threading.Event()
        self._thread: threading.Thread | None = None
        self._starting = threading.Lock()
        #: Nothing is to be done before a send: the thread runs, or there is nothing to look at.
        self.is_watched = not secondary.keeps_notices

    # -- hearing of it ------------------------------------------------------------------------------------------

    def watch(self) -> None:
        """Look every few seconds from now on, in a thread, which ends with the pairing."""
        with self._starting:
            if self.is_watched or self._closing.is_set():
                return
            self.is_watched = True
            name = f"kombu-paired-isolation-{self._primary}"
            self._thread = threading.Thread(target=self._watch, name=name, daemon=True)
            self._thread.start()

    def _watch(self) -> None:
        wait = FIRST_LOOK
        while not self._closing.wait(wait * random.uniform(1 - JITTER, 1 + JITTER)):
            failure = self.try_to_look(create=self._may_create)
            is_allowed = failure is None or failure.kind is not FailureKind.UNAUTHORIZED
            wait = self.interval if is_allowed else SELDOM * self.interval
        self._hang_up()  # it may have been looking when the pairing closed

    def look_if_due(self) -> Isolated:
        """What is isolated, looked up unless somebody has just looked; as it was, if the secondary does not say."""
        if self._secondary.keeps_notices and self._clocks.monotonic() - self._looked_at >= self.interval:
            self.try_to_look(create=self._may_create)
        return self.now

    def try_to_look(self, seconds: float | None = None, *, create: bool = False) -> NamespaceFailure | None:
        """Look; what it failed with. A secondary that says nothing leaves everything as it was."""
        try:
            self.look(seconds, create=create)
        except NamespaceFailure as failure:
            logger.debug("pairing %s: what is isolated is not known: %s", self._primary, failure)
            return failure
        return None

    def look(self, seconds: float | None = None, *, create: bool = False) -> Isolated:
        """What is isolated, by the notices.

        Arguments:
            seconds: that it may take; ``send_timeout`` by default.
            create: make the place where notices are kept, if it is missing.

        Raises:
            NamespaceFailure: the secondary does not say.
            ConfigurationError: it keeps no notices.
        """
        with self._is_looking:
            self._looked_at = self._clocks.monotonic()
            return self._learned(self._link().read(self._deadline(seconds).left, create=create))

    def _deadline(self, seconds: float | None) -> Deadline:
        return Deadline(self._timeout if seconds is None else min(seconds, self._timeout))

    def _link(self) -> Notices:
        if self._notices is None:
            self._notices = self._secondary.notices(self._primary)
        return self._notices

    def _learned(self, notices: dict[str, float]) -> Isolated:
        found = Isolated(notices)
        if found != self.now:
            self.now = found
            self._learn(found)
        return found

    # -- changing it --------------------------------------------------------------------------------------------

    def isolate(self, name: str, seconds: float | None = None) -> Isolated:
        """Have an entity left alone by every process of the fleet, until it is restored.

        Arguments:
            name: a queue, ``exchange/routing key``, or ``all``.
            seconds: that it may take; ``send_timeout`` by default, and at most.

        Raises:
            NamespaceFailure: the secondary did not take the notice.
            ConfigurationError: it keeps none.
        """
        with self._is_looking:
            notices, deadline = self._link(), self._deadline(seconds)
            notices.put(name, self._clocks.wall(), deadline.left)
            return self._learned(notices.read(deadline.left))

    def restore(self, name: str, seconds: float | None = None) -> Isolated:
        """Let it be used again; ``all`` ends whatever is isolated. What was failed over meanwhile is pinged at once.

        Arguments:
            name, seconds: as to isolate.

        Raises:
            NamespaceFailure: the secondary did not take the notice away.
            ConfigurationError: it keeps none.
        """
        with self._is_looking:
            notices, deadline = self._link(), self._deadline(seconds)
            for each in [name] if name != ALL else notices.read(deadline.left):
                notices.take(each, deadline.left)
            return self._learned(notices.read(deadline.left))

    def close(self) -> None:
        """Look no more, and let go of the link, unless that is in use: then it ends by its own time limit."""
        self._closing.set()
        self._hang_up()

    def rest(self) -> None:
        """Who looks when it has something to move has nothing more: it needs no link. A thread that looks keeps it."""
        if self._thread is None:
            self._hang_up()

    def _hang_up(self) -> None:
        if self._is_looking.acquire(blocking=False):
            try:
                notices, self._notices = self._notices, None
                if notices is not None:
                    notices.close()
            finally:
                self._is_looking.release()
