"""Frames of AMQP as they are on the wire, and the sockets they come from: what sharing a connection needs of them."""

from __future__ import annotations

import ssl
from typing import Any

__all__ = (
    "BEGIN",
    "CLOSE",
    "END",
    "GREETING",
    "OPEN",
    "available",
    "code_of",
    "empty",
    "first_number",
    "split",
)

#: Codes of AMQP's performatives; what is said before the first of them has a code here, too.
GREETING, OPEN, BEGIN, END, CLOSE = 0, 0x10, 0x11, 0x17, 0x18
#: Bytes to read at a time.
CHUNK = 1 << 16

_PROTOCOL = b"AMQP"
_HEADER_SIZE = 8
#: Where the fields of a frame begin in its body, by the constructor of their list.
_FIELDS = {0xC0: 6, 0xD0: 12}
_USHORT = 0x60


def available(sock: Any) -> bytes | None:
    """What has come, and is there without waiting; nothing at the end of it, None if it is not enough to be read."""
    before = sock.gettimeout()
    sock.settimeout(0)
    try:
        found: bytes = sock.recv(CHUNK)
        while found and isinstance(sock, ssl.SSLSocket) and sock.pending():  # decrypted, and so nothing to poll for
            found += sock.recv(CHUNK)
        return found
    except (BlockingIOError, ssl.SSLWantReadError, ssl.SSLWantWriteError):
        return None
    finally:
        sock.settimeout(before)


def split(found: bytes) -> tuple[list[bytes], bytes]:
    """Whole frames, and the rest."""
    frames, start = [], 0
    while len(found) - start >= _HEADER_SIZE:
        is_greeting = found.startswith(_PROTOCOL, start)
        size = _HEADER_SIZE if is_greeting else int.from_bytes(found[start : start + 4], "big")
        if size < _HEADER_SIZE:
            raise ValueError(f"a frame of {size} bytes")
        if len(found) - start < size:
            break
        frames.append(found[start : start + size])
        start += size
    return frames, found[start:]


def code_of(frame: bytes) -> int | None:
    """What a frame is: its performative's code; 0 for the greeting before the first one, None for an empty one."""
    if frame.startswith(_PROTOCOL):
        return GREETING
    body = 4 * frame[4]
    return frame[body + 2] if len(frame) > body + 2 else None


def first_number(frame: bytes) -> int:
    """The first field of a frame, where it is a short number: of a session's begin the channel that it answers to."""
    body = 4 * frame[4]
    field = body + _FIELDS.get(frame[body + 3], len(frame))
    return int.from_bytes(frame[field + 1 : field + 3], "big") if frame[field : field + 1] == bytes([_USHORT]) else 0


def empty(channel: int, code: int) -> bytes:
    """A frame without fields."""
    return b"\0\0\0\x0c\2\0" + channel.to_bytes(2, "big") + bytes((0, 0x53, code, 0x45))
