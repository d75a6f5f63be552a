"""What guards a result backend: each call ends in time, and does without a server that is away where it can.

See :mod:`kombu_paired.contrib.results` for what that is good for.
"""

from __future__ import annotations

import math
import threading
import time
import uuid
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from functools import partial
from typing import Any

from celery import Celery, states
from celery.backends.base import Backend
from celery.exceptions import BackendGetMetaError
from kombu.exceptions import OperationalError

from kombu_paired.bounded import GivenUp
from kombu_paired.contrib.keeping import Keeping
from kombu_paired.contrib.kept_results import KeptResult
from kombu_paired.contrib.result_server import PATIENCE, ResultServer, apart, server_for
from kombu_paired.deadline import Deadline
from kombu_paired.errors import MessageTooLarge, NamespaceUnauthorized, ResultsUnavailable
from kombu_paired.message import ONCE
from kombu_paired.options import PairedNamespaceOptions
from kombu_paired.secrets import without_secrets

__all__ = ("NOBODY", "Guarded", "ResultUnreadable", "to_be_kept_once")

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
NOBODY = "kombu-paired-looks-whether-this-server-answers"

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
    #: What this thread stores late.
    late: KeptResult | None = None
    #: Celery is about to delete what tells the size of a chord, since it takes an outage for the chord's failure.
    spares = False
    #: The state that this thread kept last.
    kept: KeptResult | None = None

    def __init__(self) -> None:
        #: When the caller's own timeout ends.
        self.deadline = Deadline()


class Guarded(Keeping):
    """What is mixed in before a backend's own class."""

    #: The backend's own class.
    plain: type[Backend]
    #: Whether its calls may run in another thread than the caller's: Celery's own may.
    runs_apart = True

    def __init__(self, *args: Any, app: Celery, **kwargs: Any) -> None:
        url = kwargs.get("url") or kwargs.get("backend")
        self._within = _Within()
        self._broken_off = set()
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

    def ask(self, call: Callable[[], Any], what: str, advice: str = _RETRY, *, twice: bool = True) -> Any:
        """Call the server, if it is not known to be away, for as long as ``send_timeout`` and the caller allow.

        Arguments:
            twice: try again on a new connection; else the call does so itself.

        Raises:
            ResultsUnavailable: it is away.
        """
        server = self.result_server
        if self._within.a_call:
            return call()
        if server.is_away:
            raise server.unavailable(what, advice)
        limit = min(server.budget, self.time_left)
        inside = partial(self._inside, partial(self.twice, call) if twice else call)
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
            within.a_call, within.spares = before, False

    def twice(self, call: Callable[[], Any]) -> Any:
        """A connection that died in its sleep is no outage: one more try has a new one."""
        try:
            return call()
        except Exception as exc:
            if not self.means_outage(exc) or _is_timeout(exc):
                raise
        return call()

    def _gave_up(self, exc: Exception) -> None:
        """A call that was given up still uses its client."""
        if isinstance(exc, GivenUp):
            self.__dict__.pop("client", None)

    @property
    def time_left(self) -> float:
        """Seconds that the caller of this thread waits, at most."""
        left: float = self._within.deadline.left
        return left

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
        return self._get_task_meta_for(NOBODY)

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

    def apply_chord(self, header_result_args: Any, body: Any, **kwargs: Any) -> Any:
        """Before a chord is sent: its parts take the body with them, to whoever will send it."""
        to_be_kept_once(body)
        return super().apply_chord(header_result_args, body, **kwargs)

    def _chord(self, call: Callable[[], Any], chord: str) -> Any:
        advice = "The count of a chord lives there, so its body would never run. Call the chord again when that is back"
        return self.ask(call, f"the chord {chord} cannot be sent", advice)

    # -- tasks that have ended ----------------------------------------------------------------------------------

    def store_result(
        self, task_id: str, result: Any, state: str, traceback: Any = None, request: Any = None, **kwargs: Any
    ) -> Any:
        # By position, as Celery does: backends outside of it name these differently.
        call = partial(super().store_result, task_id, result, state, traceback, request=request, **kwargs)
        if self._within.a_call:
            return call()
        what = f"the result of {getattr(request, 'task', None) or 'task'}[{task_id}] ({state})"
        unstored = partial(self.state_to_keep, task_id, result, state, traceback, request)
        return self._store(
            partial(self.twice, call), what, unstored, is_final=state in states.READY_STATES, otherwise=result
        )

    def on_chord_part_return(self, request: Any, state: str, result: Any, **kwargs: Any) -> Any:
        call = partial(super().on_chord_part_return, request, state, result, **kwargs)
        counts = self.plain.on_chord_part_return is not Backend.on_chord_part_return and request.group
        if self._within.a_call or not counts:
            return call()
        what = f"the part of {request.task}[{request.id}] in the chord {request.group}"
        call = partial(self._count, call, request, state, result)
        return self._store(call, what, partial(self.part_to_keep, request, state, result), is_final=True)

    def _count(self, call: Callable[[], Any], request: Any, state: str, result: Any) -> None:
        """Count a part, twice on a connection that died in its sleep. The first time it may have been counted, too."""
        try:
            call()
        except Exception as exc:
            self._within.spares = False
            if not self.means_outage(exc) or _is_timeout(exc):
                raise
            if not self.count_part(request, state, result):
                raise

    def _store(
        self,
        call: Callable[[], Any],
        what: str,
        unstored: Callable[[], KeptResult],
        is_final: bool,
        otherwise: Any = None,
    ) -> Any:
        """Store it; while the server is away, keep it. A worker's main process waits for neither: a thread does."""
        in_task = self.app.current_task is not None
        once = partial(self._inside, call)  # in the task's own thread: what it sends is its child
        if not in_task and self.runs_apart:
            once = partial(self.ask, call, what, twice=False)
        try:
            return self._store_within(0.0, once, what)
        except ResultsUnavailable:
            kept = unstored()
        if in_task or not self.runs_apart:
            self._keep_or_wait(kept, once, what, is_final, PATIENCE if in_task else 0.0)
        else:
            apart(partial(self._keep_or_wait, kept, once, what, is_final, PATIENCE), "results-late")
        return otherwise

    def _keep_or_wait(
        self, kept: KeptResult, once: Callable[[], Any], what: str, is_final: bool, patience: float
    ) -> None:
        """If the backlog does not take it, either, wait for the server as long as a task may."""
        if self.keep(kept, what) or not is_final:
            return
        try:
            self._store_within(patience, once, what)
        except ResultsUnavailable:
            if not self.keep(kept, what):
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


def to_be_kept_once(body: Any) -> None:
    """The body of this run of a chord is to run once, whoever sends it, and however often."""
    body.options["headers"] = {**(body.options.get("headers") or {}), ONCE: str(uuid.uuid4())}


def _is_timeout(exc: BaseException) -> bool:
    return "TimeoutError" in {each.__name__ for each in type(exc).__mro__}


def _unreadable(exc: ResultsUnavailable, task_id: Any) -> ResultUnreadable:
    error = ResultUnreadable(*exc.args)
    error.task_id = task_id
    return error
