"""Do workers that stand in keep what docs/standing-in.md promises? Each outage on each pair of brokers.

    python -m tests.bench.standing_in [--row N]… [--pair PRIMARY+SECONDARY]… [--freeze] [--seconds N] [--messages N]

Real workers and real brokers, killed or frozen, ``stand_in_after`` a second. A line per row and pair says whether it
was kept, with the figures: seconds from the call to the run, tasks lost, messages left in any queue of either side, and
tasks that ran more often than they should: marked, held by a worker when it or its broker was hit, or without excuse.
It exits with 1 if one was not; then the folder of that one is kept, and its line names it. :mod:`.rows` has the rows.
"""

from __future__ import annotations

import argparse
import logging
import shutil
import sys
import tempfile
import time
import traceback
from pathlib import Path

from tests.bench.standing_in.figures import Finding
from tests.bench.standing_in.rows import ROWS, Play
from tests.bench.standing_in.stage import load
from tests.support.brokers import NODES

PAIRS = ("amqp+redis", "redis+amqp", "amqp+amqp", "redis+redis", "azureservicebus+azureservicebus")


def play(row: int, pair: str, arguments: argparse.Namespace) -> bool:
    """Play one, and print its line; whether it passed."""
    primary, _, secondary = pair.partition("+")
    folder = Path(tempfile.mkdtemp(prefix=f"standing-in-{row}-"))
    began = time.monotonic()
    harm = "freeze" if arguments.freeze else "kill"
    try:
        finding = ROWS[row](Play((primary, secondary), harm, arguments.seconds, arguments.messages, folder))
    except Exception as exc:
        finding = Finding(wrong=[f"{type(exc).__name__}: {str(exc)[-300:]}"])
        (folder / "traceback.txt").write_text(traceback.format_exc())
    verdict = "pass" if finding.passed else "FAIL"
    took = time.monotonic() - began
    print(f"{verdict} row {row:<2} {harm:<6} {pair:<12} {finding}, load {load()}, took {took:.0f} s", flush=True)
    if finding.passed:
        shutil.rmtree(folder)
    else:
        print("     " + "; ".join(finding.wrong) + f" ({folder})", flush=True)
    return finding.passed


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--row", type=int, action="append", choices=sorted(ROWS), help="all, if none is named")
    parser.add_argument("--pair", action="append", help=f"of {', '.join(NODES)}; all pairs, if none is named")
    parser.add_argument("--freeze", action="store_true", help="SIGSTOP the primary, and do not kill it")
    parser.add_argument("--seconds", type=float, default=60, help="of a long outage")
    parser.add_argument("--messages", type=int, default=100_000, help="of a large backlog")
    arguments = parser.parse_args()
    logging.getLogger("kombu_paired").setLevel(logging.CRITICAL)  # of the applications here: workers have files
    kept = [play(row, pair, arguments) for row in arguments.row or ROWS for pair in arguments.pair or PAIRS]
    sys.exit(0 if all(kept) else 1)


if __name__ == "__main__":
    main()
