"""Writes what happens to a folder of journals, in the format of :mod:`kombu_paired.journal.format`.

Whoever sends puts an event into a queue in memory, and that is all it pays. A daemon thread writes the queue down a few
times a second. No error of the journal reaches a sender: a disk that is full stops the journal, and not the sending.
"""

from __future__ import annotations

import itertools
import logging
import math
import os
import socket
import sys
import threading
import time
from collections import deque
from collections.abc import Callable, Iterator

from kombu_paired import events
from kombu_paired.events import Event, EventKind, EventStream
from kombu_paired.journal.files import HOUR, OpenFile, finish, trim
from kombu_paired.journal.lines import kinds_of, line_of
from kombu_paired.process import at_exit, at_fork

__all__ = ("Journal", "close_all", "keep")

logger = logging.getLogger("kombu_paired.journal")  # the name that users configure

#: Bytes that the journals of a folder may take. The oldest closed files are given up first.
FOLDER_LIMIT = 1 << 30
#: Bytes after which an hour's file is followed by another one, so that there are closed files to give up.
FILE_LIMIT = 64 << 20
#: Events that may wait in memory: some seconds of a busy process, or an hour of a quiet one with a full disk.
QUEUE_LIMIT = 50_000
#: Seconds between two writes; what a killed process leaves unwritten is no older.
WRITE_EVERY = 0.2
#: Events written at a time. Between two batches a sender that waits for the interpreter gets it.
BATCH = 500
#: Seconds after which a disk that failed is tried again.
RETRY_AFTER = 30.0
#: Seconds that leaving may take.
GOODBYE = 0.5


class Journal:
    """Writes the events of one process to one folder.

    Arguments:
        folder: where; made when the first line is written.
        wall_clock: seconds since 1970, UTC.
    """

    def __init__(self, folder: str, *, wall_clock: Callable[[], float] = time.time) -> None:
        self.folder = folder
        self._wall_clock = wall_clock
        self._file: OpenFile | None = None
        self.start_clean()

    def __repr__(self) -> str:
        return f"<Journal {self.folder}>"

    def start_clean(self) -> None:
        """As new, with nothing of the parent's: for a process that was forked."""
        file, self._file = self._file, None
        if file is not None:
            file.close()
        self._host, self._pid = socket.gethostname(), os.getpid()
        self._numbers = itertools.count(1)
        self._queue: deque[tuple[int, Event]] = deque()
        self._batch: list[tuple[int, Event]] = []
        self._ended: deque[str] = deque()
        self._awake = threading.Event()
        self._stopping = threading.Event()
        self._writing = threading.Lock()
        self._starting = threading.Lock()
        self._writer: threading.Thread | None = None
        self._dropped = 0
        self._dropping = threading.Lock()
        self._has_failed = False
        self._retry_at = -math.inf
        self._must_trim = False
        self._pairing = ""

    def hear(self, event: Event) -> None:
        """Have an event written, soon: the listener. Returns at once, except when a pairing was closed."""
        number = next(self._numbers)
        if len(self._queue) >= QUEUE_LIMIT:
            with self._dropping:
                self._dropped += 1
            return
        self._queue.append((number, event))
        if not self._awake.is_set():
            self._wake()
        if event.kind is EventKind.CLOSED:
            self.flush()  # often the last thing that a process does

    def flush(self, timeout: float = GOODBYE) -> None:
        """Write what is queued now, and not in a moment."""
        if self._writing.acquire(timeout=timeout):
            try:
                self._write_queued()
            finally:
                self._writing.release()

    def close(self, timeout: float = GOODBYE) -> None:
        """Write what is queued, and end the file. An event that comes later begins another one."""
        deadline = time.monotonic() + timeout
        self._stopping.set()
        self._awake.set()
        if self._writing.acquire(timeout=timeout):
            try:
                self._retry_at = -math.inf
                self._write_queued()
                self._end_file()
            finally:
                self._writing.release()
        self._finish_files()
        writer = self._writer
        if writer is not None and writer is not threading.current_thread():
            writer.join(max(deadline - time.monotonic(), 0))
        self._awake.clear()
        if self._queue:
            self._wake()

    # -- the thread ---------------------------------------------------------------------------------------------------

    def _wake(self) -> None:
        self._awake.set()
        writer = self._writer
        if (writer is None or not writer.is_alive()) and self._starting.acquire(blocking=False):
            try:
                self._stopping.clear()
                writer = threading.Thread(target=self._run, name="kombu-paired-journal", daemon=True)
                writer.start()
                self._writer = writer
                _close_with_multiprocessing()
            except RuntimeError:  # no thread is to be had; when the interpreter exits, close() writes what is queued
                self._awake.clear()
            finally:
                self._starting.release()

    def _run(self) -> None:
        while not self._stopping.is_set():
            self._awake.wait(self._seconds_to_rest())
            self._stopping.wait(WRITE_EVERY)  # more will come, and is written together
            self._awake.clear()
            self.flush(timeout=-1)
            try:
                self._finish_files()
                self._keep_within_limit()
            except Exception:
                logger.exception("journal %s: unexpected; it goes on", self.folder)

    def _seconds_to_rest(self) -> float | None:
        """Until there is something to do though nothing happens: the hour ends, or a failed disk is tried again."""
        if self._batch:
            return max(self._retry_at - time.monotonic(), 0)
        if self._file is not None:
            return HOUR - self._wall_clock() % HOUR
        return None

    # -- writing, by whoever has the lock -----------------------------------------------------------------------------

    def _write_queued(self) -> None:
        if time.monotonic() < self._retry_at:
            return
        try:
            if self._file is not None and self._file.hour != self._wall_clock() // HOUR and not self._queue:
                self._end_file()
            while self._batch or self._queue:
                self._batch = self._batch or list(self._next_batch())
                self._write(self._batch)
                self._batch = []
                time.sleep(0)
        except OSError as failure:
            self._failed(failure)
        except Exception:
            logger.exception("journal %s: %d events are not written", self.folder, len(self._batch))
            self._batch = []

    def _next_batch(self) -> Iterator[tuple[int, Event]]:
        """Events of one hour."""
        hour = self._queue[0][1].time // HOUR
        for _ in range(BATCH):
            if not self._queue or self._queue[0][1].time // HOUR > hour:
                return
            yield self._queue.popleft()

    def _write(self, batch: list[tuple[int, Event]]) -> None:
        lines = "".join(line_of(event, self._host, self._pid, number) + "\n" for number, event in batch)
        file = self._file_for(int(batch[0][1].time // HOUR))
        file.write(lines.encode("ascii"))
        self._pairing = batch[-1][1].pairing
        if self._has_failed or self._dropped:
            self._tell_that_it_goes_on()

    def _file_for(self, hour: int) -> OpenFile:
        file = self._file
        if file is not None and (hour > file.hour or file.size >= FILE_LIMIT):
            self._end_file()
        if self._file is None:
            self._file = OpenFile(self.folder, hour, self._host, self._pid)
            self._must_trim = True
        return self._file

    def _end_file(self) -> None:
        file, self._file = self._file, None
        if file is not None:
            file.close()
            self._ended.append(file.path)

    def _failed(self, failure: OSError) -> None:
        """Stop for a while. The next line goes into a new file: this one may end in half a line."""
        self._retry_at = time.monotonic() + RETRY_AFTER
        self._end_file()
        if not self._has_failed:
            self._has_failed = True
            logger.error(
                "journal %s is not written: %s. Sending goes on, and it is tried again every %g s. Make room, or give "
                "the option 'journal' another folder",
                self.folder,
                failure,
                RETRY_AFTER,
            )

    def _tell_that_it_goes_on(self) -> None:
        with self._dropping:
            dropped, self._dropped = self._dropped, 0
        self._has_failed = False
        logger.warning("journal %s goes on; %d events are missing, and leave holes in seq", self.folder, dropped)

    # -- tidying ------------------------------------------------------------------------------------------------------

    def _finish_files(self) -> None:
        while True:
            try:
                path = self._ended.popleft()
            except IndexError:
                return
            finish(path, self._stopping.is_set)
            self._must_trim = True

    def _keep_within_limit(self) -> None:
        if not self._must_trim:
            return
        self._must_trim = False
        try:
            given_up = trim(self.folder, FOLDER_LIMIT, self._wall_clock())
        except OSError as failure:
            logger.info("journal %s cannot be trimmed: %s", self.folder, failure)
            return
        if given_up:
            event = Event(EventKind.JOURNAL_TRIMMED, self._wall_clock(), self._pairing, detail=given_up)
            self.hear(event)
            events.everywhere.emit(event)


_journals: dict[str, Journal] = {}


def keep(folder: str, level: str, stream: EventStream) -> Journal:
    """Write the events of a stream to a folder; all streams of a process share the folder's journal."""
    journal = _journals.setdefault(folder, Journal(folder))
    stream.listen(journal.hear, kinds_of(level))
    return journal


def close_all() -> None:
    """Write down what is queued and end the files: the process exits."""
    for journal in list(_journals.values()):
        journal.close()


def _close_with_multiprocessing() -> None:
    """Its child processes end with a goodbye of its own, and without the interpreter's."""
    process, util = (sys.modules.get(f"multiprocessing.{name}") for name in ("process", "util"))
    if process is not None and util is not None and process.parent_process() is not None:
        util.Finalize(None, close_all, exitpriority=0)


def _start_clean_after_fork() -> None:
    for journal in _journals.values():
        journal.start_clean()


at_fork(in_child=_start_clean_after_fork)
at_exit(close_all)
