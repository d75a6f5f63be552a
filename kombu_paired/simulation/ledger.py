"""Writes the truth down, and adds it up."""

from __future__ import annotations

import json
from collections import Counter
from collections.abc import Iterable
from pathlib import Path
from typing import Any

from kombu_paired.simulation.packing import PackedFile, Packer
from kombu_paired.simulation.truth import Row

__all__ = ("FATES", "Ledger")

FATES = ("direct", "recovered", "stood-in", "waiting", "dead-lettered", "expired", "duplicated", "unknown")


class Ledger:
    """Takes the rows of ``messages``, and keeps their sums.

    Arguments:
        folder: where the truth is written; None: it is only added up.
        packer: writes the file of the rows.
    """

    def __init__(self, folder: Path | None, packer: Packer) -> None:
        self.folder = folder
        self._file = None if folder is None else PackedFile(folder / "truth-messages.jsonl.gz", packer)
        self._sums: Counter[str] = Counter()
        self._skewed = 0
        self._largest_skew = 0.0

    def add(self, row: Row) -> None:
        """Take the row of a message."""
        self._sums["messages"] += 1
        self._sums["accepted"] += row["sends"] >= 1
        self._sums["diverted"] += row["diverted_at"] is not None
        self._sums["consumed"] += row["consumed_at"] is not None
        self._sums["refused"] += row["fate"] == "unknown" and row["caller_errors"] > 0
        self._sums["lost"] += row["fate"] == "unknown" and row["sends"] >= 1
        self._sums["ran_meanwhile"] += row["late_s"] is not None
        self._sums[row["fate"]] += 1
        self.add_skew(row["skew_s"])
        if self._file is not None:
            self._file.write(_text(row).encode())

    def add_direct(self, count: int, consumed: int) -> None:
        """Count messages that went straight; their rows come as texts."""
        for name in ("messages", "accepted", "direct"):
            self._sums[name] += count
        self._sums["consumed"] += consumed

    def add_skew(self, seconds: float) -> None:
        if seconds > 0:
            self._skewed += 1
            self._largest_skew = max(self._largest_skew, seconds)

    def add_texts(self, texts: Iterable[str]) -> None:
        """Take rows as lines of JSON."""
        if self._file is not None:
            self._file.write("".join(texts).encode())

    def balance(self) -> dict[str, int]:
        """Sums over all messages."""
        names = ("messages", "accepted", "diverted", "consumed", "refused", "lost", "ran_meanwhile", *FATES)
        return {name: self._sums[name] for name in names}

    def skew_row(self) -> list[Row]:
        """What of ``quality`` is about clocks: one row, or none."""
        if not self._skewed:
            return []
        return [quality_row("clock_skew", self._skewed, seconds=self._largest_skew)]

    def close(self, outages: Iterable[Row], quality: Iterable[Row], contents: dict[str, Any]) -> None:
        """Write what is left, and the other tables."""
        if self.folder is None or self._file is None:
            return
        self._file.close()
        self.folder.joinpath("truth-outages.jsonl").write_text("".join(map(_text, outages)), encoding="utf-8")
        self._write("truth-quality.json", list(quality))
        self._write("truth-balance.json", self.balance())
        self._write("truth-simulation.json", contents)

    def _write(self, name: str, content: object) -> None:
        assert self.folder is not None
        text = json.dumps(content, indent=1, ensure_ascii=False)
        self.folder.joinpath(name).write_text(text + "\n", encoding="utf-8")


def quality_row(
    problem: str,
    count: int,
    *,
    file: str | None = None,
    process: tuple[str, int] | None = None,
    seconds: float | None = None,
) -> Row:
    """A row of ``quality``."""
    host, pid = process or (None, None)
    return {"file": file, "host": host, "pid": pid, "problem": problem, "count": count, "seconds": seconds}


def _text(row: Row) -> str:
    return json.dumps(row, ensure_ascii=False, separators=(",", ":")) + "\n"
