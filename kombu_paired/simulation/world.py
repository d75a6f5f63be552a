"""What all parts of a simulation share: who says what into which journal, and what of it can be read."""

from __future__ import annotations

import random
from bisect import bisect_left, bisect_right
from collections.abc import Callable
from json.encoder import encode_basestring_ascii as quoted

from kombu_paired.simulation.journals import Line
from kombu_paired.simulation.plan import SECOND, Entity, Part, Plan
from kombu_paired.simulation.settings import FleetSettings
from kombu_paired.simulation.spool import Spool
from kombu_paired.simulation.truth import Happened, OutageTruth, Row, message_row

__all__ = ("Message", "World", "new_id", "stand_in_queue")


def new_id(rng: random.Random) -> str:
    """A message id, as Celery makes them."""
    text = f"{rng.getrandbits(128):032x}"
    return f"{text[:8]}-{text[8:12]}-{text[12:16]}-{text[16:20]}-{text[20:]}"


class Message:
    """A message on its way, and what can be read of it so far.

    Attributes:
        chance: between 0 and 1; a low one says that something happens to it.
        history: in the order in which it happened.
        refusals: how often the caller got an error.
    """

    __slots__ = ("chance", "history", "id", "refusals", "size")

    def __init__(self, message_id: str, size: int, chance: float) -> None:
        self.chance = chance
        self.id = message_id
        self.size = size
        self.history: list[Happened] = []
        self.refusals = 0


class World:
    """Time passes slice by slice; what is said about a later slice is kept in the spool.

    Arguments:
        slice_length: of true time, in microseconds.
        on_row: gets the row of each message of whose fate nothing is left to come.

    Attributes:
        horizon: where the present slice ends.
        lines: of the present slice, by slot.
    """

    def __init__(
        self,
        settings: FleetSettings,
        plan: Plan,
        rng: random.Random,
        spool: Spool,
        slice_length: int,
        on_row: Callable[[Row], None],
    ) -> None:
        self.settings = settings
        self.plan = plan
        self.rng = rng
        self.outages = OutageTruth()
        self.horizon = plan.start
        self.lines: list[list[Line]] = [[] for _ in range(settings.processes)]
        self._spool = spool
        self._slice_length = slice_length
        self._on_row = on_row
        self._parts: list[list[Part]] = [[] for _ in plan.entities]
        for part in sorted(plan.parts, key=lambda each: each.begin):
            self._parts[part.entity].append(part)
        self._begins = [[part.begin for part in parts] for parts in self._parts]
        self._longest = max((part.end - part.begin for part in plan.parts), default=0)

    # -- time ---------------------------------------------------------------------------------------------------

    def slice_of(self, time: int) -> int:
        return (time - self.plan.start) // self._slice_length

    def enter(self, number: int, until: int) -> None:
        """Begin a slice: what was said about it before is in its lines."""
        self.horizon = until
        for slot, time, first_attempt, rest in self._spool.take(number):
            self.lines[slot].append((time, first_attempt, rest))

    def own(self, slot: int, time: int) -> int:
        """A true time by a slot's clock."""
        return time + self.plan.offsets[slot]

    # -- what is down -------------------------------------------------------------------------------------------

    def down(self, entity: Entity, slot: int, time: int) -> Part | None:
        """Why a process cannot reach an entity; None: it can."""
        for part in self._parts_at(entity, time):
            if time < part.end and (part.slots is None or slot in part.slots):
                return part
        return None

    def _parts_at(self, entity: Entity, time: int) -> list[Part]:
        """What of an entity's outages can be under way, and more."""
        begins = self._begins[entity.index]
        return self._parts[entity.index][bisect_left(begins, time - self._longest) : bisect_right(begins, time)]

    def reachable_from(self, entity: Entity, time: int) -> int:
        """The earliest time at which some syphon reaches an entity; they notice with a probe, a little later."""
        while True:
            ends = [part.end for part in self._parts_at(entity, time) if part.stops_syphons and time < part.end]
            if not ends:
                return time
            time = max(ends) + int(self.rng.uniform(0.2, 3.0) * SECOND)

    # -- saying -------------------------------------------------------------------------------------------------

    def put(
        self, slot: int, time: int, rest: str, first_attempt: int | None = None, *, lost: bool = False
    ) -> int | None:
        """A line of a slot at a true time. Its own time if it can be read later, else None."""
        if time >= self.plan.end:
            return None
        own = time + self.plan.offsets[slot]
        is_lost = lost or self.plan.is_lost(slot, time)
        first = "" if first_attempt is None else f'"first_attempt":{first_attempt},'
        line = (own, first, None if is_lost else rest)
        if time < self.horizon:
            self.lines[slot].append(line)
        else:
            self._spool.add(self.slice_of(time), (slot, *line))
        return None if is_lost else own

    def say(
        self,
        slot: int,
        time: int,
        event: str,
        pairing: str,
        entity: str = "",
        *,
        failure: str | None = None,
        ms: int | None = None,
        detail: str = "",
        lost: bool = False,
    ) -> int | None:
        """An event that is about no message. ``ms`` is in microseconds here."""
        rest = f'"event":"{event}","pairing":"{pairing}"'
        rest += f',"entity":{quoted(entity)}' if entity else ""
        rest += f',"failure":"{failure}"' if failure else ""
        rest += f',"ms":{ms / 1000:.3f}' if ms is not None else ""
        rest += f',"detail":"{detail}"' if detail else ""
        return self.put(slot, time, rest + "}", lost=lost)

    def tell(
        self,
        message: Message,
        slot: int,
        time: int,
        event: str,
        entity: Entity,
        *,
        first_attempt: int | None = None,
        queue: int | None = None,
        size: int | None = None,
        failure: str | None = None,
        ms: int | None = None,
        maybe_duplicate: bool = False,
        detail: str = "",
        is_there: bool = False,
    ) -> int | None:
        """An event of a message, as its kind has it. ``ms`` is in microseconds here.

        Arguments:
            queue: number of the backlog queue.
            first_attempt: by the clock of who sent it.
            is_there: it happens at a stand-in queue.
        """
        named, known = _entity_of(event, entity, queue)
        route: str | None
        if is_there:
            named, route = stand_in_queue(entity) if known is None else named, "stand-in"
        else:
            route = "primary" if event in ("sent", "send_failed") else None if queue is None else f"backlog/{queue}"
        rest = f'"event":"{event}","pairing":"{entity.pairing}","entity":{quoted(named)},"message_id":"{message.id}"'
        rest += f',"route":"{route}"' if route else ""
        rest += f',"bytes":{size}' if size is not None else ""
        rest += f',"failure":"{failure}"' if failure else ""
        rest += f',"ms":{ms / 1000:.3f}' if ms is not None else ""
        rest += ',"maybe_duplicate":true' if maybe_duplicate else ""
        rest += f',"detail":"{detail}"' if detail else ""
        own = self.put(slot, time, rest + "}", first_attempt)
        if own is not None:
            number = None if is_there else queue
            happened = Happened(
                event, own, known, first_attempt, size, number, maybe_duplicate, detail or None, is_there
            )
            message.history.append(happened)
        return own

    def finish(self, message: Message) -> None:
        """Nothing more will happen to a message."""
        if message.history:
            row = message_row(message.id, message.history)
            self.outages.finished(row)
            self._on_row(row)


def stand_in_queue(entity: Entity) -> str:
    """What stands in for its queue on the secondary."""
    return f"{entity.pairing}/x-paired-standin/{entity.queue}"


def _entity_of(event: str, entity: Entity, queue: int | None) -> tuple[str, tuple[str, str] | None]:
    """What an event calls its entity, and what is known of the destination from it."""
    if event in ("received_from_backlog", "abandoned", "dead_lettered"):
        return f"{entity.pairing}/x-servicebus-transfer/{queue}", None
    name = entity.queue if event == "consumed" else entity.path
    return name, (entity.pairing, name)
