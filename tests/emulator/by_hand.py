"""A client that speaks AMQP by hand: quick, and it may say what the SDK would not."""

from __future__ import annotations

import contextlib
import socket
import time
from typing import Any

from kombu_paired.emulator import Emulator
from kombu_paired.emulator.wire import frames
from kombu_paired.emulator.wire.codec import encode
from kombu_paired.emulator.wire.frames import Attach, Begin, Detach, Disposition, Flow, Open, Transfer

__all__ = ("MESSAGE", "PATIENCE", "SECONDS", "Client", "is_accepted")

#: A sign of life that must not come has not come by then.
SECONDS = 0.2
#: One that must come has come by then, on a busy machine too.
PATIENCE = 10.0
MESSAGE = b"\x00\x53\x75" + encode(b"a parcel")


class Client:
    """One connection with one session, by hand."""

    def __init__(self, emulator: Emulator) -> None:
        self._socket = socket.create_connection(("127.0.0.1", emulator.port), 5)
        self._buffer = b""

    def open(self) -> Client:
        opened = frames.encode_frame(0, Open("test", max_frame_size=65536))
        begun = frames.encode_frame(0, Begin(None, 0, 1000, 1000))
        self._socket.sendall(frames.AMQP_HEADER + opened + begun)
        return self

    def send(self, performative: Any, payload: bytes = b"") -> None:
        with contextlib.suppress(OSError):
            self._socket.sendall(frames.encode_frame(0, performative, payload))

    def next(self, kind: type[Any], seconds: float = PATIENCE) -> Any:
        """The next performative of a kind; None when something else ends the wait: time, a detach, a hang-up."""
        until = time.monotonic() + seconds
        while (left := until - time.monotonic()) > 0:
            performative = self._take()
            if isinstance(performative, kind):
                return performative
            if isinstance(performative, Detach):
                return None
            if performative is None:
                self._socket.settimeout(left)
                try:
                    data = self._socket.recv(65536)
                except OSError:
                    return None
                if not data:
                    return None
                self._buffer += data
        return None

    def _take(self) -> Any:
        if self._buffer.startswith(b"AMQP"):
            self._buffer = self._buffer[8:]
        size = int.from_bytes(self._buffer[:4], "big")
        if size == 0 or len(self._buffer) < size:
            return None
        frame, self._buffer = self._buffer[:size], self._buffer[size:]
        return frames.decode_frame(frame)[1] or Flow(0, 0, 0, 0)

    def attach(self, address: str, handle: int, *, receives: bool, seconds: float = PATIENCE) -> bool:
        self.send(
            Attach(
                f"link-{handle}",
                handle,
                receives,
                source=frames.source(address),
                target=frames.target(address),
                initial_delivery_count=None if receives else 0,
            )
        )
        answer = self.next(Attach, seconds)
        return answer is not None and (answer.source if receives else answer.target) is not None

    def credit(self, handle: int, delivery_count: int = 0) -> None:
        self.send(Flow(0, 1000, 0, 1000, handle, delivery_count, 1))

    def transfer(self, handle: int, payload: bytes) -> None:
        self.send(Transfer(handle, 0, b"tag", 0, False), payload)

    def close(self) -> None:
        self._socket.close()


def is_accepted(disposition: Disposition | None) -> bool:
    return disposition is not None and int(disposition.state.descriptor) == 0x24
