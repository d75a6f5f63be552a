"""Sockets that keep to the deadline of a call, whatever the peer does.

A driver gives each read a time limit of its own. A call is many reads, and a peer that sends one byte a second keeps
each of them happy. So the sockets of a link look at the clock themselves.
"""

from __future__ import annotations

import importlib.util
import math
import select
import socket
import ssl
from collections.abc import Callable
from time import monotonic
from types import ModuleType
from typing import Any

from kombu_paired.bounded import shared
from kombu_paired.deadline import Deadline

__all__ = ("POLLIN", "TimelySocket", "look_up", "system_poll")

#: Seconds by which a time limit may be off before it is worth a system call to correct it.
SLACK = 0.05
#: Bytes that are read at once: a small frame of AMQP in one go, where py-amqp asks for it in three.
AT_ONCE = 4096

_WOULD_WAIT = (BlockingIOError, ssl.SSLWantReadError, ssl.SSLWantWriteError)


def _own_copy_of_select() -> ModuleType:
    """The module as Python brings it, which nobody patches.

    After gevent's patching a poll that waits for nothing takes a turn of the event loop nevertheless, for each message;
    eventlet takes the poll away.
    """
    spec = importlib.util.find_spec("select")
    if spec is None or spec.loader is None:
        return select
    own = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(own)
    return own


_select = _own_copy_of_select()
#: Asks the operating system, and must not be let wait: it would stop all greenlets. None where there is none.
system_poll: Callable[[], Any] | None = getattr(_select, "poll", None)
POLLIN: int = getattr(_select, "POLLIN", 0)


class TimelySocket:
    """A connected socket whose reads and writes end when their own time limit or the deadline does.

    A time limit is handed to the operating system only when something is read or written, and only if it changed.
    """

    __slots__ = ("_actual", "_ahead", "_is_tls", "_poller", "_sock", "_until", "_wanted")

    def __init__(self, sock: socket.socket, until: Deadline) -> None:
        self._sock = sock
        self._until = until
        self._wanted = self._actual = sock.gettimeout()
        self._is_tls = isinstance(sock, ssl.SSLSocket)
        self._poller: Any = None
        self._ahead = b""

    def __getattr__(self, name: str) -> Any:
        return getattr(self._sock, name)

    def settimeout(self, seconds: float | None) -> None:
        self._wanted = seconds

    def gettimeout(self) -> float | None:
        return self._wanted

    def recv(self, size: int, flags: int = 0) -> bytes:
        self._hold()
        return self._sock.recv(size, flags)

    def recv_into(self, *args: Any) -> int:
        self._hold()
        return self._sock.recv_into(*args)

    def read(self, size: int) -> bytes:
        """The same for a driver that keeps what it did not ask for, and takes finding nothing for a timeout."""
        if self._ahead:
            ahead, self._ahead = self._ahead, b""
            return ahead
        self._hold()
        try:
            return self._sock.recv(max(size, AT_ONCE))
        except _WOULD_WAIT:
            raise TimeoutError("timed out") from None

    def is_quiet(self) -> bool:
        """Whether it is certain that a read would find nothing, not even an end."""
        if self._is_tls or system_poll is None:
            return False
        if self._poller is None:
            self._poller = system_poll()
            self._poller.register(self._sock, POLLIN)
        return not self._poller.poll(0)

    def has_arrived(self) -> bool:
        """Whether :meth:`read` would find something at once, an end too."""
        if self._ahead or self.is_quiet():
            return bool(self._ahead)
        if self._poller is not None:
            return True
        self._sock.settimeout(0)
        self._actual = 0.0
        try:
            self._ahead = self._sock.recv(AT_ONCE)
        except _WOULD_WAIT:
            return False
        return True

    def sendall(self, data: Any) -> None:
        if not self._is_tls:
            self._hold()
            self._sock.sendall(data)  # its time limit is one for all of it
            return
        rest = memoryview(data).cast("B")
        while rest:
            self._hold()
            rest = rest[self._write_tls(rest) :]

    def _write_tls(self, data: memoryview) -> int:
        try:
            return self._sock.write(data)  # type: ignore[attr-defined,no-any-return]
        except ValueError as exc:  # the peer has ended TLS
            raise OSError("the TLS connection was closed") from exc

    def unwrap(self) -> Any:
        """End TLS without waiting for the peer to agree."""
        self._sock.settimeout(0)
        try:
            return self._sock.unwrap()  # type: ignore[attr-defined]
        except ValueError as exc:
            raise OSError("TLS has ended already") from exc

    def _hold(self) -> None:
        limit, actual = self._wanted, self._actual
        if limit != 0:  # 0: it does not wait anyway
            left = self._until.at - monotonic()
            if left <= 0 or (limit is not None and limit < 0):
                raise TimeoutError("timed out")
            if limit is None or limit > left:
                limit = left if left < math.inf else None
        if limit and actual:
            if -SLACK <= limit - actual <= SLACK:
                return
        elif limit == actual:
            return
        self._sock.settimeout(limit)
        self._actual = limit


def look_up(host: str, timeout: float) -> None:
    """Find out whether the addresses of a host can be had at all in that time. The driver asks for them again.

    A resolver that hangs hangs for everybody: of one host only one question is out at a time.

    Raises:
        OSError: there are none.
        TimeoutError: the resolver stays silent.
    """
    shared(("look-up", host), lambda: socket.getaddrinfo(host, None), timeout, f"looking up the address of {host}")
