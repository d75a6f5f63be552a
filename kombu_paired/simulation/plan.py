"""The plan of a simulation: who is there, whose clock is wrong, what is down for whom and when. Pure, from a seed.

True time is in integer microseconds since 1970, UTC. A process writes its own time: the true one plus the offset of its
host's clock.
"""

from __future__ import annotations

import random
from bisect import bisect_right
from collections.abc import Sequence
from dataclasses import dataclass
from datetime import datetime, timezone

from kombu_paired.simulation.settings import FleetSettings

__all__ = ("HOUR", "SECOND", "Entity", "Incarnation", "Part", "Plan", "make_plan")

SECOND = 1_000_000
HOUR = 3600 * SECOND
START = int(datetime(2026, 3, 2, tzinfo=timezone.utc).timestamp()) * SECOND
#: Processes on one host: they share a clock, and a partial outage.
ON_A_HOST = 4
LONGEST_OUTAGE = 40 * 60 * SECOND
HOLE = 20 * SECOND

#: Path and the queue that it leads to; others are made up from their number.
_NAMES = (
    ("orders", "orders"),
    ("emails", "emails"),
    ("events/orders.created", "orders-created"),
    ("rückgaben", "rückgaben"),
    ("thumbnails", "thumbnails"),
)
_COUNTED = ("unreachable", "timeout", "fault")


@dataclass(frozen=True)
class Entity:
    """A destination, and where its messages are consumed from."""

    index: int
    pairing: str
    path: str
    queue: str


@dataclass(frozen=True)
class Incarnation:
    """One process: a slot of the fleet from its start to its end.

    Attributes:
        index: unique in the fleet.
        ending: ``closed``, ``faulted`` or ``killed``.
    """

    index: int
    slot: int
    host: str
    pid: int
    start: int
    end: int
    ending: str


@dataclass(frozen=True)
class Part:
    """One entity is down, for some processes.

    Attributes:
        slots: who is cut off; None: everybody.
        stops_syphons: no worker can reach it.
    """

    entity: int
    begin: int
    end: int
    failure: str
    slots: frozenset[int] | None
    stops_syphons: bool


@dataclass(frozen=True)
class Plan:
    """All that is decided before the first message is sent.

    Attributes:
        workers: slots that consume and run a syphon.
        offsets: of each slot's clock.
        incarnations: of each slot, in order of time.
        parts: what is down when.
        outages: kind, begin and end of each outage as planned.
        stood_in: begin and end of the times in which all workers stand in.
        secondary_down: begin and end.
        queue_down: backlog queue -> begin and end of its failures.
        holes: slot -> begin and end of the times it cannot write.
    """

    start: int
    end: int
    entities: tuple[Entity, ...]
    workers: tuple[int, ...]
    offsets: tuple[int, ...]
    incarnations: tuple[tuple[Incarnation, ...], ...]
    parts: tuple[Part, ...]
    outages: tuple[tuple[str, int, int], ...]
    stood_in: tuple[tuple[int, int], ...]
    secondary_down: tuple[tuple[int, int], ...]
    queue_down: dict[int, tuple[tuple[int, int], ...]]
    holes: dict[int, tuple[tuple[int, int], ...]]

    def incarnation(self, slot: int, time: int) -> Incarnation:
        """Who sits in a slot at a true time."""
        those = self.incarnations[slot]
        if len(those) == 1:
            return those[0]
        return those[min(bisect_right([each.end for each in those], time), len(those) - 1)]

    def is_lost(self, slot: int, time: int) -> bool:
        """Whether the process cannot write at a true time."""
        return any(begin <= time < end for begin, end in self.holes.get(slot, ()))


def make_plan(settings: FleetSettings, rng: random.Random) -> Plan:
    """The plan for some settings; the same for the same state of the random source."""
    start, end = START, START + int(settings.days * 24 * HOUR)
    slots = range(settings.processes)
    workers = tuple(slot for slot in slots if slot % 2 or settings.processes == 1)
    outages, parts = _outages(settings, rng, start, end, workers)
    down = _within(rng, outages, settings.secondary_outages, 60 * SECOND)
    queue_down: dict[int, tuple[tuple[int, int], ...]] = {}
    for window in _within(rng, outages, settings.pulled, 90 * SECOND):
        queue = rng.randrange(settings.backlog_queues)
        queue_down[queue] = (*queue_down.get(queue, ()), window)
    holes: dict[int, tuple[tuple[int, int], ...]] = {}
    for _ in range(settings.holes):
        slot, begin = rng.randrange(settings.processes), _inside(rng, start, end)
        holes[slot] = (*holes.get(slot, ()), (begin, begin + HOLE))
    return Plan(
        start=start,
        end=end,
        entities=tuple(_entity(index, settings.pairings) for index in range(settings.entities)),
        workers=workers,
        offsets=_offsets(settings, rng),
        incarnations=_incarnations(settings, rng, start, end),
        parts=parts,
        outages=outages,
        stood_in=_stood_in(settings, outages),
        secondary_down=down,
        queue_down=queue_down,
        holes=holes,
    )


def _entity(index: int, pairings: int) -> Entity:
    path, queue = _NAMES[index] if index < len(_NAMES) else (f"queue-{index}", f"queue-{index}")
    number = index % pairings
    return Entity(index, "main" if number == 0 else f"main-{number}", path, queue)


def _offsets(settings: FleetSettings, rng: random.Random) -> tuple[int, ...]:
    hosts = -(-settings.processes // ON_A_HOST)
    largest = int(settings.skew * SECOND)
    of_host = [0, largest, *(rng.randint(0, largest) for _ in range(hosts))]
    return tuple(of_host[slot // ON_A_HOST] for slot in range(settings.processes))


def _inside(rng: random.Random, start: int, end: int) -> int:
    return start + int((0.1 + 0.8 * rng.random()) * (end - start))


def _incarnations(
    settings: FleetSettings, rng: random.Random, start: int, end: int
) -> tuple[tuple[Incarnation, ...], ...]:
    endings = ["faulted" if number % 2 else "closed" for number in range(settings.restarts)]
    endings += ["killed"] * settings.killed
    cuts: dict[int, list[tuple[int, str]]] = {}
    for ending in endings:
        cuts.setdefault(rng.randrange(settings.processes), []).append((_inside(rng, start, end), ending))
    fleet, count = [], 0
    for slot in range(settings.processes):
        host, begin, those = f"host-{slot // ON_A_HOST}", start, []
        for cut, ending in [*sorted(cuts.get(slot, [])), (end, "closed")]:
            those.append(Incarnation(count, slot, host, 4000 + count, begin, cut, ending))
            begin, count = cut, count + 1
        fleet.append(tuple(those))
    return tuple(fleet)


def _stood_in(settings: FleetSettings, outages: Sequence[tuple[str, int, int]]) -> tuple[tuple[int, int], ...]:
    """Workers stand in when the primary as a whole is away for long enough, and for all of them."""
    after = int(settings.stand_in_after * SECOND)
    whole = [(begin + after, end) for kind, begin, end in outages if kind == "namespace" and after]
    return tuple((begin, end) for begin, end in whole if begin < end)


def _within(
    rng: random.Random, outages: Sequence[tuple[str, int, int]], count: int, longest: int
) -> tuple[tuple[int, int], ...]:
    """Windows inside outages that are long enough to be failed over."""
    long = [each for each in outages if each[0] != "blip"]
    windows = []
    for number in range(count if long else 0):
        _, begin, end = long[number % len(long)]
        length = min(longest, (end - begin) // 4)
        at = begin + int((0.3 + 0.4 * rng.random()) * (end - begin))
        windows.append((at, at + length))
    return tuple(windows)


def _outages(
    settings: FleetSettings, rng: random.Random, start: int, end: int, workers: Sequence[int]
) -> tuple[tuple[tuple[str, int, int], ...], tuple[Part, ...]]:
    outages, parts = [], []
    share = (end - start) // max(settings.outages, 1)
    for number in range(settings.outages):
        kind = settings.outage_kinds[number % len(settings.outage_kinds)]
        begin = start + int(share * (number + 0.2 + 0.2 * rng.random()))
        length = min(LONGEST_OUTAGE, int(share * (0.2 + 0.2 * rng.random())))
        if kind == "blip":
            length = min(length, int(settings.failover_interval * SECOND * 0.6))
        those = _parts(settings, rng, kind, begin, length, _COUNTED[number % len(_COUNTED)], workers)
        parts += those
        outages.append((kind, min(each.begin for each in those), max(each.end for each in those)))
    return tuple(outages), tuple(parts)


def _parts(
    settings: FleetSettings,
    rng: random.Random,
    kind: str,
    begin: int,
    length: int,
    failure: str,
    workers: Sequence[int],
) -> list[Part]:
    """What is down in one outage."""
    everything = range(settings.entities)
    cut_off = _some_slots(settings, rng) if kind == "partial" else None
    stops = cut_off is None or cut_off.issuperset(workers)
    first = rng.randrange(settings.entities)
    if kind == "entity":
        windows = [(first, begin, begin + length)]
    elif kind == "overlapping":
        second = (first + settings.pairings) % settings.entities  # of the same pairing, where it has two
        windows = [(first, begin, begin + length), (second, begin + length * 6 // 10, begin + length * 3 // 2)]
    else:
        stagger = min(2 * SECOND, length // 4)
        windows = [
            (entity, begin + rng.randint(0, stagger), begin + length + rng.randint(0, stagger)) for entity in everything
        ]
    return [Part(entity, since, until, failure, cut_off, stops) for entity, since, until in windows]


def _some_slots(settings: FleetSettings, rng: random.Random) -> frozenset[int]:
    """A third of the hosts, or half of the processes where there is one host."""
    hosts = -(-settings.processes // ON_A_HOST)
    if hosts == 1:
        return frozenset(range(-(-settings.processes // 2)))
    chosen = set(rng.sample(range(hosts), max(1, hosts // 3)))
    return frozenset(slot for slot in range(settings.processes) if slot // ON_A_HOST in chosen)
