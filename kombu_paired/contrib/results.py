"""Result backends that survive their server: ``delay()`` never waits for it, and ``get()`` gives the value after it.

Celery speaks to the result backend before it publishes a task (Redis: it subscribes to the result; ``rpc://``: it
declares the queue for it), when somebody asks for a result, and when a task has ended. :func:`guard` has an
application make its backends from a class that is the backend's own plus :class:`Guarded`:

* while the server is well, a call is the backend's own call;
* the first one that fails, or is not answered within ``send_timeout``, begins an outage: one line in the log, and a
  watcher that looks for its end (:class:`~kombu_paired.contrib.result_server.ResultServer`);
* while it lasts nobody else tries. A send goes on without. Waiting for a result goes on, until its own timeout. What
  cannot do without raises :exc:`~kombu_paired.errors.ResultsUnavailable` at once;
* a task that has ended waits to store its result, :data:`~kombu_paired.contrib.result_server.PATIENCE` seconds from
  the begin of the outage at most. Then it goes on without: it has run, and is not run again for its result's sake.

Everything of Celery that is used here and not in its documentation is in :data:`PRIVATE`, and has a test.
"""

from __future__ import annotations

import math
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from functools import cache, partial
from typing import Any, ClassVar

import celery.backends.base
from celery import Celery, states
from celery.app import backends
from celery.backends.base import Backend, DisabledBackend
from celery.exceptions import BackendGetMetaError
from kombu.exceptions import OperationalError

from kombu_paired.bounded import GivenUp
from kombu_paired.contrib.result_consumers import RedisLinks, RpcLinks
from kombu_paired.contrib.result_server import PATIENCE, ResultServer, apart, server_for
from kombu_paired.deadline import Deadline
from kombu_paired.errors import MessageTooLarge, NamespaceFailure, NamespaceUnauthorized, ResultsUnavailable
from kombu_paired.namespaces.drivers import DRIVERS
from kombu_paired.options import PairedNamespaceOptions
from kombu_paired.secrets import without_secrets
from kombu_paired.transport import pairing_of

__all__ = ("Guarded", "ResultUnreadable", "guard", "guarded_class")

#: What is taken from inside Celery: module, owner, names.
PRIVATE = {
    "celery.app.base:Celery": ("_get_backend", "_backend_cache", "_local"),
    "celery.backends.base:Backend": ("_ensure_retryable",),
    "celery.backends.base:KeyValueStoreBackend": ("_apply_chord_incr",),
    "celery.backends.base": ("unpickle_backend",),
    "celery.backends.redis:RedisBackend": ("_create_client", "ensure", "set_chord_size"),
    "celery.backends.redis:ResultConsumer": ("_consume_from", "_drain_one", "_locked", "_reconnect", "_reset_sync"),
    "celery.backends.rpc:RPCBackend": ("_create_binding",),
    "celery.backends.rpc:ResultConsumer": ("_reconnect",),
    "celery.backends.database:DatabaseBackend": ("_create_tables",),
}

#: Errors of drivers that are no :exc:`OSError`, by name: the drivers need not be installed.
_OUTAGES = frozenset(
    {
        "AutoReconnect",  # pymongo
        "BotoCoreError",
        "InterfaceError",  # SQLAlchemy
        "MemcacheServerError",
        "MemcacheUnexpectedCloseError",
        "NoHostAvailable",  # Cassandra
        "OperationalError",  # SQLAlchemy, Django
        "TransportError",  # Elasticsearch
    }
)
#: A task id that nobody has.
_NOBODY = "kombu-paired-looks-whether-this-server-answers"

_RETRY = "Call it again when that is back"
#: What a call of a backend's own is for, in an error's text.
_WHAT = {
    "_delete_group": "deleting the group",
    "_forget": "forgetting the result of",
    "_get_task_meta_for": "reading the result of",
    "_restore_group": "reading the group",
    "_save_group": "saving the group",
}


class ResultUnreadable(ResultsUnavailable, BackendGetMetaError):  # type: ignore[misc]
    """A state or result could not be read; Celery catches it where it can do without."""


class _Within(threading.local):
    #: This thread is inside a guarded call: what that calls goes straight through.
    a_call = False
    #: This thread waits for a result, by asking again and again.
    waits = False
    #: The chord that this thread applied last: its id, and how to call it.
    chord = ("", "")

    def __init__(self) -> None:
        #: When the caller's own timeout ends.
        self.deadline = Deadline()


class Guarded(Backend):  # type: ignore[misc]
    """What is mixed in before a backend's own class."""

    #: The backend's own class.
    plain: type[Backend]
    #: Whether its calls may run in another thread than the caller's: Celery's own may.
    runs_apart = True

    def __init__(self, *args: Any, app: Celery, **kwargs: Any) -> None:
        url = kwargs.get("url") or kwargs.get("backend")
        self._within = _Within()
        self.result_server = self._server_of(app, url)
        self.runs_apart = self.runs_apart and url not in ("sqlite://", "sqlite:///:memory:")  # each thread has its own
        super().__init__(*args, app=app, **kwargs)

    def _server_of(self, app: Celery, url: str | None) -> ResultServer:
        options = PairedNamespaceOptions.parse(app.conf.broker_transport_options)
        name = without_secrets(url or self.plain.__name__)
        return server_for((self.plain, url), name, options.send_timeout)

    # -- one call -----------------------------------------------------------------------------------------------

    def means_outage(self, exc: BaseException) -> bool:
        """Whether an error tells that the server is away, and not that a call is wrong."""
        if isinstance(exc, MessageTooLarge | NamespaceUnauthorized | PermissionError):
            return False
        if isinstance(exc, OSError | EOFError | OperationalError):
            return True
        return not _OUTAGES.isdisjoint(each.__name__ for each in type(exc).__mro__)

    def ask(self, call: Callable[[], Any], what: str, advice: str = _RETRY) -> Any:
        """Call the server, if it is not known to be away, for as long as ``send_timeout`` and the caller allow.

        Raises:
            ResultsUnavailable: it is away.
        """
        server = self.result_server
        if self._within.a_call:
            return call()
        if server.is_away:
            raise server.unavailable(what, advice)
        limit = min(server.budget, self.time_left)
        inside = partial(self._inside, partial(self._twice, call))
        try:
            return server.bounded(inside, limit) if self.runs_apart else inside()
        except Exception as exc:
            if not self.means_outage(exc):
                raise
            self._gave_up(exc)
            if limit == server.budget or not isinstance(exc, GivenUp):  # else it had less time than is its right
                server.failed(exc, self.look)
            raise server.unavailable(what, advice) from exc

    def _inside(self, call: Callable[[], Any]) -> Any:
        within = self._within
        within.a_call, before = True, within.a_call
        try:
            return call()
        finally:
            within.a_call = before

    def _twice(self, call: Callable[[], Any]) -> Any:
        """A connection that died in its sleep is no outage: one more try has a new one."""
        try:
            return call()
        except Exception as exc:
            if not self.means_outage(exc) or "TimeoutError" in {each.__name__ for each in type(exc).__mro__}:
                raise
        return call()

    def _gave_up(self, exc: Exception) -> None:
        """A call that was given up still uses its client."""
        if isinstance(exc, GivenUp):
            self.__dict__.pop("client", None)

    @property
    def time_left(self) -> float:
        """Seconds that the caller of this thread waits, at most."""
        return self._within.deadline.left

    @contextmanager
    def within(self, seconds: float | None) -> Iterator[None]:
        """The calls of this thread have so many seconds together."""
        with self._within.deadline.within(math.inf if seconds is None else seconds):
            yield

    def look(self) -> None:
        """Whether the server answers.

        Raises:
            Exception: it does not.
        """
        try:
            self._inside(self._look)
        except Exception as exc:
            if self.means_outage(exc):
                raise

    def _look(self) -> Any:
        return self._get_task_meta_for(_NOBODY)

    # -- what everybody calls -----------------------------------------------------------------------------------

    def _ensure_retryable(self, func: Callable[..., Any], *args: Any, **kwargs: Any) -> Any:
        """Through here go all reading and storing. Celery's own retrying is for errors that are no outage."""
        if self._within.a_call:
            return self._once(func, args, kwargs)
        what = f"{_WHAT.get(func.__name__, func.__name__)} {args[0] if args else ''}"
        try:
            return self.ask(lambda: self._once(func, args, kwargs), what)
        except ResultsUnavailable as exc:
            fallback = getattr(kwargs.get("fallback_exc"), "func", None)
            if fallback is BackendGetMetaError:
                raise _unreadable(exc, args[0]) from exc.__cause__
            raise

    def _once(self, func: Callable[..., Any], args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
        policy = {"fallback_exc", "fallback_msg", "max_retries"}
        try:
            return func(*args, **{key: value for key, value in kwargs.items() if key not in policy})
        except Exception as exc:
            if self.means_outage(exc) or not (self.always_retry and self.exception_safe_to_retry(exc)):
                raise
        return super()._ensure_retryable(func, *args, **kwargs)

    def task_result_exists(self, task_id: str) -> bool:
        return bool(self.ask(partial(super().task_result_exists, task_id), f"a look for the result of {task_id}"))

    # -- sending ------------------------------------------------------------------------------------------------

    def on_task_call(self, producer: Any, task_id: str) -> Any:
        """Before a task is sent. A server that is away does not keep it from being sent."""
        call = partial(super().on_task_call, producer, task_id)
        if self.plain.on_task_call.__module__.startswith(
            "celery.backends."
        ):  # those that do something here do it within limits
            return call()
        try:
            return self.ask(call, "sending")
        except ResultsUnavailable:
            return {}

    def _chord(self, call: Callable[[], Any], chord: str) -> Any:
        advice = "The count of a chord lives there, so its body would never run. Call the chord again when that is back"
        return self.ask(call, f"the chord {chord} cannot be sent", advice)

    # -- tasks that have ended ----------------------------------------------------------------------------------

    def store_result(
        self, task_id: str, result: Any, state: str, traceback: Any = None, request: Any = None, **kwargs: Any
    ) -> Any:
        # By position, as Celery does: backends outside of it name these differently.
        call = partial(super().store_result, task_id, result, state, traceback, request=request, **kwargs)
        what = f"the result of {getattr(request, 'task', None) or 'task'}[{task_id}] ({state})"
        return self._store(call, what, is_final=state in states.READY_STATES, otherwise=result)

    def on_chord_part_return(self, request: Any, state: str, result: Any, **kwargs: Any) -> Any:
        call = partial(super().on_chord_part_return, request, state, result, **kwargs)
        what = f"the part of {request.task}[{request.id}] in the chord {request.group}"
        return self._store(call, what, is_final=True)

    def _store(self, call: Callable[[], Any], what: str, is_final: bool, otherwise: Any = None) -> Any:
        """Store it, waiting for the server as long as a task may. A worker's main process may not: a thread waits."""
        if self._within.a_call:
            return call()
        in_task = self.app.current_task is not None
        once = partial(self._inside, partial(self._twice, call))  # in the task's own thread: what it sends is its child
        if not in_task and self.runs_apart:
            once = partial(self.ask, call, what)
        try:
            return self._store_within(PATIENCE if in_task and is_final else 0.0, once, what)
        except ResultsUnavailable:
            if is_final and not in_task and self.runs_apart:
                apart(partial(self._store_late, once, what), "results-late")
            elif is_final:
                self.result_server.lost(what)
        return otherwise

    def _store_late(self, once: Callable[[], Any], what: str) -> None:
        try:
            self._store_within(PATIENCE, once, what)
        except ResultsUnavailable:
            self.result_server.lost(what)

    def _store_within(self, patience: float, once: Callable[[], Any], what: str) -> Any:
        """Store it, as soon as the server answers; all who wait in one outage wait until the same moment."""
        server = self.result_server
        until = time.monotonic() + patience
        while True:
            if not server.is_away:
                try:
                    return once()
                except ResultsUnavailable:
                    pass
                except Exception as exc:
                    if not self.means_outage(exc):
                        raise
                    server.failed(exc, self.look)
            left = min(until - time.monotonic(), PATIENCE - server.outage.seconds)
            if left <= 0:
                raise server.unavailable(what, _RETRY)
            server.wait_until_back(left)

    # -- pickling -----------------------------------------------------------------------------------------------

    def __reduce__(self, args: Any = (), kwargs: Any = None) -> Any:
        """As its own class does: whoever reads it may do without us."""
        make, (_, *rest) = super().__reduce__(args, kwargs)
        return make, (self.plain, *rest)


class _KeyValue(Guarded):
    """Backends that read many at once."""

    def mget(self, keys: Any) -> Any:
        return self.ask(partial(super().mget, keys), f"a look at {len(keys)} results")

    def _apply_chord_incr(self, header_result_args: Any, body: Any, **kwargs: Any) -> Any:
        return self._chord(partial(super()._apply_chord_incr, header_result_args, body, **kwargs), _named(body))


class _Waiting(Guarded):
    """Backends whose waiting is asking again and again."""

    def wait_for(self, task_id: str, timeout: float | None = None, **kwargs: Any) -> Any:
        with self._patiently(timeout):
            return super().wait_for(task_id, timeout=timeout, **kwargs)

    def get_many(self, task_ids: Any, timeout: float | None = None, **kwargs: Any) -> Iterator[Any]:
        answers = super().get_many(task_ids, timeout=timeout, **kwargs)
        until = None if timeout is None else time.monotonic() + timeout
        while True:
            with self._patiently(None if until is None else until - time.monotonic()):
                try:
                    answer = next(answers)
                except StopIteration:
                    return
            yield answer

    @contextmanager
    def _patiently(self, timeout: float | None) -> Iterator[None]:
        self._within.waits = True
        try:
            with self.within(timeout):
                yield
        finally:
            self._within.waits = False

    def get_task_meta(self, task_id: str, cache: bool = True) -> Any:
        try:
            return super().get_task_meta(task_id, cache=cache)
        except ResultsUnavailable:
            if not self._within.waits:
                raise
            return {"status": states.PENDING, "result": None}

    def mget(self, keys: Any) -> Any:
        try:
            return super().mget(keys)
        except ResultsUnavailable:
            if not self._within.waits:
                raise
            return {}


class _Redis(_KeyValue):
    """Redis, with or without Sentinel."""

    def means_outage(self, exc: BaseException) -> bool:
        kind = DRIVERS["redis"].kind_of(exc)
        return kind.counts if kind is not None else super().means_outage(exc)

    def ensure(self, fun: Callable[..., Any], args: Any, **policy: Any) -> Any:
        """Celery tries for 20 s: here the guard does."""
        return fun(*args) if self._within.a_call else super().ensure(fun, args, **policy)

    def apply_chord(self, header_result_args: Any, body: Any, **kwargs: Any) -> Any:
        name = _named(body)
        self._within.chord = (header_result_args[0], name)
        if self.result_server.is_away:  # before anything of it is sent
            return self._chord(lambda: None, name)
        return self._chord(partial(super().apply_chord, header_result_args, body, **kwargs), name)

    def set_chord_size(self, group_id: str, chord_size: int) -> Any:
        applied, name = self._within.chord
        chord = name if applied == group_id else f"of group {group_id}"
        return self._chord(partial(super().set_chord_size, group_id, chord_size), chord)

    def add_to_chord(self, chord_id: str, result: Any) -> Any:
        return self._chord(partial(super().add_to_chord, chord_id, result), f"of group {chord_id}")

    def bounded_client(self) -> Any:
        """A client of its own, whose sockets do not wait longer than the server may take."""
        limits = {"socket_timeout": self.result_server.budget, "socket_connect_timeout": self.result_server.budget}
        known = {key: value for key, value in limits.items() if key in self.connparams}
        return self._create_client(**{**self.connparams, **known})

    def _look(self) -> Any:
        # A write: a server that is full, a replica or cannot save answers everything else.
        client = self.bounded_client()
        try:
            return client.set(self.get_key_for_task(_NOBODY), b"", ex=1)
        finally:
            client.connection_pool.disconnect()


class _Rpc(Guarded):
    """``rpc://``: the results come through the broker, and the primary's outage is theirs."""

    #: The guard tries again.
    retry_policy: ClassVar = {"max_retries": 1, "interval_start": 0, "interval_step": 0, "interval_max": 0}

    def _server_of(self, app: Celery, url: str | None) -> ResultServer:
        options = PairedNamespaceOptions.parse(app.conf.broker_transport_options)
        broker = app.conf.broker_write_url
        return server_for((self.plain, broker), f"rpc:// on {without_secrets(str(broker))}", options.send_timeout)

    def means_outage(self, exc: BaseException) -> bool:
        if super().means_outage(exc):
            return True
        with self.app.connection_for_write() as connection:
            is_ours = isinstance(exc, connection.connection_errors + connection.channel_errors)
            return is_ours and pairing_of(connection).primary.kind_of(exc).counts

    def get_task_meta(self, task_id: str, *args: Any, **kwargs: Any) -> Any:
        self.oid  # of this thread, and not of the one that asks  # noqa: B018
        return self.ask(partial(super().get_task_meta, task_id, *args, **kwargs), f"a look at the state of {task_id}")

    def _look(self) -> Any:
        with self.app.connection_for_write() as connection:
            try:
                pairing_of(connection).primary.probe(None, self.result_server.budget)
            except NamespaceFailure as failure:
                if failure.kind.counts:
                    raise TimeoutError(str(failure)) from failure


class _Database(_Waiting):
    def _create_tables(self) -> None:
        """They are made with the first session, too."""
        with suppress(ResultsUnavailable):
            super()._create_tables()

    def _gave_up(self, exc: Exception) -> None:
        self.on_backend_retryable_error(exc)


def _named(body: Any) -> str:
    return f"with the body {getattr(body, 'task', body)}"


def _unreadable(exc: ResultsUnavailable, task_id: Any) -> ResultUnreadable:
    error = ResultUnreadable(*exc.args)
    error.task_id = task_id
    return error


@cache
def guarded_class(plain: Any) -> type[Guarded]:
    """A backend's own class and the guard that fits it."""
    names = {f"{each.__module__}:{each.__name__}" for each in plain.__mro__}
    bases: tuple[type, ...] = (_Waiting,)
    members: dict[str, Any] = {"plain": plain, "__module__": plain.__module__, "__doc__": plain.__doc__}
    if "celery.backends.redis:RedisBackend" in names:
        bases = (_Redis,)
        members["ResultConsumer"] = type("ResultConsumer", (RedisLinks, plain.ResultConsumer), {})
    elif "celery.backends.rpc:RPCBackend" in names:
        bases = (_Rpc,)
        members["ResultConsumer"] = type("ResultConsumer", (RpcLinks, plain.ResultConsumer), {})
    elif "celery.backends.database:DatabaseBackend" in names:
        bases = (_Database,)
    elif "celery.backends.base:BaseKeyValueStoreBackend" in names:
        bases = (_Waiting, _KeyValue)
    members["runs_apart"] = any(_is_celerys_own(each) for each in plain.__mro__)
    return type(plain.__name__, (*bases, plain), members)


def _is_celerys_own(cls: type) -> bool:
    """A whole backend of Celery's, and not what backends of other packages are made from."""
    module = cls.__module__
    return module.startswith("celery.backends.") and module.rpartition(".")[2] not in ("asynchronous", "base")


def guard(app: Celery) -> None:
    """Have an application make guarded backends, if its broker is a paired one. Calling it twice changes nothing."""
    if getattr(app._get_backend, "is_guarded", False):
        return
    make = app._get_backend

    def get_backend() -> Backend:
        plain, url = backends.by_url(app.backend_cls or app.conf.result_backend, app.loader)
        if not _is_guardable(app, plain):
            return make()
        cls: Callable[..., Backend] = guarded_class(plain)
        return cls(app=app, url=url)

    get_backend.is_guarded = True  # type: ignore[attr-defined]
    app._get_backend = get_backend
    app._backend_cache = None
    vars(app._local).pop("backend", None)
    _unpickle_guarded()


def _is_guardable(app: Celery, plain: type[Backend]) -> bool:
    if issubclass(plain, DisabledBackend):
        return False
    return bool((app.conf.broker_transport_options or {}).get("secondary"))


def _unpickle_guarded() -> None:
    """A result that comes out of a pickle brings a backend with it: in a guarded application, a guarded one."""
    unpickle = celery.backends.base.unpickle_backend
    if getattr(unpickle, "is_guarded", False):
        return

    def unpickle_backend(cls: type[Backend], args: Any, kwargs: Any) -> Backend:
        app = celery.current_app._get_current_object()
        is_ours = getattr(app._get_backend, "is_guarded", False) and _is_guardable(app, cls)
        return unpickle(guarded_class(cls) if is_ours else cls, args, kwargs)  # type: ignore[arg-type]

    unpickle_backend.__module__, unpickle_backend.__qualname__ = unpickle.__module__, unpickle.__qualname__
    unpickle_backend.is_guarded = True  # type: ignore[attr-defined]
    celery.backends.base.unpickle_backend = unpickle_backend
