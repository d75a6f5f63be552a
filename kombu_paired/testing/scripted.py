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
from collections.abc import Iterable, Mapping, Sequence
from typing import Any
from weakref import WeakValueDictionary

from kombu import Connection
from kombu.transport import TRANSPORT_ALIASES, virtual

from kombu_paired.brokers.operating import Notices
from kombu_paired.brokers.roles import DEAD_LETTER_SUFFIX, BacklogDepth, Namespace, Sender
from kombu_paired.declarations import Declaration, Entity
from kombu_paired.errors import NamespaceFailure
from kombu_paired.failures import FailureKind
from kombu_paired.message import DIVERTED_AT, Message
from kombu_paired.testing.clocks import Clock
from kombu_paired.testing.script import AnswerLost, Asked, Script, ScriptedError, ScriptedRefusal, kind_of
from kombu_paired.testing.scripted_links import ScriptedNotices, ScriptedReceiver, ScriptedSender

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


#: Name -> the broker, for Kombu connections to its URL.
_brokers: WeakValueDictionary[str, ScriptedBroker] = WeakValueDictionary()
_numbers = itertools.count(1)


def broker_at(name: str) -> ScriptedBroker:
    """The broker whose URL has this name.

    Raises:
        KeyError: there is none, or nobody holds it any more.
    """
    return _brokers[name]


class ScriptedBroker(Script, Namespace):
    """A broker that does what it is asked, or what its script says. Two never have the same address.

    Arguments:
        side: what it is in the pairing, ``primary`` or ``secondary``.
        clock: what its answers take time on.
        log: where to write what it is asked; two brokers with one log show what came first.

    Attributes:
        uri: its Kombu URL.
        script, always, cost: what it answers, and how late; see :class:`~kombu_paired.testing.script.Script`.
        failing_queues: queues that take no message.
        missing_queues: backlog queues that are not there. Who may create them does.
        stuck_queues: backlog queues in which nothing can be settled.
        can_mark: a message that goes back to its queue can be marked.
        keeps_notices: whether anything can be isolated; it is not looked at otherwise.
        written: the notices.
        receiving: the answer to whoever settles a message; None while that works.
        stored: every message that it took, in turn.
        queues: queue -> the messages that wait there. What went to an exchange waits only where Kombu bound a queue.
        declared: what senders declared, in turn.
    """

    def __init__(self, side: str = "primary", *, clock: Clock | None = None, log: list[Asked] | None = None) -> None:
        super().__init__(side, clock or Clock(), [] if log is None else log)
        self.name = f"{side}-{next(_numbers)}"
        self.uri = f"{SCHEME}://{self.name}"
        self.failing_queues: set[str] = set()
        self.missing_queues: set[str] = set()
        self.stuck_queues: set[str] = set()
        self.can_mark = True
        self.written: dict[str, float] = {}
        self.receiving: NamespaceFailure | None = None
        self.stored: list[Message] = []
        self.queues: defaultdict[str, list[Message]] = defaultdict(list)
        self.declared: list[Declaration] = []
        self.routing = virtual.BrokerState()
        self._stand_in_queues: set[str] = set()
        self._changed = threading.Condition()
        _brokers[self.name] = self

    def as_secondary(self, **more: Any) -> dict[str, Any]:
        """Transport options of a paired connection that has it for its secondary, and more options."""
        return {"secondary": self.uri, "allow_unsafe_secondary": True, "classify_failure": kind_of, **more}

    # -- the messages ------------------------------------------------------------------------------------------

    def take(self, message: Message, queues: Iterable[str] | None = None) -> None:
        """Take a message, as the script says.

        Arguments:
            queues: where it waits; by default where the default exchange leads to.

        Raises:
            NamespaceFailure: what the script says.
        """
        self.note("send", message.entity.path)
        failure = self._next_answer()
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

    def wait_for_message(self, queues: Sequence[str], seconds: float, interrupted: threading.Event) -> None:
        """Wait until there is one in any of the queues, until somebody interrupts, or for so long."""
        until = self.clock() + seconds
        with self._changed:
            while not any(self.queues[queue] for queue in queues):
                if interrupted.is_set() or (left := until - self.clock()) <= 0:
                    return
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

    def sever(self, connection: Any) -> None:
        """It keeps nobody waiting."""

    def limit_answers(self, connection: Any, seconds: float) -> None:
        self.note("limit_answers", f"{seconds:g}")

    def try_next_url(self, client: Any) -> int:
        return 1

    def sender(self) -> Sender:
        return ScriptedSender(self)

    def receiver(self, queues: Sequence[str], prefetch: int, timeout: float) -> ScriptedReceiver:
        self.answer("open receiver", " ".join(queues), timeout)
        return ScriptedReceiver(self, queues)

    def probe(self, entity: Entity | None, timeout: float) -> None:
        self.answer("probe", entity.path if entity else "", timeout)

    def ensure_backlog_queues(self, names: Sequence[str], create: bool, timeout: float) -> list[str]:
        self.answer("ensure", " ".join(names))
        if create:
            self.missing_queues -= set(names)
        return [name for name in names if name not in self.missing_queues]

    def backlog_depths(self, names: Sequence[str], timeout: float) -> list[BacklogDepth]:
        self.answer("depths", " ".join(names), timeout)
        return [self._depth(name) for name in names]

    def stand_in_queues(self, primary: str, timeout: float, *, give_back: bool = False) -> list[str]:
        self.answer("stand-in queues", primary, timeout)
        return sorted(self._stand_in_queues)

    def ensure_stand_in_queue(self, primary: str, name: str, arguments: Mapping[str, Any], timeout: float) -> None:
        self.answer("ensure", name, timeout)
        self._stand_in_queues.add(name)

    def forget_stand_in_queue(self, primary: str, name: str, timeout: float) -> bool:
        self.answer("forget", name, timeout)
        if self.queues[name]:
            return False
        self._stand_in_queues.discard(name)
        return True

    def notices(self, primary: str) -> Notices:
        return ScriptedNotices(self) if self.keeps_notices else super().notices(primary)

    def look_into(self, queues: Sequence[str], limit: int, timeout: float) -> dict[str, list[Message]]:
        self.answer("look into", " ".join(queues), timeout)
        return {queue: self.queues[queue][:limit] for queue in queues}

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


TRANSPORT_ALIASES[SCHEME] = "kombu_paired.testing.scripted_transport:Transport"
