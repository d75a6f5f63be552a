"""Which journals there are now, and how far each can be read: what the stream of :mod:`.tail` goes towards."""

from __future__ import annotations

import json
import os
import time
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import NamedTuple

from kombu_paired.journal.format import COMPRESSED, ENDINGS, FORMS, ORPHANED, PART, stem_of
from kombu_paired.pipeline.live.tail import CHUNK, COPY, DAMAGE, Offsets, Place, forms_of, opened

__all__ = ("Folders", "Inventory")

BLANK = b" \t\r\n"
#: Seconds for which a closed file has not changed when its last line, without an end, counts as a line: it may be
#: that somebody copies it right now. A ``.part`` has :data:`~kombu_paired.journal.format.ORPHANED`.
SETTLED = 10.0
#: Bytes, not compressed, that are looked at in one go, so that the first rows of a large past come soon.
LOOK = 1 << 30


class Seen(NamedTuple):
    """A file as it was when it was opened: its size and time of change (ns), and what is in it.

    Attributes:
        lines: bytes of whole lines, not compressed.
        all: bytes, not compressed.
        problem: ``empty``, ``unreadable``, or nothing.
    """

    size: int
    changed: int
    lines: int = 0
    all: int = 0
    problem: str = ""


@dataclass
class Inventory:
    """What there is now.

    Attributes:
        target: how far each file can be read.
        files: how many there are.
        problems: (path, problem) of those that give no lines.
        is_all: whether every file was looked at; else look again, after these are read.
    """

    target: Offsets = field(default_factory=dict)
    files: int = 0
    problems: list[tuple[str, str]] = field(default_factory=list)
    is_all: bool = True

    @property
    def bytes(self) -> int:
        return sum(sum(place) for names in self.target.values() for place in names.values())


class Folders:
    """Looks at files and folders again and again, and opens only what is new or has changed.

    Arguments:
        paths: files, and folders, which are searched to the bottom.
        memory: a file that remembers what was seen, for the next process. It may be lost.
        beside: a folder that is left out.
    """

    def __init__(
        self, paths: Sequence[str], memory: Path, *, beside: str | None = None, clock: Callable[[], float] = time.time
    ) -> None:
        self._paths = [Path(each.removeprefix("file://")).absolute() for each in paths]
        self._beside = Path(beside).absolute() if beside else None
        self._memory = memory
        self._clock = clock
        self._seen = self._remembered()
        self._closed_to_us: list[Path] = []

    def missing(self) -> list[Path]:
        """The paths at which there is nothing."""
        return [each for each in self._paths if not os.path.lexists(each)]

    def look(self, limit: int = LOOK) -> Inventory:
        """See what there is; of files that are new or have changed, about ``limit`` bytes are looked at."""
        files = self._files()
        known = {path: self._seen[path] for path in files if path in self._seen}
        found = Inventory(files=len(files))
        for path in sorted(files, key=lambda each: each.name):
            before = known.get(path)
            if before is not None and (before.size, before.changed) == files[path]:
                continue
            if limit <= 0:
                found.is_all = False
                break
            known[path] = _examined(path, *files[path], before)
            limit -= known[path].all - (before.all if before else 0)
        if known != self._seen:
            self._seen = known
            self._remember()
        self._tell(found, files)
        return found

    def _tell(self, found: Inventory, files: dict[Path, tuple[int, int]]) -> None:
        of_stem: dict[tuple[str, str], list[Path]] = {}
        for path in files:
            of_stem.setdefault(_key(path), []).append(path)
        for (folder, stem), paths in of_stem.items():
            names = found.target.setdefault(folder, {})
            names[stem] = Place()  # it is there: what was read of it is remembered
            is_first = True
            for path in sorted(paths, key=_age, reverse=True):
                seen = self._seen.get(path)
                if seen is None:
                    continue
                if seen.problem:
                    found.problems.append((str(path), seen.problem))
                elif is_first:
                    names[stem], is_first = self._place(path, seen), False
                elif self._is_closed(path, seen):
                    names[path.name + COPY] = self._place(path, seen)

    def _place(self, path: Path, seen: Seen) -> Place:
        return Place(seen.lines, seen.all - seen.lines if self._is_closed(path, seen) else 0)

    def _is_closed(self, path: Path, seen: Seen) -> bool:
        """Nobody will add to it."""
        if path.name.endswith(COMPRESSED):
            return True
        patience = ORPHANED if path.name.endswith(PART) else SETTLED
        return self._clock() - seen.changed / 1e9 > patience

    # -- listing ------------------------------------------------------------------------------------------------------

    def _files(self) -> dict[Path, tuple[int, int]]:
        """Every journal, with its size and time of change."""
        files = dict(self._walked())
        for _ in range(3):
            listed = set(map(_key, files))
            if not any(_is_somewhere(path) for path in self._seen if _key(path) not in listed):
                break
            files = dict(self._walked())  # it was renamed while the folder was listed
        # A folder that may not be listed just now has not lost its files.
        kept = (path for path in self._seen if any(folder in path.parents for folder in self._closed_to_us))
        return {path: (self._seen[path].size, self._seen[path].changed) for path in kept} | files

    def _walked(self) -> Iterator[tuple[Path, tuple[int, int]]]:
        self._closed_to_us = []
        for path in self._paths:
            if not path.is_dir():
                yield from _with_state(path)
                continue
            for folder, folders, names in os.walk(path, onerror=self._cannot_list):
                folders[:] = [each for each in folders if Path(folder, each) != self._beside]
                for name in names:
                    if name.endswith(ENDINGS) and _is_text(name):
                        yield from _with_state(Path(folder, name))

    def _cannot_list(self, error: OSError) -> None:
        if not isinstance(error, FileNotFoundError):
            self._closed_to_us.append(Path(os.fsdecode(error.filename)))

    # -- remembering --------------------------------------------------------------------------------------------------

    def _remembered(self) -> dict[Path, Seen]:
        try:
            return {Path(path): Seen(*seen) for path, seen in json.loads(self._memory.read_text()).items()}
        except (OSError, ValueError, TypeError, AttributeError):
            return {}

    def _remember(self) -> None:
        beside = self._memory.with_suffix(".new")
        beside.write_text(json.dumps({str(path): seen for path, seen in self._seen.items()}))
        beside.replace(self._memory)


def _key(path: Path) -> tuple[str, str]:
    """What names a file in the offsets."""
    return str(path.parent), stem_of(path.name)


def _age(path: Path) -> int:
    form = path.name.removeprefix(stem_of(path.name))
    return FORMS.index(form)


def _is_text(name: str) -> bool:
    try:
        return bool(name.encode())
    except UnicodeEncodeError:
        return False


def _is_somewhere(path: Path) -> bool:
    """In any of the forms that it can take, the first of its life first: what has left one is in a later one."""
    return any(os.path.lexists(each) for each in reversed(forms_of(*_key(path))))


def _with_state(path: Path) -> Iterator[tuple[Path, tuple[int, int]]]:
    try:
        state = path.stat()
    except FileNotFoundError:
        if path.is_symlink():
            yield path, (0, 0)
    except OSError:
        yield path, (0, 0)
    else:
        yield path, (state.st_size, state.st_mtime_ns)


# -- opening ----------------------------------------------------------------------------------------------------------


def _examined(path: Path, size: int, changed: int, before: Seen | None) -> Seen:
    try:
        if path.name.endswith(COMPRESSED) and size:
            return _examined_whole(path, size, changed)
        with path.open("rb") as file:
            has_text = before is not None and before.lines > 0 and not before.problem
            if not has_text and not any(chunk.strip(BLANK) for chunk in iter(lambda: file.read(CHUNK), b"")):
                return Seen(size, changed, problem="empty")
            return Seen(size, changed, _end_of_lines(path, size), size)
    except DAMAGE as error:
        may_change_unseen = isinstance(error, (PermissionError, FileNotFoundError))
        return Seen(-1 if may_change_unseen else size, changed, problem="unreadable")


def _examined_whole(path: Path, size: int, changed: int) -> Seen:
    length, lines, has_text = 0, 0, False
    with opened(path) as file:
        while chunk := file.read(CHUNK):
            end = chunk.rfind(b"\n")
            lines = length + end + 1 if end >= 0 else lines
            length += len(chunk)
            has_text = has_text or bool(chunk.strip(BLANK))
    return Seen(size, changed, lines, length) if has_text else Seen(size, changed, problem="empty")


def _end_of_lines(path: Path, size: int) -> int:
    """Bytes up to the end of the last line that has one."""
    with path.open("rb") as file:
        end = size
        while end > 0:
            begin = max(end - CHUNK, 0)
            file.seek(begin)
            place = file.read(end - begin).rfind(b"\n")
            if place >= 0:
                return begin + place + 1
            end = begin
    return 0
