"""Locks on bytes of a file, which end with the process that has them: who is alive, and who may write.

The system lets go of such a lock when the process is gone, whatever became of it, and keeps it for as long as it lives.
So nobody needs a clock, which may be set back, nor the number of a process, which comes again and which means another
one in the next container. They are locks of a process, so that a child that was forked has none. All of them end when
the process closes the file, by any descriptor: a process has each such file open once.
"""

from __future__ import annotations

import errno
import fcntl
import os
import secrets
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager

from kombu_paired.brokers.spool.kinds import SpoolBusy
from kombu_paired.deadline import Deadline

__all__ = ("OPENING", "SAVING", "WRITING", "Locks", "patiently")

#: Bytes with a meaning. Who opens the spool, or mends it, is alone; who writes is not, unless it is being mended.
#: What can be saved of a damaged file is saved by one.
OPENING, WRITING, SAVING = 0, 1, 2
#: From here on each byte may be a reader's, or a syphon's; and behind those each may be the turn of a primary.
_FIRST_READER = 1 << 16
_READERS = 1 << 60
_FIRST_SYPHON = 1 << 61
_SYPHONS = 1 << 60
_FIRST_TURN = 1 << 62
_TURNS = 1 << 61

#: Seconds between two tries, of which the first ones come sooner.
_LONGEST_PAUSE = 0.005


def patiently(take: Callable[[], bool], deadline: Deadline, pause: Callable[[float], None], what: str) -> None:
    """Try until it works.

    Raises:
        SpoolBusy: it has not in time.
    """
    seconds = 0.0002
    while not take():
        if deadline.is_over:
            raise SpoolBusy(f"{what} for all of the time that this call had")
        # Not all of them at once, and none of them for long: a transaction takes less than a millisecond.
        pause(min(seconds * (0.5 + secrets.randbelow(1000) / 1000), deadline.left))
        seconds = min(2 * seconds, _LONGEST_PAUSE)


class Locks:
    """The file with the locks of a spool, as one process has it.

    Arguments:
        fd: of the file, which is this object's from now on.
        pause: sleeps so many seconds.
    """

    def __init__(self, fd: int, pause: Callable[[float], None]) -> None:
        self._fd = fd
        self._pause = pause
        self._ours: set[int] = set()
        self._lock = threading.Lock()

    def close(self) -> None:
        os.close(self._fd)

    @property
    def is_gone(self) -> bool:
        """Somebody has removed the file: others lock another one."""
        return os.fstat(self._fd).st_nlink == 0

    def move_to(self, fd: int) -> None:
        """Be the locks of this file from now on, which is another one; readers and syphons live on there."""
        with self._lock:
            before, self._fd = self._fd, fd
            os.close(before)
            for byte in list(self._ours):
                if byte < _FIRST_TURN:
                    fcntl.lockf(fd, fcntl.LOCK_EX, 1, byte)  # who asks whether it lives has it for a moment
                elif not self._try(byte, fcntl.LOCK_EX):
                    self._ours.remove(byte)  # somebody took this turn there; that two have it does no harm

    def is_at(self, path: str) -> bool:
        """Whether this is the file that lies there."""
        try:
            return os.path.samestat(os.stat(path), os.fstat(self._fd))
        except FileNotFoundError:
            return False

    @contextmanager
    def alone(self, byte: int, deadline: Deadline) -> Iterator[None]:
        """Nobody else has this byte meanwhile, in no way.

        Raises:
            SpoolBusy: somebody had it until the deadline.
        """
        with self._held(byte, fcntl.LOCK_EX, deadline):
            yield

    @contextmanager
    def together(self, byte: int, deadline: Deadline) -> Iterator[None]:
        """Nobody has this byte alone meanwhile.

        Raises:
            SpoolBusy: somebody had it until the deadline.
        """
        with self._held(byte, fcntl.LOCK_SH, deadline):
            yield

    @contextmanager
    def _held(self, byte: int, how: int, deadline: Deadline) -> Iterator[None]:
        patiently(lambda: self._try(byte, how), deadline, self._pause, "another process was mending the spool")
        try:
            yield
        finally:
            fcntl.lockf(self._fd, fcntl.LOCK_UN, 1, byte)

    @contextmanager
    def maybe(self, byte: int) -> Iterator[bool]:
        """This byte alone, if nobody has it; whether it is."""
        is_ours = self._try(byte, fcntl.LOCK_EX)
        try:
            yield is_ours
        finally:
            if is_ours:
                fcntl.lockf(self._fd, fcntl.LOCK_UN, 1, byte)

    def _try(self, byte: int, how: int, many: int = 1) -> bool:
        try:
            fcntl.lockf(self._fd, how | fcntl.LOCK_NB, many, byte)
        except OSError as exc:
            if exc.errno in (errno.EAGAIN, errno.EACCES):
                return False
            raise
        return True

    # -- readers and syphons ------------------------------------------------------------------------------------

    def new_reader(self) -> int:
        """A number for a reader of this process; it lives until it is forgotten, or the process ends."""
        return self._new(_FIRST_READER, _READERS)

    def new_syphon(self) -> int:
        """The same for a syphon, whether it reads or not."""
        return self._new(_FIRST_SYPHON, _SYPHONS)

    def _new(self, first: int, many: int) -> int:
        while True:
            number = first + secrets.randbelow(many)
            if self._take(number):
                return number

    def take_turn(self, number: int) -> bool:
        """Have a turn, until it is forgotten, or the process ends; False if another syphon has it."""
        return self._take(_FIRST_TURN + number % _TURNS)

    def give_up_turn(self, number: int) -> None:
        """Another syphon may have it."""
        self.forget(_FIRST_TURN + number % _TURNS)

    def _take(self, byte: int) -> bool:
        with self._lock:
            if byte in self._ours or not self._try(byte, fcntl.LOCK_EX):
                return False
            self._ours.add(byte)
            return True

    def forget(self, byte: int) -> None:
        """A reader or a syphon is there no more."""
        with self._lock:
            if byte in self._ours:
                self._ours.remove(byte)
                fcntl.lockf(self._fd, fcntl.LOCK_UN, 1, byte)

    def is_dead(self, reader: int) -> bool:
        """Whether no process has this reader any more."""
        with self._lock:
            if reader in self._ours or not self._try(reader, fcntl.LOCK_EX):
                return False
            fcntl.lockf(self._fd, fcntl.LOCK_UN, 1, reader)
            return True

    def has_syphons(self) -> bool:
        """Whether any process has one."""
        with self._lock:
            if any(_FIRST_SYPHON <= each < _FIRST_SYPHON + _SYPHONS for each in self._ours):
                return True
            if not self._try(_FIRST_SYPHON, fcntl.LOCK_SH, _SYPHONS):
                return True
            fcntl.lockf(self._fd, fcntl.LOCK_UN, _SYPHONS, _FIRST_SYPHON)
            return False
