"""Result backends that survive their server: ``delay()`` never waits for it, and ``get()`` gives the value after it.

Celery speaks to the result backend before it publishes a task (Redis: it subscribes to the result; ``rpc://``: it
declares the queue for it), when somebody asks for a result, and when a task has ended. :func:`guard` has an
application make its backends from a class that is the backend's own plus :class:`Guarded`:

* while the server is well, a call is the backend's own call;
* the first one that fails, or is not answered within ``send_timeout``, begins an outage: one line in the log, and a
  watcher that looks for its end (:class:`~kombu_paired.contrib.result_server.ResultServer`);
* while it lasts nobody else tries. A send goes on without. Waiting for a result goes on, until its own timeout. What
  cannot do without raises :exc:`~kombu_paired.errors.ResultsUnavailable` at once;
* the result of a task that has ended, and its part in a chord, are kept in the backlog, and stored when the server is
  back (:mod:`~kombu_paired.contrib.results_home`). If the secondary is away, too, the task waits,
  :data:`~kombu_paired.contrib.result_server.PATIENCE` seconds from the begin of the outage at most. Then it goes on
  without: it has run, and is not run again for its result's sake.

Everything of Celery that is used here and not in its documentation is in :data:`PRIVATE`, and has a test.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import celery.backends.base
from celery import Celery
from celery.app import backends
from celery.backends.base import Backend, DisabledBackend

from kombu_paired.contrib.guarded_backends import guarded_class
from kombu_paired.contrib.guarded_results import Guarded, ResultUnreadable
from kombu_paired.contrib.result_backlog import queue_for

__all__ = ("Guarded", "ResultUnreadable", "guard", "guarded_class", "result_queue_of")

#: What is taken from inside Celery: module, owner, names.
PRIVATE = {
    "celery._state": ("pop_current_task", "push_current_task"),
    "celery.app.base:Celery": ("_get_backend", "_backend_cache", "_local"),
    "celery.backends.base:Backend": ("_ensure_retryable", "_get_result_meta"),
    "celery.backends.base:KeyValueStoreBackend": ("_apply_chord_incr",),
    "celery.backends.base": ("unpickle_backend",),
    "celery.backends.redis:RedisBackend": (
        "_create_client",
        "_set",
        "_chord_cleanup_script",
        "ensure",
        "set_chord_size",
    ),
    "celery.backends.redis:ResultConsumer": ("_consume_from", "_drain_one", "_locked", "_reconnect", "_reset_sync"),
    "celery.backends.rpc:RPCBackend": ("_create_binding",),
    "celery.backends.rpc:ResultConsumer": ("_reconnect",),
    "celery.backends.database:DatabaseBackend": ("_create_tables",),
}


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


def result_queue_of(app: Celery, pairing: str) -> str | None:
    """The backlog queue in which an application keeps results that cannot be stored; None if it keeps none.

    Arguments:
        pairing: the pairing's name.
    """
    backend = app.backend
    return queue_for(pairing, backend.place) if isinstance(backend, Guarded) else None


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
