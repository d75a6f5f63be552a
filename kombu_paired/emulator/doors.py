"""The port: sockets, and who speaks on one. The first bytes tell AMQP, TLS and HTTP apart."""

from __future__ import annotations

import asyncio
from typing import TYPE_CHECKING

from kombu_paired.emulator.connection import AmqpConnection, Wire
from kombu_paired.emulator.http import HttpConnection
from kombu_paired.emulator.tls import TlsLayer

if TYPE_CHECKING:
    from kombu_paired.emulator.server import Server

__all__ = ("Door", "Sniffer")

_TLS = b"\x16"


class Sniffer:
    """Tells from the first bytes who speaks, and hands the rest to it."""

    def __init__(self, server: Server, wire: Wire) -> None:
        self._server = server
        self._wire = wire
        self._early = b""
        self._deaf = False
        self.speaker: AmqpConnection | HttpConnection | TlsLayer | None = None

    def feed(self, data: bytes) -> None:
        """Take what came in."""
        if self.speaker is not None:
            self.speaker.feed(data)
            return
        self._early += data
        if self._deaf or (len(self._early) < 4 and self._early[:1] != _TLS):
            return
        fault = None if self._is_http() else self._server.faults.take("connect", None)
        if fault is None:
            self._begin()
        elif fault.kind in ("silent", "slow"):
            self._deaf = True
            if fault.kind == "slow":
                self._server.later(fault.seconds, self._begin)
        else:
            self._wire.abort()

    def _is_http(self) -> bool:
        return self._early[:1] != _TLS and self._early[:4] != b"AMQP"

    def _begin(self) -> None:
        """Make the speaker, and give it what came in so far."""
        if self._early[:1] == _TLS:
            self.speaker = self._server.tls(self._wire)
        elif self._is_http():
            self.speaker = HttpConnection(self._wire, self._server.http)
        else:
            self.speaker = self._server.amqp(self._wire)
        early, self._early = self._early, b""
        if self.speaker is None:
            self._wire.close()
        else:
            self.speaker.feed(early)

    def lost(self) -> None:
        """The client is gone."""
        if self.speaker is not None:
            self.speaker.lost()


class Door(asyncio.Protocol):
    """A socket."""

    def __init__(self, server: Server) -> None:
        self._server = server
        self._transport: asyncio.Transport | None = None
        self._sniffer = Sniffer(server, self)
        self._closing = False

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        assert isinstance(transport, asyncio.Transport)
        self._transport = transport
        self._server.doors.add(self)
        if self._server.frozen:
            transport.pause_reading()

    def data_received(self, data: bytes) -> None:
        if not self._closing:
            self._sniffer.feed(data)

    def resume_writing(self) -> None:
        self._server.soon(self._server.pump_all)

    def connection_lost(self, error: Exception | None) -> None:
        self._server.doors.discard(self)
        self._sniffer.lost()

    def write(self, data: bytes) -> None:
        if self._transport is not None and not self._transport.is_closing():
            self._transport.write(data)

    def close(self) -> None:
        self._closing = True
        if self._transport is not None:
            self._transport.close()

    def abort(self) -> None:
        self._closing = True
        if self._transport is not None:
            self._transport.abort()

    def waiting(self) -> int:
        return 0 if self._transport is None else self._transport.get_write_buffer_size()

    def pause(self, paused: bool) -> None:
        """Stop or go on reading."""
        if self._transport is not None and not self._transport.is_closing():
            (self._transport.pause_reading if paused else self._transport.resume_reading)()
