"""What does the journal cost ``delay()``, at each of its levels, against no journal, side by side in one run?

    python -m tests.bench.bench_journal [amqp|redis …] [--blocks N] [--calls N]

Three applications live in one process and publish to the same broker in short blocks, in an order that changes from
round to round, so that whatever the machine does it does to all of them. The overhead is the median of the rounds'
ratios. A block ends when the journal has written its lines: the thread that writes is paid for, too. Beside it stands
what the process computes more, in all its threads: that number is steady on a machine that is busy with other things.
"""

from __future__ import annotations

import argparse
import itertools
import json
import os
import statistics
import tempfile
import time
from pathlib import Path
from typing import Any

from kombu import Connection

from kombu_paired.journal import writer as journal
from kombu_paired.testing import local_broker
from tests.bench.bench_delay import make_app, seconds_of

LEVELS = (None, "transitions", "messages")


def lines_in(folder: Path) -> int:
    return sum(path.read_bytes().count(b"\n") for path in folder.glob("*.jsonl.part"))


def block(task: Any, calls: int, kept: journal.Journal | None) -> tuple[float, float]:
    """Seconds of so many calls, and of what the journal has still to write after them; and seconds of computing."""
    computed, started = time.process_time(), time.perf_counter()
    seconds_of(task, calls)
    if kept is not None:
        kept.flush()
    return time.perf_counter() - started, time.process_time() - computed


def measure(kind: str, blocks: int, calls: int, folder: Path) -> list[dict[str, Any]]:
    with local_broker(kind) as primary, local_broker(kind) as secondary:
        apps = {}
        for level in LEVELS:
            options: dict[str, Any] = {"secondary": secondary.url}
            if level is not None:
                options |= {"journal": str(folder / level), "journal_level": level}
            apps[level] = make_app("paired+" + primary.url, options)
            seconds_of(apps[level], calls)
        journals = {level: journal._journals.get(str(folder / str(level))) for level in LEVELS}
        taken: dict[str | None, list[tuple[float, float]]] = {level: [] for level in LEVELS}
        orders = itertools.cycle(itertools.permutations(LEVELS))
        for order, _ in zip(orders, range(blocks), strict=False):
            for level in order:
                taken[level].append(block(apps[level], calls, journals[level]))
            with Connection(primary.url) as connection:
                connection.default_channel.queue_purge("celery")
        assert lines_in(folder / "messages") == (blocks + 1) * calls
        assert not (folder / "transitions").exists()
    return [row(kind, level, taken, calls) for level in LEVELS if level is not None]


def row(kind: str, level: str, taken: dict[str | None, list[tuple[float, float]]], calls: int) -> dict[str, Any]:
    pairs = list(zip(taken[level], taken[None], strict=True))
    ratios = [with_it / without for (with_it, _), (without, _) in pairs]
    computed = [with_it - without for (_, with_it), (_, without) in pairs]
    return {
        "broker": kind,
        "journal_level": level,
        "overhead_percent": round(100 * (statistics.median(ratios) - 1), 1),
        "quartiles_percent": [round(100 * (q - 1), 1) for q in statistics.quantiles(ratios, n=4)],
        "without_us": round(1e6 * min(taken[None])[0] / calls),
        "with_us": round(1e6 * min(taken[level])[0] / calls),
        "computed_us_more": round(1e6 * statistics.median(computed) / calls, 1),
        "blocks": len(ratios),
        "calls": calls,
        "load": os.getloadavg()[0],
    }


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("kinds", nargs="*", default=["amqp", "redis"])
    parser.add_argument("--blocks", type=int, default=150)
    parser.add_argument("--calls", type=int, default=100)
    options = parser.parse_args()
    for kind in options.kinds or ["amqp", "redis"]:
        with tempfile.TemporaryDirectory() as folder:
            for line in measure(kind, options.blocks, options.calls, Path(folder)):
                print(json.dumps(line), flush=True)


if __name__ == "__main__":
    main()
