"""The port: its sockets."""

from __future__ import annotations

import asyncio
from collections.abc import Callable

from kombu_paired.emulator.server.distance import Road
from kombu_paired.emulator.server.speakers import Sniffer, Speakers

__all__ = ("Door", "Doors")


class Doors:
    """The sockets that are open.

    Arguments:
        speakers: makes who speaks on one.
        writable: called when a client that read too slowly can be written to again.
        road: makes one direction of the way to a client.
    """

    def __init__(self, speakers: Speakers, writable: Callable[[], None], road: Callable[[], Road]) -> None:
        self.writable = writable
        self.road = road
        self._speakers = speakers
        self._open: set[Door] = set()
        self._frozen = False
        self._are_shut = False

    def make(self) -> Door:
        """A door for the next client."""
        return Door(self, self._speakers)

    def opened(self, door: Door) -> None:
        """A client came in."""
        self._open.add(door)
        if self._are_shut:  # it was let in just before
            door.abort()
        elif self._frozen:
            door.pause(True)

    def closed(self, door: Door) -> None:
        """A client is gone."""
        self._open.discard(door)

    def freeze(self, frozen: bool) -> None:
        """Stop reading, or go on."""
        self._frozen = frozen
        for door in list(self._open):
            door.pause(frozen)

    def abort(self) -> None:
        """Hang up on everybody."""
        for door in list(self._open):
            door.abort()

    def shut(self) -> None:
        """Hang up on everybody, and on who comes in from now on."""
        self._are_shut = True
        self.abort()


class Door(asyncio.Protocol):
    """A socket."""

    def __init__(self, doors: Doors, speakers: Speakers) -> None:
        self._doors = doors
        self._transport: asyncio.Transport | None = None
        self._sniffer = Sniffer(speakers, self)
        self._way_in = doors.road()
        self._way_out = doors.road()
        self._closing = False

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        assert isinstance(transport, asyncio.Transport)
        self._transport = transport
        self._doors.opened(self)

    def data_received(self, data: bytes) -> None:
        self._way_in.send(lambda: self._take(data))

    def _take(self, data: bytes) -> None:
        if not self._closing:
            self._sniffer.feed(data)

    def resume_writing(self) -> None:
        self._doors.writable()

    def connection_lost(self, error: Exception | None) -> None:
        self._doors.closed(self)
        self._way_out.close()
        self._way_in.send(self._sniffer.lost)

    def write(self, data: bytes) -> None:
        self._way_out.send(lambda: self._put(data))

    def _put(self, data: bytes) -> None:
        if self._transport is not None and not self._transport.is_closing():
            self._transport.write(data)

    def close(self) -> None:
        self._closing = True
        if self._transport is not None:
            self._way_out.send(self._transport.close)

    def abort(self) -> None:
        self._closing = True
        self._way_out.close()
        if self._transport is not None:
            self._transport.abort()

    def waiting(self) -> int:
        return 0 if self._transport is None else self._transport.get_write_buffer_size()

    def pause(self, paused: bool) -> None:
        """Stop or go on reading."""
        self._way_in.pause(paused)
        if self._transport is not None and not self._transport.is_closing():
            (self._transport.pause_reading if paused else self._transport.resume_reading)()
