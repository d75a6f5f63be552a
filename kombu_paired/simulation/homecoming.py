"""The way of a message after a namespace took it: through the backlog, home, and to a worker."""

from __future__ import annotations

from dataclasses import dataclass

from kombu_paired.simulation.plan import SECOND, Entity
from kombu_paired.simulation.truth import EXPIRED
from kombu_paired.simulation.world import Message, World

__all__ = ("OVERHEAD", "Diverted", "Homecoming")

#: Bytes that a message grows by in the backlog.
OVERHEAD = 412
#: Microseconds that one message takes a pump.
PACE = 20_000
_BATCH = 250
_LONGEST_BATCH = SECOND
_LOCK = 60 * SECOND
_POLL_TAKES = 300
_LETTERS = ("NoPath", "Rejected", "MissingEntity", "MalformedBody")


@dataclass(frozen=True)
class Diverted:
    """A message in the backlog.

    Attributes:
        at: true time.
        own_at, first_attempt: by the clock of who sent it.
    """

    message: Message
    entity: Entity
    queue: int
    at: int
    own_at: int
    first_attempt: int
    maybe_duplicate: bool


@dataclass
class _Batch:
    """What one poll of a syphon brings."""

    worker: int
    pairing: str
    queue: int
    start: int
    count: int = 0


class Homecoming:
    """Syphons and workers."""

    def __init__(self, world: World) -> None:
        self._world = world
        self._free_at: dict[tuple[int, int], int] = {}
        self._batches: dict[tuple[int, int], _Batch] = {}

    # -- from the primary ---------------------------------------------------------------------------------------

    def consume(
        self, message: Message, entity: Entity, time: int, *, surely: bool = False, is_there: bool = False
    ) -> None:
        """A worker takes it from the primary and runs it; or, where ``is_there``, from a stand-in queue."""
        rng, settings = self._world.rng, self._world.settings
        if not surely and rng.random() < settings.unconsumed:
            return
        took = int(rng.expovariate(1 / 30_000)) + 500
        time += int(rng.expovariate(1 / 200_000)) + 1_000 + took
        self._world.tell(
            message, rng.choice(self._world.plan.workers), time, "consumed", entity, ms=took, is_there=is_there
        )

    # -- from the backlog ---------------------------------------------------------------------------------------

    def settle(self, diverted: Diverted) -> None:
        """What becomes of a message in the backlog."""
        world = self._world
        rng, settings, queue = world.rng, world.settings, diverted.queue
        if diverted.maybe_duplicate and rng.random() < 0.3:  # the primary had stored it
            self.consume(diverted.message, diverted.entity, world.reachable_from(diverted.entity, diverted.at))
        chance = rng.random()
        if chance < settings.waiting:
            return
        if (handed_out_at := self._stood_in_for(diverted)) is not None:
            self._hand_out(diverted, handed_out_at)
            return
        time, batch = self._receive(diverted)
        chance -= settings.waiting
        if chance < settings.dead_lettered + settings.expired:
            reason = rng.choice(_LETTERS) if chance < settings.dead_lettered else EXPIRED
            self._tell(diverted, batch.worker, time, "received_from_backlog")
            self._tell(diverted, batch.worker, time + 900, "dead_lettered", detail=reason)
            return
        chance -= settings.dead_lettered + settings.expired
        if chance < settings.abandoned:
            self._tell(diverted, batch.worker, time, "received_from_backlog")
            self._tell(diverted, batch.worker, time + 700, "abandoned")
            time = world.reachable_from(diverted.entity, time + 2 * SECOND)
            batch = _Batch(self._worker_for(diverted.entity, time), batch.pairing, queue, time, 1)
            self._tell_polled(batch)
        self._come_home(diverted, batch.worker, time)

    def _stood_in_for(self, diverted: Diverted) -> int | None:
        """When workers that stand in get it; None: nobody stands in, or its turn comes after the outage."""
        world, key = self._world, (diverted.queue, diverted.entity.index)
        away_before = int(world.settings.stand_in_after * SECOND)
        for begin, end in world.plan.stood_in:
            if begin - away_before <= diverted.at < end:
                soon = max(diverted.at, begin) + int(world.rng.uniform(0.01, 0.5) * SECOND)
                time = max(soon, self._free_at.get(key, 0))
                return time if begin <= time < end else None
        return None

    def _hand_out(self, diverted: Diverted, time: int) -> None:
        """A syphon moves it to a stand-in queue, and a worker runs it; or nobody does, and it comes home."""
        world = self._world
        self._free_at[diverted.queue, diverted.entity.index] = time + PACE
        worker = world.rng.choice(world.plan.workers)
        self._tell_polled(_Batch(worker, diverted.entity.pairing, diverted.queue, time, 1))
        self._tell(diverted, worker, time, "received_from_backlog")
        self._tell_moved(diverted, worker, time + 1_100, "handed_out")
        if world.rng.random() >= world.settings.left_behind:
            self.consume(diverted.message, diverted.entity, time + 1_100, surely=True, is_there=True)
            return
        home = world.reachable_from(diverted.entity, time + SECOND)
        other = self._worker_for(diverted.entity, home)
        self._tell(diverted, other, home, "received_from_backlog", is_there=True)
        self._deliver(diverted, other, home + 1_100, is_there=True)

    def _come_home(self, diverted: Diverted, worker: int, time: int) -> None:
        self._tell(diverted, worker, time, "received_from_backlog")
        self._deliver(diverted, worker, time + 1_100)
        if self._world.rng.random() < self._world.settings.duplicated:  # not settled in time: another one gets it
            again = self._world.reachable_from(diverted.entity, time + _LOCK)
            other = self._worker_for(diverted.entity, again)
            self._tell_polled(_Batch(other, diverted.entity.pairing, diverted.queue, again, 1))
            self._tell(diverted, other, again, "received_from_backlog")
            self._deliver(diverted, other, again + 1_100)

    def _deliver(self, diverted: Diverted, worker: int, time: int, *, is_there: bool = False) -> None:
        self._tell_moved(diverted, worker, time, "syphoned", is_there=is_there)
        self.consume(diverted.message, diverted.entity, time)

    def _tell_moved(self, diverted: Diverted, worker: int, time: int, event: str, *, is_there: bool = False) -> None:
        world = self._world
        world.tell(
            diverted.message,
            worker,
            time,
            event,
            diverted.entity,
            queue=diverted.queue,
            size=diverted.message.size + OVERHEAD,
            ms=max(0, world.own(worker, time) - diverted.own_at),
            first_attempt=diverted.first_attempt,
            maybe_duplicate=diverted.maybe_duplicate,
            is_there=is_there,
        )

    def _tell(
        self, diverted: Diverted, worker: int, time: int, event: str, detail: str = "", *, is_there: bool = False
    ) -> None:
        entity, queue = diverted.entity, diverted.queue
        self._world.tell(diverted.message, worker, time, event, entity, queue=queue, detail=detail, is_there=is_there)

    # -- polls --------------------------------------------------------------------------------------------------

    def _receive(self, diverted: Diverted) -> tuple[int, _Batch]:
        """When its turn comes, and in which batch."""
        world, entity = self._world, diverted.entity
        key = (diverted.queue, entity.index)
        time = world.reachable_from(entity, diverted.at) + int(world.rng.uniform(0.01, 0.5) * SECOND)
        time = max(time, world.reachable_from(entity, self._free_at.get(key, 0)))
        self._free_at[key] = time + PACE
        batch = self._batches.get(key)
        is_open = batch is not None and batch.count < _BATCH and time <= batch.start + _LONGEST_BATCH
        if batch is None or not is_open or world.down(entity, batch.worker, time):
            if batch is not None:
                self._tell_polled(batch)
            batch = _Batch(self._worker_for(entity, time), entity.pairing, diverted.queue, time)
            self._batches[key] = batch
        batch.count += 1
        return time, batch

    def _worker_for(self, entity: Entity, time: int) -> int:
        workers = self._world.plan.workers
        reaching = [worker for worker in workers if not self._world.down(entity, worker, time)]
        return self._world.rng.choice(reaching or workers)

    def close_batches(self, before: int) -> None:
        """Tell the polls that began before a time."""
        for key in [key for key, batch in self._batches.items() if batch.start < before + _POLL_TAKES]:
            self._tell_polled(self._batches.pop(key))

    def _tell_polled(self, batch: _Batch) -> None:
        name = f"{batch.pairing}/x-servicebus-transfer/{batch.queue}"
        self._world.say(
            batch.worker, batch.start - _POLL_TAKES, "polled", batch.pairing, name, detail=f"{batch.count} messages"
        )
