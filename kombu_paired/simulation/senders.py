"""The senders while something is down: circuits, diversions, pings, as the pairing has them.

A process sends one message after the other: one that waits for a timeout keeps the next ones waiting.
"""

from __future__ import annotations

import heapq
from collections.abc import Callable
from dataclasses import dataclass

from kombu_paired.simulation.homecoming import OVERHEAD, Diverted, Homecoming
from kombu_paired.simulation.plan import SECOND, Entity, Part
from kombu_paired.simulation.world import Message, World

__all__ = ("Senders",)

#: Microseconds until a failure shows, and for which everybody believes one of the whole namespace.
_UNTIL_FAILED = {"unreachable": 4_000, "timeout": 10 * SECOND, "fault": 15_000}
_FRESH = 2 * SECOND
_KNOWN = 150
_BACKLOG_RETRY = 60 * SECOND
_REFUSED_RETRY = 5 * SECOND
_MOST_REFUSALS = 3
_JITTER = 0.1


@dataclass
class _Circuit:
    """An entity that one process cannot reach."""

    process: int
    since: int
    failed_over: bool = False


class Senders:
    """All processes, as far as anything is wrong.

    Attributes:
        last_trouble: true time of the latest event of an outage.
    """

    def __init__(
        self, world: World, homecoming: Homecoming, on_success: Callable[[Message, Entity, int], None]
    ) -> None:
        self._world = world
        self._homecoming = homecoming
        self._on_success = on_success
        self._circuits: dict[tuple[int, int], _Circuit] = {}
        self._due: list[tuple[int, int, Callable[[int], None]]] = []
        self._count = 0
        self._busy_until: dict[int, int] = {}
        self._fresh_until: dict[int, int] = {}
        self._queue_of: dict[int, int] = {}
        self._pulled: dict[tuple[int, int], int] = {}
        self._restored_left = world.settings.lost_restored
        self.last_trouble = 0

    @property
    def at_peace(self) -> bool:
        """No entity ails, and nothing waits to be done."""
        return not self._circuits and not self._due

    def at(self, time: int, action: Callable[[int], None]) -> None:
        """Do something at a true time; it is told the time."""
        self._count += 1
        heapq.heappush(self._due, (time, self._count, action))

    def run_until(self, time: int) -> None:
        """Do what is due before a time."""
        while self._due and self._due[0][0] < time:
            due, _, action = heapq.heappop(self._due)
            action(due)

    # -- sending ------------------------------------------------------------------------------------------------

    def send(self, message: Message, slot: int, entity: Entity, time: int) -> None:
        """A process sends a message, as soon as it has sent those before."""
        busy = self._busy_until.get(slot, 0)
        if time < busy:
            self.at(busy, lambda due: self.send(message, slot, entity, due))
            return
        circuit = self._circuit(slot, entity, time)
        if circuit and not circuit.failed_over and time - circuit.since >= self._failover_interval:
            self._fail_over(slot, entity, circuit, time, None)
        if circuit and circuit.failed_over:
            self._divert(message, slot, entity, time, time, None)
            return
        part = self._world.down(entity, slot, time)
        if part is None:
            self._succeed(message, slot, entity, time)
        else:
            self._fail(message, slot, entity, time, part)

    @property
    def _failover_interval(self) -> int:
        return int(self._world.settings.failover_interval * SECOND)

    def _circuit(self, slot: int, entity: Entity, time: int) -> _Circuit | None:
        """What the process knows; one that was started since knows nothing."""
        key = (slot, entity.index)
        found = self._circuits.get(key)
        if found and found.process != self._world.plan.incarnation(slot, time).index:
            del self._circuits[key]
            return None
        return found

    def _succeed(self, message: Message, slot: int, entity: Entity, time: int) -> None:
        world = self._world
        took = world.rng.randint(600, 6_000)
        done = time + took
        if self._circuits.pop((slot, entity.index), None):
            self._tell_restored(slot, entity, done)
        own = world.tell(
            message, slot, done + 1, "sent", entity, first_attempt=world.own(slot, time), size=message.size, ms=took
        )
        if own is not None:
            process = world.plan.incarnation(slot, done + 1).index
            world.outages.sent(process, entity.pairing, entity.path, own)
        self._on_success(message, entity, done)

    def _fail(self, message: Message, slot: int, entity: Entity, time: int, part: Part) -> None:
        """The primary does not take it, which shows after a while."""
        is_known = part.failure != "fault" and time < self._fresh_until.get(slot, 0)
        done = time + (_KNOWN if is_known else _UNTIL_FAILED[part.failure])
        self._busy_until[slot] = done + 5
        if not is_known:
            self._fresh_until[slot] = done + _FRESH
        self.at(done, lambda due: self._failed(message, slot, entity, time, due, part.failure))

    def _failed(self, message: Message, slot: int, entity: Entity, started: int, time: int, failure: str) -> None:
        text = f"primary amqp://main-broker//: {failure}: simulated"
        circuit = self._circuit(slot, entity, time)
        if circuit is None:
            circuit = _Circuit(self._world.plan.incarnation(slot, time).index, time)
            self._circuits[slot, entity.index] = circuit
            if self._failover_interval:
                self._bad(slot, entity, time, "suspect", failure, detail=text)
        if not circuit.failed_over and time - circuit.since >= self._failover_interval:
            self._fail_over(slot, entity, circuit, time, failure)
        own = self._world.tell(
            message,
            slot,
            time + 2,
            "send_failed",
            entity,
            first_attempt=self._world.own(slot, started),
            size=message.size,
            failure=failure,
            ms=time - started,
            detail=text,
        )
        self._note_bad(slot, entity, time + 2, own, failure)
        self._divert(message, slot, entity, time + 3, started, failure)

    def _fail_over(self, slot: int, entity: Entity, circuit: _Circuit, time: int, failure: str | None) -> None:
        circuit.failed_over = True
        self._bad(slot, entity, time + 1, "failed_over", failure)
        self.at(self._next_ping(time), lambda due: self._ping(slot, entity, circuit, due))

    # -- diverting ----------------------------------------------------------------------------------------------

    def _divert(
        self, message: Message, slot: int, entity: Entity, time: int, started: int, failure: str | None
    ) -> None:
        world = self._world
        queue = None if self._secondary_is_down(time) else self._pick_queue(slot, entity, time)
        if queue is None:
            self._refuse(message, slot, entity, time, started)
            return
        took = world.rng.randint(800, 4_000)
        done = time + took
        self._busy_until[slot] = max(self._busy_until.get(slot, 0), done)
        first = world.own(slot, started)
        maybe = failure == "timeout"
        world.tell(
            message,
            slot,
            done,
            "diverted",
            entity,
            first_attempt=first,
            queue=queue,
            size=message.size + OVERHEAD,
            failure=failure,
            ms=done - started,
            maybe_duplicate=maybe,
        )
        own = world.own(slot, done)
        self._homecoming.settle(Diverted(message, entity, queue, done, own, first, maybe))
        world.finish(message)

    def divert_throttled(self, message: Message, slot: int, entity: Entity, started: int) -> None:
        """The primary said three times that it is busy: that is no outage, and the message takes the detour."""
        time = started + 30 * SECOND
        self._world.tell(
            message,
            slot,
            time,
            "send_failed",
            entity,
            first_attempt=self._world.own(slot, started),
            size=message.size,
            failure="throttled",
            ms=time - started,
        )
        self._divert(message, slot, entity, time + 1, started, "throttled")

    def _secondary_is_down(self, time: int) -> bool:
        return any(begin <= time < end for begin, end in self._world.plan.secondary_down)

    def _pick_queue(self, slot: int, entity: Entity, time: int) -> int | None:
        """The queue it stays with; another one if that fails. None when all have failed."""
        world = self._world
        count = world.settings.backlog_queues
        on_trial = [queue for queue in range(count) if 0 < self._pulled.get((slot, queue), 0) <= time]
        queue = on_trial[0] if on_trial and world.rng.random() < 0.2 else self._queue_of.get(slot)
        while True:
            if queue is None or self._pulled.get((slot, queue), 0) > time:
                usable = [each for each in range(count) if self._pulled.get((slot, each), 0) <= time]
                if not usable:
                    return None
                queue = world.rng.choice(usable)
            if not any(begin <= time < end for begin, end in world.plan.queue_down.get(queue, ())):
                break
            self._pulled[slot, queue] = time + _BACKLOG_RETRY
            world.say(slot, time, "backlog_pulled", entity.pairing, _queue_name(entity, queue), failure="fault")
        self._queue_of[slot] = queue
        if self._pulled.pop((slot, queue), None) is not None:
            world.say(slot, time, "backlog_readmitted", entity.pairing, _queue_name(entity, queue))
        return queue

    def _refuse(self, message: Message, slot: int, entity: Entity, time: int, started: int) -> None:
        """Neither namespace takes it: the caller gets an error, and tries again, or not."""
        world = self._world
        message.refusals += 1
        world.tell(
            message,
            slot,
            time + 500,
            "backlog_unavailable",
            entity,
            first_attempt=world.own(slot, started),
            size=message.size,
            failure="unreachable",
            ms=time + 500 - started,
        )
        if message.refusals < _MOST_REFUSALS and world.rng.random() < 0.6:
            self.at(time + _REFUSED_RETRY, lambda due: self.send(message, slot, entity, due))
        else:
            world.finish(message)

    # -- pings --------------------------------------------------------------------------------------------------

    def _next_ping(self, time: int) -> int:
        interval = self._world.settings.ping_interval * SECOND
        return time + int(interval * self._world.rng.uniform(1 - _JITTER, 1 + _JITTER))

    def _ping(self, slot: int, entity: Entity, circuit: _Circuit, time: int) -> None:
        if time >= self._world.plan.end or self._circuits.get((slot, entity.index)) is not circuit:
            return
        if self._circuit(slot, entity, time) is None:  # the process is another one
            return
        part = self._world.down(entity, slot, time)
        if part is None:
            self.at(time + 3_000, lambda due: self._pong(slot, entity, circuit, due))
            return
        done = time + min(_UNTIL_FAILED[part.failure], 10 * SECOND)
        self.at(done, lambda due: self._missed(slot, entity, circuit, due, due - time, part.failure))

    def _missed(self, slot: int, entity: Entity, circuit: _Circuit, time: int, took: int, failure: str) -> None:
        if self._circuit(slot, entity, time) is not circuit:
            return
        self._bad(slot, entity, time, "ping", failure, ms=took, detail=f"primary amqp://main-broker//: {failure}")
        self.at(self._next_ping(time), lambda due: self._ping(slot, entity, circuit, due))

    def _pong(self, slot: int, entity: Entity, circuit: _Circuit, time: int) -> None:
        if self._circuit(slot, entity, time) is not circuit:
            return
        loses_restored = self._restored_left > 0 and self._world.rng.random() < 0.3
        loses_ping = loses_restored and self._restored_left % 2 == 1
        self._restored_left -= loses_restored
        own = self._world.say(slot, time, "ping", entity.pairing, entity.path, ms=3_000, lost=loses_ping)
        self._note_good(slot, entity, time, own)
        self._tell_restored(slot, entity, time + 2, lost=loses_restored)
        del self._circuits[slot, entity.index]
        for (other_slot, index), other in list(self._circuits.items()):  # a namespace that is back is back for all
            if other_slot == slot and other.failed_over and self._world.plan.entities[index].pairing == entity.pairing:
                self._ping_soon(slot, self._world.plan.entities[index], other, time)

    def _ping_soon(self, slot: int, entity: Entity, circuit: _Circuit, time: int) -> None:
        if self._world.down(entity, slot, time + 4_000) is None:
            self.at(time + 4_000, lambda due: self._ping(slot, entity, circuit, due))

    def _tell_restored(self, slot: int, entity: Entity, time: int, *, lost: bool = False) -> None:
        own = self._world.say(slot, time, "restored", entity.pairing, entity.path, lost=lost)
        self._note_good(slot, entity, time, own)

    # -- evidence -----------------------------------------------------------------------------------------------

    def _bad(
        self,
        slot: int,
        entity: Entity,
        time: int,
        event: str,
        failure: str | None,
        *,
        ms: int | None = None,
        detail: str = "",
    ) -> None:
        own = self._world.say(slot, time, event, entity.pairing, entity.path, failure=failure, ms=ms, detail=detail)
        self._note_bad(slot, entity, time, own, failure, fails_over=event == "failed_over")

    def _note_bad(
        self, slot: int, entity: Entity, time: int, own: int | None, failure: str | None, *, fails_over: bool = False
    ) -> None:
        self.last_trouble = max(self.last_trouble, time)
        if own is not None:
            process = self._world.plan.incarnation(slot, time).index
            self._world.outages.bad(process, entity.pairing, entity.path, own, failure, fails_over=fails_over)

    def _note_good(self, slot: int, entity: Entity, time: int, own: int | None) -> None:
        self.last_trouble = max(self.last_trouble, time)
        if own is not None:
            process = self._world.plan.incarnation(slot, time).index
            self._world.outages.good(process, entity.pairing, entity.path, own)


def _queue_name(entity: Entity, queue: int) -> str:
    return f"{entity.pairing}/x-servicebus-transfer/{queue}"
