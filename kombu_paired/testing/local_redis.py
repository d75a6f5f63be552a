"""A Redis server in a child process."""

from __future__ import annotations

import os
import shutil
import socket
import subprocess
from typing import Any
from urllib.parse import quote

from kombu_paired.testing.base import LocalBroker, not_installed
from kombu_paired.testing.processes import HOST, spawn

__all__ = ("LocalRedis",)


class LocalRedis(LocalBroker):
    """redis-server, every write on disk before it is answered, nothing ever evicted."""

    kind = "redis"
    boot_timeout = 10.0

    def __init__(self, folder: str | os.PathLike[str] | None = None, *, password: str | None = None) -> None:
        super().__init__(folder, password=password)
        self._first_password = password

    @classmethod
    def _program(cls) -> tuple[str, str]:
        path = shutil.which("redis-server") or shutil.which("valkey-server")
        if path is None:
            raise not_installed("redis-server", "redis-server")
        return "redis-server", path

    @property
    def url(self) -> str:
        credentials = f":{quote(self._password, safe='')}@" if self._password else ""
        return f"redis://{credentials}{HOST}:{self.port}/0"

    def _launch(self) -> subprocess.Popen[bytes]:
        # fmt: off
        command = [
            self._program_path, "--bind", HOST, "--port", str(self.port), 
            "--dir", str(self.folder), "--daemonize", "no",
            "--appendonly", "yes", "--appendfsync", "always", "--save", "",
            "--maxmemory", "0", "--maxmemory-policy", "noeviction",
        ]
        # fmt: on
        if self._password:
            command += ["--requirepass", self._password]
        return spawn(command, env=os.environ, log=self.log)

    def command(self, *args: str | int, timeout: float = 5.0) -> Any:
        """Run one Redis command over a connection of its own."""
        from redis import Redis
        from redis.backoff import NoBackoff
        from redis.retry import Retry

        client = Redis(
            host=HOST,
            port=self.port,
            password=self._password or None,
            socket_timeout=timeout,
            socket_connect_timeout=timeout,
            retry=Retry(NoBackoff(), 0),
            decode_responses=True,
        )
        try:
            return client.execute_command(*args)
        finally:
            client.close()

    def _handshake(self, timeout: float) -> None:
        with socket.create_connection((HOST, self.port), timeout):
            pass  # far cheaper than a client, while nobody listens
        self.command("PING", timeout=timeout)  # raises while the data is loading

    def fill(self) -> None:
        self.command("CONFIG", "SET", "maxmemory", 1)

    def unfill(self) -> None:
        self.command("CONFIG", "SET", "maxmemory", 0)

    def reset(self) -> None:
        self.unfill()
        self.set_password("default", self._first_password or "")
        self.command("FLUSHALL")
        self.command("CLIENT", "KILL", "TYPE", "normal", "SKIPME", "yes")
        self.command("CLIENT", "KILL", "TYPE", "pubsub")

    def set_password(self, user: str, password: str) -> None:
        if user != "default":
            self.command("ACL", "SETUSER", user, "resetpass", f">{password}")
            return
        self.command("CONFIG", "SET", "requirepass", password)
        self._password = password or None
