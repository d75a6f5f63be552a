"""Processes that end with the one that started them, and ports for them to listen on.

A child dies with this process, however this process ends (on Linux also when it is killed).
"""

from __future__ import annotations

import contextlib
import ctypes
import os
import queue
import random
import signal
import socket
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path

from kombu_paired.testing.errors import BrokerFailed

__all__ = ("HOST", "PORTS", "descendants", "free_port", "process_state", "spawn", "stop_tree", "wait_until")

HOST = "127.0.0.1"


class _Spawner:
    """Starts children from one thread that lives as long as this process.

    Linux sends the parent-death signal when the *thread* that forked is gone, so a short-lived
    thread must not be the one that starts a broker.
    """

    def __init__(self) -> None:
        self._pid = 0
        self._lock = threading.Lock()
        self._work: queue.SimpleQueue[Callable[[], None]] = queue.SimpleQueue()

    def __call__(self, start: Callable[[], subprocess.Popen[bytes]]) -> subprocess.Popen[bytes]:
        with self._lock:
            if self._pid != os.getpid():  # first use, or first use after a fork
                self._pid = os.getpid()
                self._work = queue.SimpleQueue()
                threading.Thread(target=self._run, args=(self._work,), name="spawner", daemon=True).start()
        answer: queue.SimpleQueue[subprocess.Popen[bytes] | BaseException] = queue.SimpleQueue()

        def work() -> None:
            try:
                answer.put(start())
            except BaseException as error:
                answer.put(error)

        self._work.put(work)
        result = answer.get()
        if isinstance(result, BaseException):
            raise result
        return result

    @staticmethod
    def _run(work: queue.SimpleQueue[Callable[[], None]]) -> None:
        while True:
            work.get()()


_spawner = _Spawner()


def _death_wish() -> Callable[[], None] | None:
    """What a child runs first, so that it is killed when its parent is gone."""
    if not sys.platform.startswith("linux"):
        return None
    prctl = ctypes.CDLL(None, use_errno=True).prctl
    parent = os.getpid()

    def wish() -> None:
        prctl(1, signal.SIGKILL, 0, 0, 0)  # 1 is PR_SET_PDEATHSIG
        if os.getppid() != parent:
            os._exit(1)

    return wish


def spawn(
    command: Sequence[str],
    *,
    env: Mapping[str, str],
    log: Path,
    cwd: Path | None = None,
    stdin: int = subprocess.DEVNULL,
) -> subprocess.Popen[bytes]:
    """Start ``command`` in a session of its own, its output appended to ``log``.

    It dies with this process.
    """
    wish = _death_wish()
    with log.open("ab") as output:
        return _spawner(
            lambda: subprocess.Popen(
                command,
                env=dict(env),
                cwd=cwd,
                stdin=stdin,
                stdout=output,
                stderr=subprocess.STDOUT,
                start_new_session=True,
                preexec_fn=wish,
            )
        )


def process_state(pid: int) -> str:
    """The kernel's letter for a process: R, S, T (stopped), Z (zombie) …; empty: there is none."""
    try:
        return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0]
    except FileNotFoundError:
        if Path("/proc/self/stat").exists():
            return ""
    except (ProcessLookupError, IndexError):
        return ""
    found = subprocess.run(["ps", "-o", "state=", "-p", str(pid)], capture_output=True, text=True)
    return found.stdout.strip()[:1]


def _gone(pid: int) -> bool:
    return process_state(pid) in ("", "Z", "X")


def descendants(pid: int) -> list[int]:
    """All processes below ``pid``, parents first (none where there is neither /proc nor ps)."""
    children: dict[int, list[int]] = {}
    if Path("/proc/self/stat").exists():
        for entry in os.listdir("/proc"):
            if entry.isdigit():
                with contextlib.suppress(OSError, IndexError):
                    stat = Path(f"/proc/{entry}/stat").read_text()
                    children.setdefault(int(stat.rpartition(")")[2].split()[1]), []).append(int(entry))
    else:
        table = subprocess.run(["ps", "-axo", "pid=,ppid="], capture_output=True, text=True)
        for line in table.stdout.splitlines():
            child, parent = line.split()
            children.setdefault(int(parent), []).append(int(child))
    found, todo = [], [pid]
    while todo:
        below = children.get(todo.pop(), [])
        found += below
        todo += below
    return found


def stop_tree(process: subprocess.Popen[bytes], timeout: float = 10.0) -> None:
    """SIGKILL ``process`` and all that it started, and wait until the last one is gone.

    Raises:
        BrokerFailed: after ``timeout`` seconds one of them still lives.
    """
    if process.returncode is not None:
        return
    family = [process.pid, *descendants(process.pid)]
    with contextlib.suppress(ProcessLookupError, PermissionError):
        os.killpg(process.pid, signal.SIGKILL)
    for pid in family:
        with contextlib.suppress(ProcessLookupError, PermissionError):
            os.kill(pid, signal.SIGKILL)
    process.wait(timeout)
    wait_until(lambda: all(map(_gone, family)), timeout, lambda: f"processes {family} do not die")


def wait_until(condition: Callable[[], bool], timeout: float, failure: Callable[[], str]) -> None:
    """Return once the condition is true.

    Raises:
        BrokerFailed: it is not after ``timeout`` seconds; ``failure`` makes the text.
    """
    deadline = time.monotonic() + timeout
    while not condition():
        if time.monotonic() > deadline:
            raise BrokerFailed(failure())
        time.sleep(0.005)


#: Below the range from which the kernel takes ports for outgoing connections.
PORTS = range(20000, 32000)
_ports_given: set[int] = set()


def free_port() -> int:
    """A free loopback port, one of :data:`~kombu_paired.testing.processes.PORTS`.

    Nobody takes it by accident while its owner is down.

    Raises:
        BrokerFailed: there is none.
    """
    for _ in range(1000):
        port = random.SystemRandom().choice(PORTS)
        if port in _ports_given:
            continue
        with socket.socket() as probe:
            try:
                probe.bind((HOST, port))
            except OSError:
                continue
        _ports_given.add(port)
        return port
    raise BrokerFailed(f"there is no free port between {PORTS.start} and {PORTS.stop} on {HOST}")
