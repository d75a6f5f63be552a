"""The primary as a consumer reaches it: through its own transport, with the patience that the caller has.

A Celery worker waits while the primary is away. Everybody else (inspect, purge, a script, a health page) has the
patience of a plain connection (docs/architecture.md, rule 27).
"""

from __future__ import annotations

import itertools
import logging
import math
import threading
import time
from collections.abc import Callable, Hashable
from typing import TYPE_CHECKING, Any, TypeVar

from kombu import Connection as KombuConnection
from kombu.transport import base
from tenacity import RetryCallState, Retrying, retry_if_exception, stop_after_delay, stop_any, wait_random_exponential
from tenacity.stop import stop_base

from kombu_paired.bounded import bounded
from kombu_paired.brokers.roles import Consumes
from kombu_paired.errors import PrimaryUnavailable
from kombu_paired.failures import FailureKind
from kombu_paired.process import inherit
from kombu_paired.stopping import is_worker_itself, sleep_unless_worker_stops, worker_is_told_to_stop
from kombu_paired.transport.consumed import Consumed

if TYPE_CHECKING:
    from kombu_paired.transport.connection import Connection
    from kombu_paired.transport.transport import Transport

__all__ = ("PrimaryForConsuming",)

logger = logging.getLogger("kombu_paired.transport")  # the name that settings of logs know

#: Seconds a worker waits for the primary before it raises: one line a minute in its log.
WORKER_PATIENCE = 60.0
#: Seconds that all others spend on connecting, if the connection has no ``connect_timeout``, and their pause within
#: those: Kombu's own figures.
PATIENCE, PAUSE = 5.0, 2.0

Answer = TypeVar("Answer")


class _Refused(threading.local):
    """Which pairings' primaries refused the worker that consumes in this thread.

    Attributes:
        by: key of the pairing -> what was raised, as long as Celery was not told of it where it connects; None once it
            was, so that whether it is still refused has to be asked.
    """

    def __init__(self) -> None:
        self.by: dict[Hashable, BaseException | None] = {}


_refused = _Refused()


class PrimaryForConsuming:
    """The primary's own transport, which is made when a consumer needs it.

    Arguments:
        transport: for whose connection it is.

    Attributes:
        client: the plain connection that has it; None while no consumer has needed it.
    """

    stands_in = False

    def __init__(self, transport: Transport) -> None:
        self.client: KombuConnection | None = None
        self._transport = transport

    @property
    def driver(self) -> base.Transport:
        """The primary's own transport; not connected until a consumer needs it."""
        if self.client is None:
            self.client = self._new_client()
        return self.client.transport

    def _new_client(self) -> KombuConnection:
        of = self._transport.client
        return self._namespace.consumer_client(heartbeat=of.heartbeat, connect_timeout=of.connect_timeout)

    @property
    def _namespace(self) -> Consumes:
        """That of the pairing, which is another one after a fork."""
        return self._transport.pairing.primary

    def _was_reached(self) -> None:
        self._transport.pairing.primary_was_reached()

    def connect(self, timeout: float | None = None) -> Any:
        """A connection of the primary's own transport.

        A Celery worker waits, with growing pauses, while the primary is away: at most WORKER_PATIENCE, or until it is
        told to stop. All others get the patience of a plain connection, which tries again after a pause for as long
        as ``connect_timeout`` says; the caller's ``timeout`` may make it shorter.

        Raises:
            PrimaryUnavailable: somebody else than a worker waited in vain.
            Exception: what the plain transport raises when it cannot connect.
        """
        if is_worker_itself():
            return self.wait(self._connect_once)
        deadline = time.monotonic() + min(timeout or math.inf, self._transport.client.connect_timeout or PATIENCE)
        while True:
            try:
                return self._connect_once(deadline)
            except Exception as exc:
                if not self._is_away(exc):
                    raise
                if time.monotonic() + PAUSE > deadline:
                    raise PrimaryUnavailable(f"{self._namespace.label} is away: {type(exc).__name__}: {exc}") from exc
            time.sleep(PAUSE)

    def consume(self, timeout: float | None = None) -> Consumed:
        """A connection to consume from, as :meth:`connect` makes it."""
        return self._consumed(self.connect(timeout))

    def consume_at_once(self, deadline: float | None = None) -> Consumed:
        """The same, of whoever waits for nobody.

        Arguments:
            deadline: monotonic seconds; without it the transport's own time limit is the only one.

        Raises:
            Exception: what the plain transport raises when it cannot connect.
        """
        return self._consumed(self._connect_once(deadline))

    def _consumed(self, connection: Any) -> Consumed:
        return Consumed(self._namespace, self.driver, connection, self.stands_in)

    def note(self, exc: BaseException) -> None:
        """If a worker was refused, remember that for :meth:`require_welcome`."""
        if self._namespace.kind_of(exc) is FailureKind.UNAUTHORIZED and is_worker_itself():
            _refused.by[self._transport.settings.key] = exc

    def require_welcome(self, connection: Connection) -> None:
        """Refuse a worker, when it connects, that was refused after it had connected last.

        Celery pauses between two tries to connect, and nowhere else: it would connect here, be refused there, and
        connect again at once. Once it was told, the primary is asked.

        Raises:
            Exception: what the plain transport raises.
        """
        refused, key = _refused.by, self._transport.settings.key
        if key not in refused or not is_worker_itself():
            return
        last = refused.pop(key)
        try:
            if last is not None:
                self.note(last)
                raise last.with_traceback(None)
            connection.require_consumed()
        finally:
            if key in refused:  # still; and now Celery hears of it
                refused[key] = None

    def leave_to_parent(self) -> None:
        """In a child process: touch nothing of what it inherited."""
        inherit(self.client)
        self.client = None

    def wait(self, attempt: Callable[[], Answer], most: Callable[[], float] = lambda: math.inf) -> Answer:
        """Try, as a worker does, until it works: at most WORKER_PATIENCE, or until the worker is told to stop.

        Arguments:
            attempt: connects once.
            most: seconds that the pause before the next try may take.
        """
        pause = wait_random_exponential(multiplier=0.5, max=5.0)
        waiting = Retrying(
            retry=retry_if_exception(self._is_away),
            wait=lambda state: min(pause(state), most()),
            stop=stop_any(stop_after_delay(WORKER_PATIENCE), _StopIfWorkerStops()),
            sleep=sleep_unless_worker_stops,
            before_sleep=self._say_once_that_it_waits,
            reraise=True,
        )
        try:
            return waiting(attempt)
        except Exception as exc:
            self.note(exc)
            raise

    def _connect_once(self, deadline: float | None = None) -> Any:
        """Try each address of the primary once, and until the deadline if there is one."""
        for tried in itertools.count(1):
            driver = self.driver
            try:
                if deadline is None:
                    connection = driver.establish_connection()
                else:
                    left = max(deadline - time.monotonic(), 0.05)
                    connection = bounded(
                        driver.establish_connection, left, "connecting to the primary", too_late=driver.close_connection
                    )
                break
            except Exception as exc:
                namespace = self._namespace
                namespace.secrets.scrub(exc)
                self.client = None  # a transport that failed to connect keeps half-made channels
                addresses = namespace.try_next_url(driver.client)
                if tried >= addresses or not namespace.kind_of(exc).counts:
                    raise
        self._was_reached()
        return connection

    def _is_away(self, exc: BaseException) -> bool:
        return self._namespace.kind_of(exc).counts

    def _say_once_that_it_waits(self, state: RetryCallState) -> None:
        if state.attempt_number == 1 and state.outcome is not None:
            logger.warning(
                "the primary namespace %s is away (%s: %s): consuming waits for it, and what is sent meanwhile goes to "
                "the backlog",
                self._namespace.uri,
                type(state.outcome.exception()).__name__,
                state.outcome.exception(),
            )


class _StopIfWorkerStops(stop_base):
    def __call__(self, retry_state: RetryCallState) -> bool:
        return worker_is_told_to_stop()
