"""What really ran: every task writes its number to a file, and nothing else is believed."""

from __future__ import annotations

import os
import time
from collections import Counter
from collections.abc import Iterable
from pathlib import Path


class Ledger:
    """A folder with one file per process that ran tasks, one line per run: number, time, id."""

    def __init__(self, folder: str | os.PathLike[str]) -> None:
        self.folder = Path(folder)
        self.folder.mkdir(parents=True, exist_ok=True)
        self._read: dict[str, int] = {}
        self._entries: list[tuple[int, float, str]] = []

    def write(self, number: int, task_id: str) -> None:
        """Add one line: a single append, so that a killed process leaves a whole line or none."""
        line = f"{number} {time.time():.6f} {task_id}\n".encode()
        path = self.folder / f"{os.getpid()}.ledger"
        file = os.open(path, os.O_WRONLY | os.O_APPEND | os.O_CREAT, 0o644)
        try:
            os.write(file, line)
        finally:
            os.close(file)

    def entries(self) -> list[tuple[int, float, str]]:
        """All runs so far: (number, time, task id), in order of time."""
        for path in self.folder.glob("*.ledger"):
            with path.open("rb") as file:
                file.seek(self._read.get(path.name, 0))
                data = file.read()
            whole = data[: data.rfind(b"\n") + 1]
            self._read[path.name] = self._read.get(path.name, 0) + len(whole)
            for line in whole.decode().splitlines():
                number, at, task_id = line.split(" ", 2)
                self._entries.append((int(number), float(at), task_id))
        self._entries.sort(key=lambda entry: entry[1])
        return list(self._entries)

    def executed(self) -> list[int]:
        """The numbers that ran, once per run."""
        return [number for number, _, _ in self.entries()]

    def counts(self) -> Counter[int]:
        """How often each number ran."""
        return Counter(self.executed())

    def missing(self, expected: Iterable[int]) -> set[int]:
        """Those of the expected numbers that never ran."""
        return set(expected) - set(self.executed())

    def duplicates(self) -> dict[int, int]:
        """The numbers that ran more than once, and how often."""
        return {number: count for number, count in self.counts().items() if count > 1}

    def wait_for(self, n_distinct: int, timeout: float) -> Counter[int]:
        """Wait until so many different numbers ran; fail when they did not in time."""
        deadline = time.monotonic() + timeout
        while True:
            counts = self.counts()
            if len(counts) >= n_distinct:
                return counts
            if time.monotonic() > deadline:
                missing = sorted(self.missing(range(n_distinct)))[:20]
                raise AssertionError(
                    f"after {timeout:g} s {len(counts)} different numbers ran, not {n_distinct}; without {missing}"
                )
            time.sleep(0.05)

    def wait_until_quiet(self, quiet: float, timeout: float) -> Counter[int]:
        """Wait until nothing new ran for ``quiet`` seconds: for the duplicates that come late."""
        deadline = time.monotonic() + timeout
        seen, since = len(self.entries()), time.monotonic()
        while time.monotonic() - since < quiet and time.monotonic() < deadline:
            time.sleep(0.05)
            if len(self.entries()) != seen:
                seen, since = len(self._entries), time.monotonic()
        return self.counts()
