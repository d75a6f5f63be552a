"""An emulator inside a test or a demo: in a thread of this process, or in a process of its own."""

from __future__ import annotations

import asyncio
import json
import os
import queue
import signal
import subprocess
import sys
import threading
import urllib.error
import urllib.request
from collections.abc import Callable, Iterable
from dataclasses import replace
from functools import partial
from types import TracebackType
from typing import Any, TypeVar
from urllib.parse import quote

from kombu_paired.emulator.server.server import Server
from kombu_paired.emulator.server.settings import Settings
from kombu_paired.emulator.server.tokens import Policy

__all__ = ("Emulator",)

_Answer = TypeVar("_Answer")
_DEFAULT_POLICY = Policy("RootManageSharedAccessKey", "SAS_KEY_VALUE")
_START_TIMEOUT = 20.0
_POLICY_VARIABLE = "KOMBU_PAIRED_EMULATOR_POLICY"


class Emulator:
    """A Service Bus namespace for tests and demos::

        with Emulator(queues=["orders"]) as emulator:
            client = ServiceBusClient.from_connection_string(emulator.connection_string)

    Arguments:
        queues: to create, as ``NAME`` or ``NAME?requires_session=true&lock_duration=5``.
        topics: to create, as ``NAME`` or ``NAME:SUBSCRIPTION,SUBSCRIPTION``.
        data: a folder that keeps the messages.
        policies: keys that are checked, as :class:`.Policy` or ``NAME:KEY[:RIGHTS[:ENTITY]]``; none: no checks.
        port: 0 takes a free one, and keeps it over restarts.
        process: run in a process of its own, which can be killed and frozen as a real server can. In a thread the
            same calls act on its sockets.
        settings: other fields of :class:`.Settings`, by name.
    """

    def __init__(
        self,
        queues: Iterable[str] = (),
        topics: Iterable[str] = (),
        *,
        data: str | os.PathLike[str] | None = None,
        policies: Iterable[Policy | str] = (),
        port: int = 0,
        process: bool = False,
        **settings: Any,
    ) -> None:
        parsed = tuple(Policy.parse(each) if isinstance(each, str) else each for each in policies)
        self._settings = Settings(
            port=port,
            data=None if data is None else os.fspath(data),
            policies=parsed,
            queues=tuple(queues),
            topics=tuple(topics),
            **settings,
        )
        self._house: _Thread | _Process = _Process() if process else _Thread()

    def __enter__(self) -> Emulator:
        return self.start()

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None:
        self.stop()

    # ----------------------------------------------------------------------------------------------------- addresses

    @property
    def port(self) -> int:
        return self._settings.port

    @property
    def host(self) -> str:
        """Host and port, as the administration client takes it."""
        return f"{self._settings.host}:{self.port}"

    @property
    def url(self) -> str:
        """Of the HTTP API."""
        return f"http://{self.host}"

    @property
    def connection_string(self) -> str:
        """With the first policy."""
        policy = self._settings.policies[0] if self._settings.policies else _DEFAULT_POLICY
        return self.connection_string_for(policy.name, policy.key)

    def connection_string_for(self, name: str, key: str) -> str:
        """With another policy, known or not."""
        return f"Endpoint=sb://{self.host};SharedAccessKeyName={name};SharedAccessKey={key};UseDevelopmentEmulator=true"

    # ---------------------------------------------------------------------------------------------------- life cycle

    def start(self) -> Emulator:
        """Start it; it listens when this returns."""
        self._settings = replace(self._settings, port=self._house.start(self._settings))
        return self

    def stop(self) -> None:
        """Stop it."""
        self._house.stop()

    def kill(self) -> None:
        """Stop it without a word to anybody. SIGKILL, for a process."""
        self._house.kill()

    def restart(self) -> Emulator:
        """Start it again on the same port; with ``data`` its messages are back."""
        self._house.stop()
        return self.start()

    def freeze(self) -> None:
        """It stays, and does nothing at all. SIGSTOP, for a process."""
        self._house.freeze(True)

    def thaw(self) -> None:
        """It goes on."""
        self._house.freeze(False)

    # -------------------------------------------------------------------------------------------------------- control

    def fault(
        self,
        kind: str,
        entity: str | None = None,
        *,
        times: int | None = None,
        on: Iterable[str] = (),
        seconds: float = 1.0,
        condition: str | None = None,
        status: int | None = None,
        text: str | None = None,
    ) -> None:
        """Let something go wrong: see :class:`.Fault`.

        Raises:
            ValueError: it makes no sense.
        """
        spec = {
            "kind": kind,
            "entity": entity,
            "times": times,
            "on": list(on) or None,
            "seconds": seconds,
            "condition": condition,
            "status": status,
            "text": text,
        }
        self._call("POST", "faults", {key: value for key, value in spec.items() if value is not None})

    def clear_faults(self, entity: str | None = None) -> None:
        """Let all be well again."""
        self._call("DELETE", "faults" if entity is None else f"faults?entity={quote(entity)}")

    def drop_connections(self) -> None:
        """Hang up on every client."""
        self._call("POST", "drop")

    def detach_links(self, entity: str | None = None) -> None:
        """End all links, or those to one entity, as the service ends those that are idle; connections stay.

        So do the links to ``$management``, unless they are asked for by name: ``orders/$management``.
        """
        self._call("POST", "detach" if entity is None else f"detach?entity={quote(entity)}")

    def reset(self) -> None:
        """Be as new: without entities, messages and faults, and without clients."""
        self._call("POST", "reset")

    def status(self) -> dict[str, Any]:
        """Entities with their counts, how many connections there are, and links to each entity, faults."""
        found: dict[str, Any] = json.loads(self._call("GET", "status"))
        return found

    def certificate(self) -> str:
        """The certificate of the https side, in PEM, for a client that verifies."""
        return self._call("GET", "certificate")

    def _call(self, method: str, what: str, body: Any = None) -> str:
        data = None if body is None else json.dumps(body).encode()
        request = urllib.request.Request(f"{self.url}/$emulator/{what}", data, method=method)
        try:
            opener = urllib.request.build_opener(urllib.request.ProxyHandler({}))
            with opener.open(request, timeout=10) as answer:
                return str(answer.read().decode())
        except urllib.error.HTTPError as error:
            raise ValueError(json.loads(error.read()).get("error")) from None


class _Thread:
    """An emulator in a thread."""

    def __init__(self) -> None:
        self._server: Server | None = None
        self._loop: asyncio.AbstractEventLoop | None = None
        self._thread: threading.Thread | None = None

    def start(self, settings: Settings) -> int:
        ready: queue.Queue[int | BaseException] = queue.Queue()
        run = partial(self._run, settings, ready)
        self._thread = threading.Thread(target=run, name="servicebus-emulator", daemon=True)
        self._thread.start()
        port = ready.get(timeout=_START_TIMEOUT)
        if isinstance(port, BaseException):
            raise port
        return port

    def _run(self, settings: Settings, ready: queue.Queue[int | BaseException]) -> None:
        loop = self._loop = asyncio.new_event_loop()
        try:
            self._server = Server(settings)
            loop.run_until_complete(self._server.start())
        except BaseException as error:
            loop.close()
            ready.put(error)
            return
        ready.put(self._server.port)
        loop.run_forever()
        loop.run_until_complete(self._server.stop())
        loop.close()

    def _do(self, action: Callable[[Server], _Answer]) -> None:
        done = threading.Event()

        def act() -> None:
            if self._server is not None:
                action(self._server)
            done.set()

        if self._loop is not None and not self._loop.is_closed():
            self._loop.call_soon_threadsafe(act)
            done.wait(10)

    def freeze(self, frozen: bool) -> None:
        self._do(lambda server: server.freeze(frozen))

    def stop(self) -> None:
        if self._thread is None or self._loop is None:
            return
        self._loop.call_soon_threadsafe(self._loop.stop)
        self._thread.join(10)
        self._server = self._loop = self._thread = None

    kill = stop


class _Process:
    """An emulator in a process of its own."""

    def __init__(self) -> None:
        self._process: subprocess.Popen[str] | None = None

    def start(self, settings: Settings) -> int:
        command = [sys.executable, "-m", "kombu_paired.emulator", "--quiet", *_arguments(settings)]
        inherited = {name: value for name, value in os.environ.items() if name != _POLICY_VARIABLE}
        environment = {**inherited, **_secrets(settings)}
        process = subprocess.Popen(command, stdout=subprocess.PIPE, text=True, env=environment)
        self._process = process
        assert process.stdout is not None
        line = process.stdout.readline()
        if not line.startswith("port "):
            process.wait(_START_TIMEOUT)
            raise RuntimeError(f"the emulator did not start: exit code {process.returncode}")
        return int(line.split()[1])

    def freeze(self, frozen: bool) -> None:
        self._signal(signal.SIGSTOP if frozen else signal.SIGCONT)

    def kill(self) -> None:
        self._signal(signal.SIGKILL)
        self._wait()

    def stop(self) -> None:
        self._signal(signal.SIGCONT)
        self._signal(signal.SIGTERM)
        self._wait()

    def _signal(self, number: signal.Signals) -> None:
        if self._process is not None and self._process.poll() is None:
            self._process.send_signal(number)

    def _wait(self) -> None:
        if self._process is None:
            return
        try:
            self._process.wait(10)
        except subprocess.TimeoutExpired:
            self._process.kill()
            self._process.wait(10)
        if self._process.stdout is not None:
            self._process.stdout.close()
        self._process = None


def _arguments(settings: Settings) -> list[str]:
    """The command line of these settings."""
    arguments = ["--host", settings.host, "--port", str(settings.port), "--name", settings.name]
    arguments += ["--max-message-size", str(settings.max_message_size)]
    arguments += ["--connection-idle", str(settings.connection_idle), "--link-idle", str(settings.link_idle)]
    arguments += ["--token-life", str(settings.token_life), "--latency", str(settings.latency)]
    arguments += [] if settings.data is None else ["--data", settings.data]
    for option, values in (("--queue", settings.queues), ("--topic", settings.topics)):
        for value in values:
            arguments += [option, value]
    return arguments


def _secrets(settings: Settings) -> dict[str, str]:
    """Keys are not for the command line, where other users of the machine can read them."""
    return {_POLICY_VARIABLE: " ".join(map(str, settings.policies))} if settings.policies else {}
