"""Wakes a thread that waits for sockets."""

from __future__ import annotations

import select
import socket
import threading
from typing import Any

from kombu_paired.brokers.sockets import POLLIN, system_poll

__all__ = ("Bell", "is_readable")


class Bell:
    """One thread waits, for sockets or for nothing besides; any thread rings. What rang before ends the next wait.

    Attributes:
        rang: that was what ended the last wait, or one thing of two.
    """

    def __init__(self) -> None:
        self.rang = False
        self._lock = threading.Lock()
        self._rung = False
        self._inner, self._outer = socket.socketpair()
        self._inner.setblocking(False)

    def ring(self) -> None:
        with self._lock:
            if not self._rung and self._outer.fileno() >= 0:
                self._rung = True
                self._outer.send(b"!")

    def fileno(self) -> int:
        """What an event loop may watch; it calls :meth:`hear` when that can be read from."""
        return self._inner.fileno()

    def hear(self) -> None:
        """It was heard: the next wait does not end for it."""
        with self._lock:
            if self._rung:
                self._inner.recv(1)
                self._rung = False

    def wait(self, seconds: float, *socks: Any) -> bool:
        """Until somebody rings, or one of the sockets can be read from; whether one can."""
        readable = _readable([self._inner, *socks], seconds)
        self.rang = self.fileno() in readable
        if self.rang:
            self.hear()
        return any(sock.fileno() in readable for sock in socks)

    def close(self) -> None:
        """From now on it is silent."""
        with self._lock:
            self._inner.close()
            self._outer.close()


def is_readable(sock: Any, wait: float = 0.0) -> bool:
    """Whether a socket can be read from, or can within so many seconds."""
    if wait > 0 or system_poll is None:
        return bool(_readable([sock], wait))
    poll = system_poll()
    poll.register(sock, POLLIN)
    return bool(poll.poll(0))


def _readable(socks: list[Any], seconds: float) -> set[int]:
    if not hasattr(select, "poll"):  # eventlet takes it away
        return {each.fileno() for each in select.select(socks, [], [], seconds)[0]}
    poll = select.poll()
    for each in socks:
        poll.register(each, select.POLLIN)
    return {number for number, _ in poll.poll(1000 * seconds)}
