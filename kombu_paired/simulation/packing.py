"""Files that are compressed and written beside the simulation, in a thread: zlib lets the interpreter go on."""

from __future__ import annotations

import zlib
from collections.abc import Callable
from concurrent.futures import Future, ThreadPoolExecutor
from pathlib import Path
from typing import Any

__all__ = ("PackedFile", "Packer")

#: Bytes of a file that wait for compression.
BUFFER = 256 * 1024


class Packer:
    """One thread that does one thing after the other. A context manager: leaving it waits for the rest."""

    def __init__(self) -> None:
        self._thread = ThreadPoolExecutor(1, thread_name_prefix="kombu-paired-simulation")
        self._under_way: list[Future[Any]] = []
        self._last: list[Future[Any]] = []

    def __enter__(self) -> Packer:
        return self

    def __exit__(self, kind: type[BaseException] | None, *exc: object) -> None:
        self._thread.shutdown(cancel_futures=kind is not None)
        if kind is None:
            self.finish()

    def submit(self, work: Callable[..., object], *arguments: Any) -> None:
        self._under_way.append(self._thread.submit(work, *arguments))

    def keep_up(self) -> None:
        """Wait for what had been submitted before the last call: so the thread is never far behind.

        Raises:
            OSError: a file could not be written.
        """
        for each in self._last:
            each.result()
        self._last, self._under_way = self._under_way, []

    def finish(self) -> None:
        """Wait for everything.

        Raises:
            OSError: a file could not be written.
        """
        self.keep_up()
        self.keep_up()


class PackedFile:
    """A file that is appended to; gzip if its name says so. It is open only while something is written to it."""

    def __init__(self, path: Path, packer: Packer) -> None:
        self.path = path
        self._packer = packer
        self._pending: list[bytes] = []
        self._size = 0
        self._gzip = zlib.compressobj(1, zlib.DEFLATED, 31) if path.suffix == ".gz" else None

    def write(self, data: bytes) -> None:
        self._pending.append(data)
        self._size += len(data)
        if self._size >= BUFFER:
            self._flush(is_last=False)

    def close(self) -> None:
        self._flush(is_last=True)

    def _flush(self, *, is_last: bool) -> None:
        self._packer.submit(self._append, self._pending, is_last)
        self._pending, self._size = [], 0

    def _append(self, pieces: list[bytes], is_last: bool) -> None:
        data = b"".join(pieces)
        if self._gzip is not None:
            data = self._gzip.compress(data) + (self._gzip.flush() if is_last else b"")
        with self.path.open("ab") as file:
            file.write(data)
