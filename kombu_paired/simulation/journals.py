"""Writes the journals of the fleet, as the processes would have, and counts what is wrong with them.

One file per process and hour of its own clock, gzip, lines in order of its sequence numbers; a killed process leaves
a plain ``.part`` that ends in a torn line.
"""

from __future__ import annotations

import gzip
import random
from collections import Counter, defaultdict
from collections.abc import Iterator, Sequence
from operator import itemgetter
from pathlib import Path

from kombu_paired.journal.format import GZIP, JOURNAL_VERSION, JSON_LINES, PART, file_name
from kombu_paired.simulation.lines import garbage, problem_of, torn
from kombu_paired.simulation.packing import PackedFile, Packer
from kombu_paired.simulation.plan import HOUR, SECOND, Incarnation, Plan
from kombu_paired.simulation.settings import FleetSettings

__all__ = ("Journals", "Line")

LINE_TIME = itemgetter(0)
_FUTURE_LINES = 20
_BINARY_LINES = 16
#: What a line begins with, up to its time.
_BEGIN = f'{{"v":{JOURNAL_VERSION},"time":'
_BEGIN_OF_FUTURE = f'{{"v":{JOURNAL_VERSION + 1},"time":'


#: An event before it has a number: time by the writer's clock, first attempt as a piece of JSON or nothing, and the
#: rest of the line; None for a line that was lost.
Line = tuple[int, str, "str | None"]


class _Count:
    """The sequence numbers of one process: the last given, and those that can be read."""

    def __init__(self) -> None:
        self.given = 0
        self.first = 0
        self.last = 0
        self.written = 0

    @property
    def missing(self) -> int:
        return self.last - self.first + 1 - self.written if self.written else 0


class Journals:
    """The folder of journals.

    Arguments:
        folder: exists and is empty.
        plan: who writes.
        settings: what is wrong with the files.
        rng: decides where.
        packer: writes the files.

    Attributes:
        events: lines that are events, copies not counted.
        problems: (file, problem) -> lines, or files.
        duplicates: process -> extra copies of its events.
    """

    def __init__(self, folder: Path, plan: Plan, settings: FleetSettings, rng: random.Random, packer: Packer) -> None:
        self._folder = folder
        self._plan = plan
        self._garbage = settings.garbage
        self._settings = settings
        self._rng = rng
        self._packer = packer
        self._files: dict[int, tuple[int, PackedFile]] = {}
        self._counts: defaultdict[int, _Count] = defaultdict(_Count)
        self._copied = self._choose_copied()
        self._copies = 0
        self.events = 0
        self.problems: Counter[tuple[str, str]] = Counter()
        self.duplicates: Counter[tuple[str, int]] = Counter()

    # -- events -------------------------------------------------------------------------------------------------

    def write(self, slot: int, lines: list[Line]) -> None:
        """Write what a slot has to say next; nothing earlier may follow."""
        lines.sort(key=LINE_TIME)
        for process, begin, end in self._stretches(slot, lines):
            self._write_stretch(process, lines[begin:end])

    def _stretches(self, slot: int, lines: Sequence[Line]) -> Iterator[tuple[Incarnation, int, int]]:
        """Processes, and the range of lines that one wrote into one file."""
        offset, those = self._plan.offsets[slot], self._plan.incarnations[slot]
        begin, count = 0, len(lines)
        while begin < count:
            time = lines[begin][0]
            process = self._plan.incarnation(slot, time - offset)
            limit = (time // HOUR + 1) * HOUR
            if process is not those[-1]:
                limit = min(limit, process.end + offset)
            end = begin + 1
            if lines[-1][0] < limit:
                end = count
            else:
                while end < count and lines[end][0] < limit:
                    end += 1
            yield process, begin, end
            begin = end

    def _write_stretch(self, process: Incarnation, lines: Sequence[Line]) -> None:
        count = self._counts[process.index]
        numbered = list(enumerate(lines, count.given + 1))
        count.given += len(lines)
        kept = [(seq, line) for seq, line in numbered if line[2] is not None]
        if not kept:
            return
        file = self._file(process, kept[0][1][0])
        count.first = count.first or kept[0][0]
        count.last = kept[-1][0]
        count.written += len(kept)
        self.events += len(kept)
        who = f'"host":"{process.host}","pid":{process.pid},"seq":'
        texts = [f"{_BEGIN}{time},{first}{who}{seq},{rest}\n" for seq, (time, first, rest) in kept]
        if self._garbage:
            self._soil(texts, file.path.name)
        file.write("".join(texts).encode(errors="surrogateescape"))

    def _soil(self, texts: list[str], name: str) -> None:
        """Put garbage between the lines."""
        count = int(len(texts) * self._garbage + self._rng.random())
        for _ in range(count):
            line = garbage(self._rng)
            texts.insert(self._rng.randrange(len(texts) + 1), line + "\n")
            problem = problem_of(line.encode(errors="surrogateescape"))
            assert problem is not None
            self.problems[name, problem] += 1

    # -- files --------------------------------------------------------------------------------------------------

    def _file(self, process: Incarnation, time: int) -> PackedFile:
        """The file of a process for the hour of a time by its clock; the one of the hour before is closed."""
        hour = time // HOUR
        found = self._files.get(process.index)
        if found is not None and found[0] == hour:
            return found[1]
        if found is not None:
            self._close(process, *found)
        name = file_name(hour, process.host, process.pid, time) + (PART if self._is_torn(process, hour) else GZIP)
        file = PackedFile(self._folder / name, self._packer)
        self._files[process.index] = hour, file
        return file

    def _is_torn(self, process: Incarnation, hour: int) -> bool:
        return process.ending == "killed" and hour == (process.end + self._plan.offsets[process.slot]) // HOUR

    def end(self, process: Incarnation, last_words: str) -> None:
        """A process is no more.

        Arguments:
            last_words: what follows the sequence number in the line that a killed one was writing.
        """
        if process.ending == "killed":
            own = process.end + self._plan.offsets[process.slot]
            file = self._file(process, own)
            count = self._counts[process.index]
            count.given += 1
            line = f'{_BEGIN}{own},"host":"{process.host}","pid":{process.pid},"seq":{count.given},{last_words}'
            file.write(torn(line, self._rng).encode())
            self.problems[file.path.name, "truncated"] += 1
        found = self._files.pop(process.index, None)
        if found is not None:
            self._close(process, *found)

    def _close(self, process: Incarnation, hour: int, file: PackedFile) -> None:
        file.close()
        if (process.slot, hour) in self._copied and file.path.suffix == GZIP:
            self._packer.finish()
            self._copy(process, file.path)

    # -- what nobody meant to write -----------------------------------------------------------------------------

    def _choose_copied(self) -> frozenset[tuple[int, int]]:
        plan = self._plan
        chosen: set[tuple[int, int]] = set()
        hours = range(plan.start // HOUR, max((plan.end - SECOND) // HOUR, plan.start // HOUR) + 1)
        possible = self._settings.processes * len(hours)
        while len(chosen) < min(self._settings.copies, possible):
            chosen.add((self._rng.randrange(self._settings.processes), self._rng.choice(hours)))
        return frozenset(chosen)

    def _copy(self, process: Incarnation, path: Path) -> None:
        """The same file once more: whole under another name, or plain and cut, as left by an unfinished compression."""
        packed, stem = path.read_bytes(), path.name.removesuffix(JSON_LINES + GZIP)
        data = gzip.decompress(packed)
        if self._copies % 2:
            copy = path.with_name(stem + JSON_LINES)
            data = data[: self._rng.randrange(len(data) // 2, len(data) - 2)]
            copy.write_bytes(data)
        else:
            copy = path.with_name(f"{stem}.copy{JSON_LINES}{GZIP}")
            copy.write_bytes(packed)
        self._copies += 1
        for line in data.split(b"\n"):
            if not line.strip():
                continue
            problem = problem_of(line)
            if problem is None:
                self.duplicates[process.host, process.pid] += 1
            else:
                self.problems[copy.name, problem] += 1

    def finish(self) -> None:
        """Add the files that no process of this fleet wrote."""
        hour = self._plan.start // HOUR
        for number in range(self._settings.future):
            process = Incarnation(-1, 0, "host-next", 9000 + number, self._plan.start, self._plan.end, "closed")
            name = file_name(hour, process.host, process.pid, self._plan.start) + GZIP
            self._folder.joinpath(name).write_bytes(gzip.compress(self._future_lines(process), 1, mtime=0))
            self.problems[name, "unknown_version"] = _FUTURE_LINES
        for number in range(self._settings.empty):
            name = f"empty-{number}{JSON_LINES}{GZIP if number % 2 else ''}"
            self._folder.joinpath(name).touch()
            self.problems[name, "empty"] = 1
        for number in range(self._settings.binary):
            self._write_binary(number)

    def _future_lines(self, process: Incarnation) -> bytes:
        lines = [
            f'{_BEGIN_OF_FUTURE}{self._plan.start + seq},"host":"{process.host}","pid":{process.pid},"seq":{seq},'
            f'"event":"entangled","pairing":"main","message_id":"future-{process.pid}-{seq}","colour":"octarine"}}\n'
            for seq in range(1, _FUTURE_LINES + 1)
        ]
        return "".join(lines).encode()

    def _write_binary(self, number: int) -> None:
        """Bytes at random, in lines that nobody takes for something else: no brace and no line end in them."""
        alphabet = [0, 1, 2, 3, *range(128, 256)]
        lines = [bytes(self._rng.choices(alphabet, k=64)) for _ in range(_BINARY_LINES)]
        name = f"binary-{number}{JSON_LINES}{GZIP if number % 2 else ''}"
        self._folder.joinpath(name).write_bytes(b"\n".join(lines))
        self.problems[name, "unreadable" if number % 2 else "malformed"] = 1 if number % 2 else _BINARY_LINES

    def missing(self) -> dict[tuple[str, int], int]:
        """Process -> sequence numbers between its first and its last line that no line has."""
        found = {}
        for those in self._plan.incarnations:
            for process in those:
                count = self._counts[process.index].missing
                if count:
                    found[process.host, process.pid] = count
        return found
