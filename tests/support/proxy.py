"""A TCP proxy in front of a broker: a network that can be cut, silenced and healed."""

from __future__ import annotations

import asyncio
import contextlib
import socket
import struct
import threading
from collections import deque
from collections.abc import Callable
from typing import Literal, TypeVar

from kombu_paired.testing import HOST, free_port

Result = TypeVar("Result")
Mode = Literal["open", "cut", "blackhole", "hold"]


class Proxy:
    """Listens on ``port`` and passes everything on to ``target_port``, both on 127.0.0.1."""

    def __init__(self, target_port: int) -> None:
        self.target_port = target_port
        self.port = free_port()
        self.mode: Mode = "open"
        self._delay = 0.0
        self._links: set[_Link] = set()
        self._server: asyncio.Server | None = None
        self._loop = asyncio.new_event_loop()
        self._thread = threading.Thread(target=self._loop.run_forever, name="proxy", daemon=True)
        self._thread.start()
        self._await(self._listen)

    @property
    def connections(self) -> int:
        """How many client connections are open."""
        return len(self._links)

    def cut(self) -> None:
        """Reset every connection and refuse new ones."""
        self._await(self._cut)

    def blackhole(self, swallow: bool = True) -> None:
        """Accept connections, and answer nothing, on the ones that are open too.

        What clients send is lost, and their connections are reset when the network heals. With
        ``swallow=False`` it is only held back, as by a network that comes back in time.
        """
        self._await(self._listen)
        self.mode = "blackhole" if swallow else "hold"

    def slow(self, seconds: float) -> None:
        """Pass everything on, later by so many seconds, each way."""
        self._delay = seconds

    def heal(self) -> None:
        """Work again: accept, pass on at once."""
        self._delay = 0.0
        self._await(self._heal)

    def reset_all(self) -> None:
        """Reset every connection; new ones are welcome."""
        self._await(self._reset_all)

    def close(self) -> None:
        """End the proxy; may be called again."""
        if self._loop.is_closed():
            return
        self._await(self._cut)
        self._loop.call_soon_threadsafe(self._loop.stop)
        self._thread.join(5)
        self._loop.close()

    def __enter__(self) -> Proxy:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def _await(self, action: Callable[[], object]) -> None:
        async def run() -> None:
            result = action()
            if asyncio.iscoroutine(result):
                await result

        asyncio.run_coroutine_threadsafe(run(), self._loop).result(10)

    async def _listen(self) -> None:
        if self._server is None:
            self._server = await self._loop.create_server(
                lambda: _Client(self), HOST, self.port, backlog=512, reuse_address=True
            )

    async def _cut(self) -> None:
        self.mode = "cut"
        if self._server is not None:
            self._server.close()
            self._server = None
        self._reset_all()
        await asyncio.sleep(0)  # lets the transports close their sockets

    async def _heal(self) -> None:
        self.mode = "open"
        for link in list(self._links):
            link.heal()
        await self._listen()

    def _reset_all(self) -> None:
        for link in list(self._links):
            link.reset()


class _Link:
    """One client connection and its counterpart to the target."""

    def __init__(self, proxy: Proxy, client: asyncio.Transport) -> None:
        self.proxy = proxy
        self.client = client
        self.target: asyncio.Transport | None = None
        self.held: list[tuple[str, bytes]] = []
        self.gone: list[tuple[str, Exception | None]] = []
        self.lossy = False
        self.late: dict[str, deque[Callable[[], None]]] = {"target": deque(), "client": deque()}
        proxy._links.add(self)
        if proxy.mode == "blackhole":
            self.lossy = True
        else:
            client.pause_reading()
            proxy._loop.create_task(self.connect())

    async def connect(self) -> None:
        try:
            await self.proxy._loop.create_connection(lambda: _Target(self), HOST, self.proxy.target_port)
        except OSError:
            self.reset()
        else:
            with contextlib.suppress(RuntimeError):
                self.client.resume_reading()

    def data(self, towards: str, data: bytes) -> None:
        mode = self.proxy.mode
        if mode == "open" and not self.lossy:
            self.in_time(towards, lambda: self.write(towards, data))
        elif mode == "hold":
            self.held.append((towards, data))
        else:
            self.lossy = True

    def in_time(self, towards: str, action: Callable[[], None]) -> None:
        """Now, or as late as the network is slow; never before what is under way in this direction."""
        under_way = self.late[towards]
        if not self.proxy._delay and not under_way:
            action()
            return
        under_way.append(action)
        self.proxy._loop.call_later(self.proxy._delay, lambda: under_way.popleft()())

    def write(self, towards: str, data: bytes) -> None:
        transport = self.target if towards == "target" else self.client
        if transport is not None and not transport.is_closing():
            transport.write(data)

    def heal(self) -> None:
        if self.lossy:
            self.reset()
            return
        held, self.held = self.held, []
        for towards, data in held:
            self.write(towards, data)
        gone, self.gone = self.gone, []
        for side, error in gone:
            self.lost(side, error)

    def reset(self) -> None:
        for transport in (self.client, self.target):
            if transport is not None:
                _reset(transport)
        self.proxy._links.discard(self)

    def lost(self, side: str, error: Exception | None) -> None:
        if self.proxy.mode in ("blackhole", "hold"):
            self.gone.append((side, error))  # a silent network does not tell the far end
            return
        self.in_time("target" if side == "client" else "client", lambda: self.end(side, error))

    def end(self, side: str, error: Exception | None) -> None:
        other = self.target if side == "client" else self.client
        if other is not None and not other.is_closing():
            if error is None:
                other.close()
            else:
                _reset(other)
        self.proxy._links.discard(self)


class _Client(asyncio.Protocol):
    def __init__(self, proxy: Proxy) -> None:
        self.proxy = proxy
        self.link: _Link | None = None

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        assert isinstance(transport, asyncio.Transport)
        _no_delay(transport)
        if self.proxy.mode == "cut":
            _reset(transport)
            return
        self.link = _Link(self.proxy, transport)

    def data_received(self, data: bytes) -> None:
        if self.link is not None:
            self.link.data("target", data)

    def connection_lost(self, exc: Exception | None) -> None:
        if self.link is not None:
            self.link.lost("client", exc)

    def pause_writing(self) -> None:
        if self.link is not None and self.link.target is not None:
            self.link.target.pause_reading()

    def resume_writing(self) -> None:
        if self.link is not None and self.link.target is not None:
            self.link.target.resume_reading()


class _Target(asyncio.Protocol):
    def __init__(self, link: _Link) -> None:
        self.link = link

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        assert isinstance(transport, asyncio.Transport)
        _no_delay(transport)
        if self.link not in self.link.proxy._links:
            transport.abort()
        self.link.target = transport

    def data_received(self, data: bytes) -> None:
        self.link.data("client", data)

    def connection_lost(self, exc: Exception | None) -> None:
        self.link.lost("target", exc)

    def pause_writing(self) -> None:
        self.link.client.pause_reading()

    def resume_writing(self) -> None:
        self.link.client.resume_reading()


def _no_delay(transport: asyncio.Transport) -> None:
    sock = transport.get_extra_info("socket")
    sock.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)


def _reset(transport: asyncio.Transport) -> None:
    sock = transport.get_extra_info("socket")
    with contextlib.suppress(OSError):
        sock.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))
    transport.abort()
