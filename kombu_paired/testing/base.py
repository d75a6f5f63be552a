"""What all local brokers have in common."""

from __future__ import annotations

import atexit
import contextlib
import os
import shutil
import signal
import subprocess
import tempfile
import time
from abc import ABC, abstractmethod
from pathlib import Path
from types import TracebackType
from typing import Literal

from kombu_paired.testing.errors import BrokerFailed, BrokerMissing
from kombu_paired.testing.processes import free_port, process_state, stop_tree, wait_until

__all__ = ("Kind", "LocalBroker", "not_installed")

#: Named as in a URL.
Kind = Literal["redis", "amqp", "azureservicebus"]


class LocalBroker(ABC):
    """A broker in a child process: durable, on a port of its own, and made to suffer by the methods below.

    ``folder`` is where it keeps its data; without one it makes a temporary folder, which
    :meth:`stop` removes.
    """

    kind: Kind
    boot_timeout: float

    def __init__(self, folder: str | os.PathLike[str] | None = None, *, password: str | None = None) -> None:
        self._own_folder = folder is None
        self.folder = Path(folder or tempfile.mkdtemp(prefix=f"kombu-paired-{self.kind}-")).absolute()
        self.folder.mkdir(parents=True, exist_ok=True)
        self.port = free_port()
        self._process: subprocess.Popen[bytes] | None = None
        self._password = password

    def __repr__(self) -> str:
        return f"<{type(self).__name__} 127.0.0.1:{self.port} {self.state}>"

    @property
    @abstractmethod
    def url(self) -> str:
        """The kombu URL, with the credentials that work now."""

    @abstractmethod
    def _launch(self) -> subprocess.Popen[bytes]: ...

    @abstractmethod
    def _handshake(self, timeout: float) -> None:
        """Greet the broker as a client does; raise whatever comes of it."""

    @abstractmethod
    def fill(self) -> None:
        """Make the broker refuse, or hold, all that is published from now on."""

    @abstractmethod
    def unfill(self) -> None:
        """End what :meth:`fill` began."""

    @abstractmethod
    def reset(self) -> None:
        """Forget all messages, queues and limits, as if new; the broker must be up."""

    @abstractmethod
    def set_password(self, user: str, password: str) -> None:
        """Change a user's password; ``url`` follows. Connections that are open stay so, where a broker can do that."""

    @property
    def log(self) -> Path:
        """Where the broker's output is."""
        return self.folder / "broker.log"

    @property
    def pid(self) -> int:
        """The broker's process, the one that :meth:`freeze` stops; 0 when it does not run."""
        return self._process.pid if self._process is not None and self._process.poll() is None else 0

    @property
    def state(self) -> str:
        """``running``, ``frozen`` or ``down``."""
        if not self.pid:
            return "down"
        return "frozen" if process_state(self.pid) == "T" else "running"

    def start(self) -> None:
        """Start the process. It is not ready yet: see :meth:`wait_ready`."""
        if self.pid:
            return
        _, program = type(self)._program()
        self.folder.mkdir(parents=True, exist_ok=True)
        self._program_path = program
        self._process = self._launch()
        atexit.register(self.stop)

    def wait_ready(self, timeout: float | None = None) -> None:
        """Return once a client can work with the broker, or raise :class:`BrokerFailed`."""
        timeout = self.boot_timeout if timeout is None else timeout
        deadline = time.monotonic() + timeout
        while True:
            if not self.pid:
                raise BrokerFailed(f"{self!r} exited while starting; its last words:\n{self._last_words()}")
            try:
                self._handshake(max(0.2, min(2.0, deadline - time.monotonic())))
                return
            except ImportError:
                raise
            except Exception as error:
                if time.monotonic() > deadline:
                    raise BrokerFailed(
                        f"{self!r} is not ready after {timeout:g} s ({error!r}); its last words:\n{self._last_words()}"
                    ) from error
            time.sleep(0.02)

    def kill(self) -> None:
        """SIGKILL; returns once the broker is gone. Its data stays."""
        if self._process is not None:
            stop_tree(self._process)
            self._close_stdin()
            self._process = None

    def freeze(self) -> None:
        """SIGSTOP: connections stay open, the kernel accepts new ones, nothing is answered."""
        pid = self._running_pid("freeze")
        os.kill(pid, signal.SIGSTOP)
        wait_until(lambda: process_state(pid) == "T", 5, lambda: f"{self!r} does not stop")

    def thaw(self) -> None:
        """SIGCONT."""
        pid = self._running_pid("thaw")
        os.kill(pid, signal.SIGCONT)
        wait_until(lambda: process_state(pid) != "T", 5, lambda: f"{self!r} does not continue")

    def restart(self, timeout: float | None = None) -> None:
        """Start again on the same port and data, killed first if it runs; wait until ready."""
        self.kill()
        self.start()
        self.wait_ready(timeout)

    def stop(self) -> None:
        """End it, whatever its state, and leave nothing behind; may be called again."""
        self.kill()
        atexit.unregister(self.stop)
        if self._own_folder:
            shutil.rmtree(self.folder, ignore_errors=True)

    def __enter__(self) -> LocalBroker:
        try:
            self.start()
            self.wait_ready()
        except BaseException:
            self.stop()
            raise
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        self.stop()

    @classmethod
    @abstractmethod
    def _program(cls) -> tuple[str, str]:
        """The program's name and its path, or :class:`BrokerMissing`."""

    def _running_pid(self, verb: str) -> int:
        if not self.pid:
            raise BrokerFailed(f"cannot {verb} {self!r}: it does not run")
        return self.pid

    def _close_stdin(self) -> None:
        if self._process is not None and self._process.stdin is not None:
            with contextlib.suppress(OSError):
                self._process.stdin.close()

    def _last_words(self) -> str:
        try:
            return self.log.read_text(errors="replace")[-2000:]
        except OSError:
            return "(none)"


def not_installed(program: str, package: str) -> BrokerMissing:
    return BrokerMissing(
        f"{program} is not installed: it is in the Debian and Ubuntu package {package!r} (apt-get install {package})"
    )
