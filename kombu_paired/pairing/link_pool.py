"""Links that wait to be used again, and who has one at the moment."""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Iterator
from types import TracebackType

from kombu_paired.brokers.roles import Sender
from kombu_paired.deadline import Deadline
from kombu_paired.errors import MessageTooLarge, NamespaceFailure

__all__ = ("Lent", "LinkPool")

#: Seconds for which a pool that closes says goodbye on idle connections; the rest is dropped. Less than one goodbye
#: takes to a broker that is frozen, so that of those there is one alone.
GOODBYES = 0.4


class LinkPool:
    """Senders of one namespace; of the idle ones, the one that was used last comes first.

    Arguments:
        make: makes a sender, which connects when it is first used.
    """

    def __init__(self, make: Callable[[], Sender]) -> None:
        self._make = make
        self._idle: deque[Lent] = deque()
        self._is_closed = False

    def __len__(self) -> int:
        """How many are idle."""
        return len(self._idle)

    def lend(self) -> Lent:
        """A sender for one thread and one ``with``, at whose end it is given back, or dropped.

        A pool that is closed lends, too: a message that is under way is not lost for it. It keeps nothing.
        """
        try:
            return self._idle.pop()
        except IndexError:
            return Lent(self, self._make())

    def drop_idle(self) -> None:
        """Their connections are as dead as the one that just failed."""
        for lent in self._take_all():
            lent.sender.drop()

    def close_idle(self) -> None:
        """Say goodbye on the idle ones, promptly: nobody needs them for now."""
        self._say_goodbye(Deadline(GOODBYES))

    def close(self, deadline: Deadline | None = None) -> None:
        """Say goodbye on the idle ones, as far as time allows, and from now on on all that are given back.

        Arguments:
            deadline: when it is over no goodbye begins, and the rest is dropped.
        """
        self._is_closed = True
        self._say_goodbye((deadline or Deadline()).part(GOODBYES))

    def give_back(self, lent: Lent) -> None:
        """Keep a sender for the next one who needs it."""
        self._idle.append(lent)
        if self._is_closed:  # looked at last: else it could be closed in between, and this one left open
            self._say_goodbye(Deadline(GOODBYES))

    def _say_goodbye(self, deadline: Deadline) -> None:
        for lent in self._take_all():
            if deadline.is_over:
                lent.sender.drop()
            else:
                lent.sender.close()

    def _take_all(self) -> Iterator[Lent]:
        while True:
            try:
                yield self._idle.pop()
            except IndexError:
                return


class Lent:
    """A sender of a pool, which one thread has for one ``with``.

    It is given back at the end, unless it was dropped: by :meth:`drop`, by a failure that counts, or by an exception
    after which nobody knows in which state it is. What is the message's own fault leaves a sender as it was.

    Attributes:
        pool: where it comes from.
        sender: the sender.
        queue: the backlog queue that it stays with, once it has one; none on a primary.
    """

    __slots__ = ("_is_dropped", "pool", "queue", "sender")

    def __init__(self, pool: LinkPool, sender: Sender) -> None:
        self.pool = pool
        self.sender = sender
        self.queue: str | None = None
        self._is_dropped = False

    def drop(self) -> None:
        """Let go of it at once; it is not given back."""
        self._is_dropped = True
        self.sender.drop()

    def __enter__(self) -> Lent:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, exc: BaseException | None, traceback: TracebackType | None
    ) -> None:
        if exc is not None and not _is_of_the_message(exc):
            self.drop()
        if not self._is_dropped:
            self.pool.give_back(self)


def _is_of_the_message(exc: BaseException) -> bool:
    if isinstance(exc, NamespaceFailure):
        return not exc.kind.counts
    return isinstance(exc, MessageTooLarge)
