"""Journals by hand."""

from __future__ import annotations

import gzip
import json
from pathlib import Path
from typing import Any


def line(seq: int = 1, event: str = "sent", **fields: Any) -> str:
    """One line of a journal, with all that a line must have."""
    common = {"v": 1, "time": 1_000_000 * seq, "host": "h", "pid": 1, "seq": seq, "event": event, "pairing": "main"}
    return json.dumps(common | fields)


def write(file: Path, *lines: str | bytes) -> Path:
    """A journal file of these lines, compressed if its name says so."""
    file.parent.mkdir(parents=True, exist_ok=True)
    content = b"".join(each.encode() + b"\n" if isinstance(each, str) else each for each in lines)
    file.write_bytes(gzip.compress(content) if file.suffix == ".gz" else content)
    return file
