"""A trip home that tests take: a pump between two scripted brokers, a batch at a time."""

from __future__ import annotations

import time
from collections.abc import Sequence
from dataclasses import replace
from typing import Any

from kombu_paired import Syphon
from kombu_paired.errors import NamespaceFailure
from kombu_paired.events import Event, EventKind
from kombu_paired.failures import FailureKind
from kombu_paired.message import Diversion, Message, to_backlog
from kombu_paired.options import PairedNamespaceOptions
from kombu_paired.pairing import Pairing
from kombu_paired.syphon import MessagePump
from kombu_paired.testing import ScriptedBroker
from kombu_paired.testing.clocks import Clock
from kombu_paired.testing.scripted import Asked

QUEUE = "contoso/x-servicebus-transfer/0"


class Trip:
    """A pump, the two ends of its way, and what it tells."""

    def __init__(self, *, can_mark: bool = True, clock: Clock | None = None, queues: Sequence[str] = (QUEUE,)) -> None:
        self.log: list[Asked] = []  # what both were asked, in turn
        self.primary = ScriptedBroker("primary", clock=clock, log=self.log)
        self.secondary = ScriptedBroker("secondary", clock=clock, log=self.log)
        self.secondary.can_mark = can_mark
        self.pairing = Pairing(
            "contoso",
            PairedNamespaceOptions(secondary="scripted://secondary", backlog_queue_count=len(queues)),
            self.primary,
            self.secondary,
        )
        self.events: list[Event] = []
        self.pairing.events.listen(self.events.append)
        self.syphon = Syphon(self.pairing, poll=1)
        self.syphon.stopping.wait = lambda timeout=None: False  # type: ignore[method-assign]
        self.pump = MessagePump(self.syphon, queues, self.primary.clock)
        self.backlog = self.secondary.receiver(queues, 0, 1)

    @property
    def waiting(self) -> list[Message]:
        """What is in the backlog queue."""
        return self.secondary.queues[QUEUE]

    def put(self, *names: str, exchange: str = "", routing_key: str = "orders", queue: str = QUEUE) -> None:
        why = Diversion(time.time(), time.time(), "web-1/1", "unreachable")
        for name in names:
            message = Message("{}", exchange, routing_key, properties={"message_id": name})
            self.secondary.put(queue, to_backlog(message, queue, why))

    def move(self, *answers: NamespaceFailure | None, again: bool = False) -> None:
        self.syphon.primary_is_back()
        self.primary.script = list(answers)
        batch = [replace(each, again=again) for each in self.backlog.receive()]
        self.pump._move_in_turn(self.backlog, batch)

    def failure(self, kind: FailureKind, **facts: Any) -> NamespaceFailure:
        return self.primary.failure(kind, **facts)

    def came_home(self) -> dict[str | None, bool]:
        """Message id -> whether its last ``syphoned`` said that it may be a duplicate."""
        return {each.message_id: each.maybe_duplicate for each in self.events if each.kind is EventKind.SYPHONED}
