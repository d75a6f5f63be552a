"""How fast a process moves a backlog home: slowly at first, and never before new messages. Pure but for its clock.

A primary that has just come back meets a whole fleet. Each process begins with a tenth of what the primary takes from
it, doubles that while the primary keeps up, and halves it when sends slow down or are throttled.
"""

from __future__ import annotations

import contextlib
import math
import statistics
import threading
import time
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field

__all__ = ("Pace",)

#: What a process begins with, of what its first messages show that the primary takes from it, and of its limit.
SHARE_AT_FIRST = 0.1
#: Messages that go out first, to see how long they take.
TASTE = 25
#: Seconds between two changes of the rate, and what it becomes then.
STEP, FASTER, SLOWER = 0.5, 2.0, 0.5
#: Near the rate at which the primary fell behind the last time, and beyond it, it grows by little; that is forgotten by
#: and by.
NEAR, CAREFULLY, FORGOTTEN = 0.9, 1.3, 2.0
#: Messages per second with which a process goes on however slow the primary is.
LEAST_RATE = 10.0
#: Sends slow down when half of them take so many times what is usual, and all of a step so many seconds more: other
#: things happen on a machine, too.
SLOW, HICCUP = 2.0, 0.1
#: How much of a difference what is taken to be usual makes up for at each step, when it was faster and when slower.
DOWN, UP = 0.5, 0.2
#: Seconds of work that a pump fetches at a time, or twice what a turn takes if that is more; those that a limited one
#: has fetched ahead; and the most that the first may be, and that is waited for what a pump had fetched when the rate
#: fell. What waits here is locked for a minute.
AT_A_TIME, AHEAD, AT_MOST = 0.1, 2.0, 2.0
#: Seconds that may be made up for when nobody could use them: a pump wakes up a little late.
CREDIT = 0.05
#: Seconds after a new message in which the next one is expected; messages that go at a time then; and how many times as
#: long as that took it rests after it.
EXPECTING, A_FEW, RESTS = 0.1, 25, 4.0
#: Seconds after which a pump asks again, at most: the rate may have changed.
ASK_AGAIN = 0.25

Clock = Callable[[], float]


@dataclass
class _Step:
    """What happened since the rate was looked at.

    Attributes:
        began: when.
        moved: messages that the primary took.
        sends: of those that began in this step, for older ones tell of an older rate: how much, and seconds.
        was_held_back: a pump had something to send and had to wait for its turn.
        was_throttled: the primary said that it is busy.
    """

    began: float
    moved: int = 0
    sends: list[tuple[int, float]] = field(default_factory=list)
    was_held_back: bool = False
    was_throttled: bool = False


class _Usual:
    """How long something takes as a rule, by how much it is. The fastest one says little on a busy machine."""

    def __init__(self) -> None:
        self._seconds: dict[int, float] = {}

    def expect(self, size: int) -> float:
        """What is known of this size, or else the most that is known of another one."""
        return self._seconds.get(size) or max(self._seconds.values(), default=0.0)

    def learn(self, size: int, seconds: float) -> None:
        """It took so long. What is faster is believed soon, what is slower in time."""
        usual = self._seconds.get(size, seconds)
        self._seconds[size] = usual + (seconds - usual) * (DOWN if seconds < usual else UP)

    def is_slower(self, sends: Sequence[tuple[int, float]]) -> bool:
        """Whether these took longer than usual; learns from them."""
        by_size: dict[int, list[float]] = {}
        for size, seconds in sends:
            by_size.setdefault(size, []).append(seconds)
        for size, several in by_size.items():
            self._seconds.setdefault(size, statistics.median(several))
        expected = [self._seconds[size] for size, _ in sends]
        slowness = statistics.median(took / usual for (_, took), usual in zip(sends, expected, strict=True))
        lost = sum(took for _, took in sends) - sum(expected)
        for size, several in by_size.items():
            self.learn(size, statistics.median(several))
        return slowness > SLOW and lost > HICCUP


def _size(load: float) -> int:
    """The same for loads that are alike."""
    return math.ceil(load).bit_length()


class Pace:
    """When a process moves what it has received from a backlog.

    A pump asks before it does, and says how long the primary took for it.

    Arguments:
        limit: messages per second at most; None for as many as the primary takes.
        clock: monotonic seconds.
        since_new: seconds since this process last began to send a new message.

    Attributes:
        clock: monotonic seconds.
        rate: messages per second at present; infinite until the first ones have shown what the primary takes.
    """

    def __init__(
        self,
        limit: float | None = None,
        clock: Clock = time.monotonic,
        since_new: Callable[[], float] = lambda: math.inf,
    ) -> None:
        self._limit = math.inf if limit is None else limit
        self.clock = clock
        self._since_new = since_new
        self._lock = threading.Lock()
        self.restart()

    def restart(self) -> None:
        """The primary was away: begin slowly again."""
        with self._lock:
            self.rate = self._at_least(self._limit * SHARE_AT_FIRST)
            self._is_known = False
            self._fell_behind_at = math.inf
            self._sends, self._turns = _Usual(), _Usual()
            self._next = -math.inf
            self._step = _Step(self.clock())

    # -- turns --------------------------------------------------------------------------------------------------

    def at_a_time(self, as_a_rule: int, most: int) -> int:
        """How many messages to fetch and move at a time.

        Arguments:
            as_a_rule: so many, as soon as the rate is worth it.
            most: at most, where a few take so long that the rate needs more: the primary is far away.
        """
        with self._lock:
            turn = self._turns.expect(_size(TASTE))
            if self._is_expecting():
                count = A_FEW
            elif not self._is_known:
                count = TASTE
            else:
                count = max(as_a_rule, min(math.ceil(1.5 * self.rate * turn), most))
            return int(max(1, min(count, self.rate * max(AT_A_TIME, min(2 * turn, AT_MOST)))))

    def ahead(self, most: int) -> int:
        """How many messages a receiver is to fetch ahead."""
        return int(max(1, min(most, self._limit * AHEAD)))

    def ask(self, count: int) -> float:
        """May so many messages go now?

        Returns:
            0 if they may, and then :meth:`turn` must follow. Otherwise seconds after which to ask again.
        """
        with self._lock:
            now = self.clock()
            self._look(now)
            wait = self._next - now
            if wait > 0:
                self._step.was_held_back = True
                return min(wait, ASK_AGAIN)
            self._next = max(self._next, now - CREDIT) + self._worth(count)
            return 0.0

    @contextlib.contextmanager
    def turn(self, count: int) -> Iterator[None]:
        """In here the messages go that were asked for."""
        began = self.clock()
        try:
            yield
        finally:
            with self._lock:
                now = self.clock()
                self._turns.learn(_size(count), now - began)
                if self._is_expecting():
                    self._next = max(self._next, now + RESTS * (now - began))

    def _worth(self, count: int) -> float:
        """Seconds that so many messages stand for."""
        return max(min(count / self.rate, AT_MOST), count / self._limit)

    def _is_expecting(self) -> bool:
        """New messages are being sent here, and go first."""
        return self._since_new() < EXPECTING

    # -- the rate -----------------------------------------------------------------------------------------------

    def sent(self, count: int, load: float, began: float) -> None:
        """The primary has taken so many messages now.

        Arguments:
            began: when they were sent.
            load: by what it is compared with other sends: messages and kilobytes.
        """
        with self._lock:
            now, step = self.clock(), self._step
            seconds = max(now - began, 1e-6)
            step.moved += count
            if began >= step.began:
                step.sends.append((_size(load), seconds))
            if not self._is_known and count:
                self._is_known = True
                self.rate = self._at_least(min(count / seconds, self._limit) * SHARE_AT_FIRST)
                self._next = now + self._worth(count)
                self._sends.learn(_size(load), seconds)
                self._step = _Step(now)

    def throttled(self) -> None:
        """The primary says that it is busy."""
        with self._lock:
            self._step.was_throttled = True

    def _look(self, now: float) -> None:
        """Change the rate, once per step."""
        step = self._step
        lasted = now - step.began
        if lasted < STEP or not (step.sends or step.was_throttled):
            return
        self._step = _Step(now)
        is_slower = bool(step.sends) and self._sends.is_slower(step.sends)
        if step.was_throttled or is_slower:
            self._fell_behind_at = min(self.rate, step.moved / lasted)
            self.rate = self._at_least(self._fell_behind_at * SLOWER)
        elif step.was_held_back:
            near = self._fell_behind_at * NEAR
            if self.rate < near:
                self.rate = min(self.rate * FASTER, near, self._limit)
            else:
                self.rate = min(self.rate * CAREFULLY, self._limit)
                self._fell_behind_at *= FORGOTTEN

    def _at_least(self, rate: float) -> float:
        return max(rate, min(LEAST_RATE, self._limit))
