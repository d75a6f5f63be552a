"""pytest-celery's nodes, backed by local processes instead of containers: no Docker needed.

The node classes are pytest-celery's own (``CeleryTestBroker``, ``CeleryTestWorker``,
``CeleryBrokerCluster``); only the container below them is exchanged.
"""

from __future__ import annotations

import itertools
import os
import re
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any

from celery import Celery
from kombu import Connection
from pytest_celery import (
    CeleryBrokerCluster,
    CeleryTestBroker,
    CeleryTestContainer,
    CeleryTestWorker,
)

from kombu_paired.brokers.kombu import new_connection
from kombu_paired.testing import (
    HOST,
    LocalBroker,
    LocalRabbitMQ,
    descendants,
    process_state,
    spawn,
    stop_tree,
)
from tests.support.proxy import Proxy

ROOT = Path(__file__).resolve().parents[2]

_numbers = itertools.count(1)


class WorkerFailed(AssertionError):
    """The worker did not do what was asked; the text ends with its log."""


class LocalContainer(CeleryTestContainer):
    """What the nodes need of a container. It is a process."""

    def __init__(self, name: str, log: Path) -> None:  # deliberately not super().__init__: no Docker
        self._name = name
        self._log = log

    def __repr__(self) -> str:
        return f"<{type(self).__name__} {self.name} {self.status}>"

    @property
    def name(self) -> str:
        return self._name

    @property
    def id(self) -> str:
        return self._name

    @property
    def attrs(self) -> dict[str, Any]:
        return {"Id": self.id, "Name": self.name, "State": {"Status": self.status}}

    def logs(self) -> str:
        return self._log.read_text(errors="replace") if self._log.exists() else ""

    def reload(self) -> None:
        """Nothing is cached."""

    def remove(self, *args: Any, **kwargs: Any) -> None:
        self.teardown()

    def exec_run(self, *args: Any, **kwargs: Any) -> Any:
        raise NotImplementedError("a local process has no inside in which to run a command")


class BrokerContainer(LocalContainer):
    def __init__(self, broker: LocalBroker) -> None:
        super().__init__(f"{broker.kind}-{broker.port}", broker.log)
        self.broker = broker

    @property
    def status(self) -> str:
        return {"running": "running", "frozen": "paused", "down": "exited"}[self.broker.state]

    @property
    def client(self) -> Connection:
        return new_connection(self.broker.url)

    @property
    def celeryconfig(self) -> dict[str, Any]:
        url = self.broker.url
        return {
            "url": url,
            "host_url": url,
            "hostname": "127.0.0.1",
            "port": self.broker.port,
            "vhost": {"amqp": "/", "redis": "0"}.get(self.broker.kind, ""),
        }

    def ready(self) -> bool:
        self.broker.wait_ready()
        return True

    def kill(self, signal: str | int | None = None) -> None:
        if _signal(signal) == _SIGKILL:
            self._write_down_what_is_declared()
            self.broker.kill()
        else:
            os.kill(self.broker.pid, _signal(signal))

    def _write_down_what_is_declared(self) -> None:
        """RabbitMQ 3.10 writes twice a second which durable queues there are: a younger one dies with it for good.

        No client can help that, so no test of ours is about it. Messages are written before they are confirmed.
        """
        if isinstance(self.broker, LocalRabbitMQ) and self.broker.state == "running":
            self.broker.erl("begin mnesia:sync_log(), [dets:sync(Table) || Table <- dets:all()] end")

    def restart(self, timeout: float | None = None) -> None:
        self.broker.restart()

    def teardown(self) -> None:
        self.broker.stop()


class _Killable:
    """pytest-celery kills only what is running; what is frozen has to die as well."""

    container: LocalContainer

    def kill(self, signal: str | int = "SIGKILL", reload_container: bool = True) -> None:
        self.container.kill(signal)


class LocalTestBroker(_Killable, CeleryTestBroker):
    """A broker that can be made to suffer, itself or the network between it and its clients."""

    def __init__(self, broker: LocalBroker, app: Celery | None = None) -> None:
        super().__init__(BrokerContainer(broker), app)
        self.broker = broker
        self._proxy: Proxy | None = None

    def __repr__(self) -> str:
        return f"<{type(self).__name__} {self.broker!r}>"

    __hash__ = object.__hash__

    @property
    def kind(self) -> str:
        return self.broker.kind

    @property
    def port(self) -> int:
        return self.broker.port

    @property
    def url(self) -> str:
        """Straight to the broker."""
        return self.broker.url

    @property
    def proxy(self) -> Proxy:
        """The network in front of the broker, made when it is first asked for."""
        if self._proxy is None:
            self._proxy = Proxy(self.port)
        return self._proxy

    @property
    def proxied_url(self) -> str:
        """Through the proxy, which ``cut``, ``blackhole`` and ``heal`` work on."""
        return self.url.replace(f"{HOST}:{self.port}", f"{HOST}:{self.proxy.port}")

    def freeze(self) -> None:
        self.broker.freeze()

    def thaw(self) -> None:
        self.broker.thaw()

    def fill(self) -> None:
        self.broker.fill()

    def unfill(self) -> None:
        self.broker.unfill()

    def cut(self) -> None:
        self.proxy.cut()

    def blackhole(self, swallow: bool = True) -> None:
        self.proxy.blackhole(swallow)

    def heal(self) -> None:
        self.proxy.heal()

    def reset(self) -> None:
        """As new: running, empty, reachable. Takes milliseconds unless it is dead."""
        if self._proxy is not None:
            self._proxy.close()
            self._proxy = None
        self.revive()
        self.broker.reset()

    def revive(self) -> None:
        """Let it run, whatever was done to it."""
        if self.broker.state == "frozen":
            self.broker.thaw()
        if self.broker.state == "down":
            self.broker.restart()

    def teardown(self) -> None:
        if self._proxy is not None:
            self._proxy.close()
            self._proxy = None
        super().teardown()


class PairedCluster(CeleryBrokerCluster):
    """The two brokers of a pair."""

    def __init__(self, primary: LocalTestBroker, secondary: LocalTestBroker) -> None:
        super().__init__(primary, secondary)
        self.primary = primary
        self.secondary = secondary


class WorkerContainer(LocalContainer):
    """``celery worker``, in a session of its own."""

    def __init__(
        self,
        folder: Path,
        *,
        module: str = "tests.support.shop",
        name: str | None = None,
        pool: str = "prefork",
        concurrency: int = 2,
        log_level: str = "INFO",
        queue: str | None = None,
        args: Sequence[str] = (),
        env: Mapping[str, str] | None = None,
    ) -> None:
        name = name or f"worker{next(_numbers)}"
        super().__init__(name, folder / f"{name}.log")
        self._level = log_level
        self._queue = queue
        # fmt: off
        self._command = [
            sys.executable, "-m", "celery", "-A", module, "worker",
            "--pool", pool, "--concurrency", str(concurrency), "--loglevel", log_level,
            "--hostname", f"{name}@local", *(["--queues", queue] if queue else []), *args,
        ]
        # fmt: on
        path = os.pathsep.join(filter(None, [str(ROOT), os.environ.get("PYTHONPATH")]))
        # TMPDIR: a worker that is killed leaves folders of its pool behind.
        own = {"PYTHONPATH": path, "PYTHONUNBUFFERED": "1", "TMPDIR": str(folder)}
        self._env = os.environ | own | dict(env or {})
        self._env.pop("COVERAGE_PROCESS_START", None)
        self._folder = folder
        self.process: subprocess.Popen[bytes] | None = None
        self.start()

    def start(self) -> None:
        self.process = spawn(self._command, env=self._env, log=self._log, cwd=self._folder)

    @property
    def pid(self) -> int:
        return self.process.pid if self.process is not None and self.process.poll() is None else 0

    @property
    def status(self) -> str:
        if not self.pid:
            return "exited"
        return "paused" if process_state(self.pid) == "T" else "running"

    @property
    def client(self) -> Any:
        return self

    @property
    def celeryconfig(self) -> dict[str, Any]:
        return {"broker_url": self._env.get("SHOP_BROKER_URL", "")}

    def version(self) -> str:
        import celery

        return celery.__version__

    def log_level(self) -> str:
        return self._level

    def worker_name(self) -> str:
        return self.name

    def worker_queue(self) -> str:
        return self._queue or "celery"

    def ready(self, timeout: float = 30.0) -> bool:
        self.wait_for(lambda: " ready." in self.logs(), "it is not ready", timeout)
        return True

    def wait_for(self, condition: Callable[[], bool], failure: str, timeout: float) -> None:
        deadline = time.monotonic() + timeout
        while not condition():
            if not self.pid:
                code = self.process.returncode if self.process is not None else None
                raise WorkerFailed(f"{self!r}: {failure}: it exited ({code})\n{self._tail()}")
            if time.monotonic() > deadline:
                raise WorkerFailed(f"{self!r}: {failure} after {timeout:g} s\n{self._tail()}")
            time.sleep(0.02)

    def _tail(self) -> str:
        return self.logs()[-6000:]

    def processes(self) -> list[int]:
        """The worker and all its children, parents first."""
        return [self.pid, *descendants(self.pid)] if self.pid else []

    def kill(self, signal: str | int | None = None) -> None:
        """SIGKILL kills the children too: the worker is gone as a machine is gone."""
        if self.process is None:
            return
        if _signal(signal) == _SIGKILL:
            stop_tree(self.process)
        elif self.pid:
            os.kill(self.pid, _signal(signal))

    def restart(self, timeout: float | None = None) -> None:
        self.kill()
        self._log.unlink(missing_ok=True)
        self.start()
        self.ready()

    def teardown(self) -> None:
        self.kill()


class LocalTestWorker(_Killable, CeleryTestWorker):
    """A real worker. Made running; ``ready()`` waits until it consumes.

    ``LocalTestWorker(folder, pool="gevent", concurrency=10, args=["--without-mingle"], env={...})``
    """

    container: WorkerContainer

    def __init__(self, folder: Path, app: Celery | None = None, **options: Any) -> None:
        super().__init__(WorkerContainer(folder, **options), app)

    def __repr__(self) -> str:
        return f"<{type(self).__name__} {self.container!r}>"

    __hash__ = object.__hash__

    def hostname(self) -> str:
        return f"{self.worker_name}@local"

    @property
    def pid(self) -> int:
        return self.container.pid

    def processes(self) -> list[int]:
        """The pids of the worker and all its children."""
        return self.container.processes()

    def ready(self, timeout: float = 30.0) -> bool:
        return self.container.ready(timeout)

    def alive(self) -> bool:
        return bool(self.pid)

    def freeze(self) -> None:
        """SIGSTOP the worker and its children."""
        self._signal_all(signal.SIGSTOP)
        self.container.wait_for(
            lambda: all(process_state(pid) in "TZ" for pid in self.processes()),
            "it does not stop",
            timeout=5,
        )

    def thaw(self) -> None:
        self._signal_all(signal.SIGCONT)

    def stop(self, timeout: float = 30.0) -> tuple[int, float]:
        """SIGTERM: a warm shutdown. Returns its exit code and how many seconds it took."""
        process = self.container.process
        assert process is not None
        started = time.monotonic()
        if process.poll() is None:
            process.terminate()
        try:
            code = process.wait(timeout)
        except subprocess.TimeoutExpired:
            tail = self.logs()[-6000:]
            self.kill()
            raise WorkerFailed(f"{self!r} did not exit in {timeout:g} s\n{tail}") from None
        return code, time.monotonic() - started

    def wait_for_log(self, log: str, message: str = "", timeout: float = 30) -> None:
        """Wait until the log has this text, anywhere."""
        self.container.wait_for(lambda: log in self.logs(), message or f"it does not log {log!r}", timeout)

    def count_in_log(self, pattern: str) -> int:
        """How many log lines match this regular expression."""
        return sum(1 for line in self.logs().splitlines() if re.search(pattern, line))

    def get_running_processes_info(self, *args: Any, **kwargs: Any) -> list[dict[str, Any]]:
        import psutil

        return [psutil.Process(pid).as_dict(["pid", "name", "cmdline"]) for pid in self.processes()]

    def _signal_all(self, which: signal.Signals) -> None:
        for pid in self.processes():
            os.kill(pid, which)


_SIGKILL = signal.SIGKILL


def _signal(which: str | int | None) -> signal.Signals:
    if which is None:
        return _SIGKILL
    return signal.Signals[which] if isinstance(which, str) else signal.Signals(which)
