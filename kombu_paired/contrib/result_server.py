"""The server that keeps an application's results: whether it is away, and calls to it that end in time.

One per process and result backend, shared by all threads (Celery makes a backend for each). While the server is away
nobody waits for it but a watcher of ours, and whoever asks for a result.
"""

from __future__ import annotations

import contextvars
import logging
import random
import threading
import time
from collections.abc import Callable
from concurrent.futures import Future
from contextlib import suppress
from functools import partial
from typing import Any, TypeVar

from kombu_paired.bounded import bounded
from kombu_paired.errors import ResultsUnavailable
from kombu_paired.outage import Outage
from kombu_paired.process import at_fork
from kombu_paired.secrets import without_secrets_in_urls

__all__ = ("PATIENCE", "ResultServer", "apart", "server_for")

logger = logging.getLogger(__name__)

Answer = TypeVar("Answer")

#: Seconds from the begin of an outage for which a task that has ended waits to store its result, if the backlog does
#: not take it, either.
PATIENCE = 120.0
#: Seconds between two looks of the watcher, on the average.
LOOK = 1.0
#: Looks that hang are left alone for so many times the budget before there is another.
STUBBORN = 3


def apart(step: Callable[[], Answer], what: str) -> Future[Answer]:
    """Begin something that may never return, for whoever wants to wait a while for it."""
    future: Future[Answer] = Future()

    def run() -> None:
        try:
            answer = step()
        except BaseException as exc:
            future.set_exception(exc)
        else:
            future.set_result(answer)

    threading.Thread(target=run, name=f"kombu-paired-{what}", daemon=True).start()
    return future


class ResultServer:
    """What this process knows of one result server.

    Arguments:
        name: how to show it; without secrets.
        budget: seconds in which it has to answer (``send_timeout``).
        clock: monotonic seconds.
    """

    def __init__(self, name: str, budget: float, clock: Callable[[], float] = time.monotonic) -> None:
        self.name = name
        self.budget = budget
        self._clock = clock
        self.forget()

    def forget(self) -> None:
        """Know nothing: a child process has neither the parent's threads nor its locks."""
        self.outage = Outage(self._clock)
        self._is_back = threading.Event()
        self._is_back.set()
        self._lost = self._kept = 0
        self._was_not_kept = False
        self._when_back: Callable[[], None] | None = None

    @property
    def is_away(self) -> bool:
        return self.outage.is_on

    @property
    def reason(self) -> str:
        """Why it is away, without secrets."""
        reason = self.outage.reason
        return _shown(reason) if reason is not None else ""

    def bounded(self, call: Callable[[], Answer], limit: float) -> Answer:
        """Run a call for so many seconds at most.

        Raises:
            GivenUp: it has not returned.
        """
        return bounded(partial(contextvars.copy_context().run, call), limit, "an answer of the result backend")

    def failed(self, reason: BaseException, probe: Callable[[], Any]) -> None:
        """It could not be reached. ``probe`` raises until it can."""
        if not self.outage.begins(reason):
            return
        self._is_back.clear()
        logger.warning(
            "the result backend %s is away (%s): tasks are sent without it, and results are fetched when it is back",
            self.name,
            _shown(reason),
        )
        threading.Thread(target=self._watch, args=(probe,), name="kombu-paired-results-watch", daemon=True).start()

    def unavailable(self, what: str, advice: str) -> ResultsUnavailable:
        """The error for a call that cannot do without it."""
        why = f" ({self.reason})" if self.reason else ""
        return ResultsUnavailable(f"{what}: the result backend {self.name} is away{why}. {advice}")

    def lost(self, what: str) -> None:
        """Something was not stored in time."""
        self._lost += 1
        logger.error("%s is not stored: the result backend %s is away for too long", what, self.name)

    def kept(self, when_back: Callable[[], None]) -> None:
        """Something that could not be stored is in the backlog.

        Arguments:
            when_back: is called at the end of the outage.
        """
        self._kept += 1
        self._when_back = when_back

    def not_kept(self, what: str, reason: BaseException) -> None:
        """The backlog did not take it; in one outage this is told once."""
        if not self._was_not_kept:
            self._was_not_kept = True
            logger.warning("%s cannot be kept in the backlog: %s", what, _shown(reason))

    def wait_until_back(self, seconds: float) -> bool:
        """Sleep until it is back; False when it is not after so many seconds."""
        return self._is_back.wait(seconds)

    def _watch(self, probe: Callable[[], Any]) -> None:
        while True:
            time.sleep(random.uniform(0.5, 1.5) * LOOK)
            look = apart(probe, "results-look")
            with suppress(Exception):
                look.result(STUBBORN * self.budget)
                break
        lasted = self.outage.ends()
        lost, kept = self._lost, self._kept
        self._lost = self._kept = 0
        self._was_not_kept = False
        logger.info(
            "the result backend %s is back after %.0f s%s%s",
            self.name,
            lasted,
            f"; {kept} results that were kept in the backlog are stored now" if kept else "",
            f"; {lost} results were not stored" if lost else "",
        )
        self._is_back.set()
        when_back, self._when_back = self._when_back, None
        if when_back is not None:
            when_back()


def _shown(reason: BaseException) -> str:
    return without_secrets_in_urls(f"{type(reason).__name__}: {reason}".splitlines()[0])


_servers: dict[Any, ResultServer] = {}


def server_for(key: Any, name: str, budget: float) -> ResultServer:
    """The one of this process for a key."""
    return _servers.setdefault((key, budget), ResultServer(name, budget))


def _start_clean_after_fork() -> None:
    for server in _servers.values():
        server.forget()


at_fork(in_child=_start_clean_after_fork)
