"""Messages that wait in this process: a consumer took them from a primary which then failed, and no other has them."""

from __future__ import annotations

import logging
import random
import threading
import time
from collections import deque
from collections.abc import Callable
from typing import NamedTuple

from kombu_paired.errors import BacklogUnavailable
from kombu_paired.message import Message

__all__ = ("Stranded", "StrandedMessages")

logger = logging.getLogger("kombu_paired.stranded")  # the name that settings of logs know

#: Seconds between two rounds: at first, and at most. Each wait is a random part of it, half at least.
FIRST_WAIT, LONGEST_WAIT = 0.5, 5.0


class Stranded(NamedTuple):
    """A message that waits.

    Attributes:
        message: as the application sent it.
        maybe_stored: a broker may bring it back by itself.
    """

    message: Message
    maybe_stored: bool


class StrandedMessages:
    """Sends what is stranded, again and again, in a thread that lives only while there is something.

    Arguments:
        send: sends one within so many seconds, or raises.
        seconds: that a send may take.
        name: of the pairing, for the log.
    """

    def __init__(self, send: Callable[[Stranded, float], None], seconds: float, name: str) -> None:
        self._send = send
        self._seconds = seconds
        self._name = name
        self._waiting: deque[Stranded] = deque()
        self._changed = threading.Condition()
        self._sending = threading.Lock()
        self._is_urgent = False
        self._closed = False
        self._thread: threading.Thread | None = None

    def __len__(self) -> int:
        return len(self._waiting)

    def keep(self, stranded: Stranded, reason: Exception) -> None:
        """Let a message wait here; it is sent again soon."""
        with self._changed:
            self._waiting.append(stranded)
            if self._thread is None and not self._closed:
                thread = threading.Thread(target=self._run, name=f"kombu-paired-stranded-{self._name}", daemon=True)
                thread.start()
                self._thread = thread
        logger.error(
            "pairing %s: %d messages that were just being taken wait in this process until a namespace takes them: %s",
            self._name,
            len(self),
            reason,
        )

    def try_now(self) -> None:
        """A namespace is back: do not wait for the next round."""
        if self._waiting:
            with self._changed:
                self._is_urgent = True
                self._changed.notify_all()

    def close(self, seconds: float) -> bool:
        """Try once more, for so long. False if no namespace took what is left, which is lost then, and named."""
        deadline = time.monotonic() + seconds
        with self._changed:
            self._closed = True
            self._changed.notify_all()
        if self._waiting and self._sending.acquire(timeout=seconds):
            try:
                self._send_all(lambda: deadline - time.monotonic())
            finally:
                self._sending.release()
        lost = [f"{message.message_id} of {message.entity.path}" for message, _ in list(self._waiting)]
        if lost:
            logger.critical(
                "pairing %s: messages that neither namespace took are lost with this process: %s",
                self._name,
                ", ".join(lost),
            )
        return not lost

    def _run(self) -> None:
        wait = FIRST_WAIT
        while self._wait_for_next_round(wait):
            try:
                with self._sending:
                    self._send_all(lambda: 0.0 if self._closed else self._seconds)
            except Exception:
                logger.exception("pairing %s: sending what is stranded failed in an unexpected way", self._name)
            wait = min(2 * wait, LONGEST_WAIT)

    def _wait_for_next_round(self, longest: float) -> bool:
        """False when nothing is left to do."""
        with self._changed:
            if self._waiting and not self._is_urgent and not self._closed:
                self._changed.wait(longest * random.uniform(0.5, 1.0))
            self._is_urgent = False
            if self._waiting and not self._closed:
                return True
            self._thread = None
            return False

    def _send_all(self, left: Callable[[], float]) -> None:
        """Send each once; a message leaves when a namespace has it. A round ends when no namespace takes any."""
        for _ in range(len(self._waiting)):
            seconds = left()
            if seconds <= 0:
                return
            stranded = self._waiting[0]
            try:
                self._send(stranded, seconds)
            except Exception as exc:
                logger.info("pairing %s: %s still waits: %s", self._name, stranded.message.message_id, exc)
                if isinstance(exc, BacklogUnavailable):
                    return
                self._waiting.rotate(-1)
            else:
                self._waiting.popleft()
                logger.warning("pairing %s: %s waits no more", self._name, stranded.message.message_id)
