"""Who counts, and who answers scrapes."""

from __future__ import annotations

import logging
import os
import struct
import time
from glob import glob
from pathlib import Path
from typing import Any

from celery import Celery, bootsteps, signals
from prometheus_client import REGISTRY, CollectorRegistry, start_http_server
from prometheus_client.multiprocess import MultiProcessCollector, mark_process_dead

from kombu_paired.contrib.measuring import Measuring
from kombu_paired.contrib.prometheus.backlog import BacklogCollector
from kombu_paired.contrib.prometheus.metrics import Metrics
from kombu_paired.errors import ConfigurationError
from kombu_paired.process import at_exit, at_fork

__all__ = ("ExposeStep", "listen", "registry_to_scrape", "setup")

logger = logging.getLogger(__name__)

#: Where the client has the processes of a machine, or of a container, put their numbers.
FOLDER = "PROMETHEUS_MULTIPROC_DIR"
#: How often, and after how many seconds each time, files are read again that a process is just making.
TRIES, BETWEEN_TRIES = 20, 0.05

_measuring: Measuring | None = None


def listen(registry: CollectorRegistry = REGISTRY) -> None:
    """Count what happens in this process, and in those that it forks, from now on; twice changes nothing.

    Arguments:
        registry: where the numbers are shown; not used where ``PROMETHEUS_MULTIPROC_DIR`` is set.
    """
    global _measuring
    if _measuring is not None:
        return
    metrics, is_shown_elsewhere = Metrics(), bool(os.environ.get(FOLDER))
    measuring = _measuring = Measuring(metrics, hands_on=is_shown_elsewhere)
    if is_shown_elsewhere:
        at_exit(measuring.hand_on)
        signals.worker_process_shutdown.connect(_pool_process_exits)
    else:
        metrics.before_collecting = measuring.hand_on
        registry.register(metrics)
    at_fork(before=metrics.before_fork, in_parent=metrics.in_parent, in_child=metrics.in_child)
    at_fork(in_child=measuring.start_clean)
    measuring.start()


def _pool_process_exits(**kwargs: Any) -> None:
    """It ends without the interpreter's own goodbye."""
    if _measuring is not None:
        _measuring.hand_on()


def registry_to_scrape() -> CollectorRegistry:
    """What a scrape of this process is to see: of all processes, where they put their numbers into one folder.

    Processes that are gone and did not say so no longer count as failed over, nor as running a syphon.
    """
    folder = os.environ.get(FOLDER)
    if not folder:
        return REGISTRY
    registry = CollectorRegistry()
    registry.register(_OfAllProcesses(registry, folder))
    return registry


class _OfAllProcesses(MultiProcessCollector):
    """Adds them up, without what the dead were doing."""

    def __init__(self, registry: Any, folder: str) -> None:
        self._folder = folder
        super().__init__(None, folder)  # type: ignore[no-untyped-call]

    def collect(self) -> Any:
        for pid in {Path(name).stem.rpartition("_")[2] for name in glob(f"{self._folder}/gauge_live*_*.db")}:
            if pid.isdigit() and not _is_alive(int(pid)):
                mark_process_dead(int(pid), self._folder)  # type: ignore[no-untyped-call]
        for _ in range(TRIES):
            try:
                return super().collect()  # type: ignore[no-untyped-call]
            except struct.error:  # a file that a process has just made, and which has nothing in it yet
                time.sleep(BETWEEN_TRIES)
        return super().collect()  # type: ignore[no-untyped-call]


def _is_alive(pid: int) -> bool:
    try:
        os.kill(pid, 0)
    except ProcessLookupError:
        return False
    except PermissionError:  # somebody else's
        return True
    return True


class ExposeStep(bootsteps.StartStopStep):  # type: ignore[misc]
    """Worker bootstep that answers scrapes from the worker's main process, and looks into the backlog for them.

    Attributes:
        port: where; 0 lets the system choose.
        backlog: whether it looks into the backlog.
    """

    requires = ("celery.worker.components:Pool",)  # so that the pool's first processes do not inherit the socket
    label = "Metrics"
    port = 0
    backlog = True

    def __init__(self, worker: Any, **kwargs: Any) -> None:
        self._server: Any = None
        super().__init__(worker, **kwargs)

    def start(self, worker: Any) -> None:
        registry = CollectorRegistry()
        registry.register(_Shown(registry_to_scrape()))
        if self.backlog:
            try:
                registry.register(BacklogCollector(worker.app))
            except ConfigurationError as exc:
                logger.warning("no metrics of the backlog: %s", exc)
        try:
            self._server, _ = start_http_server(self.port, registry=registry)
        except OSError as exc:
            logger.error("no metrics: port %d cannot be used: %s", self.port, exc)
            return
        at_fork(in_child=self._server.socket.close)
        logger.info("metrics at port %d", self._server.server_port)

    def stop(self, worker: Any) -> None:
        server, self._server = self._server, None
        if server is not None:
            server.shutdown()
            server.server_close()

    terminate = stop


class _Shown:
    """The metrics of another registry, beside those of this one."""

    def __init__(self, registry: CollectorRegistry) -> None:
        self._registry = registry

    def describe(self) -> list[Any]:
        return []

    def collect(self) -> Any:
        return self._registry.collect()


def setup(app: Celery, port: int, *, backlog: bool = True) -> Celery:
    """Count in every process that has this application, and let its workers answer scrapes; returns the application.

    Arguments:
        port: of a worker's main process, on all addresses.
        backlog: let it look into the backlog for each scrape, too: of many workers one is enough.
    """
    listen()
    app.steps["worker"].add(type("ExposeStep", (ExposeStep,), {"port": port, "backlog": backlog}))
    return app
