"""The stage of the demo: two brokers, a worker and a producer, as processes in one temporary folder."""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
import tempfile
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack
from pathlib import Path
from typing import Any

from kombu import Connection

from kombu_paired.demo.app import Settings
from kombu_paired.interrupts import uninterrupted
from kombu_paired.showing import PREFIX
from kombu_paired.testing import Kind, LocalBroker, local_broker, spawn, stop_tree
from kombu_paired.transport import pairing_of

__all__ = ("Stage", "StageFailed")

#: Settings of the demo's pairing: those of production, with the waiting shortened to what an audience bears (seconds).
OPTIONS: dict[str, Any] = {"failover_interval": 1, "ping_interval": 1, "send_timeout": 3}
#: When Redis gives back what a vanished consumer had taken (seconds): Kombu's default is after an hour, and it looks
#: every hundred seconds.
GIVES_BACK_SOON = {"visibility_timeout": 3, "unacked_restore_interval": 1, "unacked_restore_throttle": 1}


class StageFailed(RuntimeError):
    """A process of the demo ended that should not have."""


class Stage:
    """Everything that the demo starts. Leaving the ``with`` block ends every process and removes the folder."""

    def __init__(self, kind: Kind, messages: int, seconds: float, journal: Path | None = None) -> None:
        self.kind = kind
        self._journal = journal
        self._processes: dict[str, subprocess.Popen[bytes]] = {}
        with ExitStack() as exits:
            self.folder = Path(tempfile.mkdtemp(prefix="kombu-paired-demo-"))
            exits.callback(shutil.rmtree, self.folder, ignore_errors=True)
            self.primary: LocalBroker = local_broker(kind, self.folder / "primary")
            self.secondary: LocalBroker = local_broker(kind, self.folder / "secondary")
            exits.callback(self.secondary.stop)
            exits.callback(self.primary.stop)
            self._exits = exits.pop_all()
        self.settings = Settings(
            folder=str(self.folder),
            broker_url=PREFIX + self.primary.url,
            transport_options=self._options(),
            messages=messages,
            seconds=seconds,
        )

    def _options(self) -> dict[str, Any]:
        options = {"secondary": self.secondary.url, **OPTIONS}
        if self.kind == "redis":
            options["primary_options"] = GIVES_BACK_SOON
        if self._journal is not None:
            options["journal"] = str(self._journal.absolute())
        return options

    def __enter__(self) -> Stage:
        return self

    def __exit__(self, *error: object) -> None:
        with uninterrupted():
            self._exits.close()

    def start_brokers(self) -> None:
        """Start both at once; returns when both are ready."""
        with ThreadPoolExecutor(2) as threads:
            for broker in (self.primary, self.secondary):
                broker.start()
            list(threads.map(LocalBroker.wait_ready, (self.primary, self.secondary)))

    def start_worker(self) -> None:
        """A worker with the syphon in it, as ``kombu_paired.setup(app)`` makes it."""
        # fmt: off
        self._spawn(
            "worker",
            "celery", "-A", "kombu_paired.demo.app", "worker",
            "--concurrency", "2", "--loglevel", "INFO", "--hostname", "demo@localhost",
        )
        # fmt: on

    def start_producer(self) -> None:
        self._spawn("producer", "kombu_paired.demo.producer")

    def _spawn(self, name: str, *module: str) -> None:
        temporary = {"TMPDIR": str(self.folder)}  # a killed pool process leaves a folder there
        environment = os.environ | self.settings.as_environment() | temporary
        process = spawn(
            [sys.executable, "-m", *module], env=environment, log=self.folder / f"{name}.log", cwd=self.folder
        )
        self._processes[name] = process
        self._exits.callback(stop_tree, process)

    def has_exited(self, name: str) -> bool:
        return self._processes[name].poll() is not None

    def require_alive(self) -> None:
        """Raises StageFailed if the worker exited, or the producer did with an error."""
        for name, process in self._processes.items():
            code = process.poll()
            if code is not None and (name == "worker" or code):
                raise StageFailed(f"the {name} exited ({code}). Its last words:\n{self.last_words(name)}")

    def last_words(self, name: str) -> str:
        log = self.folder / f"{name}.log"
        return log.read_text(errors="replace")[-3000:] if log.exists() else "(none)"

    def stranded(self) -> int:
        """Messages in the backlog queues, as the secondary itself counts them."""
        with Connection(self.settings.broker_url, transport_options=self.settings.transport_options) as connection:
            pairing = pairing_of(connection)
            depths = pairing.secondary.backlog_depths(pairing.backlog_queue_names, pairing.options.send_timeout)
            pairing.close()
        return sum(each.messages or 0 for each in depths)
