"""What may stand between a client and a local Service Bus: a proxy, or a gateway that speaks web sockets."""

from __future__ import annotations

import base64
import hashlib
import socket
import socketserver
import struct
import threading
from contextlib import suppress
from typing import Any
from urllib.parse import urlsplit

_GUID = "258EAFA5-E914-47DA-95CA-C5AB0DC85B11"
_BINARY, _CLOSE, _PING, _PONG = 2, 8, 9, 10


class Gateway:
    """Listens on a port of its own, and passes on what comes.

    ``CONNECT``, and requests that name a host, are passed on to there, as a proxy does. Everything else goes to the
    target: web sockets unwrapped, the rest as it is.

    Attributes:
        seen: what came, one text for each connection: ``CONNECT 127.0.0.1:5672``, ``websocket``, ``GET /orders``, …
    """

    def __init__(self, target: tuple[str, int]) -> None:
        gateway = self
        self.target = target
        self.seen: list[str] = []

        class Handler(socketserver.BaseRequestHandler):
            def handle(self) -> None:
                with suppress(OSError):
                    gateway._handle(self.request)

        class Server(socketserver.ThreadingTCPServer):
            allow_reuse_address = daemon_threads = True

        self._server = Server(("127.0.0.1", 0), Handler)

    @property
    def port(self) -> int:
        return int(self._server.server_address[1])

    def __enter__(self) -> Gateway:
        threading.Thread(target=self._server.serve_forever, kwargs={"poll_interval": 0.05}, daemon=True).start()
        return self

    def __exit__(self, *exc: Any) -> None:
        self._server.shutdown()
        self._server.server_close()

    def _handle(self, client: socket.socket) -> None:
        head = client.recv(4)
        if head.startswith(b"AMQP"):
            self.seen.append("AMQP")
            _join(client, socket.create_connection(self.target), head)
            return
        while b"\r\n\r\n" not in head:
            head += client.recv(65536)
        method, place, _ = head.split(b"\r\n", 1)[0].decode().split(" ")
        headers = {
            name.strip().lower(): value.strip()
            for name, _, value in (line.partition(":") for line in head.decode("latin-1").split("\r\n")[1:])
        }
        if headers.get("upgrade", "").lower() == "websocket":
            self.seen.append("websocket")
            _accept(client, headers["sec-websocket-key"])
            _unwrap(client, socket.create_connection(self.target))
        elif method == "CONNECT":
            self.seen.append(f"CONNECT {place}")
            host, _, port = place.rpartition(":")
            client.sendall(b"HTTP/1.1 200 Connected\r\n\r\n")
            _join(client, socket.create_connection((host, int(port))))
        else:
            parts = urlsplit(place)
            self.seen.append(f"{method} {place.partition('?')[0]}")
            server = (parts.hostname, parts.port or 80) if parts.hostname else self.target
            path = parts.path + (f"?{parts.query}" if parts.query else "")
            _join(client, socket.create_connection(server), head.replace(place.encode(), path.encode(), 1))


def _accept(client: socket.socket, key: str) -> None:
    answer = base64.b64encode(hashlib.sha1((key + _GUID).encode()).digest()).decode()
    client.sendall(
        "HTTP/1.1 101 Switching Protocols\r\nUpgrade: websocket\r\nConnection: Upgrade\r\n"
        f"Sec-WebSocket-Accept: {answer}\r\nSec-WebSocket-Protocol: AMQPWSB10\r\n\r\n".encode()
    )


def _join(one: socket.socket, other: socket.socket, first: bytes = b"") -> None:
    """Pass everything on, both ways, until one side ends."""
    other.sendall(first)
    threading.Thread(target=_pass_on, args=(other, one), daemon=True).start()
    _pass_on(one, other)


def _pass_on(source: socket.socket, target: socket.socket) -> None:
    with suppress(OSError):
        while data := source.recv(65536):
            target.sendall(data)
    _end(source, target)


def _unwrap(client: socket.socket, server: socket.socket) -> None:
    """Frames to bytes, and bytes to frames."""

    def wrap() -> None:
        with suppress(OSError):
            while data := server.recv(65536):
                client.sendall(_frame(_BINARY, data))
        _end(client, server)

    threading.Thread(target=wrap, daemon=True).start()
    stream = client.makefile("rb")
    with suppress(OSError, struct.error):
        while (kind := _read_frame(stream))[0] != _CLOSE:
            if kind[0] == _PING:
                client.sendall(_frame(_PONG, kind[1]))
            else:
                server.sendall(kind[1])
    _end(client, server)


def _read_frame(stream: Any) -> tuple[int, bytes]:
    first, second = struct.unpack(">BB", stream.read(2))
    length = second & 127
    if length > 125:
        [length] = struct.unpack(">H" if length == 126 else ">Q", stream.read(2 if length == 126 else 8))
    mask = stream.read(4)
    data = stream.read(length)
    return first & 15, bytes(byte ^ mask[index % 4] for index, byte in enumerate(data))


def _frame(kind: int, data: bytes) -> bytes:
    size = len(data)
    if size < 126:
        return struct.pack(">BB", 128 | kind, size) + data
    return struct.pack(">BBH" if size < 65536 else ">BBQ", 128 | kind, 126 if size < 65536 else 127, size) + data


def _end(*sockets: socket.socket) -> None:
    for each in sockets:
        with suppress(OSError):
            each.shutdown(socket.SHUT_RDWR)
