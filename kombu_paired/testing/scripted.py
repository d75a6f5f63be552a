"""A broker in memory whose answers a test scripts, and which remembers what it was asked.

It is a Kombu transport, so that an application runs on it unchanged and without a broker::

    primary, secondary = ScriptedBroker("primary"), ScriptedBroker("secondary")
    app = Celery("shop", broker=f"paired+{primary.uri}")
    app.conf.broker_transport_options = secondary.as_secondary()

    primary.go_away()
    app.send_task("shop.record", queue="orders")
    assert secondary.queues

It is also a namespace, for a :class:`~kombu_paired.pairing.Pairing` that a test makes by itself.

Nothing here waits for real unless it is told to: give it a :class:`ManualClock`, and time passes when the test says so.
"""

from __future__ import annotations

import itertools
import threading
from collections import defaultdict
from collections.abc import Iterable, Sequence
from dataclasses import replace
from typing import Any, NamedTuple
from weakref import WeakValueDictionary

from kombu import Connection
from kombu.transport import TRANSPORT_ALIASES, virtual

from kombu_paired.declarations import Declaration, Entity
from kombu_paired.errors import NamespaceFailure
from kombu_paired.failures import FailureKind
from kombu_paired.message import DIVERTED_AT, Message, marked_maybe_duplicate
from kombu_paired.namespaces.base import (
    DEAD_LETTER_SUFFIX,
    BacklogDepth,
    DeadLetter,
    Namespace,
    Received,
    Receiver,
    Sender,
)
from kombu_paired.namespaces.links import as_dead_letter
from kombu_paired.testing.clocks import Clock

__all__ = (
    "AnswerLost",
    "Asked",
    "ScriptedBroker",
    "ScriptedError",
    "ScriptedReceiver",
    "ScriptedRefusal",
    "ScriptedSender",
    "broker_at",
    "kind_of",
)

SCHEME = "scripted"


class ScriptedError(ConnectionError):
    """What the driver of a scripted broker raises when the broker fails.

    Attributes:
        kind: what kind of failure it is.
    """

    def __init__(self, text: str, kind: FailureKind) -> None:
        super().__init__(text)
        self.kind = kind


class ScriptedRefusal(Exception):
    """What it raises when the broker works, and does not want this message or has no such entity.

    Attributes:
        kind: what kind of failure it is.
    """

    def __init__(self, text: str, kind: FailureKind) -> None:
        super().__init__(text)
        self.kind = kind


class AnswerLost(NamespaceFailure):
    """The broker does what it is asked, and nobody hears of it."""


def kind_of(exc: BaseException) -> FailureKind | None:
    """The kind of a scripted error; a function for the option ``classify_failure``."""
    return exc.kind if isinstance(exc, ScriptedError | ScriptedRefusal) else None


class Asked(NamedTuple):
    """One thing that a broker was asked.

    Attributes:
        side: of the broker.
        what: ``connect``, ``declare``, ``send``, ``probe``, ``receive``, ``complete``, ``abandon``, ``dead letter``, …
        about: the queue, the message id or the number that it was about.
    """

    side: str
    what: str
    about: str


#: Name -> the broker, for Kombu connections to its URL.
_brokers: WeakValueDictionary[str, ScriptedBroker] = WeakValueDictionary()
_numbers = itertools.count(1)


def broker_at(name: str) -> ScriptedBroker:
    """The broker whose URL has this name.

    Raises:
        KeyError: there is none, or nobody holds it any more.
    """
    return _brokers[name]


class ScriptedBroker(Namespace):
    """A broker that does what it is asked, or what its script says. Two never have the same address.

    Arguments:
        side: what it is in the pairing, ``primary`` or ``secondary``.
        clock: what its answers take time on.
        log: where to write what it is asked; two brokers with one log show what came first.

    Attributes:
        uri: its Kombu URL.
        script: answers to the next sends, in turn; None to take the message.
        always: the answer to everything else that is asked; None while it works.
        cost: seconds until a failure is found out.
        failing_queues: queues that take no message.
        missing_queues: backlog queues that somebody else would have to create.
        can_mark: a message that goes back to its queue can be marked.
        receiving: the answer to whoever settles a message; None while that works.
        stored: every message that it took, in turn.
        queues: queue -> the messages that wait there. What went to an exchange waits only where Kombu bound a queue.
        declared: what senders declared, in turn.
    """

    def __init__(self, side: str = "primary", *, clock: Clock | None = None, log: list[Asked] | None = None) -> None:
        self.side = side
        self.name = f"{side}-{next(_numbers)}"
        self.uri = f"{SCHEME}://{self.name}"
        self.clock = clock or Clock()
        self.log: list[Asked] = [] if log is None else log
        self.script: list[NamespaceFailure | None] = []
        self.always: NamespaceFailure | None = None
        self.cost = 0.0
        self.failing_queues: set[str] = set()
        self.missing_queues: set[str] = set()
        self.can_mark = True
        self.receiving: NamespaceFailure | None = None
        self.stored: list[Message] = []
        self.queues: defaultdict[str, list[Message]] = defaultdict(list)
        self.declared: list[Declaration] = []
        self.routing = virtual.BrokerState()
        self._changed = threading.Condition()
        _brokers[self.name] = self

    def as_secondary(self, **more: Any) -> dict[str, Any]:
        """Transport options of a paired connection that has it for its secondary, and more options."""
        return {"secondary": self.uri, "allow_unsafe_secondary": True, "classify_failure": kind_of, **more}

    # -- the script ---------------------------------------------------------------------------------------------

    def failure(self, kind: FailureKind, **facts: Any) -> NamespaceFailure:
        """A failure of this broker, for :attr:`script` or :attr:`always`; facts as of :class:`NamespaceFailure`."""
        return NamespaceFailure(kind, self.label, self._error(kind), **facts)

    def _error(self, kind: FailureKind) -> Exception:
        refuses = kind in (FailureKind.REJECTED, FailureKind.MISSING)
        return (ScriptedRefusal if refuses else ScriptedError)(f"{self.side} {kind.value}", kind)

    def fail(self, *kinds: FailureKind, **facts: Any) -> None:
        """The next sends fail so, in turn."""
        self.script += [self.failure(kind, **facts) for kind in kinds]

    def lose_answer(self) -> None:
        """The next message is taken, and its sender hears nothing of it."""
        kind = FailureKind.TIMEOUT
        self.script.append(AnswerLost(kind, self.label, self._error(kind), maybe_stored=True))

    def go_away(self) -> None:
        """From now on nobody listens."""
        self.always = self.failure(FailureKind.UNREACHABLE, whole_namespace=True)

    def be_busy(self) -> None:
        """From now on it says that it is."""
        self.always = self.failure(FailureKind.THROTTLED)

    def refuse(self) -> None:
        """From now on it refuses the credentials."""
        self.always = self.failure(FailureKind.UNAUTHORIZED)

    def come_back(self) -> None:
        """From now on it works, whatever was said before."""
        self.always = None
        self.script.clear()

    # -- what it was asked --------------------------------------------------------------------------------------

    def asked_for(self, what: str) -> list[str]:
        """What was asked of it in this way, in turn."""
        return [each.about for each in self.log if each.side == self.side and each.what == what]

    @property
    def attempts(self) -> int:
        """How many sends it was asked for."""
        return len(self.asked_for("send"))

    @property
    def probes(self) -> int:
        """How often it was asked whether it works."""
        return len(self.asked_for("probe"))

    def note(self, what: str, about: str = "") -> None:
        """Write into the log what it is asked."""
        self.log.append(Asked(self.side, what, about))

    def answer(self, what: str, about: str = "", timeout: float | None = None) -> None:
        """Note what it is asked, and fail if it fails always.

        Raises:
            NamespaceFailure: what :attr:`always` is.
        """
        self.note(what, about)
        if self.always is not None:
            self.clock.sleep(self.cost if timeout is None else min(self.cost, timeout))
            raise self.always

    def let_in(self) -> None:
        """Accept a connection.

        Raises:
            NamespaceFailure: it is away, or refuses the credentials. One that is busy or faulty accepts it.
        """
        always = self.always
        if (
            always is None
            or always.whole_namespace
            or always.kind in (FailureKind.UNREACHABLE, FailureKind.UNAUTHORIZED)
        ):
            self.answer("connect")
        else:
            self.note("connect")

    def take(self, message: Message, queues: Iterable[str] | None = None) -> None:
        """Take a message, as the script says.

        Arguments:
            queues: where it waits; by default where the default exchange leads to.

        Raises:
            NamespaceFailure: what the script says.
        """
        self.note("send", message.entity.path)
        failure = self.script.pop(0) if self.script else self.always
        if failure is None and message.routing_key in self.failing_queues:
            failure = self.failure(FailureKind.FAULT)
        if failure is None or isinstance(failure, AnswerLost):
            self.stored.append(message)
            for queue in queues if queues is not None else self._default_queues(message):
                self.put(queue, message)
        if failure is not None:
            self.clock.sleep(self.cost)
            raise failure

    def _default_queues(self, message: Message) -> list[str]:
        return [] if message.exchange else [message.routing_key]

    def put(self, queue: str, message: Message) -> None:
        """Let a message wait in a queue, past the script."""
        with self._changed:
            self.queues[queue].append(message)
            self._changed.notify_all()

    def wait_for_message(self, queue: str, seconds: float, interrupted: threading.Event) -> None:
        """Wait until there is one, until somebody interrupts, or for so long."""
        until = self.clock() + seconds
        with self._changed:
            while not self.queues[queue] and not interrupted.is_set() and (left := until - self.clock()) > 0:
                self.clock.wait(self._changed, left)

    def wake(self) -> None:
        """Let those who wait look again."""
        with self._changed:
            self._changed.notify_all()

    # -- a namespace --------------------------------------------------------------------------------------------

    def kind_of(self, exc: BaseException) -> FailureKind:
        return kind_of(exc) or FailureKind.FAULT

    def consumer_client(self, heartbeat: float | None, connect_timeout: float | None) -> Connection:
        return Connection(self.uri, heartbeat=heartbeat or 0, connect_timeout=connect_timeout or 5)

    def hurry(self, connection: Any, seconds: float) -> None:
        self.note("hurry", f"{seconds:g}")

    def try_next_url(self, client: Any) -> int:
        return 1

    def sender(self) -> Sender:
        return ScriptedSender(self)

    def receiver(self, queue: str, prefetch: int, timeout: float) -> ScriptedReceiver:
        self.answer("open receiver", queue, timeout)
        return ScriptedReceiver(self, queue)

    def probe(self, entity: Entity | None, timeout: float) -> None:
        self.answer("probe", entity.path if entity else "", timeout)

    def ensure_backlog_queues(self, names: Sequence[str], create: bool, timeout: float) -> list[str]:
        self.answer("ensure", " ".join(names))
        return [name for name in names if create or name not in self.missing_queues]

    def backlog_depths(self, names: Sequence[str], timeout: float) -> list[BacklogDepth]:
        self.answer("depths", " ".join(names), timeout)
        return [self._depth(name) for name in names]

    def _depth(self, name: str) -> BacklogDepth:
        waiting, dead = self.queues[name], self.queues[name + DEAD_LETTER_SUFFIX]
        return BacklogDepth(
            name,
            len(waiting),
            oldest_diverted_at=float(waiting[0].headers[DIVERTED_AT]) if waiting else None,
            dead_letters=len(dead),
            dead_letter_reason=str(dead[0].headers["DeadLetterReason"]) if dead else None,
        )

    def close(self) -> None:
        self.closed = True


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
    """A link that receives.

    Attributes:
        completed, abandoned, marked, dead: ids of the messages that became that; what is marked goes back, too.
    """

    def __init__(self, namespace: ScriptedBroker, queue: str) -> None:
        self.namespace = namespace
        self.queue = queue
        self.completed: list[str | None] = []
        self.abandoned: list[str | None] = []
        self.marked: list[str | None] = []
        self.dead: list[str | None] = []
        self._held: list[Received] = []
        self._interrupted = threading.Event()

    def receive(self, limit: int = 100, timeout: float = 0) -> list[Received]:
        broker = self.namespace
        broker.answer("receive", self.queue, timeout)
        broker.wait_for_message(self.queue, timeout, self._interrupted)
        waiting = broker.queues[self.queue]
        batch = [Received(each, each.message_id) for each in waiting[:limit]]
        del waiting[:limit]
        self._held += batch
        return batch

    def complete(self, received: Sequence[Received]) -> None:
        self.completed += self._settle("complete", received)

    def abandon(self, received: Sequence[Received], *, maybe_duplicate: bool = False) -> None:
        marks = maybe_duplicate and self.namespace.can_mark
        (self.marked if maybe_duplicate else self.abandoned).extend(self._settle("abandon", received))
        for each in received:
            message = marked_maybe_duplicate(each.message) if marks else replace(each.message)
            self.namespace.put(self.queue, message)

    def dead_letter(self, letters: Sequence[DeadLetter]) -> None:
        self.dead += self._settle("dead letter", [letter.received for letter in letters])
        for letter in letters:
            self.namespace.put(self.queue + DEAD_LETTER_SUFFIX, as_dead_letter(letter, self.queue))

    def _settle(self, how: str, received: Sequence[Received]) -> list[str | None]:
        if self.namespace.receiving is not None and received:
            raise self.namespace.receiving
        settled = [each.token for each in received]
        for token in settled:
            self.namespace.note(how, str(token))
        self._held = [each for each in self._held if each.token not in settled]
        return settled

    def interrupt(self) -> None:
        self._interrupted.set()
        self.namespace.wake()

    def close(self) -> None:
        self.namespace.note("close receiver", self.queue)
        held, self._held = self._held, []
        self.namespace.queues[self.queue][:0] = [each.message for each in held]


TRANSPORT_ALIASES[SCHEME] = "kombu_paired.testing.scripted_transport:Transport"
