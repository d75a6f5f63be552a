"""An emulated Service Bus namespace in a child process."""

from __future__ import annotations

import http.client
import json
import os
import secrets
import subprocess
import sys
from collections.abc import Mapping
from pathlib import Path
from typing import Any
from urllib.parse import quote

from kombu_paired.testing.base import LocalBroker
from kombu_paired.testing.errors import BrokerFailed
from kombu_paired.testing.processes import HOST, spawn

__all__ = ("LocalServiceBus",)


class LocalServiceBus(LocalBroker):
    """The emulator of this package: a Service Bus namespace in a process of its own, with its messages on disk.

    It speaks AMQP without TLS, checks keys, and takes orders over HTTP on the same port (:meth:`ask`).
    """

    kind = "azureservicebus"
    boot_timeout = 20.0
    policy = "RootManageSharedAccessKey"

    def __init__(self, folder: str | os.PathLike[str] | None = None, *, password: str | None = None) -> None:
        super().__init__(folder, password=password or secrets.token_urlsafe(24))
        self._first_password = self._password

    @classmethod
    def _program(cls) -> tuple[str, str]:
        return "python", sys.executable

    @property
    def url(self) -> str:
        return f"azureservicebus://{self.policy}:{quote(self._password or '', safe='')}@{HOST}:{self.port}"

    @property
    def data(self) -> Path:
        """Where its messages are."""
        return self.folder / "data"

    def _launch(self) -> subprocess.Popen[bytes]:
        # fmt: off
        command = [
            self._program_path, "-m", "kombu_paired.emulator", "--quiet",
            "--host", HOST, "--port", str(self.port), "--data", str(self.data),
        ]
        # fmt: on
        policy = {"KOMBU_PAIRED_EMULATOR_POLICY": f"{self.policy}:{self._password}"}
        return spawn(command, env=os.environ | policy, log=self.log)

    def ask(self, method: str, what: str, body: Mapping[str, Any] | None = None, timeout: float = 5.0) -> Any:
        """A request to the emulator itself: ``ask("POST", "faults", {"kind": "disabled", "entity": "orders"})``."""
        connection = http.client.HTTPConnection(HOST, self.port, timeout=timeout)
        try:
            connection.request(method, f"/$emulator/{what}", None if body is None else json.dumps(body))
            answer = connection.getresponse()
            found = json.loads(answer.read())
        finally:
            connection.close()
        if answer.status >= 400:
            raise BrokerFailed(f"{self!r}: {method} {what}: {found.get('error')}")
        return found

    def _handshake(self, timeout: float) -> None:
        self.ask("GET", "status", timeout=timeout)

    def fill(self) -> None:
        self.ask("POST", "faults", {"kind": "quota"})

    def unfill(self) -> None:
        self.ask("DELETE", "faults")

    def reset(self) -> None:
        self.ask("POST", "reset")
        if self._password != self._first_password:
            self.set_password(self.policy, self._first_password or "")

    def set_password(self, user: str, password: str) -> None:
        """Arguments: user: the policy; there is one. The emulator starts anew: its keys are those it started with."""
        self._password = password
        self.restart()
