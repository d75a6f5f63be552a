"""Links to a scripted broker."""

from __future__ import annotations

import threading
from collections.abc import Iterable, Sequence
from dataclasses import replace
from typing import TYPE_CHECKING, Any

from kombu_paired.brokers.forms import as_dead_letter
from kombu_paired.brokers.operating import Notices
from kombu_paired.brokers.roles import DEAD_LETTER_SUFFIX, DeadLetter, Received, Receiver, Sender
from kombu_paired.declarations import Declaration
from kombu_paired.errors import NamespaceFailure
from kombu_paired.failures import FailureKind
from kombu_paired.message import Message, marked_maybe_duplicate

if TYPE_CHECKING:
    from kombu_paired.testing.scripted import ScriptedBroker

__all__ = ("ScriptedNotices", "ScriptedReceiver", "ScriptedSender")


class ScriptedSender(Sender):
    """A link that sends; fresh until it has sent, and again after each failure."""

    def __init__(self, namespace: ScriptedBroker) -> None:
        super().__init__()
        self.namespace, self.fresh = namespace, True

    @property
    def is_fresh(self) -> bool:
        return self.fresh

    def send(self, message: Message, timeout: float) -> None:
        try:
            self.namespace.take(message)
        except NamespaceFailure:
            self.fresh = True
            raise
        self.fresh = False

    def send_batch(self, messages: Sequence[Message], timeout: float) -> list[NamespaceFailure | None]:
        outcomes: list[NamespaceFailure | None] = []
        for message in messages:
            try:
                self.namespace.take(message)
                outcomes.append(None)
            except NamespaceFailure as failure:
                outcomes.append(failure)
        return outcomes

    def declare(self, declarations: Iterable[Declaration], timeout: float) -> Any:
        wanted = list(declarations)
        self.namespace.answer("declare", " ".join(each.name for each in wanted), timeout)
        self.namespace.declared.extend(wanted)
        return "declared"

    def close(self) -> None:
        self.fresh = True

    drop = close


class ScriptedReceiver(Receiver):
    """A link that receives. Queues that are missing, and those that fail to settle, fail alone.

    Attributes:
        completed, abandoned, marked, dead: ids of the messages that became that; what is marked goes back, too.
    """

    def __init__(self, namespace: ScriptedBroker, queues: Sequence[str]) -> None:
        self.namespace = namespace
        self.failed: dict[str, NamespaceFailure] = {}
        self.completed: list[str | None] = []
        self.abandoned: list[str | None] = []
        self.marked: list[str | None] = []
        self.dead: list[str | None] = []
        self._queues: list[str] = []
        self._held: list[Received] = []
        self._interrupted = threading.Event()
        for queue in queues:
            self.add(queue)

    def add(self, queue: str) -> None:
        self.failed.pop(queue, None)
        if queue in self.namespace.missing_queues:
            self._fail(queue, FailureKind.MISSING)
        elif queue not in self._queues:
            self._queues.append(queue)

    def remove(self, queue: str) -> None:
        self.namespace.note("remove", queue)
        self.failed.pop(queue, None)
        self._leave_out(queue)

    def _leave_out(self, queue: str) -> None:
        self._queues = [each for each in self._queues if each != queue]
        self._put_in_front([each for each in self._held if each.queue == queue])

    def receive(self, limit: int = 100, timeout: float = 0) -> list[Received]:
        broker, known = self.namespace, len(self.failed)
        broker.answer("receive", " ".join(self._queues), timeout)
        self._fail_those_that_are_missing()
        if len(self.failed) == known:
            broker.wait_for_message(self._queues, timeout, self._interrupted)
        self._interrupted.clear()
        batch: list[Received] = []
        for queue in self._queues:
            waiting = broker.queues[queue]
            some = [Received(each, queue, each.message_id) for each in waiting[: limit - len(batch)]]
            del waiting[: len(some)]
            batch += some
        self._held += batch
        return batch

    def _fail_those_that_are_missing(self) -> None:
        for queue in self.namespace.missing_queues.intersection(self._queues):
            self._fail(queue, FailureKind.MISSING)

    def complete(self, received: Sequence[Received]) -> None:
        self.completed += self._settle("complete", received)

    def abandon(self, received: Sequence[Received], *, maybe_duplicate: bool = False) -> None:
        marks = maybe_duplicate and self.namespace.can_mark
        (self.marked if maybe_duplicate else self.abandoned).extend(self._settle("abandon", received))
        for each in received:
            message = marked_maybe_duplicate(each.message) if marks else replace(each.message)
            if each.queue not in self.failed:
                self.namespace.put(each.queue, message)

    def dead_letter(self, letters: Sequence[DeadLetter]) -> None:
        self.dead += self._settle("dead letter", [letter.received for letter in letters])
        for letter in [each for each in letters if each.received.queue not in self.failed]:
            self.namespace.put(letter.received.queue + DEAD_LETTER_SUFFIX, as_dead_letter(letter))

    def _settle(self, how: str, received: Sequence[Received]) -> list[str | None]:
        if self.namespace.receiving is not None and received:
            raise self.namespace.receiving
        for queue in {each.queue for each in received} & self.namespace.stuck_queues:
            self._fail(queue, FailureKind.FAULT)
        settled = [each.token for each in received if each.queue not in self.failed]
        for token in settled:
            self.namespace.note(how, str(token))
        self._held = [each for each in self._held if each.token not in settled]
        return settled

    def _fail(self, queue: str, kind: FailureKind) -> None:
        self._leave_out(queue)
        self.failed[queue] = self.namespace.failure(kind)

    def interrupt(self) -> None:
        self._interrupted.set()
        self.namespace.wake()

    def close(self) -> None:
        self.namespace.note("close receiver", " ".join(self._queues))
        self._put_in_front(self._held)

    def _put_in_front(self, received: Sequence[Received]) -> None:
        self._held = [each for each in self._held if each not in received]
        for each in reversed(received):
            self.namespace.queues[each.queue].insert(0, each.message)


class ScriptedNotices(Notices):
    """Reads and changes the notices that a scripted broker keeps."""

    def __init__(self, broker: ScriptedBroker) -> None:
        self._broker = broker

    def read(self, timeout: float, *, create: bool = True) -> dict[str, float]:
        self._broker.answer("read notices", "", timeout)
        return dict(self._broker.written)

    def put(self, name: str, at: float, timeout: float) -> None:
        self._broker.answer("put notice", name, timeout)
        self._broker.written.setdefault(name, at)

    def take(self, name: str, timeout: float) -> None:
        self._broker.answer("take notice", name, timeout)
        self._broker.written.pop(name, None)

    def close(self) -> None:
        """It holds nothing."""
