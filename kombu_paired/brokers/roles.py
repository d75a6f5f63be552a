"""The roles of a namespace: what a pairing, a syphon and a consumer each ask of it.

A namespace is a broker as the pairing sees it: something that takes messages, gives them back one batch at a time,
and can be asked whether it works. Whoever needs one of these asks for that role alone. Every failure leaves as a
:class:`~kombu_paired.errors.NamespaceFailure` whose kind is already known, and nothing takes longer than the timeout
it was given.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from kombu_paired.brokers.operating import IsLookedInto, KeepsNotices
from kombu_paired.brokers.turn import Turn
from kombu_paired.declarations import Declaration, DeclarationBook, DeclarationKey, Entity
from kombu_paired.errors import NamespaceFailure
from kombu_paired.failures import FailureKind
from kombu_paired.message import Message
from kombu_paired.secrets import NO_SECRETS, Secrets

__all__ = (
    "DEAD_LETTER_SUFFIX",
    "BacklogDepth",
    "Consumes",
    "DeadLetter",
    "KeepsBacklog",
    "Namespace",
    "Primary",
    "Probes",
    "Received",
    "Receiver",
    "Role",
    "Secondary",
    "Sender",
    "Sends",
    "StandsIn",
)

#: The sub-queue that holds what can never be delivered, named as on Service Bus.
DEAD_LETTER_SUFFIX = "/$DeadLetterQueue"


@dataclass(frozen=True)
class Received:
    """A message held under lock by a receiver, until it is settled.

    Attributes:
        message: the stored message; its headers are whatever is in the queue, good or bad.
        queue: where it lies.
        token: what the receiver settles it by.
        again: somebody held it before and is gone without a word; it may have been delivered.
    """

    message: Message
    queue: str
    token: Any = field(repr=False)
    again: bool = False


@dataclass(frozen=True)
class DeadLetter:
    """A message that can never be delivered.

    Attributes:
        received: the message.
        reason: one word, ``DeadLetterReason`` in its headers.
        description: a sentence, ``DeadLetterErrorDescription`` in its headers.
    """

    received: Received
    reason: str
    description: str


@dataclass(frozen=True)
class BacklogDepth:
    """What waits in one backlog queue.

    Attributes:
        queue: its name.
        messages: how many wait to be syphoned; None when the queue is missing.
        oldest_diverted_at: when the oldest was diverted (seconds since 1970, UTC); None when unknown or empty.
        dead_letters: how many are in its dead-letter queue.
        dead_letter_reason: the reason of the oldest of them.
    """

    queue: str
    messages: int | None
    oldest_diverted_at: float | None = None
    dead_letters: int = 0
    dead_letter_reason: str | None = None


class Sender(ABC):
    """A link that sends. For one thread at a time; cheap to keep, and worth keeping.

    Attributes:
        keeps_exchanges: the link alone knows its exchanges, the broker does not: so do Kombu's virtual transports.
        maybe_twice: ids of messages that the last :meth:`send_batch` got through, and may have stored a first time
            before.
    """

    keeps_exchanges = False

    def __init__(self) -> None:
        self.maybe_twice: set[str | None] = set()
        self._declared: set[Entity] = set()
        #: What was declared over this link, by what it is about.
        self._said: dict[DeclarationKey, Declaration] = {}

    @property
    @abstractmethod
    def is_fresh(self) -> bool:
        """Not connected yet: a failure of its next send cannot be blamed on an old connection."""

    @abstractmethod
    def send(self, message: Message, timeout: float) -> None:
        """Send one message and wait until the namespace has it.

        Raises:
            NamespaceFailure: it has it not, or that is unknown (``maybe_stored``).
        """

    @abstractmethod
    def send_batch(self, messages: Sequence[Message], timeout: float) -> list[NamespaceFailure | None]:
        """Send many, confirmed *and routed*; one answer per message, None for success."""

    def send_batch_while(
        self, messages: Sequence[Message], timeout: float, meanwhile: Callable[[], object]
    ) -> list[NamespaceFailure | None]:
        """The same; where answers are waited for apart from the sending, something else is done before, once.

        Arguments:
            meanwhile: must not raise. What it takes is a part of the ``timeout``.
        """
        return self.send_batch(messages, timeout)

    @abstractmethod
    def declare(self, declarations: Iterable[Declaration], timeout: float) -> Any:
        """Make sure that things exist; returns the broker's last answer.

        Raises:
            NamespaceFailure: as for :meth:`send`.
        """

    @abstractmethod
    def close(self) -> None:
        """Say goodbye and let go of the link, promptly."""

    @abstractmethod
    def drop(self) -> None:
        """Let go of the link at once, whatever state it is in; the sender can be used again."""

    def has_declared(self, entity: Entity) -> bool:
        """Whether the application's declarations of an entity were repeated over this link."""
        return entity in self._declared

    def ensure_declared(self, entity: Entity, book: DeclarationBook, timeout: float) -> None:
        """Repeat the application's declarations of an entity, once per link.

        Raises:
            NamespaceFailure: as for :meth:`declare`; no message was sent.
        """
        if self.has_declared(entity):
            return
        unsaid = self._unsaid(book.for_entity(entity))
        if unsaid:
            self._say(unsaid, timeout)
        self._declared.add(entity)

    def declare_one(self, declaration: Declaration, book: DeclarationBook, timeout: float) -> Any:
        """Declare something as the application asks, after what it needs; returns the broker's answer.

        Raises:
            NamespaceFailure: as for :meth:`declare`.
        """
        asks = declaration.operation == "exchange_declare"
        needed = [] if asks and not self.keeps_exchanges else book.needed_by(declaration)
        return self._say([*self._unsaid(needed), declaration], timeout)

    def _unsaid(self, declarations: Iterable[Declaration]) -> list[Declaration]:
        return [each for each in declarations if self._said.get(each.key) != each]

    def _say(self, declarations: Sequence[Declaration], timeout: float) -> Any:
        try:
            answer = self.declare(declarations, timeout)
        except NamespaceFailure as failure:
            raise failure.of_nothing_stored() from failure.cause
        self._said.update((each.key, each) for each in declarations if not each.is_question)
        return answer

    def declare_once(self, declarations: Iterable[Declaration], timeout: float) -> None:
        """Declare what was not declared over this link before.

        Raises:
            NamespaceFailure: as for :meth:`declare`; nothing was sent.
        """
        unsaid = self._unsaid(declarations)
        if unsaid:
            self._say(unsaid, timeout)

    def forget_declared(self, entity: Entity) -> None:
        """The entity turned out to be missing: declare it again, and all that it needs."""
        self._declared.discard(entity)
        self._said.clear()

    def _forget_all_declared(self) -> None:
        """The link is another one from now on."""
        self._declared.clear()
        self._said.clear()


class Receiver(ABC):
    """A link that receives from any number of backlog queues. For one thread; unsettled messages return when it closes.

    A queue that fails alone (it is missing, it is spoilt, there are no rights to it) does not keep the others waiting.

    Attributes:
        failed: queues that failed alone, and what each failed with. Nothing more is received from them until they are
            added again. What was held of them comes again by itself, and to settle it does nothing: whoever settles
            looks here afterwards.
    """

    failed: Mapping[str, NamespaceFailure]

    def raise_failure(self) -> None:
        """For who receives from one queue alone: its failure is no other one's.

        Raises:
            NamespaceFailure: what it failed with, if it did.
        """
        for failure in self.failed.values():
            raise failure

    @abstractmethod
    def add(self, queue: str) -> None:
        """Receive from this queue, too. If it cannot be received from, it is in ``failed`` afterwards, else it is not.

        Raises:
            NamespaceFailure: the link failed.
        """

    @abstractmethod
    def remove(self, queue: str) -> None:
        """Receive from this queue no more; what is held of it goes back.

        Raises:
            NamespaceFailure: the link failed.
        """

    @abstractmethod
    def receive(self, limit: int, timeout: float) -> list[Received]:
        """Up to ``limit`` messages of all queues; waits for the first one at most ``timeout`` seconds.

        It returns sooner, and may have nothing, when a queue fails and when it is interrupted.

        Raises:
            NamespaceFailure: the link failed; what it held is back in its queues.
        """

    def fetch(self, limit: int) -> None:  # noqa: B027  most have nothing to do
        """Take in what has arrived, up to ``limit`` messages, for the next :meth:`receive`; it never waits, nor raises.

        For a caller who waits for something else. Where receiving is asking, there is nothing to take in.
        """

    @abstractmethod
    def complete(self, received: Sequence[Received]) -> None:
        """They are delivered: remove them.

        Raises:
            NamespaceFailure: the link failed, as for all that settles.
        """

    @abstractmethod
    def abandon(self, received: Sequence[Received], *, maybe_duplicate: bool = False) -> None:
        """Put them back unharmed, behind the others, so that they do not come again at once.

        Arguments:
            maybe_duplicate: the primary may have them already. Where the broker lets one change a message that goes
                back, it says so from now on.
        """

    @abstractmethod
    def dead_letter(self, letters: Sequence[DeadLetter]) -> None:
        """Move them to the dead-letter queues of their queues, with their reasons."""

    @abstractmethod
    def interrupt(self) -> None:
        """Make :meth:`receive` return soon, from any thread: the one that waits, or else the next one."""

    @abstractmethod
    def close(self) -> None:
        """Let go of the link, promptly; what is unsettled goes back."""


class Role(ABC):
    """A namespace as somebody sees it who asks one thing of it.

    Attributes:
        side: ``primary`` or ``secondary``.
        uri: its address, without secrets.
        closed: it was closed and cannot be used again.
        secrets: what no text that leaves it may show.
    """

    side: str
    uri: str
    closed: bool = False
    bills_calls: bool = False
    secrets: Secrets = NO_SECRETS

    @property
    def label(self) -> str:
        """For logs and errors: which side, and where."""
        return f"{self.side} namespace {self.uri}"

    @abstractmethod
    def close(self) -> None:
        """Close; links that are still out are of no use afterwards."""


class Sends(Role):
    """It takes messages.

    Attributes:
        max_message_size: bytes it accepts; None if it says nothing.
        fails_by_queue: exchanges that lead to one queue share the health of that queue.
    """

    max_message_size: int | None = None
    fails_by_queue: bool = False

    @abstractmethod
    def sender(self) -> Sender:
        """A new link; it connects when it is first used."""

    def encoded_size(self, message: Message) -> int:
        """Bytes that a message takes here, to be held against ``max_message_size``."""
        return message.size


class Probes(Role):
    """It can be asked whether it works."""

    @abstractmethod
    def probe(self, entity: Entity | None, timeout: float) -> None:
        """Find out whether sends to the entity (or to anything) would work, and store nothing.

        Raises:
            NamespaceFailure: they would not.
        """


class KeepsBacklog(Role):
    """It has backlog queues, and gives back what is in them.

    Attributes:
        syphons_by_itself: who sends to it brings its backlog home, too, unless told not to.
    """

    syphons_by_itself: bool = False

    def turn(self, primary: str) -> Turn | None:
        """A syphon's turn, where those of one machine take turns to bring home the backlog of a primary."""
        return None

    @abstractmethod
    def ensure_backlog_queues(self, names: Sequence[str], create: bool, timeout: float) -> list[str]:
        """The usable ones of these queues. Missing ones are created if ``create``; none is changed or deleted.

        Raises:
            NamespaceFailure: the namespace failed as a whole.
        """

    @abstractmethod
    def receiver(self, queues: Sequence[str], prefetch: int, timeout: float) -> Receiver:
        """A connected receiver of backlog queues, over one connection where the broker lets one.

        Arguments:
            prefetch: messages of each queue that may be fetched ahead.
            timeout: seconds that connecting may take, and each step after it.

        Raises:
            NamespaceFailure: the namespace cannot be reached. A queue that fails alone is in ``failed``.
        """

    @abstractmethod
    def backlog_depths(self, names: Sequence[str], timeout: float) -> list[BacklogDepth]:
        """What waits in these queues.

        Raises:
            NamespaceFailure: the namespace failed.
        """


class StandsIn(Role):
    """Workers of the primary may consume from it: it keeps stand-in queues, and knows their names."""

    @abstractmethod
    def stand_in_queues(self, primary: str, timeout: float, *, give_back: bool = False) -> list[str]:
        """The stand-in queues that were made for this primary, and not forgotten.

        Arguments:
            give_back: put back into them what killed workers held that stood in, where no broker does it.

        Raises:
            NamespaceFailure: the namespace failed.
        """

    @abstractmethod
    def ensure_stand_in_queue(self, primary: str, name: str, arguments: Mapping[str, Any], timeout: float) -> None:
        """Make a stand-in queue, unless it is there, and remember its name.

        Arguments:
            primary: the primary's name.
            name: the stand-in queue's.
            arguments: those of the queue that it stands in for.

        Raises:
            NamespaceFailure: the namespace failed, or does not allow it.
        """

    @abstractmethod
    def forget_stand_in_queue(self, primary: str, name: str, timeout: float) -> bool:
        """Remove a stand-in queue that is empty and that nobody consumes from; whether it is gone.

        Raises:
            NamespaceFailure: the namespace failed.
        """


class Consumes(Role):
    """Applications consume from it, over connections of Kombu's."""

    @abstractmethod
    def consumer_client(self, heartbeat: float | None, connect_timeout: float | None) -> Any:
        """A plain Kombu connection for consuming, not connected."""

    @abstractmethod
    def kind_of(self, exc: BaseException) -> FailureKind:
        """What kind of failure an exception of such a connection is."""

    @abstractmethod
    def limit_answers(self, connection: Any, seconds: float) -> None:
        """Let no answer that a consumer's connection waits for, while it closes, take longer than this."""

    @abstractmethod
    def sever(self, connection: Any) -> None:
        """A consumer's connection is silent: whoever waits for an answer, in whichever thread, is to wait no more."""

    def stand_in_options(self, prefix: str) -> dict[str, Any]:
        """Transport options of a worker's connection that stands in.

        Arguments:
            prefix: what the names of all that it may write begin with.
        """
        return {}

    @abstractmethod
    def try_next_url(self, client: Any) -> int:
        """The address that a consumer's client was made for does not answer: others are tried before it.

        Returns:
            How many addresses there are.
        """


class Primary(Sends, Probes, Consumes):
    """What a pairing, its syphon and its consumers ask of the primary."""


class Secondary(Sends, Probes, KeepsBacklog, KeepsNotices, IsLookedInto, StandsIn, Consumes):
    """What a pairing, its syphon, workers that stand in, and operators ask of the secondary."""


class Namespace(Primary, Secondary):
    """One broker, fit for either side."""
