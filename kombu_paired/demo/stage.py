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

from kombu_paired.cli.drain import waiting
from kombu_paired.demo.app import Settings
from kombu_paired.interrupts import uninterrupted
from kombu_paired.testing import Kind, LocalBroker, local_broker, spawn, stop_tree
from kombu_paired.transport import pairing_of
from kombu_paired.urls import PREFIX

__all__ = ("Stage", "StageFailed")

#: Settings of the demo's pairing: those of production, with the waiting shortened to what an audience bears (seconds).
OPTIONS: dict[str, Any] = {"failover_interval": 1, "ping_interval": 1, "send_timeout": 3}
#: Seconds without the primary after which the worker stands in, where it is to.
STAND_IN_AFTER = 1
#: When Redis gives back what a vanished consumer had taken (seconds): Kombu's default is after an hour, and it looks
#: every hundred seconds.
GIVES_BACK_SOON = {"visibility_timeout": 3, "unacked_restore_interval": 1, "unacked_restore_throttle": 1}


class StageFailed(RuntimeError):
    """A process of the demo ended that should not have."""


class Spool:
    """The secondary of who has one broker: a folder on the local disk."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self.url = f"spool://{folder}"

    @property
    def state(self) -> str:
        return "running" if self.folder.exists() else "down"


class Stage:
    """Everything that the demo starts. Leaving the ``with`` block ends every process and removes the folder."""

    def __init__(
        self,
        kind: Kind,
        messages: int,
        seconds: float,
        journal: Path | None = None,
        stand_in: bool = False,
        has_spool: bool = False,
    ) -> None:
        self.kind = kind
        self._stand_in = stand_in
        self._journal = journal
        self._processes: dict[str, subprocess.Popen[bytes]] = {}
        with ExitStack() as exits:
            self.folder = Path(tempfile.mkdtemp(prefix="kombu-paired-demo-"))
            exits.callback(shutil.rmtree, self.folder, ignore_errors=True)
            self.primary: LocalBroker = local_broker(kind, self.folder / "primary")
            self.secondary: LocalBroker | Spool
            if has_spool:
                self.secondary = Spool(self.folder / "secondary")
            else:
                self.secondary = local_broker(kind, self.folder / "secondary")
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
        if self._stand_in:
            options["stand_in_after"] = STAND_IN_AFTER
            if self.kind == "redis":
                options["secondary_options"] = GIVES_BACK_SOON
        if self._journal is not None:
            options["journal"] = str(self._journal.absolute())
        return options

    def __enter__(self) -> Stage:
        return self

    def __exit__(self, *error: object) -> None:
        with uninterrupted():
            self._exits.close()

    def start_brokers(self) -> None:
        """Start all at once; returns when all are ready."""
        brokers = [each for each in (self.primary, self.secondary) if isinstance(each, LocalBroker)]
        with ThreadPoolExecutor(len(brokers)) as threads:
            for broker in brokers:
                broker.start()
            list(threads.map(LocalBroker.wait_ready, brokers))

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
        """Messages in the backlog queues and stand-in queues, as the secondary itself counts them."""
        options = self.settings.transport_options | {"enable_syphon": False}  # who counts moves nothing
        with Connection(self.settings.broker_url, transport_options=options) as connection:
            pairing = pairing_of(connection)
            left = waiting(pairing)
            pairing.close()
        return left
