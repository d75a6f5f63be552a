"""The folder of a spool: what is in it, who may read that, and which file is in use."""

from __future__ import annotations

import errno
import os
import re
import stat
import time
from contextlib import suppress

__all__ = ("FILE_MODE", "FOLDER_MODE", "Folder", "require_rights")

#: Messages are for their owner and for the group of the folder, and for nobody else. SQLite gives what it makes beside
#: a file the rights of that file, whatever the umask. In a folder with this mode, new files have its group.
FILE_MODE = 0o660
FOLDER_MODE = 0o2770

_FILE = re.compile(r"messages-(\d+)\.sqlite(.*)")
_DAMAGED = re.compile(r"messages-\d+\.sqlite\.damaged-\w+")
_FLAGS = os.O_RDWR | os.O_CLOEXEC | getattr(os, "O_NOFOLLOW", 0)


class Folder:
    """One folder.

    Arguments:
        path: absolute.

    Attributes:
        locks: the path of the file whose bytes are locked.
    """

    def __init__(self, path: str) -> None:
        self.path = path
        self.locks = self._beside("locks")

    def make(self) -> None:
        """Make the folder, unless it is there; not those above it: what should be mounted there may not be yet.

        Raises:
            OSError: it cannot be made.
        """
        try:
            os.mkdir(self.path, 0o700)
        except FileExistsError:
            return
        except FileNotFoundError as exc:
            raise FileNotFoundError(
                errno.ENOENT, "the folder of the spool cannot be made, since the one that it is to be in is missing"
            ) from exc
        os.chmod(self.path, FOLDER_MODE)
        _sync(os.path.dirname(self.path))

    def require(self) -> None:
        """See that it is there.

        Raises:
            OSError: it is not, or something else is.
        """
        try:
            found = os.stat(self.path)
        except FileNotFoundError as exc:
            raise FileNotFoundError(
                errno.ENOENT, f"the folder of the spool, {self.path}, is gone: make it again, or mount it"
            ) from exc
        if not stat.S_ISDIR(found.st_mode):
            raise NotADirectoryError(errno.ENOTDIR, f"{self.path} is no folder: a spool needs one of its own")
        require_rights(self.path, os.R_OK | os.W_OK | os.X_OK)

    def open_locks(self) -> int:
        """The file whose bytes are locked; nothing is ever written into it."""
        return self.open(os.path.basename(self.locks))

    def give_sign(self, name: str) -> None:
        """Whoever has the turn to bring home what is here is alive."""
        os.close(self.open(f"syphon-{name}"))
        os.utime(os.path.join(self.path, f"syphon-{name}"))

    def last_sign(self, name: str) -> int | None:
        """Something that differs after each sign; None if there never was one."""
        try:
            return os.stat(os.path.join(self.path, f"syphon-{name}")).st_mtime_ns
        except FileNotFoundError:
            return None

    def current(self) -> str | None:
        """The file in use: the last one; None if there is none yet."""
        number = max((number for number, rest in self._numbered() if not rest), default=None)
        return None if number is None else self._path(number)

    def make_file(self) -> str:
        """A new and empty file, which is in use from now on. No name ever comes again.

        A process that still has an earlier file open removes, when it closes that, what belongs to it by its name.
        """
        path = self._path(max((number for number, _ in self._numbered()), default=0) + 1)
        os.close(self.open(os.path.basename(path)))
        return path

    # -- files that are damaged ---------------------------------------------------------------------------------

    def set_aside(self, path: str) -> str:
        """Let a file be in use no more; where it is now. :meth:`finish` has to follow, when nobody writes into it."""
        aside = f"{path}.damaged-{time.strftime('%Y%m%dT%H%M%SZ', time.gmtime())}"
        os.rename(path, aside)
        return aside

    def finish(self) -> None:
        """Let what belongs to files that were set aside lie beside them; whoever was to do it may have been killed."""
        for name in self.damaged():
            for what in ("-wal", "-shm"):
                with suppress(FileNotFoundError):
                    os.rename(self._beside(name.partition(".damaged-")[0] + what), self._beside(name + what))
        self.sync()

    def damaged(self) -> list[str]:
        """Names of files that were set aside, and of which something may still be saved."""
        return sorted(name for name in os.listdir(self.path) if _DAMAGED.fullmatch(name))

    def saved(self, name: str) -> None:
        """Nothing more can be saved of it."""
        for what in ("", "-wal", "-shm"):
            with suppress(FileNotFoundError):
                os.rename(self._beside(name + what), self._beside(f"{name}.saved{what}"))

    def _beside(self, name: str) -> str:
        return os.path.join(self.path, name)

    def sync(self) -> None:
        """Let names that were made be on the disk."""
        _sync(self.path)

    def _path(self, number: int) -> str:
        return self._beside(f"messages-{number}.sqlite")

    def _numbered(self) -> list[tuple[int, str]]:
        matches = filter(None, map(_FILE.fullmatch, os.listdir(self.path)))
        return [(int(match[1]), match[2]) for match in matches]

    def open(self, name: str) -> int:
        """A file of the folder, made if it is not there; its descriptor."""
        path = self._beside(name)
        try:
            fd = os.open(path, _FLAGS | os.O_CREAT | os.O_EXCL, FILE_MODE)
        except FileExistsError:
            require_rights(path)
            return os.open(path, _FLAGS)
        except PermissionError as exc:
            raise _no_rights(path) from exc
        os.fchmod(fd, FILE_MODE)
        self.sync()
        return fd


def require_rights(path: str, wanted: int = os.R_OK | os.W_OK) -> None:
    """See that this process may read and write a file of a spool, or its folder; SQLite does not say what is wrong.

    Raises:
        PermissionError: it may not. Where nobody may write, since the file system is read-only, SQLite does say so.
    """
    if not os.access(path, wanted) and os.path.exists(path) and not os.statvfs(path).f_flag & os.ST_RDONLY:
        raise _no_rights(path)


def _no_rights(path: str) -> PermissionError:
    return PermissionError(
        errno.EACCES,
        f"the user of this process ({os.geteuid()}) may not read and write {path}: let it be a member of the group of "
        "that folder, and the folder and its files be writable for the group",
    )


def _sync(folder: str) -> None:
    fd = os.open(folder, os.O_RDONLY | os.O_CLOEXEC)
    try:
        os.fsync(fd)
    finally:
        os.close(fd)
