"""What lies under a folder: whether its locks can be trusted, whether it outlives the power, and room in reserve."""

from __future__ import annotations

import errno
import fcntl
import logging
import os
import re
import struct
import sys
import tempfile
from collections.abc import Iterator

from kombu_paired.brokers.spool.folder import Folder
from kombu_paired.errors import ConfigurationError

__all__ = ("LEFT_FREE", "RESERVE", "TO_OPEN", "Reserve", "file_system_at", "free_bytes", "require_trust")

logger = logging.getLogger(__name__)

#: File systems that other machines share, or that ask another machine. Whether locks on them are what they should be is
#: up to that machine and to how they are mounted, and the memory that SQLite's processes share cannot be there at all.
_NETWORKS = frozenset(
    {
        *("9p", "afs", "beegfs", "ceph", "cifs", "coda", "fuse.ceph", "fuse.gcsfuse", "fuse.glusterfs", "fuse.s3fs"),
        *("fuse.sshfs", "gfs2", "glusterfs", "gpfs", "lustre", "ncpfs", "nfs", "nfs4", "ocfs2", "smb3", "smbfs"),
    }
)
#: What is in memory alone.
_VOLATILE = frozenset({"ramfs", "tmpfs"})

#: Bytes: a log of SQLite's that was not copied yet (it copies at 4 MB), and what removing takes besides.
RESERVE = 8_000_000
#: Bytes of it that opening a file takes: what SQLite's processes share, and the beginning of a log.
TO_OPEN = 500_000
#: Bytes of the disk that no message takes.
LEFT_FREE = 4_000_000

_ESCAPED = re.compile(r"\\([0-7]{3})")


def require_trust(folder: str) -> None:
    """See that a folder is on a disk of this machine.

    Raises:
        ConfigurationError: it is not; the text says what it is on.
    """
    kind = _file_system_of(folder)
    if kind in _NETWORKS:
        raise ConfigurationError(
            f"the spool {folder} is on a network file system ({kind}), where locks and synced writes are not what they "
            "are on a disk: choose a folder on a disk of this machine"
        )
    if not _locks_hold(folder):
        raise ConfigurationError(
            f"the file system of the spool {folder} ({kind or 'unknown'}) lets two have one lock: choose a folder on a "
            "disk of this machine"
        )
    if kind in _VOLATILE:
        logger.warning("the spool %s is in memory alone (%s): what is in it is gone when the power is", folder, kind)


def _file_system_of(folder: str) -> str | None:
    try:
        with open("/proc/self/mountinfo", encoding="utf-8", errors="surrogateescape") as file:
            return file_system_at(os.path.realpath(folder), file)
    except FileNotFoundError:  # no Linux
        return None


def file_system_at(path: str, mounts: Iterator[str] | list[str]) -> str | None:
    """The kind of file system that a path is on.

    Arguments:
        path: without symbolic links.
        mounts: lines of ``/proc/self/mountinfo`` (proc(5)).
    """
    found, longest = None, -1
    for line in mounts:
        facts, _, kind = line.partition(" - ")
        point = _ESCAPED.sub(lambda match: chr(int(match[1], 8)), facts.split()[4])
        if f"{path}/".startswith(f"{point.rstrip('/')}/") and len(point) >= longest:  # the last one lies on top
            found, longest = kind.split()[0], len(point)
    return found


def _locks_hold(folder: str) -> bool:
    """Try whether what is locked by one cannot be locked by another."""
    if not hasattr(fcntl, "F_OFD_SETLK"):  # locks that a process has against itself, of Linux
        return True
    wanted = struct.pack("hhqqi4x", fcntl.F_WRLCK, os.SEEK_SET, 0, 1, 0)
    with tempfile.TemporaryFile(dir=folder) as one, open(f"/proc/self/fd/{one.fileno()}", "r+b") as other:
        try:
            fcntl.fcntl(one, fcntl.F_OFD_SETLK, wanted)
        except OSError as exc:
            return exc.errno == errno.EINVAL  # a kernel that has none
        try:
            fcntl.fcntl(other, fcntl.F_OFD_SETLK, wanted)
        except OSError:
            return True
    return False


def free_bytes(folder: str) -> int:
    """What this process may still write to the disk of a folder."""
    found = os.statvfs(folder)
    return found.f_bavail * found.f_frsize


class Reserve:
    """A file that takes room, so that there is some when the disk is full.

    To remove a message is to write: SQLite logs it. On a full disk nothing would ever be removed, and the spool would
    never be smaller. So this is given away then.

    Arguments:
        folder: that it is in.
    """

    def __init__(self, folder: Folder) -> None:
        self._folder = folder
        self.path = os.path.join(folder.path, "reserve")

    def keep(self) -> None:
        """Take the room, if it is not taken, and there is plenty."""
        try:
            if os.stat(self.path).st_size >= RESERVE:
                return
        except FileNotFoundError:
            pass
        if free_bytes(self._folder.path) < 2 * RESERVE:
            return
        fd = self._folder.open("reserve")
        try:
            if sys.platform == "linux":
                os.posix_fallocate(fd, 0, RESERVE)
            else:
                os.pwrite(fd, bytes(RESERVE), 0)
        finally:
            os.close(fd)

    def spend(self, wanted: int = RESERVE) -> bool:
        """Give some of the room away, or all of it; whether there was any."""
        try:
            size = os.stat(self.path).st_size
            if size == 0:
                return False
            os.truncate(self.path, max(size - wanted, 0))
        except FileNotFoundError:
            return False
        logger.warning("the disk of the spool is full: %s gives away what it keeps for removing messages", self.path)
        return True
