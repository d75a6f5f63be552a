"""How a process hears of results, through outages: Celery's consumers of Redis and ``rpc://``, with links to lose.

Celery's consumer connects in the caller's thread, and tries again there for 20 s. Here a link is made in a thread of
its own. Who sends waits for the first one a moment and goes on without; who waits for a result uses it when it is
there. A link that fails is dropped whole, and another one is made when the server is back: it subscribes to all that
is wanted, and what was not subscribed to for a while is then read once, so that nothing stored meanwhile is missed.
"""

from __future__ import annotations

import threading
import time
import weakref
from collections.abc import Callable, Iterator
from concurrent.futures import Future
from typing import TYPE_CHECKING, Any

from celery.backends.asynchronous import BaseResultConsumer
from celery.exceptions import TimeoutError as CeleryTimeoutError

from kombu_paired.contrib.result_server import ResultServer, apart
from kombu_paired.errors import ResultsUnavailable
from kombu_paired.process import at_fork

if TYPE_CHECKING:
    from contextlib import AbstractContextManager

__all__ = ("RedisLinks", "RpcLinks")

#: Seconds that one who sends waits for a link that is being made.
A_MOMENT = 0.5
#: Seconds of silence after which one who waits asks whether the link is alive.
SILENCE = 5.0
#: What it asks with.
_ALIVE = "kombu-paired"


class _Links(BaseResultConsumer):  # type: ignore[misc]
    """One link at a time, made apart."""

    def __init__(self, *args: Any, **kwargs: Any) -> None:
        super().__init__(*args, **kwargs)
        self._linking: Future[None] | None = None
        self._linking_since = 0.0
        self._token: object = None
        self._starting = threading.Lock()
        _consumers.add(self)

    @property
    def server(self) -> ResultServer:
        server: ResultServer = self.backend.result_server
        return server

    @property
    def is_linked(self) -> bool:
        raise NotImplementedError

    def make_link(self, is_wanted: Callable[[], bool]) -> None:
        """Make a link and install it, if it is still wanted then."""
        raise NotImplementedError

    def forget_link(self) -> None:
        """It was the parent process's."""
        self._linking = None
        self._starting = threading.Lock()

    def linked(self, patience: float) -> bool:
        """Whether there is a link; one that is being made is waited for.

        Raises:
            Exception: the server refuses us; waiting would not help.
        """
        if self.is_linked:
            return True
        if self.server.is_away:
            return False
        linking = self._start_linking()
        try:
            linking.result(patience)
        except Exception as exc:
            if not self.backend.means_outage(exc):
                raise
            if linking.done():
                self._failed(linking, exc)
        if not linking.done() and self._linking_age > self.server.budget:
            self._failed(linking, TimeoutError(f"no link within {self.server.budget:g} s"))
        return self.is_linked

    @property
    def _linking_age(self) -> float:
        linking = self._linking
        return 0.0 if linking is None or linking.done() else time.monotonic() - self._linking_since

    def linked_for_sender(self) -> bool:
        """The same for one who sends: nobody waits longer than a moment, and only the first do."""
        return self.linked(max(A_MOMENT - self._linking_age, 0.0))

    def _start_linking(self) -> Future[None]:
        with self._starting:
            linking = self._linking
            if linking is None or linking.done():
                token = object()
                self._token = token
                self._linking_since = time.monotonic()
                self._linking = linking = apart(lambda: self.make_link(lambda: self._token is token), "results-link")
            return linking

    def _failed(self, linking: Future[None], exc: BaseException) -> None:
        with self._starting:
            if self._linking is not linking:
                return
            self._linking = self._token = None
        self.server.failed(exc, self.backend.look)

    def drain_events(self, timeout: float | None = None) -> Any:
        """Wait for results for so long; a server that is away is waited for."""
        seconds = min(1.0 if timeout is None else timeout, self.backend.time_left)
        if self.linked(min(seconds, 1.0)):
            return self.drain_link(seconds)
        if self.server.is_away:
            self.server.wait_until_back(seconds)
        return None

    def drain_link(self, timeout: float) -> Any:
        """Wait on the link."""
        return super().drain_events(timeout)

    def _wait_for_pending(self, result: Any, timeout: float | None = None, **kwargs: Any) -> Iterator[None]:
        waiting = super()._wait_for_pending(result, timeout=timeout, **kwargs)
        until = None if timeout is None else time.monotonic() + timeout
        while True:
            with self.backend.within(None if until is None else until - time.monotonic()):
                try:
                    next(waiting)
                except StopIteration:
                    return
            if until is not None and time.monotonic() >= until and not result.on_ready.ready:
                waiting.close()
                raise CeleryTimeoutError("The operation timed out.")
            yield


class RedisLinks(_Links):
    """Mixed in before the consumer of Celery's Redis backend."""

    _pubsub: Any
    _locked: Callable[[], AbstractContextManager[None]]
    _get_key_for_task: Callable[[str], Any]
    _pending_unsubscribe: set[Any]
    subscribed_to: set[Any]

    def __init__(self, *args: Any, **kwargs: Any) -> None:
        self._unread: set[Any] = set()
        self._heard = self._asked = 0.0
        super().__init__(*args, **kwargs)

    @property
    def is_linked(self) -> bool:
        return self._pubsub is not None

    def consume_from(self, task_id: str) -> None:
        """Subscribe to a result: now if the server can be reached in a moment, else when it can."""
        if self._pubsub is not None:
            super().consume_from(task_id)  # a write; when it fails, the link is dropped
            if self._pubsub is not None:
                return
        self.start(task_id)
        self.linked_for_sender()
        with self._locked():
            if self._pubsub is None:
                self._unread.add(self._get_key_for_task(task_id))

    def start(self, initial_task_id: str, **kwargs: Any) -> None:
        key = self._get_key_for_task(initial_task_id)
        with self._locked():
            self._pending_unsubscribe.discard(key)
            self.subscribed_to.add(key)

    def make_link(self, is_wanted: Callable[[], bool]) -> None:
        client = self.backend.bounded_client()
        pubsub = client.pubsub(ignore_subscribe_messages=True)
        done: set[Any] = set()
        while True:
            with self._locked():
                new = self.subscribed_to - done
                if done and not new:
                    if is_wanted():
                        _seal(pubsub.connection)
                        self._pubsub, self._heard = pubsub, time.monotonic()
                    return
                if not new:
                    return  # nothing is wanted any more
            pubsub.subscribe(*new)
            self._unread |= self._subscribed(pubsub)
            done |= new

    def _subscribed(self, pubsub: Any) -> set[Any]:
        """Wait until the server has subscribed us; what it tells meanwhile has to be read."""
        until = time.monotonic() + self.server.budget
        told: set[Any] = set()
        pubsub.ping(_ALIVE)
        while (left := until - time.monotonic()) > 0:
            message = pubsub.get_message(timeout=left)
            if message and message["type"] == "pong":
                return told
            if message and message["type"] == "message":
                told.add(self.backend.key_t(message["channel"]))
        raise TimeoutError("no answer to a subscription")

    def _reconnect(self) -> None:
        """The link failed. Celery would try again here, for 20 s."""
        self._drop()

    def _drop(self) -> None:
        with self._locked():
            pubsub, self._pubsub = self._pubsub, None
            self._unread |= self.subscribed_to
        if pubsub is not None and pubsub.connection is not None:
            _unseal(pubsub.connection)
            pubsub.close()

    def forget_link(self) -> None:
        super().forget_link()
        self._reset_sync()
        self._pubsub = None
        self._unread |= self.subscribed_to

    def stop(self) -> None:
        self._drop()

    def on_wait_for_pending(self, result: Any, timeout: float | None = None, **kwargs: Any) -> None:
        """Somebody begins to wait: the result may be there already."""
        try:
            super().on_wait_for_pending(result, timeout=timeout, **kwargs)
        except ResultsUnavailable:
            with self._locked():
                self._unread |= self.subscribed_to

    def drain_link(self, timeout: float) -> None:
        if self._unread:
            self._read()
        else:
            super().drain_link(timeout)
            self._ask_whether_it_lives()

    def _read(self) -> None:
        """What was not subscribed to for a while."""
        with self._locked():
            keys = list(self._unread & self.subscribed_to)
            self._unread.clear()
        if not keys:
            return
        try:
            metas = self.backend.mget(keys)
        except ResultsUnavailable:
            with self._locked():
                self._unread.update(keys)
            self._drop()
            return
        for meta in metas:
            if meta:
                self.on_state_change(self.backend.decode_result(meta), None)

    def _drain_one(self, pubsub: Any, timeout: float | None) -> Any:
        heard = super()._drain_one(pubsub, timeout)
        if heard:
            self._heard = time.monotonic()
        return heard

    def _ask_whether_it_lives(self) -> None:
        now = time.monotonic()
        if now - self._heard < SILENCE:
            return
        if self._asked <= self._heard:
            with self._locked(), self.reconnect_on_error():
                if self._pubsub is not None:
                    self._pubsub.ping(_ALIVE)
            self._asked = now
        elif now - self._asked > self.server.budget:
            self._drop()
            self.server.failed(TimeoutError(f"no answer within {self.server.budget:g} s"), self.backend.look)


def _refuse(*args: Any, **kwargs: Any) -> None:
    raise ConnectionResetError("the link to the result backend is lost")


def _seal(connection: Any) -> None:
    """redis-py connects again in whatever call finds the connection lost: not in the caller's thread."""
    for name in ("connect", "connect_check_health"):
        if hasattr(connection, name):
            setattr(connection, name, _refuse)


def _unseal(connection: Any) -> None:
    for name in ("connect", "connect_check_health"):
        vars(connection).pop(name, None)


class RpcLinks(_Links):
    """Mixed in before the consumer of Celery's ``rpc://`` backend: a link is a consumer of the reply queue."""

    _connection: Any
    _consumer: Any

    def __init__(self, *args: Any, **kwargs: Any) -> None:
        self._queue: Any = None
        super().__init__(*args, **kwargs)

    @property
    def is_linked(self) -> bool:
        return self._consumer is not None

    def start(self, initial_task_id: str, no_ack: bool = True, **kwargs: Any) -> None:
        self._no_ack = no_ack
        self.consume_from(initial_task_id)

    def consume_from(self, task_id: str) -> None:
        """Consume the reply queue of this thread; there is one for all results."""
        self._queue = self._create_binding(task_id)
        self.linked_for_sender()

    def make_link(self, is_wanted: Callable[[], bool]) -> None:
        connection = self.app.connection()
        consumer = self.Consumer(
            connection.default_channel,
            [self._queue],
            callbacks=[self.on_state_change],
            no_ack=self._no_ack,
            accept=self.accept,
        )
        consumer.consume()
        if is_wanted():
            self._connection_errors = connection.connection_errors + connection.channel_errors
            self._connection, self._consumer = connection, consumer
        else:
            connection.close()

    def _reconnect(self) -> None:
        connection, self._connection, self._consumer = self._connection, None, None
        if connection is not None:
            apart(connection.close, "results-goodbye")

    def forget_link(self) -> None:
        super().forget_link()
        self._connection = self._consumer = None

    def stop(self) -> None:
        self._reconnect()


#: Whose links a child process must not use.
_consumers: weakref.WeakSet[_Links] = weakref.WeakSet()


def _forget_links() -> None:
    for consumer in list(_consumers):
        consumer.forget_link()


at_fork(in_child=_forget_links)
