"""The two ends of a wire, as those between them know them."""

from __future__ import annotations

from typing import Protocol

__all__ = ("Speaker", "Wire")


class Wire(Protocol):
    """Where bytes go: a socket, or TLS on one."""

    def write(self, data: bytes) -> None: ...
    def close(self) -> None: ...
    def abort(self) -> None: ...
    def waiting(self) -> int: ...


class Speaker(Protocol):
    """Where bytes come in: the side of the emulator that answers a client."""

    def feed(self, data: bytes) -> None: ...
    def lost(self) -> None: ...
