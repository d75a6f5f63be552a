"""When a process of this machine last began to send a new message by a pairing.

Whoever sends and whoever moves a backlog are seldom one process: a pool's children send beside their worker's syphon,
a web server beside a syphon of the command line. What they get in each other's way for, the processors of their
machine and the primary, is shared by all. So is this moment: eight bytes of memory, of the user that runs them.
"""

from __future__ import annotations

import hashlib
import logging
import math
import mmap
import os
import stat
import struct
import tempfile
from pathlib import Path

__all__ = ("LastSend",)

logger = logging.getLogger(__name__)

#: Where files are memory, and nobody tidies up; elsewhere the folder for temporary files.
MEMORY = "/dev/shm"
_MOMENT = struct.Struct("=d")
#: Moments in the one file that a user has. Two pairings may get the same one: then they heed each other.
MOMENTS = 512


class LastSend:
    """The moment, in monotonic seconds, which all processes of a machine count alike. Written and read without waiting.

    Arguments:
        memory: where it is among others, which whoever has the file shares; None: this process keeps it for itself.
        place: of it, in moments.
    """

    def __init__(self, memory: mmap.mmap | None = None, place: int = 0) -> None:
        self._memory = bytearray(_MOMENT.pack(-math.inf)) if memory is None else memory
        self._at = place * _MOMENT.size

    @classmethod
    def of_machine(cls, *settings: str) -> LastSend:
        """That of all processes of this user and machine with the same settings; of this process if that fails."""
        try:
            digest = hashlib.sha256("\0".join(settings).encode()).digest()
            return cls(_mapped(_folder() / "last-send"), int.from_bytes(digest[:8], "big") % MOMENTS)
        except (OSError, ValueError) as exc:
            logger.debug("this process does not learn when others of this machine send: %r", exc)
            return cls()

    def note(self, now: float) -> None:
        """A new message is being sent."""
        _MOMENT.pack_into(self._memory, self._at, now)

    def since(self, now: float) -> float:
        """Seconds; infinite before the first one, and for one that is to come: the machine was started since."""
        [at] = _MOMENT.unpack_from(self._memory, self._at)
        return now - at if at <= now else math.inf


def _folder() -> Path:
    """A folder that this user alone may enter.

    Raises:
        OSError: there is none, and none can be made; or somebody else's is in its place.
    """
    base = MEMORY if os.access(MEMORY, os.W_OK) else tempfile.gettempdir()
    if not hasattr(os, "getuid"):
        raise OSError("files have no owner here")
    folder = Path(base, f"kombu-paired-{os.getuid()}")
    folder.mkdir(mode=0o700, exist_ok=True)
    found = folder.lstat()
    if not stat.S_ISDIR(found.st_mode) or found.st_uid != os.getuid() or found.st_mode & 0o077:
        raise OSError(f"{folder} is not this user's own")
    return folder


def _mapped(path: Path) -> mmap.mmap:
    """Zeroes in a new file are a moment long ago.

    Raises:
        OSError: it cannot be opened.
    """
    number = os.open(path, os.O_RDWR | os.O_CREAT | os.O_NOFOLLOW | os.O_CLOEXEC, 0o600)
    try:
        if os.fstat(number).st_size < MOMENTS * _MOMENT.size:
            os.ftruncate(number, MOMENTS * _MOMENT.size)
        return mmap.mmap(number, MOMENTS * _MOMENT.size)
    finally:
        os.close(number)
