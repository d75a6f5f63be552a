"""Steps that may never return, and callers that wait for them no longer than they may.

Such a step runs in a thread of its own, which is given up when its time is over: Python cannot end a thread, and a
resolver of the operating system that hangs cannot be interrupted at all.
"""

from __future__ import annotations

import logging
import threading
from collections.abc import Callable, Hashable
from time import monotonic
from typing import Any, Generic, TypeVar

from kombu_paired.process import at_fork

__all__ = ("GivenUp", "bounded", "shared")

logger = logging.getLogger(__name__)

Answer = TypeVar("Answer")


class GivenUp(TimeoutError):
    """A step did not return in the time that it had."""


def bounded(
    step: Callable[[], Answer],
    timeout: float,
    what: str,
    *,
    give_up: Callable[[], None] | None = None,
    too_late: Callable[[Answer], None] | None = None,
) -> Answer:
    """Run a step, and wait so many seconds for it.

    Arguments:
        what: it does, for the error.
        give_up: called when the time is over, to make the step end soon.
        too_late: called, in the step's own thread, with an answer that nobody waits for any more.

    Raises:
        GivenUp: it has not returned in time.
        BaseException: what the step raises.
    """
    until = monotonic() + timeout  # on a busy machine, beginning takes its time, too
    run = _Run(step, too_late=too_late)
    run.start(what)
    try:
        return run.answer(until, timeout, what)
    except GivenUp:
        if give_up is not None:
            give_up()
        raise
    except BaseException:
        run.forget()  # the caller was interrupted, by a time limit for example
        raise


def shared(key: Hashable, step: Callable[[], Answer], timeout: float, what: str) -> Answer:
    """The same for a step that cannot be ended: only one with this key runs at a time, and all wait for that one."""
    until = monotonic() + timeout
    with _lock:
        run = _shared.get(key)
        is_new = run is None
        if run is None:
            run = _shared[key] = _Run(step, at_end=lambda: _shared.pop(key, None))
    if is_new:
        run.start(what)
    answer: Answer = run.answer(until, timeout, what, and_forget=False)
    return answer


class _Run(Generic[Answer]):
    """One run of a step, in its thread."""

    def __init__(
        self,
        step: Callable[[], Answer],
        *,
        too_late: Callable[[Answer], None] | None = None,
        at_end: Callable[[], object] | None = None,
    ) -> None:
        self._step = step
        self._too_late = too_late
        self._at_end = at_end
        self._ended = threading.Event()
        self._deciding = threading.Lock()  # whether it ended in time
        self._is_forgotten = False
        self._answers: list[Answer] = []
        self._raised: BaseException | None = None

    def start(self, what: str) -> None:
        thread = threading.Thread(target=self._run, name=f"kombu-paired-{what}", daemon=True)
        try:
            thread.start()
        except RuntimeError:  # the interpreter is ending, or there are too many: better unbounded than not at all
            self._run()

    def _run(self) -> None:
        try:
            self._answers.append(self._step())
        except BaseException as exc:
            self._raised = exc
        if self._at_end is not None:
            self._at_end()
        with self._deciding:
            self._ended.set()
        if self._is_forgotten:
            self._clean_up()

    def answer(self, until: float, timeout: float, what: str, *, and_forget: bool = True) -> Answer:
        if not self._ended.wait(max(until - monotonic(), 0)) and not self._is_over(and_forget):
            raise GivenUp(f"{what} took longer than {timeout:.3g} s")
        if self._raised is not None:
            raise self._raised
        return self._answers[0]

    def forget(self) -> None:
        """Nobody waits for the answer any more."""
        if self._is_over(and_forget=True):
            self._clean_up()

    def _clean_up(self) -> None:
        if self._too_late is None or not self._answers:
            return
        try:
            self._too_late(self._answers.pop())
        except Exception as exc:  # nobody is there to hear of it
            logger.debug("cleaning up what came too late: %r", exc)

    def _is_over(self, and_forget: bool) -> bool:
        """Whether it ended in the last moment; if not, its answer is forgotten."""
        with self._deciding:
            if not self._ended.is_set():
                self._is_forgotten = and_forget
            return self._ended.is_set()


_shared: dict[Hashable, _Run[Any]] = {}
_lock = threading.Lock()


def _start_clean_after_fork() -> None:
    global _lock
    _lock = threading.Lock()
    _shared.clear()  # their threads are the parent's


at_fork(in_child=_start_clean_after_fork)
