"""What the callers of a process know together of whether a namespace answers. Pure: clock and waiting are injected."""

from __future__ import annotations

import threading
from collections.abc import Callable

from kombu_paired.errors import NamespaceFailure

__all__ = ("NamespaceReach",)

#: Seconds for which a failure is fresh.
FRESH = 2.0
#: A failure that was found sooner than this (seconds) cost nobody a timeout: whoever asks again learns as soon.
CHEAP = 0.1
#: Seconds of a try while it is fresh that the last one waited in vain; a broker that is back needs less.
GLANCE = 0.5

Wait = Callable[[threading.Condition, float], object]


class NamespaceReach:
    """Whether a namespace could be reached, so that not everybody has to find out.

    Knowledge spares a timeout, and is never a reason to raise:

    * Whoever can turn elsewhere asks for :meth:`known_failure`. A fresh failure turns everybody away. Of a stale one,
      somebody makes sure, and turns the others away meanwhile.
    * Whoever would raise asks for a :meth:`verdict`, which is never older than the question: it waits for one who
      tries meanwhile, or lets the caller try. :meth:`worth` says how long that should take.

    Whoever is told to try reports once: :meth:`failed`, :meth:`reached` or :meth:`undecided`.

    Arguments:
        try_within: seconds the one who tries has to report; then somebody else may.
        clock: monotonic seconds.
        known: False if it may not even be taken for granted until somebody has reached it.
        wait: waits on a condition for at most so many seconds.
    """

    def __init__(
        self,
        try_within: float,
        clock: Callable[[], float],
        *,
        known: bool = True,
        wait: Wait = threading.Condition.wait,
    ) -> None:
        self._try_within = try_within
        self._clock = clock
        self._wait = wait
        self._reported = threading.Condition()
        self._is_doubted = not known
        self._failure: NamespaceFailure | None = None
        self._was_cheap = True
        self._fresh_until = 0.0
        self._trying_until = float("-inf")
        self._reports = 0
        self._last_report: NamespaceFailure | None = None
        self._last_try_began = 0.0

    @property
    def has_failed(self) -> bool:
        """The last that is known is a failure, fresh or stale."""
        return self._failure is not None

    @property
    def failure(self) -> NamespaceFailure | None:
        """The failure that is the last that is known, fresh or stale; never a reason to raise from a call."""
        return self._failure

    @property
    def fresh_failure(self) -> NamespaceFailure | None:
        """The failure, if it is fresh."""
        failure = self._failure
        return failure if failure is not None and self._clock() < self._fresh_until else None

    @property
    def silence(self) -> NamespaceFailure | None:
        """The failure, if it is fresh and was found by waiting in vain."""
        return None if self._was_cheap else self.fresh_failure

    def worth(self, seconds: float) -> float:
        """How many of so many seconds a try is worth now."""
        return seconds if self.silence is None else min(seconds, GLANCE)

    def known_failure(self) -> NamespaceFailure | None:
        """A failure that turns away whoever can go elsewhere; None when the caller is to try."""
        if self._failure is None:
            return None
        with self._reported:
            now = self._clock()
            if now < self._fresh_until or now < self._trying_until:
                return self._failure
            self._trying_until = now + self._try_within
            return None

    def verdict(self, patience: float) -> NamespaceFailure | None:
        """What a try found that began after this question; None when the caller is to try.

        Arguments:
            patience: seconds to wait for the one who tries at the moment; without a word in this time the caller is
                to try, too.
        """
        if not self._is_doubted:
            return None
        with self._reported:
            asked = now = self._clock()
            until, reports = now + patience, self._reports
            while now < self._trying_until:
                if now >= until:
                    return None
                self._wait(self._reported, min(until, self._trying_until) - now)
                if self._reports != reports:
                    reports = self._reports
                    if self._last_report is None or self._last_try_began >= asked:
                        return self._last_report
                now = self._clock()
            self._trying_until = now + self._try_within
            return None

    def failed(self, failure: NamespaceFailure, took: float) -> None:
        """It could not be reached, which was found out in so many seconds."""
        shared = failure.of_nothing_stored()  # it says nothing about the messages of others
        with self._reported:
            now = self._clock()
            self._failure, self._was_cheap, self._is_doubted = shared, took < CHEAP, True
            self._fresh_until, self._last_try_began = now + FRESH, now - took
            self._report(shared)

    def reached(self) -> None:
        """It answered."""
        if self._is_doubted:
            with self._reported:
                self._failure, self._is_doubted = None, False
                self._report(None)

    def undecided(self) -> None:
        """The one who tried learned nothing about the namespace: whoever waits for it is to try."""
        if self._is_doubted:
            with self._reported:
                self._report(None)

    def _report(self, failure: NamespaceFailure | None) -> None:
        self._trying_until = float("-inf")
        self._reports += 1
        self._last_report = failure
        self._reported.notify_all()
