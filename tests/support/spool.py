"""A spool, looked into past its transport."""

from __future__ import annotations

import json
import re
import subprocess
import sys
from pathlib import Path
from typing import Any

from kombu_paired.message import BACKLOG_MARK
from tests.support.brokers import DEAD_LETTERS

_PROGRAM = (
    "import json, sqlite3, sys\n"
    "database = sqlite3.connect(sys.argv[1], timeout=10)\n"
    "with database: print(json.dumps(database.execute(sys.argv[2], json.loads(sys.argv[3])).fetchall()))\n"
)


def ask_spool(folder: Path, statement: str, *values: Any) -> list[Any]:
    """In a process of its own: one that closes a file lets go of the locks that it has on it."""
    [file] = folder.glob("messages-*.sqlite")
    command = [sys.executable, "-S", "-c", _PROGRAM, str(file), statement, json.dumps(values)]
    return list(json.loads(subprocess.run(command, check=True, capture_output=True, timeout=30).stdout))


class SpoolNode:
    """What stands for a secondary where a test expects a broker."""

    kind = "spool"

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self.url = f"spool://{folder}"

    def depths(self) -> dict[str, int]:
        if not list(self.folder.glob("messages-*.sqlite")):
            return {}
        return dict(ask_spool(self.folder, "SELECT queue, count(*) FROM messages GROUP BY queue"))

    def backlog(self) -> int:
        return sum(size for name, size in self.depths().items() if re.search(rf"{BACKLOG_MARK}\d+$", name))

    def dead_letters(self) -> int:
        return sum(size for name, size in self.depths().items() if name.endswith(DEAD_LETTERS))
