"""What receives from backlog queues, for the syphon: a link for each, and one thread that looks after all of them."""

from __future__ import annotations

import logging
import math
import time
from collections import deque
from collections.abc import Iterable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager, suppress
from typing import TYPE_CHECKING, Any

from azure.servicebus.exceptions import MessageLockLostError, OperationTimeoutError

from kombu_paired.brokers.bell import Bell
from kombu_paired.brokers.receiving import concerns_link
from kombu_paired.brokers.roles import DEAD_LETTER_SUFFIX, DeadLetter, Received, Receiver
from kombu_paired.brokers.servicebus.amqp_links import ReceiverLink, wait_for_input
from kombu_paired.brokers.servicebus.links import unreached
from kombu_paired.brokers.servicebus.names import entity_name
from kombu_paired.brokers.servicebus.settling import ABANDON, COMPLETE, Outcome, dead_letter, settle, settle_all
from kombu_paired.brokers.servicebus.wire import is_ping, received_backlog_message
from kombu_paired.deadline import LEAST, Deadline
from kombu_paired.errors import NamespaceFailure
from kombu_paired.stand_in import STAND_IN_MARK

if TYPE_CHECKING:
    from kombu_paired.brokers.kombu import KombuNamespace

__all__ = ("ServiceBusReceiver",)

logger = logging.getLogger(__name__)

#: Messages of one receive (the documents of paired namespaces).
BATCH = 100
#: Seconds for which messages that were put back are kept from coming again, as long as others come; well below a lock.
LONGEST_HOLD = 30.0
#: Seconds to wait for others before they come again.
OTHERS_WAIT = 0.5
#: Seconds that a receiver may take to give back what it holds when it closes.
GOODBYE = 1.0
#: Seconds after which a link is looked after although nothing has come: to keep its connection, and its rights.
LOOK_AFTER = 5.0
#: Characters of a dead letter's reason, and of its description.
LONGEST_REASON, LONGEST_DESCRIPTION = 1024, 4096


class _Source:
    """A backlog queue, and the link that receives from it, up to a hundred messages at a time."""

    def __init__(self, namespace: KombuNamespace, queue: str, bell: Bell) -> None:
        self.queue = queue
        self.put_back: deque[Received] = deque()
        self.unsettled: dict[int, Received] = {}
        self._arrived: deque[Received] = deque()
        self._namespace = namespace
        self._put_back_since = 0.0
        self._polled_until = self._look_at = 0.0
        name = queue.removesuffix(DEAD_LETTER_SUFFIX)
        with namespace.failing():
            clients = namespace.new_client(namespace.urls[0]).transport.clients
            self.link: ReceiverLink = clients.receiver(entity_name(name), dead_letters=name != queue, tick=LEAST)
        self._bell = bell

    def open(self, timeout: float) -> None:
        """Connect and attach.

        Raises:
            NamespaceFailure: it cannot be reached, there is no such queue, or no right to it.
        """
        try:
            self.link.open(timeout)
        except Exception as exc:
            raise unreached(self._namespace, exc, whole_namespace=not self.link.was_let_in) from exc
        self.link.keep_what_comes()

    @property
    def next_look(self) -> float:
        """When it is to be looked after although nothing has come."""
        return min(self._look_at, self._polled_until)

    @property
    def _is_to_ask(self) -> bool:
        """The service has sent all that it was asked for, or was asked so long ago that it counts as another poll."""
        return time.monotonic() >= self._polled_until or self.link.credit <= 0

    @property
    def is_due(self) -> bool:
        """There is something to do with its link."""
        is_time = time.monotonic() >= self.next_look
        return is_time or bool(self._arrived) or self._is_to_ask or self.link.has_input

    def take(self, limit: int, poll: float) -> list[Received]:
        """What has come. The service is asked for it, if it is time.

        Arguments:
            poll: seconds that one asking is good for.
        """
        now = time.monotonic()
        if self._is_to_ask and not self._arrived:
            self._polled_until = now + poll
            self.link.ask_for(min(limit, BATCH))
        self._look_at = now + LOOK_AFTER
        self.fetch(0.0)
        return [self._arrived.popleft() for _ in range(min(limit, len(self._arrived)))]

    def fetch(self, wait: float) -> None:
        """Take in what has come; waits so many seconds for something."""
        for raw in self.link.fetch(wait, self._bell):
            if is_ping(raw):
                settle(self.link, raw, COMPLETE)
                continue
            received = self._received(raw)
            self.unsettled[id(raw)] = received
            self._arrived.append(received)

    def _received(self, raw: Any) -> Received:
        """One of a stand-in queue that was delivered before was so to a worker, who may have run its task."""
        again = bool(raw.delivery_count) and STAND_IN_MARK in self.queue
        return Received(received_backlog_message(raw), self.queue, raw, again)

    def keep_back(self, received: Received) -> None:
        """Under lock until no other comes: the service would give it back to us at once, before the others."""
        if not self.put_back:
            self._put_back_since = time.monotonic()
        self.put_back.append(received)

    @property
    def has_kept_too_long(self) -> bool:
        return bool(self.put_back) and time.monotonic() - self._put_back_since > LONGEST_HOLD

    def forget(self, received: Received) -> None:
        self.unsettled.pop(id(received.token), None)


class ServiceBusReceiver(Receiver):
    """Receives from backlog queues under lock."""

    def __init__(self, namespace: KombuNamespace, queues: Sequence[str], timeout: float) -> None:
        self.failed: dict[str, NamespaceFailure] = {}
        self._namespace = namespace
        self._timeout = timeout
        self._interrupted = False
        self._bell = Bell()
        self._sources: dict[str, _Source] = {}
        with self._dropping():
            self._open(queues)

    # -- its queues ---------------------------------------------------------------------------------------------

    def add(self, queue: str) -> None:
        self.failed.pop(queue, None)
        if queue not in self._sources:
            with self._dropping():
                self._open([queue])

    def _open(self, queues: Sequence[str]) -> None:
        """Open links side by side: each takes some trips to the service and back."""
        sources = [_Source(self._namespace, queue, self._bell) for queue in queues]

        def open_one(source: _Source) -> NamespaceFailure | None:
            try:
                source.open(self._timeout)
            except NamespaceFailure as failure:
                return failure
            return None

        with ThreadPoolExecutor(max(len(sources), 1)) as pool:
            failures = list(pool.map(open_one, sources))
        self._sources.update((each.queue, each) for each, failure in zip(sources, failures, strict=True) if not failure)
        for source, failure in zip(sources, failures, strict=True):
            if failure is not None and concerns_link(failure):
                raise failure
            if failure is not None:
                self.failed[source.queue] = failure

    def remove(self, queue: str) -> None:
        self.failed.pop(queue, None)
        source = self._sources.pop(queue, None)
        if source is not None:
            with self._dropping():
                self._give_back([source])
            source.link.close()

    @contextmanager
    def _dropping(self) -> Iterator[None]:
        """Whatever fails as a whole, all links are of no use after it."""
        try:
            with self._namespace.failing():
                yield
        except NamespaceFailure:
            for each in self._sources.values():
                each.link.drop()
            raise

    @contextmanager
    def _alone(self, source: _Source) -> Iterator[None]:
        """What fails in the block fails with this queue, unless it is the connection that does."""
        try:
            with self._namespace.failing():
                yield
        except NamespaceFailure as failure:
            if concerns_link(failure):
                raise
            self.failed[source.queue] = failure
            self._sources.pop(source.queue, None)
            source.link.drop()

    # -- receiving ----------------------------------------------------------------------------------------------

    def receive(self, limit: int, timeout: float) -> list[Received]:
        deadline = Deadline(timeout)
        others = Deadline(OTHERS_WAIT, whole=deadline)
        known = len(self.failed)
        with self._dropping():
            while not self._interrupted:
                batch = self._take(limit, timeout)
                if batch or len(self.failed) > known:
                    return batch
                if others.is_over:
                    self._let_come_again(self._sources.values())
                if deadline.is_over:
                    return []
                self._wait(others.left if any(each.put_back for each in self._sources.values()) else deadline.left)
            self._interrupted = False
        return []

    def _take(self, limit: int, poll: float) -> list[Received]:
        """What has come, from each its share; next time the second one is the first."""
        self._let_come_again(each for each in self._sources.values() if each.has_kept_too_long)
        due = [each for each in self._sources.values() if each.is_due]
        batch: list[Received] = []
        for place, source in enumerate(due):
            share = -(-(limit - len(batch)) // (len(due) - place))
            if share > 0:
                with self._alone(source):
                    batch += source.take(share, poll)
        if batch:
            self._sources[batch[0].queue] = self._sources.pop(batch[0].queue)
        return batch

    def _wait(self, seconds: float) -> None:
        sources = self._sources.values()
        next_look = min((each.next_look for each in sources), default=math.inf) - time.monotonic()
        wait_for_input([each.link for each in sources], max(min(seconds, next_look), 0.0), self._bell)

    def interrupt(self) -> None:
        self._interrupted = True
        self._bell.ring()

    # -- settling -----------------------------------------------------------------------------------------------

    def complete(self, received: Sequence[Received]) -> None:
        with self._dropping():
            self._settle(self._held(received), COMPLETE, self._timeout)

    def _held(self, received: Iterable[Received]) -> list[tuple[_Source, Received]]:
        """Those that came over a link that is still there."""
        found = ((self._sources.get(each.queue), each) for each in received)
        return [(source, each) for source, each in found if source and id(each.token) in source.unsettled]

    def abandon(self, received: Sequence[Received], *, maybe_duplicate: bool = False) -> None:
        for source, each in self._held(received):
            source.keep_back(each)

    def dead_letter(self, letters: Sequence[DeadLetter]) -> None:
        outcomes: dict[str, list[tuple[Any, Outcome]]] = {}
        held = self._held(letter.received for letter in letters)
        words = {id(letter.received.token): letter for letter in letters}
        for _, received in held:
            letter = words[id(received.token)]
            outcome = dead_letter(letter.reason[:LONGEST_REASON], letter.description[:LONGEST_DESCRIPTION])
            outcomes.setdefault(received.queue, []).append((received.token, outcome))
        with self._dropping():
            for queue, some in outcomes.items():
                source = self._sources[queue]
                with self._alone(source):
                    settle_all(source.link, some, self._timeout)
        for source, received in held:
            source.forget(received)

    def _let_come_again(self, sources: Iterable[_Source]) -> None:
        again = [(source, each) for source in sources for each in source.put_back]
        for source, _ in again:
            source.put_back.clear()
        self._settle(again, ABANDON, self._timeout)

    def _give_back(self, sources: Sequence[_Source], timeout: float | None = None) -> None:
        """What is held, and what is on its way."""
        for source in sources:
            source.fetch(0.0)
            source.link.give_back_what_comes()
        held = [(source, each) for source in sources for each in source.unsettled.values()]
        self._settle(held, ABANDON, self._timeout if timeout is None else timeout)

    def _settle(self, held: Sequence[tuple[_Source, Received]], outcome: Outcome, timeout: float) -> None:
        """Tell the service what becomes of them, all at once, and hear that it agrees."""
        deadline = Deadline(timeout)
        told: dict[_Source, list[tuple[Received, dict[str, Any]]]] = {}
        for source, received in held:
            answer = source.link.begin_settling(received.token, outcome.operation)
            told.setdefault(source, []).append((received, answer))
        for source, answers in told.items():
            with self._alone(source):
                self._hear(source, answers, outcome, deadline)

    def _hear(
        self, source: _Source, answers: Sequence[tuple[Received, dict[str, Any]]], outcome: Outcome, deadline: Deadline
    ) -> None:
        """What is not locked any more comes again, and goes home twice with one message id."""
        for received, answer in answers:
            while not answer["settled"]:
                if deadline.is_over:
                    raise OperationTimeoutError(message=f"no answer to a settlement in {source.queue}")
                source.fetch(deadline.left)
            with suppress(MessageLockLostError):
                source.link.end_settling(received.token, outcome.operation, answer)
            source.forget(received)

    def close(self) -> None:
        sources = [each for each in self._sources.values() if each.link.is_open]
        try:
            with self._namespace.failing():
                self._give_back(sources, GOODBYE)
        except NamespaceFailure as failure:
            logger.debug("the service gives them back when their locks end: %s", failure)
        for each in self._sources.values():
            each.link.close()
        self._sources.clear()
        self._bell.close()
