"""The simulation itself: a fleet sends, fails over, comes back, and every process writes its journal.

Time passes in slices. While nothing is wrong anywhere, most messages go straight, and are written down without further
ado; near an outage, each goes through the circuits of its process.
"""

from __future__ import annotations

import dataclasses
import random
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from json.encoder import encode_basestring_ascii as quoted
from pathlib import Path
from typing import Any

from kombu_paired.simulation.homecoming import Homecoming
from kombu_paired.simulation.journals import Journals
from kombu_paired.simulation.ledger import Ledger, quality_row
from kombu_paired.simulation.packing import Packer
from kombu_paired.simulation.plan import HOUR, SECOND, Entity, Incarnation, Plan, make_plan
from kombu_paired.simulation.senders import Senders
from kombu_paired.simulation.settings import FleetSettings
from kombu_paired.simulation.spool import Spool
from kombu_paired.simulation.truth import Row
from kombu_paired.simulation.world import Message, World, new_id

__all__ = ("Outcome", "simulate")

#: Messages in a slice, as a rule, and the shortest slice.
_SLICE = 4_000
_SHORTEST = 60 * SECOND
#: Around an outage, for so long every send is noted: longer than the minutes by which the pipeline counts.
_MARGIN = 120 * SECOND
_ODD = ("throttled", "unauthorized", "rejected", "missing")
_SIZES = 4096


@dataclass(frozen=True)
class Outcome:
    """What was written.

    Attributes:
        events: lines that are events; copies are not counted.
        files: of the journals' folder.
        balance: the truth about the messages, added up.
        outages: the rows of ``outages``.
        quality: the rows of ``quality``.
    """

    events: int
    files: int
    balance: dict[str, int]
    outages: list[Row]
    quality: list[Row]


def simulate(
    settings: FleetSettings, folder: Path, truth: Path | None = None, progress: Callable[[int], None] | None = None
) -> Outcome:
    """Write the journals of a fleet.

    The same settings write the same bytes. Memory does not grow with the number of messages, but for some bytes per
    diverted one.

    Arguments:
        folder: for the journals; made if it is not there.
        truth: another folder, for what is true of them: ``truth-messages.jsonl.gz``, ``truth-outages.jsonl``,
            ``truth-quality.json``, ``truth-balance.json``, ``truth-simulation.json``. Times are integer microseconds.
        progress: is told how many more messages are done.

    Raises:
        FileExistsError: one of the folders is not empty.
        OSError: a folder cannot be written to.
    """
    for each in (folder, truth):
        if each is not None:
            _make_empty(each)
    rng = random.Random(settings.seed)
    plan = make_plan(settings, rng)
    with Spool() as spool, Packer() as packer:
        ledger = Ledger(truth, packer)
        journals = Journals(folder, plan, settings, random.Random(settings.seed + 1), packer)
        fleet = _Fleet(settings, plan, rng, spool, ledger, journals)
        for count in fleet.run():
            packer.keep_up()
            if progress is not None:
                progress(count)
        journals.finish()
        outages, quality = fleet.world.outages.rows(), _quality(journals, ledger)
        ledger.close(outages, quality, _contents(settings, plan, journals))
    return Outcome(journals.events, sum(1 for _ in folder.iterdir()), ledger.balance(), outages, quality)


def _make_empty(folder: Path) -> None:
    folder.mkdir(parents=True, exist_ok=True)
    if any(folder.iterdir()):
        raise FileExistsError(f"{folder} is not empty: a simulation mixes with no other files; name a new folder")


def _quality(journals: Journals, ledger: Ledger) -> list[Row]:
    rows = [quality_row(problem, count, file=file) for (file, problem), count in journals.problems.items()]
    rows += [quality_row("missing_events", count, process=each) for each, count in journals.missing().items()]
    rows += [quality_row("duplicate_events", count, process=each) for each, count in journals.duplicates.items()]
    rows += ledger.skew_row()
    return sorted(rows, key=lambda row: (row["file"] or "", row["host"] or "", row["pid"] or 0, row["problem"]))


def _contents(settings: FleetSettings, plan: Plan, journals: Journals) -> dict[str, Any]:
    return {
        "settings": dataclasses.asdict(settings),
        "from": plan.start,
        "to": plan.end,
        "events": journals.events,
        "processes": [
            {"host": each.host, "pid": each.pid, "start": each.start, "end": each.end, "ending": each.ending}
            for those in plan.incarnations
            for each in those
        ],
        "planned_outages": [{"kind": kind, "begin": begin, "end": end} for kind, begin, end in plan.outages],
        "secondary_down": plan.secondary_down,
        "queue_down": plan.queue_down,
        "holes": plan.holes,
    }


class _Fleet:
    """Runs the slices."""

    def __init__(
        self, settings: FleetSettings, plan: Plan, rng: random.Random, spool: Spool, ledger: Ledger, journals: Journals
    ) -> None:
        span = plan.end - plan.start
        by_count = settings.messages // _SLICE
        wanted = max(1, -(-span // HOUR), min(by_count, span // _SHORTEST), by_count // 8)
        self._slice_length = -(-span // wanted)
        self._count = -(-span // self._slice_length)
        self._settings, self._plan, self._rng = settings, plan, rng
        self._spool, self._ledger, self._journals = spool, ledger, journals
        self.world = World(settings, plan, rng, spool, self._slice_length, ledger.add)
        self._homecoming = Homecoming(self.world)
        self._senders = Senders(self.world, self._homecoming, self._arrived)
        self._sizes = [max(60, int(rng.lognormvariate(7.0, 1.4))) for _ in range(_SIZES)]
        self._polls = self._first_polls()
        self._busiest = [entity for entity in plan.entities for _ in range(max(1, 8 >> entity.index))]

    def run(self) -> Iterator[int]:
        """Let time pass; yields how many messages were sent in each slice."""
        plan, total = self._plan, self._settings.messages
        for number in range(self._count):
            begin = plan.start + number * self._slice_length
            end = min(begin + self._slice_length, plan.end)
            count = total * (number + 1) // self._count - total * number // self._count
            self._slice(number, begin, end, count)
            yield count

    def _slice(self, number: int, begin: int, end: int, count: int) -> None:
        world, is_last = self.world, end == self._plan.end
        world.enter(number, end)
        ended = self._life_of_processes(begin, end, is_last)
        self._tell_trimmed(begin, end)
        self._tell_sides(begin, end)
        self._idle_polls(end)
        if is_last or self._is_stormy(begin, end):
            self._stormy(begin, end, count)
        else:
            world.outages.settle(begin)
            self._calm(begin, end, count)
        self._senders.run_until(end)
        if is_last:
            self._senders.run_until(2 * end)
        self._homecoming.close_batches(end)
        for slot, lines in enumerate(world.lines):
            if lines:
                self._journals.write(slot, lines)
                lines.clear()
        for process, last_words in ended:
            self._journals.end(process, last_words)

    def _is_stormy(self, begin: int, end: int) -> bool:
        if not self._senders.at_peace or self._senders.last_trouble > begin - _MARGIN:
            return True
        return any(since - _MARGIN < end and until + _MARGIN > begin for _, since, until in self._plan.outages)

    # -- processes ----------------------------------------------------------------------------------------------

    def _life_of_processes(self, begin: int, end: int, is_last: bool) -> list[tuple[Incarnation, str]]:
        """Tell who starts and who stops in a slice; who stopped, and the line that it did not finish."""
        ended = []
        for those in self._plan.incarnations:
            for process in those:
                if begin <= process.start < end and process.slot in self._plan.workers:
                    self._say_of_all_pairings(process, process.start, "syphon_started")
                if begin <= process.end < end or (is_last and process.end == end):
                    ended.append((process, self._ending(process)))
        return ended

    def _tell_trimmed(self, begin: int, end: int) -> None:
        """Where a disk was full, old files of the journal's folder were given up: none of this time."""
        for slot, holes in self._plan.holes.items():
            for _, until in holes:
                if begin <= until < end:
                    text = "2 files of 1048576 bytes given up: the folder may take 1073741824 bytes"
                    self.world.say(slot, until, "journal_trimmed", self._plan.entities[0].pairing, detail=text)

    def _tell_sides(self, begin: int, end: int) -> None:
        """Which workers began to stand in, and which came home, one soon after the other."""
        for pairing in sorted({entity.pairing for entity in self._plan.entities}):
            for since, until in self._plan.stood_in:
                for slot in self._plan.workers:
                    for time, event in ((since, "standing_in"), (until + SECOND, "came_home")):
                        if begin <= time + slot < end:
                            self.world.say(slot, time + slot, event, pairing, pairing)

    def _ending(self, process: Incarnation) -> str:
        if process.ending == "killed":
            return self._torn_send(process)
        if process.ending == "faulted":
            text = "primary amqp://main-broker// is faulted, since its partner was closed 5 s ago"
            self._say_of_all_pairings(process, process.end - 4, "faulted", text)
        if process.slot in self._plan.workers:
            self._say_of_all_pairings(process, process.end - 3, "syphon_stopped")
        self._say_of_all_pairings(process, process.end - 1, "closed")
        return ""

    def _say_of_all_pairings(self, process: Incarnation, time: int, event: str, detail: str = "") -> None:
        for pairing in sorted({entity.pairing for entity in self._plan.entities}):
            self.world.say(process.slot, time, event, pairing, detail=detail)

    def _torn_send(self, process: Incarnation) -> str:
        """A message of which only the worker's journal knows: its sender was killed while it wrote it down."""
        entity = self._rng.choice(self._plan.entities)
        message = Message(new_id(self._rng), 500, 1.0)
        self._homecoming.consume(message, entity, process.end + SECOND, surely=True)
        self.world.finish(message)
        return (
            f'"event":"sent","pairing":"{entity.pairing}","entity":{quoted(entity.path)},"message_id":"{message.id}",'
            '"route":"primary","bytes":500,"ms":2.500}'
        )

    def _first_polls(self) -> list[list[Any]]:
        """When each syphon looks into each backlog queue that is empty: time, slot, pairing, queue's name."""
        period = int(self._settings.poll * SECOND)
        return [
            [self._plan.start + self._rng.randrange(period), slot, pairing, f"{pairing}/x-servicebus-transfer/{queue}"]
            for slot in self._plan.workers
            for pairing in sorted({entity.pairing for entity in self._plan.entities})
            for queue in range(self._settings.backlog_queues)
        ]

    def _idle_polls(self, end: int) -> None:
        period = int(self._settings.poll * SECOND)
        for poll in self._polls:
            while poll[0] < end:
                time, slot, pairing, queue = poll
                self.world.say(slot, time, "polled", pairing, queue, detail="0 messages")
                poll[0] = time + period

    # -- messages -----------------------------------------------------------------------------------------------

    def _stormy(self, begin: int, end: int, count: int) -> None:
        rng = self._rng
        for index in range(count):
            time = begin + int((index + rng.random()) * (end - begin) / count)
            self._senders.run_until(time)
            slot = rng.randrange(self._settings.processes)
            self._start(slot, rng.choice(self._busiest), time, rng.random())

    def _start(self, slot: int, entity: Entity, time: int, chance: float) -> None:
        """A message's way from its very beginning.

        Arguments:
            chance: between 0 and 1; a low one says what happens to it.
        """
        rng = self._rng
        message = Message(new_id(rng), self._sizes[rng.randrange(_SIZES)], chance)
        if chance < self._settings.odd_failures:
            self._fail_oddly(message, slot, entity, time)
        else:
            self._senders.send(message, slot, entity, time)

    def _fail_oddly(self, message: Message, slot: int, entity: Entity, time: int) -> None:
        """It fails in a way that is no outage; unless it is throttled, the caller gets an error."""
        failure = self._rng.choice(_ODD)
        if failure == "throttled":
            self._senders.divert_throttled(message, slot, entity, time)
            return
        self.world.tell(
            message,
            slot,
            time + 3_000,
            "send_failed",
            entity,
            first_attempt=self.world.own(slot, time),
            size=message.size,
            failure=failure,
            ms=3_000,
        )
        self.world.finish(message)

    def _arrived(self, message: Message, entity: Entity, time: int) -> None:
        """The primary has it: workers run it, once, as a rule."""
        settings, chance = self._settings, message.chance - self._settings.odd_failures
        if chance < settings.duplicated:  # a worker died before it could acknowledge it
            self._homecoming.consume(message, entity, time, surely=True)
            self._homecoming.consume(message, entity, time + 30 * SECOND, surely=True)
        elif chance < settings.duplicated + settings.retried:
            self._homecoming.consume(message, entity, time, surely=True)
            self._send_again(message, entity, time + 2 * SECOND)
        else:
            self._homecoming.consume(message, entity, time)
        self.world.finish(message)

    def _send_again(self, message: Message, entity: Entity, time: int) -> None:
        """Celery's retry: the worker sends the same task id once more, now and then to another queue."""
        world, rng = self.world, self._rng
        slot = rng.choice(self._plan.workers)
        others = [each for each in self._plan.entities if each.pairing == entity.pairing]
        entity = rng.choice(others) if rng.random() < 0.2 else entity
        if world.down(entity, slot, time):
            return
        own = world.tell(
            message,
            slot,
            time + 1_500,
            "sent",
            entity,
            first_attempt=world.own(slot, time),
            size=message.size,
            ms=1_500,
        )
        if own is not None:
            process = self._plan.incarnation(slot, time + 1_500).index
            world.outages.sent(process, entity.pairing, entity.path, own)
        self._homecoming.consume(message, entity, time, surely=True)

    # -- messages while all is well -----------------------------------------------------------------------------

    def _calm(self, begin: int, end: int, count: int) -> None:
        """Most messages go straight to the primary and to a worker: this is the tight loop.

        What it writes is what :meth:`_start` would have written for a message that goes straight.
        """
        rng, world, plan = self._rng, self.world, self._plan
        draw, bits, lines, offsets = rng.random, rng.getrandbits, world.lines, plan.offsets
        settings, sizes, workers = self._settings, self._sizes, plan.workers
        special = settings.duplicated + settings.retried + settings.odd_failures
        impaired = {
            slot for slot, holes in plan.holes.items() if any(since < end and until > begin for since, until in holes)
        }
        choices = [(entity, *_texts(entity)) for entity in self._busiest]
        slots, width, waiting = settings.processes, (end - begin) / max(count, 1), settings.unconsumed
        rows: list[str] = []
        is_written = self._ledger.folder is not None
        direct = consumed = 0
        for index in range(count):
            time = begin + int((index + draw()) * width)
            slot = int(draw() * slots)
            worker = workers[int(draw() * len(workers))]
            entity, sent_text, consumed_text, row_text = choices[int(draw() * len(choices))]
            chance = draw()
            if chance < special or slot in impaired or worker in impaired:
                self._start(slot, entity, time, chance)
                continue
            took = 600 + bits(12)
            size = sizes[bits(12)]
            text = f"{bits(128):032x}"
            text = f"{text[:8]}-{text[8:12]}-{text[12:16]}-{text[16:20]}-{text[20:]}"
            first = time + offsets[slot]
            sent = first + took
            line = (
                sent,
                f'"first_attempt":{first},',
                f'{sent_text}{text}","route":"primary","bytes":{size},"ms":{took / 1000:.3f}}}',
            )
            if time + took < end:
                lines[slot].append(line)
            else:
                self._spool.add(world.slice_of(time + took), (slot, *line))
            direct += 1
            ran = None
            skew = 0.0
            if draw() >= waiting:
                busy = 500 + bits(16)
                done = time + took + 1_000 + bits(18) + busy
                own = done + offsets[worker]
                last = (own, "", f'{consumed_text}{text}","ms":{busy / 1000:.3f}}}')
                if done < end:
                    lines[worker].append(last)
                else:
                    self._spool.add(world.slice_of(done), (worker, *last))
                consumed += 1
                ran = max(own, sent)
                if own < first:
                    skew = (first - own) / 1e6
                    self._ledger.add_skew(skew)
            if is_written:
                rows.append(_direct_row(text, row_text, first, size, sent, ran, skew))
        self._ledger.add_direct(direct, consumed)
        if is_written:
            self._ledger.add_texts(rows)


def _texts(entity: Entity) -> tuple[str, str, str]:
    """What the lines and the row of a message that goes straight have in common."""
    pairing = f'"pairing":"{entity.pairing}"'
    return (
        f'"event":"sent",{pairing},"entity":{quoted(entity.path)},"message_id":"',
        f'"event":"consumed",{pairing},"entity":{quoted(entity.queue)},"message_id":"',
        f'",{pairing},"entity":{quoted(entity.path)},"first_sent_at":',
    )


def _direct_row(
    message_id: str, known: str, first: int, size: int, sent: int, consumed: int | None, skew: float
) -> str:
    """The row of a message that went straight, as ``message_row`` has it."""
    return (
        f'{{"message_id":"{message_id}{known}{first},"bytes":{size},"route":"primary","backlog_queue":null,'
        f'"diverted_at":null,"syphoned_at":null,"handed_out_at":null,"dead_lettered_at":null,"delivered_at":{sent},'
        f'"consumed_at":{"null" if consumed is None else consumed},"backlog_s":null,"late_s":null,"sends":1,'
        f'"copies_delivered":1,"failed_tries":0,"caller_errors":0,"maybe_duplicate":false,"skew_s":{skew},"fate":"direct"}}\n'
    )
