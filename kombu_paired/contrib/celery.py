"""Celery: workers run the syphon, and signals tell what happens.

::

    app = Celery("shop", broker="paired+amqp://main-broker//")
    app.conf.broker_transport_options = {"secondary": "amqp://spare-broker//"}
    kombu_paired.setup(app)
"""

from __future__ import annotations

import logging
import time
from importlib.util import find_spec
from typing import Any
from weakref import WeakKeyDictionary

from celery import Celery, bootsteps, current_task, signals, states
from celery.utils.dispatch import Signal
from click import Option
from kombu import Connection

from kombu_paired import events, journal
from kombu_paired.contrib import remote_control, results
from kombu_paired.contrib.once import watch_consumers
from kombu_paired.contrib.results_home import ResultPump
from kombu_paired.declarations import Entity
from kombu_paired.errors import ConfigurationError
from kombu_paired.events import Event, EventKind
from kombu_paired.marks import maybe_duplicate
from kombu_paired.message import MAYBE_DUPLICATE
from kombu_paired.showing import teach_celery
from kombu_paired.stand_in import CAME_BY
from kombu_paired.syphon import Syphon, stop_what_runs_by_itself
from kombu_paired.transport import Transport, pairing_of
from kombu_paired.urls import PREFIX

__all__ = ("SyphonStep", "backlog_unavailable", "diverted", "failed_over", "restored", "setup", "syphoned")

logger = logging.getLogger(__name__)

#: Sent when an entity is failed over. All signals have the pairing's name as sender, and the
#: :class:`~kombu_paired.events.Event` as ``event``.
failed_over = Signal(name="failed_over", providing_args={"event"})
#: Sent when an entity works again.
restored = Signal(name="restored", providing_args={"event"})
#: Sent when a message went to a backlog queue.
diverted = Signal(name="diverted", providing_args={"event"})
#: Sent when a message came home from a backlog queue.
syphoned = Signal(name="syphoned", providing_args={"event"})
#: Sent when neither namespace took a message; the caller gets the exception besides.
backlog_unavailable = Signal(name="backlog_unavailable", providing_args={"event"})

_SIGNALS = {
    EventKind.FAILED_OVER: failed_over,
    EventKind.RESTORED: restored,
    EventKind.DIVERTED: diverted,
    EventKind.SYPHONED: syphoned,
    EventKind.BACKLOG_UNAVAILABLE: backlog_unavailable,
}


class SyphonStep(bootsteps.StartStopStep):  # type: ignore[misc]
    """Worker bootstep that runs the syphon beside the consumer, on connections of its own; so does the pump that stores
    results which were kept.
    """

    requires = ("celery.worker.components:Pool",)
    label = "Syphon"

    def __init__(self, worker: Any, syphon: bool | None = None, **kwargs: Any) -> None:
        self.enabled = syphon is not False
        self._syphon: Syphon | None = None
        self._results: ResultPump | None = None
        super().__init__(worker, **kwargs)

    def include_if(self, worker: Any) -> bool:
        return self.enabled

    def start(self, worker: Any) -> None:
        with worker.app.connection_for_write() as connection:
            try:
                pairing = pairing_of(connection)
            except ConfigurationError as exc:
                logger.warning("no syphon: %s", exc)
                return
            pairing.open()
        stop_what_runs_by_itself(pairing)
        self._syphon = Syphon(pairing)
        self._syphon.start()
        remote_control.runs_syphon(pairing, self._syphon)
        if isinstance(worker.app.backend, results.Guarded):
            self._results = ResultPump(worker.app, pairing, self._syphon.look_out)
            self._results.start()

    def stop(self, worker: Any) -> None:
        results_home, self._results = self._results, None
        if results_home is not None:
            results_home.stop()
        syphon, self._syphon = self._syphon, None
        if syphon is not None:
            syphon.stop()

    terminate = stop

    @property
    def lives(self) -> bool:
        """The syphon does, if there is to be one."""
        return self._syphon is None or self._syphon.lives

    def info(self, worker: Any) -> dict[str, Any]:
        running = self._syphon is not None and self._syphon.is_running
        facts: dict[str, Any] = {"syphon": {"running": running}}
        if self._results is not None:
            facts["results"] = {"backlog_queue": self._results.queue, "stored_late": self._results.stored}
        return facts


def setup(app: Celery) -> Celery:
    """Make the workers of an application run the syphon, and its results survive their server; returns the application.

    Adds the bootstep and the worker options ``--syphon/--no-syphon``, guards the result backend
    (:mod:`kombu_paired.contrib.results`), and connects the signals. Calling it twice changes nothing. The
    commands of remote control are there with this module.
    """
    app.steps["worker"].add(SyphonStep)
    options = app.user_options["worker"]
    if not any(isinstance(each, Option) and each.name == "syphon" for each in options):
        options.add(
            Option(
                ["--syphon/--no-syphon"],
                default=None,
                help="Move backlog messages home from the secondary namespace. On by default.",
            )
        )
    results.guard(app)
    events.everywhere.listen(_send_signal, _SIGNALS)
    signals.worker_init.connect(remote_control.count_events)
    signals.task_prerun.connect(_task_starts)
    signals.task_postrun.connect(_task_ends)
    signals.worker_process_shutdown.connect(_pool_process_exits)
    teach_celery()
    watch_consumers()
    app.on_after_configure.connect(_give_redbeat_its_redis)
    if app.configured:
        _give_redbeat_its_redis(app)
    return app


def _give_redbeat_its_redis(sender: Celery, **kwargs: Any) -> None:
    """RedBeat takes ``broker_url`` for its schedule unless told otherwise, and cannot read a paired one."""
    urls, conf = str(sender.conf.broker_write_url).split(";"), sender.conf
    plain = urls[0].removeprefix(PREFIX)
    if plain == urls[0] or not plain.startswith("redis") or find_spec("redbeat") is None:
        return
    if conf.get("redbeat_redis_url") is None:
        conf.redbeat_redis_url = plain
        if conf.get("redbeat_redis_options") is None:
            conf.redbeat_redis_options = dict((conf.broker_transport_options or {}).get("primary_options") or {})


def _send_signal(event: Event) -> None:
    signal = _SIGNALS[event.kind]
    if signal.receivers:
        signal.send(sender=event.pairing, event=event)


#: When the tasks began that this process runs: task id -> monotonic seconds.
_started: dict[str, float] = {}
#: A connection, never opened, through which a worker's process finds its pairing; None: its broker is a plain one.
_connections: WeakKeyDictionary[Celery, Connection | None] = WeakKeyDictionary()


def _task_starts(sender: Any, task_id: str, **kwargs: Any) -> None:
    app = sender.app
    if maybe_duplicate(sender.request):
        signals.before_task_publish.connect(_mark_what_a_marked_task_publishes)  # others do not pay for it
    is_wanted = events.everywhere.wants(EventKind.CONSUMED) or (app.conf.broker_transport_options or {}).get("journal")
    if is_wanted and not sender.request.is_eager:
        _started[task_id] = time.monotonic()


def _mark_what_a_marked_task_publishes(headers: Any, **kwargs: Any) -> None:
    """It may have published the same before: of a chain, with the same id."""
    if current_task and isinstance(headers, dict) and maybe_duplicate(current_task.request):
        headers[MAYBE_DUPLICATE] = "true"


def _task_ends(sender: Any, task_id: str, state: str | None = None, **kwargs: Any) -> None:
    """Tell that a message was consumed: its task succeeded or failed, and does not run again."""
    started = _started.pop(task_id, None)
    if started is None or state in (states.RETRY, states.REJECTED):
        return
    seconds = time.monotonic() - started
    connection = _connection_of(sender.app)
    if connection is None:
        return
    sent_to, properties = sender.request.delivery_info or {}, sender.request.properties or {}
    pairing_of(connection).emit(
        EventKind.CONSUMED,
        entity=Entity(sent_to.get("exchange") or "", sent_to.get("routing_key") or "").path,
        message_id=task_id,
        route=properties.get(CAME_BY, ""),
        seconds=seconds,
        detail="" if state == states.SUCCESS else str(state),
    )


def _connection_of(app: Celery) -> Connection | None:
    if app not in _connections:
        connection = app.connection_for_write()
        is_paired = isinstance(connection.transport, Transport)
        _connections[app] = connection if is_paired else None
    return _connections[app]


def _pool_process_exits(**kwargs: Any) -> None:
    """It ends without the interpreter's own goodbye."""
    journal.close_all()
