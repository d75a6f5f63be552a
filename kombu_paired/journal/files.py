"""The files of a folder of journals: one is written; others are compressed and, when they are too many, given up."""

from __future__ import annotations

import gzip
import itertools
import logging
import os
import time
from collections.abc import Callable, Iterator
from contextlib import suppress
from dataclasses import dataclass
from typing import Any, BinaryIO

from kombu_paired.journal.format import GZIP, HALF_COMPRESSED, NAME, ORPHANED, PART, file_name, hour_named

__all__ = ("HOUR", "OpenFile", "finish", "trim")

logger = logging.getLogger("kombu_paired.journal")  # the name that users configure

#: Bytes that are still compressed when the process exits; a larger file is left as it is.
QUICK_TO_COMPRESS = 4 << 20
#: Bytes compressed at a time.
CHUNK = 256 << 10
HOUR = 3600


class OpenFile:
    """The file that is written.

    It has no buffer of its own: what was written survives the process, and a forked child inherits nothing to flush.
    """

    def __init__(self, folder: str, hour: int, host: str, pid: int) -> None:
        os.makedirs(folder, exist_ok=True)
        for start in itertools.count(time.time_ns() // 1000):
            self.path = os.path.join(folder, file_name(hour, host, pid, start) + PART)
            with suppress(FileExistsError):
                self._descriptor: int | None = os.open(self.path, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o644)
                break
        self.hour = hour
        self.size = 0

    def write(self, lines: bytes) -> None:
        """Add whole lines. What cannot be added whole is taken back.

        Raises:
            OSError: the disk did not take them.
        """
        assert self._descriptor is not None
        rest = memoryview(lines)
        try:
            while rest:
                rest = rest[os.write(self._descriptor, rest) :]
        except OSError:
            with suppress(OSError):
                os.ftruncate(self._descriptor, self.size)
                os.lseek(self._descriptor, self.size, os.SEEK_SET)
            raise
        self.size += len(lines)

    def close(self) -> None:
        """Let go of it; a forked child does the same with its copy, and the parent's is unaffected."""
        descriptor, self._descriptor = self._descriptor, None
        if descriptor is not None:
            with suppress(OSError):
                os.close(descriptor)


def finish(path: str, hurried: Callable[[], bool]) -> None:
    """Give a file that nobody writes any more its last name, compressed unless that takes too long."""
    plain = path.removesuffix(PART)
    compressed, unfinished = plain + GZIP, plain + HALF_COMPRESSED
    try:
        if os.path.getsize(path) == 0:
            os.unlink(path)
            return
        with open(path, "rb") as source, gzip.open(unfinished, "wb", compresslevel=6) as target:
            is_whole = _copied(source, target, hurried)
        if is_whole:
            os.replace(unfinished, compressed)  # in one step: a reader sees a whole file or none
            os.unlink(path)
            return
    except OSError as failure:
        logger.info("journal: %s stays as it is, not compressed: %s", plain, failure)
    with suppress(OSError):
        os.unlink(unfinished)
    with suppress(OSError):
        os.replace(path, plain)


def _copied(source: BinaryIO, target: Any, hurried: Callable[[], bool]) -> bool:
    while chunk := source.read(CHUNK):
        if hurried() and os.fstat(source.fileno()).st_size > QUICK_TO_COMPRESS:
            return False
        target.write(chunk)
        time.sleep(0)  # gevent and eventlet: let the others go on
    return True


@dataclass(frozen=True)
class _Found:
    """A file of some journal in the folder."""

    name: str
    age: tuple[str, int]
    size: int
    is_closed: bool


def _found_in(folder: str, now: float) -> Iterator[_Found]:
    latest = hour_named(int(now - ORPHANED) // HOUR)
    with os.scandir(folder) as entries:
        for entry in entries:
            parts = NAME.fullmatch(entry.name)
            if parts is None:
                continue
            with suppress(FileNotFoundError):  # another process may be tidying, too
                state = entry.stat()
                is_closed = parts["form"] in ("", GZIP) or (parts["hour"] < latest and state.st_mtime < now - ORPHANED)
                yield _Found(entry.name, (parts["hour"], int(parts["start"])), state.st_size, is_closed)


def trim(folder: str, limit: int, now: float) -> str:
    """Give up the oldest closed files until the folder is within its limit; what was given up, in a sentence."""
    found = sorted(_found_in(folder, now), key=lambda each: each.age)
    total = sum(each.size for each in found)
    given_up: list[_Found] = []
    for each in found:
        if total <= limit:
            break
        if each.is_closed:
            with suppress(FileNotFoundError):
                os.unlink(os.path.join(folder, each.name))
                given_up.append(each)
            total -= each.size
    if not given_up:
        return ""
    size = sum(each.size for each in given_up)
    return (
        f"{len(given_up)} files of {size} bytes given up, from {given_up[0].name} to {given_up[-1].name}: "
        f"the folder may take {limit} bytes"
    )
