"""Receives messages from backlog queues under lock, by scripts of our own, over one connection.

Kombu takes a message out with ``BRPOP`` and notes it as unacknowledged in a second step: a process killed in between
loses it, and a message that is not JSON is lost at once. The backlog may do neither, so a receiver here takes messages
and locks them in one script. Locks last a minute, as on Service Bus; what is locked longer goes back to its queue.

A script cannot wait. Who puts a message into a backlog queue rings the bell of that queue, a list of its own: receivers
wait for bells with ``BRPOP``, over all of their queues at once, and each ring wakes one. What is taken so is worth
nothing, and a bell that was not heard costs no more than a moment: all look every five seconds in any case. A look is
one ``EXISTS``; the script, which asks for some fifty things, follows where there is something.
"""

from __future__ import annotations

import time
import uuid
from collections import deque
from collections.abc import Iterable, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any
from weakref import WeakKeyDictionary

from kombu.utils.encoding import bytes_to_str
from redis.exceptions import NoScriptError, ResponseError

from kombu_paired.brokers.forms import as_dead_letter
from kombu_paired.brokers.receiving import LinkReceiver
from kombu_paired.brokers.redis.compat import socket_of
from kombu_paired.brokers.redis.items import item_of_message, message_of_item
from kombu_paired.brokers.redis.links import RedisLink
from kombu_paired.brokers.redis.scripts import RECEIVE, SETTLE
from kombu_paired.brokers.roles import DEAD_LETTER_SUFFIX, DeadLetter, Received
from kombu_paired.deadline import Deadline
from kombu_paired.errors import NamespaceFailure
from kombu_paired.failures import FailureKind
from kombu_paired.message import Message, marked_maybe_duplicate

if TYPE_CHECKING:
    from kombu_paired.brokers.kombu import KombuNamespace

__all__ = ("LOCK_SECONDS", "RedisReceiver")

#: Seconds a received message stays locked: LockDuration of the documents.
LOCK_SECONDS = 60
#: Seconds after which what was asked for ahead, and not received, goes back: whoever received it needs the rest.
FRESH = LOCK_SECONDS / 4
#: Seconds for which Redis lets a receiver wait for a bell, between two looks at empty queues. Old servers: whole ones.
PAUSE = 5
#: The same where less than a second is left, and where no bell may be waited for.
SHORT_PAUSE, DEAF_PAUSE = 0.25, 1.0
#: Header of what Kombu has put back into a queue, a stand-in queue for one, whose consumer was gone.
REDELIVERED = "redelivered"
#: Seconds that a polite goodbye may take.
GOODBYE = 0.5


@dataclass
class _Question:
    """What the script is asked.

    Attributes:
        queues: those that are asked for, in the order of the keys.
        owed: of each the tokens that are settled first.
        tokens: what those begin with that it gives.
        connection: over which it was asked ahead.
    """

    queues: list[str]
    keys: list[str]
    arguments: list[Any]
    owed: dict[str, list[str]]
    tokens: str
    connection: Any = None

    @property
    def terms(self) -> list[Any]:
        """As Redis takes them, after the script's name."""
        return [len(self.keys), *self.keys, *self.arguments]


class RedisReceiver(LinkReceiver):
    """Takes messages from backlog queues under lock."""

    link: RedisLink

    def __init__(self, namespace: KombuNamespace, queues: Sequence[str], timeout: float) -> None:
        super().__init__(namespace, RedisLink(namespace))
        self._holder = uuid.uuid4().hex
        self._asked = 0  # times
        self._timeout = timeout
        self._queues: deque[str] = deque()
        self._held: dict[str, dict[str, None]] = {}  # queue -> tokens of what is not settled, oldest first
        self._owed = _owed.setdefault(namespace, {})
        self._may_wait = True
        self._looks = True  # by the script, at what is there
        self._question: _Question | None = None  # asked ahead, and not answered yet
        self._ahead: list[Received] = []  # of its answer
        self._fresh_until = 0.0
        self.link.open(timeout)
        with self._failing():
            self.link.bound(timeout)
            self._client = self.link.raw()
        for queue in queues:
            self.add(queue)

    # -- its queues ---------------------------------------------------------------------------------------------

    def add(self, queue: str) -> None:
        self.failed.pop(queue, None)
        if queue not in self._queues:
            self._queues.append(queue)
            self._looks = True

    def remove(self, queue: str) -> None:
        self._give_back([queue])
        self._ahead = [each for each in self._ahead if each.queue != queue]
        self._leave_out(queue)
        self.failed.pop(queue, None)

    def _leave_out(self, queue: str) -> None:
        if queue in self._queues:
            self._queues.remove(queue)

    def _fail(self, queue: str, reason: bytes) -> None:
        self.failed[queue] = self.namespace.failure(ResponseError(bytes_to_str(reason)))
        self._leave_out(queue)

    def _locks(self, queue: str) -> list[str]:
        return [self.link.key(queue + "/$Locks"), self.link.key(queue + "/$Locked")]

    def _target(self, queue: str) -> str:
        """The list that messages without a priority lie in."""
        return self.link.lists(queue)[0]

    # -- receiving ----------------------------------------------------------------------------------------------

    def take_in(self, limit: int) -> None:
        """Ask for them: Redis answers while the caller does something else."""
        if self._question is not None or self._ahead or not (self._looks and self._queues):
            return
        self._fresh_until = time.monotonic() + FRESH
        question = self._asking(limit)
        question.connection = self.link.channel.pool.get_connection()
        self._question = question
        question.connection.send_command("EVALSHA", RECEIVE.sha, *question.terms)

    def _hear(self) -> None:
        """Read the answer to what was asked ahead. Redis answers in turn: before this it says nothing else."""
        question, self._question = self._question, None
        if question is None:
            return
        with self._failing():
            try:
                answer = question.connection.read_response()
            except NoScriptError:  # the next one brings the text
                return
            finally:
                self.link.channel.pool.release(question.connection)
            self._ahead += self._taken(question, answer)

    def receive(self, limit: int, timeout: float) -> list[Received]:
        self._require_link()
        self._hear()
        if time.monotonic() > self._fresh_until:
            self._give_back_ahead()
        if self._ahead:
            found, self._ahead = self._ahead[:limit], self._ahead[limit:]
            return found
        deadline = Deadline(timeout)
        known = len(self.failed)
        with self._failing():
            while not self._was_interrupted():
                if self._looks or self._may_find_some():
                    taken = self._take(limit)
                    self._looks = bool(taken)
                    if taken or len(self.failed) > known:
                        return taken
                if deadline.is_over:
                    return []
                self._wait(deadline.left)
        return []

    def _may_find_some(self) -> bool:
        """Whether something lies in the queues, is locked, or is to be settled first."""
        if any(self._owed.get(queue) for queue in self._queues):
            return True
        keys = [key for queue in self._queues for key in (self._locks(queue)[0], *self.link.lists(queue))]
        try:
            return bool(keys) and bool(self._client.exists(*keys))
        except ResponseError as exc:
            if self.namespace.kind_of(exc) is not FailureKind.UNAUTHORIZED:
                raise
            return True  # the script may be allowed all the same

    def _take(self, limit: int) -> list[Received]:
        """What the queues have."""
        if not self._queues:
            return []
        question = self._asking(limit)
        return self._taken(question, RECEIVE.run(self._client, question.keys, question.arguments))

    def _asking(self, limit: int) -> _Question:
        """The question for what the queues have; in the next one the second of them is the first."""
        queues = list(self._queues)
        self._queues.rotate(-1)
        self._asked += 1
        keys: list[str] = []
        arguments: list[Any] = []
        owed: dict[str, list[str]] = {}
        for queue in queues:
            lists = self.link.lists(queue)
            keys += [*self._locks(queue), self.link.bell(queue), *lists]
            owed[queue] = list(self._owed.get(queue, ()))
            arguments += [len(owed[queue]), *owed[queue]]
        tokens = f"{self._holder}:{self._asked}"
        found = [limit, int(LOCK_SECONDS * 1000), tokens, len(lists)]
        return _Question(queues, keys, [*found, *arguments], owed, tokens)

    def _taken(self, question: _Question, answer: Any) -> list[Received]:
        taken: list[Received] = []
        at = 0
        while at < len(answer):
            queue, count, first = question.queues[answer[at]], answer[at + 1], at + 2
            at = first + max(count, 1)
            if not count:
                self._fail(queue, answer[first])
            for item in answer[first : first + count]:
                taken.append(self._received(queue, f"{question.tokens}:{len(taken)}", item))
        for queue, tokens in question.owed.items():
            if tokens and queue not in self.failed:
                self._owed[queue] = [each for each in self._owed[queue] if each not in tokens]
        return taken

    def _received(self, queue: str, token: str, item: bytes) -> Received:
        self._held.setdefault(queue, {})[token] = None
        message = message_of_item(item)
        again = REDELIVERED in message.headers  # its worker is gone, who may have run its task
        return Received(message, queue, token, again)

    def _wait(self, seconds: float) -> None:
        """Until a bell rings, or somebody interrupts; not longer than a moment."""
        pause = min(int(seconds), PAUSE)
        if pause < 1 or not self._queues or not self._may_wait:
            self._bell.wait(min(seconds, SHORT_PAUSE if self._may_wait else DEAF_PAUSE))
            return
        pool = self.link.channel.pool
        connection = pool.get_connection()
        try:
            connection.send_command("BRPOP", *map(self.link.bell, self._queues), pause)
            if self._bell.wait(pause + self._timeout, socket_of(connection)):
                self._looks = connection.read_response() is not None
            elif self._bell.rang:
                connection.disconnect()  # it may just be taking a ring from others, so this one looks
                self._looks = True
            else:
                raise TimeoutError("no answer to BRPOP")
        except ResponseError as exc:
            if self.namespace.kind_of(exc) is not FailureKind.UNAUTHORIZED:
                raise
            self._may_wait = False  # an access list is against it
        finally:
            pool.release(connection)

    # -- settling -----------------------------------------------------------------------------------------------

    def complete(self, received: Sequence[Received]) -> None:
        try:
            self._put("", "", [(each, "") for each in received])
        except NamespaceFailure:
            self._owe(received)
            raise
        self._owe(each for each in received if each.queue in self.failed)

    def _owe(self, received: Iterable[Received]) -> None:
        for each in received:
            self._owed.setdefault(each.queue, []).append(each.token)
            self._held.get(each.queue, {}).pop(each.token, None)  # it is not given back

    def abandon(self, received: Sequence[Received], *, maybe_duplicate: bool = False) -> None:
        def form(message: Message) -> str:
            return item_of_message(self.link.channel, marked_maybe_duplicate(message)) if maybe_duplicate else ""

        self._put("LPUSH", "", [(each, form(each.message)) for each in received])

    def dead_letter(self, letters: Sequence[DeadLetter]) -> None:
        dead = [(letter.received, item_of_message(self.link.channel, as_dead_letter(letter))) for letter in letters]
        self._put("LPUSH", DEAD_LETTER_SUFFIX, dead)

    def _put(self, command: str, suffix: str, items: Sequence[tuple[Received, str]]) -> None:
        """Unlock messages; if there is a command, into a list of their queues, in another form if there is one."""
        forms: dict[str, dict[str, str]] = {}
        for received, form in items:
            if received.queue not in self.failed:
                forms.setdefault(received.queue, {})[received.token] = form
        self._settle(command, suffix, forms)

    def _settle(self, command: str, suffix: str, forms: Mapping[str, Mapping[str, str]]) -> None:
        self._hear()
        if not forms:
            return
        keys: list[str] = []
        arguments: list[Any] = []
        for queue, pairs in forms.items():
            keys += [*self._locks(queue), self.link.key(queue + suffix) if suffix else self._target(queue)]
            arguments += [len(pairs), *pairs, *(pairs.values() if command else ())]
        with self._failing():
            answer: Any = SETTLE.run(self._client, keys, [command, *arguments])
        queues = list(forms)
        for place, reason in zip(answer[::2], answer[1::2], strict=True):
            self._fail(queues[place], reason)
        for queue, pairs in forms.items():
            if queue not in self.failed:
                for token in pairs:
                    self._held.get(queue, {}).pop(token, None)

    def _give_back(self, queues: Iterable[str]) -> None:
        """Put what is held to the front again, in order."""
        self._hear()
        held = {queue: self._held.pop(queue) for queue in list(queues) if self._held.get(queue)}
        self._settle("RPUSH", "", {queue: dict.fromkeys(reversed(tokens), "") for queue, tokens in held.items()})

    def _give_back_ahead(self) -> None:
        """Their locks may run out before they are delivered, and somebody else deliver them, too."""
        forms: dict[str, dict[str, str]] = {}
        for each in reversed(self._ahead):
            forms.setdefault(each.queue, {})[each.token] = ""
        self._ahead = []
        self._settle("RPUSH", "", forms)

    def close(self) -> None:
        if (any(self._held.values()) or self._question is not None) and self.link.is_open:
            with suppress(NamespaceFailure), self._failing(), self.link.within(GOODBYE):  # else its locks run out
                self._give_back(self._held)
        super().close()


#: Of each backlog queue, the tokens of messages that were delivered when Redis could not be told: a replica, unable to
#: save, silent. Whoever receives next in this process tells it first, so that they do not come a second time.
_owed: WeakKeyDictionary[KombuNamespace, dict[str, list[str]]] = WeakKeyDictionary()
