"""The way home of results that were kept: a pump that stores them when their server is back.

Workers run it beside their syphon, which looks whether there are any: it has a thread and a link of its own only while
there are, or while the syphon cannot look. Any number may run at once: storing twice is as storing once, and what one
of them held when it died comes back. It rests while the server is away, and finds out that it is by a result that it
cannot store, which goes back: until the first one comes nobody asks the server anything.
"""

from __future__ import annotations

import logging
import threading
import time
from collections.abc import Callable, Sequence
from enum import Enum
from functools import partial
from typing import Any, NamedTuple

from celery import Celery

from kombu_paired.brokers.roles import DeadLetter, Received, Receiver
from kombu_paired.contrib.kept_results import KeptResult, newest
from kombu_paired.contrib.result_backlog import queue_for
from kombu_paired.errors import MalformedBacklogMessage, NamespaceFailure
from kombu_paired.failures import FailureKind
from kombu_paired.pairing import Pairing
from kombu_paired.syphon.patience import FIRST_WAIT, LONGEST_WAIT, patiently

__all__ = ("ResultPump",)

logger = logging.getLogger(__name__)

#: Results that are stored at a time; they are under lock for a minute at most.
BATCH = 100
#: Seconds between two looks whether the server is back, or the worker stops.
LOOK = 0.5
#: Seconds until what is to be done again is done again.
AGAIN = 1.0
#: Seconds for which nothing more comes until the syphon may look whether something does.
QUIET = 5.0

#: Looks whether something is in a queue, and calls who is named then; False if it cannot. See :meth:`Syphon.look_out`.
LookOut = Callable[[str, Callable[[], None]], bool]


class _End(Enum):
    """Why a turn ended."""

    FAILED = "the secondary failed, or the pump stops"
    AWAY = "the server is away"
    EMPTY = "somebody else looks after the queue"


class _Held(NamedTuple):
    received: Received
    kept: KeptResult


class ResultPump:
    """Stores the results that were kept for one application's backend.

    Arguments:
        app: whose backend is a guarded one.
        pairing: where the backlog is.
        look_out: who looks after the queue while it is empty; by default the pump does so itself.

    Attributes:
        queue: the backlog queue.
        stored: how many it has stored.
    """

    def __init__(self, app: Celery, pairing: Pairing, look_out: LookOut | None = None) -> None:
        self.queue = queue_for(pairing.name, app.backend.place)
        self.stored = 0
        self._app = app
        self._pairing = pairing
        self._look_out = look_out
        self._stopping = threading.Event()
        self._receiver: Receiver | None = None
        self._thread = self._new_thread()

    def _new_thread(self) -> threading.Thread:
        return threading.Thread(target=self._run, name="kombu-paired-results-home", daemon=True)

    def start(self) -> None:
        self._pairing.when_closing(self.stop)
        self._thread.start()

    def stop(self, timeout: float = 0.3) -> None:
        """Stop; what is not stored by then goes back."""
        self._stopping.set()
        receiver = self._receiver
        if receiver is not None:
            receiver.interrupt()
        if self._thread.is_alive() and self._thread is not threading.current_thread():
            self._thread.join(timeout)

    # -- the thread ---------------------------------------------------------------------------------------------

    @property
    def _backend(self) -> Any:
        """This thread's own."""
        return self._app.backend

    def _run(self) -> None:
        """After an outage another thread goes on: what a backend keeps with this one, as Django's does its connection,
        may be dead for good.
        """
        while self._wait_for_server():
            end = self._turn()
            if end is _End.AWAY:
                self._go_on()
            if end is not _End.FAILED:
                return

    def _go_on(self) -> None:
        """In another thread: the server was away, or there is something in the queue."""
        if not self._stopping.is_set():
            self._thread = self._new_thread()
            self._thread.start()

    def _turn(self) -> _End:
        """Store what comes, until something fails, or nothing comes."""
        receiver = None
        try:
            receiver = self._receiver = self._open_receiver()
            return self._pump(receiver)
        except NamespaceFailure as failure:
            if not self._stopping.is_set():
                logger.info("results that were kept, %s: %s", self.queue, failure)
            self._stopping.wait(FIRST_WAIT)
        except Exception:
            logger.exception("results that were kept, %s: unexpected; it goes on", self.queue)
            self._stopping.wait(LONGEST_WAIT)
        finally:
            if receiver is not None:
                receiver.close()
        return _End.FAILED

    def _wait_for_server(self) -> bool:
        """False if the pump stops before it is there."""
        while not self._stopping.is_set():
            if self._backend.result_server.wait_until_back(LOOK):
                return True
        return False

    def _open_receiver(self) -> Receiver:
        tell = partial(logger.warning, "cannot receive from %s: %s", self.queue)
        return patiently(self._connect, self._stopping, tell)

    def _connect(self) -> Receiver:
        secondary, options = self._pairing.secondary, self._pairing.options
        receiver = secondary.receiver([self.queue], BATCH, options.send_timeout)
        try:
            receiver.raise_failure()
        except NamespaceFailure as failure:
            receiver.close()
            if failure.kind is FailureKind.MISSING and options.create_backlog_queues:
                secondary.ensure_backlog_queues([self.queue], True, options.send_timeout)
            elif failure.kind is FailureKind.MISSING:
                self._stopping.wait(options.syphon_poll)  # it is for somebody else to create
            raise
        return receiver

    def _pump(self, receiver: Receiver) -> _End:
        poll = self._pairing.options.syphon_poll
        while not self._stopping.is_set():
            receiver.raise_failure()
            batch = receiver.receive(BATCH, poll if self._look_out is None else min(QUIET, poll))
            if self._backend.result_server.is_away or (batch and not self._store(receiver, batch)):
                return _End.AWAY
            if not batch and self._look_out is not None and self._look_out(self.queue, self._go_on):
                return _End.EMPTY
        return _End.FAILED

    # -- one batch ----------------------------------------------------------------------------------------------

    def _store(self, receiver: Receiver, batch: Sequence[Received]) -> bool:
        """False when the server is away: what is not settled is to go back."""
        held, letters = self._unpack(batch)
        last = newest(each.kept for each in held)
        done: list[Received] = []
        again: list[Received] = []
        is_away = False
        for received, kept in held:
            is_outdated = not kept.is_part and last[kept.task_id] is not kept
            try:
                is_done = is_outdated or self._backend.twice(partial(self._backend.store_kept, kept))
            except Exception as exc:
                if self._backend.means_outage(exc):
                    self._backend.result_server.failed(exc, self._backend.look)
                    is_away = True
                    break
                logger.exception("the result of %s, which was kept, cannot be stored", kept.task_id)
                letters.append(DeadLetter(received, "ResultRefused", f"{type(exc).__name__}: {exc}"))
            else:
                (done if is_done else again).append(received)
        self.stored += len(done)
        receiver.complete(done)
        if letters:
            receiver.dead_letter(letters)
        if again and not is_away:
            receiver.abandon(again)
            self._stopping.wait(AGAIN)
        return not is_away

    def _unpack(self, batch: Sequence[Received]) -> tuple[list[_Held], list[DeadLetter]]:
        now = time.time()
        held, letters = [], []
        for received in batch:
            try:
                held.append(_Held(received, KeptResult.from_message(received.message, self._backend, now)))
            except MalformedBacklogMessage as exc:
                logger.error("%s: a dead letter: %s", self.queue, exc)
                letters.append(DeadLetter(received, exc.reason, exc.description))
        return held, letters
