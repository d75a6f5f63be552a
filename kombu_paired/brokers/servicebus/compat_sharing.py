"""What is private in azure-servicebus, and is used to let its links share a connection: see :mod:`.trunk`.

All of it stands in :data:`.compat.RELIES_ON`. Where something is missing each link has a connection of its own.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from functools import cache
from typing import Any

from kombu_paired.brokers.servicebus.frames import GREETING, code_of
from kombu_paired.brokers.servicebus.trunk import Station, Wire

__all__ = ("Board", "share_connection")

_BOARD = "_kombu_paired_board"

Board = Callable[[Wire], Station | None]


def share_connection(handler: Any, board: Board) -> None:
    """Let a handler's link take place on a trunk, with or without TLS. Over a web socket it has one of its own.

    Arguments:
        handler: of a sender or receiver of the SDK, not open.
        board: takes what would connect it, and gives a place; None: it connects itself.
    """
    kind = _sharing(type(handler))  # type: ignore[arg-type]
    if kind is not None:
        handler.__dict__[_BOARD] = board
        handler.__class__ = kind


class _Wire:
    """The SDK's own transport, as far as it connects."""

    def __init__(self, transport: Any) -> None:
        self._transport = transport

    @property
    def sock(self) -> Any:
        return self._transport.sock

    def connect(self) -> None:
        self._transport.connect()
        self._transport.negotiate()


@cache
def _sharing(kind: Any) -> Any:
    """The same kind of handler; the connection that it makes gets a station in the place of a socket."""
    try:
        from azure.servicebus._pyamqp._transport import SSLTransport, _AbstractTransport
    except ImportError:  # another version of the SDK
        return None

    class StationTransport(_AbstractTransport):  # type: ignore[misc]
        """What is between a connection and its station."""

        def __init__(self, station: Station, tick: float) -> None:
            self.sock: Station | None = station
            station.settimeout(tick)

        def _station(self) -> Station:
            if self.sock is None:
                raise ConnectionError("the connection was closed")
            return self.sock

        def connect(self) -> None:
            self._station().connect()

        def negotiate(self) -> None:
            """It was done when the trunk was connected."""

        def read(self, verify_frame_type: int | None = 0) -> tuple[memoryview, int, memoryview | None]:
            frame = self._station().read()
            view = memoryview(frame)
            is_greeting = code_of(frame) == GREETING
            return view[:8], int.from_bytes(frame[6:8], "big"), None if is_greeting else view[4 * frame[4] :]

        def write(self, s: Any) -> None:
            self._station().write(bytes(s))

        def close(self) -> None:
            station, self.sock = self.sock, None
            if station is not None:
                station.leave()

        @contextmanager
        def block(self) -> Iterator[None]:
            yield

        non_blocking = block

    class Sharing(kind):  # type: ignore[misc]
        @property
        def _connection(self) -> Any:
            return self.__dict__.get("_connection")

        @_connection.setter
        def _connection(self, connection: Any) -> None:
            transport: Any = getattr(connection, "_transport", None)
            can_share = isinstance(transport, SSLTransport) and hasattr(connection, "_get_next_outgoing_channel")
            station = self.__dict__[_BOARD](_Wire(transport)) if can_share else None
            if station is not None:
                connection._transport = StationTransport(station, transport.socket_timeout)
                connection._get_next_outgoing_channel = lambda: station.number
            self.__dict__["_connection"] = connection

    return Sharing
