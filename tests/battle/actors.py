"""Producers and workers, seen from outside: started, killed, asked to stop, and what became of each process."""

from __future__ import annotations

import os
import signal
import struct
import sys
import threading
import time
from collections.abc import Mapping
from pathlib import Path

from kombu_paired.testing import descendants, process_state, spawn, stop_tree
from tests.battle.ledger import Life
from tests.support.nodes import ROOT, LocalTestWorker

SHIM = Path(__file__).parent / "shim"


class Actor:
    """A program that is started again whenever it ends, until the episode does."""

    def __init__(self, name: str, folder: Path, environment: Mapping[str, str]) -> None:
        self.name = name
        self.folder = folder
        self.lives: list[Life] = []
        self.lock = threading.RLock()  # one harm at a time, and the watch looks away meanwhile
        self._clock = folder / f"{name}.clock"
        self._clock.write_bytes(bytes(8))
        self.environment = {
            **environment,
            "BATTLE_ACTOR": name,
            "BATTLE_CLOCK": str(self._clock),
            "PYTHONPATH": os.pathsep.join(filter(None, [str(SHIM), str(ROOT), os.environ.get("PYTHONPATH")])),
        }
        self._begun = 0.0
        self._pid = 0

    # -- what each kind of actor does in its own way -------------------------------------------------------------------

    @property
    def log(self) -> Path:
        raise NotImplementedError

    def _launch(self) -> None:
        raise NotImplementedError

    @property
    def process(self):  # type: ignore[no-untyped-def]
        raise NotImplementedError

    # -- all of them ---------------------------------------------------------------------------------------------------

    def start(self) -> None:
        self._begun = time.monotonic()
        self._log_begins = self.log.stat().st_size if self.log.exists() else 0
        self._launch()
        self._pid = self.process.pid

    @property
    def is_alive(self) -> bool:
        return self.process.poll() is None

    def kill(self) -> None:
        """SIGKILL, children too: it is gone as a machine is gone."""
        was_alive = self.is_alive
        stop_tree(self.process)
        self._over("killed" if was_alive else "itself")

    def stop(self, limit: float) -> None:
        """SIGTERM, and the time that it takes; killed when that is too long."""
        asked = time.monotonic()
        if not self.is_alive:
            self._over("itself")
            return
        self.process.terminate()
        try:
            self.process.wait(limit)
        except Exception:
            self._tell_where_it_is()
            stop_tree(self.process)
            self._over("hung", time.monotonic() - asked)
        else:
            self._over("stopped", time.monotonic() - asked)

    def _tell_where_it_is(self) -> None:
        """Have it write its stacks to its log, if it can: see ``faulthandler`` in the environment."""
        for pid in (self._pid, *descendants(self._pid)):
            try:
                os.kill(pid, signal.SIGABRT)
            except ProcessLookupError:
                continue
        time.sleep(0.5)

    def freeze(self) -> None:
        for pid in (self._pid, *descendants(self._pid)):
            os.kill(pid, signal.SIGSTOP)

    def thaw(self) -> None:
        for pid in (self._pid, *descendants(self._pid)):
            if process_state(pid) == "T":
                os.kill(pid, signal.SIGCONT)

    def set_clock(self, seconds: float) -> None:
        """Let it believe that it is so much later."""
        with self._clock.open("r+b") as file:
            file.write(struct.pack("d", seconds))

    def has_exited_by_itself(self) -> bool:
        """Ended though nobody asked; that life is noted then."""
        if self.is_alive:
            return False
        self._over("itself")
        return True

    def _over(self, how: str, seconds: float = 0.0) -> None:
        words = self.log.read_bytes()[self._log_begins :].decode(errors="replace") if self.log.exists() else ""
        self.lives.append(
            Life(
                self.name,
                self._pid,
                self._begun,
                time.monotonic(),
                how,
                self.process.returncode,
                seconds,
                words[-8000:],
            )
        )


class Producer(Actor):
    @property
    def log(self) -> Path:
        return self.folder / f"{self.name}.log"

    def _launch(self) -> None:
        self._process = spawn(
            [sys.executable, "-X", "faulthandler", "-m", "tests.battle.producer"],
            env=os.environ | self.environment,
            log=self.log,
            cwd=self.folder,
        )

    @property
    def process(self):  # type: ignore[no-untyped-def]
        return self._process

    def fork(self) -> None:
        os.kill(self._pid, signal.SIGUSR1)


class Worker(Actor):
    def __init__(self, name: str, folder: Path, environment: Mapping[str, str], pool: str) -> None:
        super().__init__(name, folder, {**environment, "PYTHONFAULTHANDLER": "1"})
        self._pool = pool
        self._worker: LocalTestWorker | None = None

    @property
    def log(self) -> Path:
        return self.folder / f"{self.name}.log"

    def _launch(self) -> None:
        if self._worker is None:
            self._worker = LocalTestWorker(
                self.folder,
                module="tests.battle.app",
                name=self.name,
                pool=self._pool,
                concurrency=2 if self._pool == "prefork" else 4,
                env=self.environment,
            )
        else:
            self._worker.container.start()

    @property
    def process(self):  # type: ignore[no-untyped-def]
        assert self._worker is not None
        return self._worker.container.process

    def wait_ready(self, timeout: float) -> None:
        assert self._worker is not None
        self._worker.ready(timeout)

    def kill_child(self) -> int:
        """SIGKILL one process of its pool; its pid, 0 if it has none."""
        for pid in descendants(self._pid)[:1]:
            os.kill(pid, signal.SIGKILL)
            return pid
        return 0
