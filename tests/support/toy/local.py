"""A toy broker for a test, in a child process."""

from __future__ import annotations

import os
import socket
import subprocess
import sys
from pathlib import Path

from kombu_paired.testing.base import LocalBroker
from kombu_paired.testing.processes import HOST, spawn
from tests.support.toy import server
from tests.support.toy.transport import Line

__all__ = ("LocalToy",)


class LocalToy(LocalBroker):
    kind = "toy"  # type: ignore[assignment]
    boot_timeout = 20.0

    def __init__(self, folder: str | os.PathLike[str] | None = None, *, password: str = "toys-only") -> None:
        super().__init__(folder, password=password)

    @classmethod
    def _program(cls) -> tuple[str, str]:
        return "python", sys.executable

    @property
    def url(self) -> str:
        return f"toy://:{self._password}@{HOST}:{self.port}"

    @property
    def password(self) -> str:
        return self._password or ""

    @property
    def file(self) -> Path:
        """Where its queues are."""
        return self.folder / "queues.sqlite"

    def _launch(self) -> subprocess.Popen[bytes]:
        command = [self._program_path, server.__file__, str(self.port), str(self.file)]
        return spawn(command, env=os.environ | {"TOY_PASSWORD": self.password}, log=self.log)

    def line(self, timeout: float = 5.0) -> Line:
        return Line(socket.create_connection((HOST, self.port), timeout), self.password)

    def _handshake(self, timeout: float) -> None:
        self.line(timeout).close()

    def ask(self, what: str, **arguments: object) -> None:
        line = self.line()
        line.ask(what, **arguments)
        line.close()

    def fill(self) -> None:
        self.ask("be_full", full=True)

    def unfill(self) -> None:
        self.ask("be_full", full=False)

    def reset(self) -> None:
        self.kill()
        self.file.unlink()
        self.restart()

    def set_password(self, user: str, password: str) -> None:
        self._password = password
        self.restart()
