"""``python -m tests.battle``: play episodes, print a line for each, and exit with 1 if any promise was broken.

python -m tests.battle --faults 1500 --lanes 2   fresh seeds, until so many faults were played
python -m tests.battle --hours 8                 before a release
python -m tests.battle --seed 4711               that episode again; --pair and --pool as its line says
python -m tests.battle --ci                      a fixed list of seeds, about two minutes
"""

from __future__ import annotations

import argparse
import math
import random
import sys
import tempfile
import time
from collections import Counter
from collections.abc import Iterator
from pathlib import Path

from tests.battle.episode import Outcome
from tests.battle.lanes import play_all
from tests.battle.plan import PAIRS, POOLS, Plan, make_plan

#: What CI plays: seed, pair, pool. About two minutes on two cores, in three lanes, which wait more than they work.
CI: tuple[tuple[int, str, str], ...] = (
    (1, "cluster+redis", "threads"),
    (2, "rabbitmq+rabbitmq", "prefork"),
    (3, "rabbitmq+rabbitmq", "gevent"),
    (4, "rabbitmq+redis", "threads"),
    (5, "rabbitmq+redis", "prefork"),
    (6, "redis+rabbitmq", "prefork"),
    (7, "redis+rabbitmq", "threads"),
    (8, "redis+redis", "prefork"),
    (9, "redis+redis", "threads"),
    (10, "redis+redis", "gevent"),
    (14, "redis/results+redis", "prefork"),
    (15, "redis/results+redis", "threads"),
    (11, "sentinel+redis", "prefork"),
    (12, "servicebus+servicebus", "threads"),
    (13, "servicebus+servicebus", "gevent"),
)


def main() -> int:
    arguments = _arguments()
    folder = Path(arguments.folder or tempfile.mkdtemp(prefix="battle-"))
    folder.mkdir(parents=True, exist_ok=True)
    total = Total()
    began = time.monotonic()
    try:
        plans = _plans(arguments)
        until = began + 3600 * arguments.hours if arguments.hours else math.inf
        limit = arguments.faults or math.inf
        for outcome in play_all(plans, folder, lanes=arguments.lanes, until=until, limit=limit, keep=arguments.keep):
            total.add(outcome)
            print(outcome if isinstance(outcome, str) else line_of(outcome), flush=True)
    except KeyboardInterrupt:
        print("interrupted")
    print(total.summary(time.monotonic() - began))
    return 0 if total.n_failed == 0 and total.n_passed else 1


def _arguments() -> argparse.Namespace:
    parser = argparse.ArgumentParser(prog="python -m tests.battle", description="Random outages, judged.")
    length = parser.add_mutually_exclusive_group(required=True)
    length.add_argument("--hours", type=float, help="play fresh seeds for so long")
    length.add_argument("--faults", type=int, help="play fresh seeds until so many faults were played")
    length.add_argument("--seed", type=int, help="play one episode")
    length.add_argument("--ci", action="store_true", help="play a fixed list")
    parser.add_argument("--pair", choices=PAIRS, help="this pair alone")
    parser.add_argument("--pool", choices=POOLS, help="this pool alone")
    parser.add_argument("--lanes", type=int, help="episodes side by side; one by default, with --ci three")
    parser.add_argument("--folder", help="where failed episodes are kept; a temporary folder by default")
    parser.add_argument("--keep", action="store_true", help="keep episodes that passed, too")
    parser.add_argument("--show", action="store_true", help="print the plan of --seed, and do not play it")
    arguments = parser.parse_args()
    arguments.lanes = arguments.lanes or (3 if arguments.ci else 1)
    if arguments.show:
        print(make_plan(arguments.seed or 0, arguments.pair, arguments.pool))
        sys.exit(0)
    return arguments


def _plans(arguments: argparse.Namespace) -> Iterator[Plan]:
    if arguments.ci:
        yield from (make_plan(*each) for each in CI)
    elif arguments.seed is not None:
        yield make_plan(arguments.seed, arguments.pair, arguments.pool)
    else:
        while True:
            yield make_plan(random.SystemRandom().randrange(10**9), arguments.pair, arguments.pool)


def line_of(outcome: Outcome) -> str:
    plan, verdict = outcome.plan, outcome.verdict
    explained = dict(verdict.duplicates)
    n_marked, n_unexplained = explained.pop("marked", 0), explained.pop("unexplained", 0)
    line = (
        f"{'pass' if verdict.passed else 'FAIL'} seed {plan.seed:<9} {plan.pair.name:21} {plan.pool:7} "
        f"{outcome.n_faults:2} faults {verdict.n_calls:5} calls {verdict.n_ran:5} ran, {verdict.n_raised} raised, "
        f"duplicates {n_marked} marked {sum(explained.values())} explained {n_unexplained} unexplained, "
        f"longest call {verdict.longest:.2f} s of {2 * plan.send_timeout + 1:g}, took {outcome.seconds:.0f} s"
    )
    if verdict.celerys_own_exits:
        line += f", {verdict.celerys_own_exits} exits of Celery's own"
    if verdict.stalled:
        line += f", the machine stood still for {verdict.stalled:.1f} s"
    if verdict.passed:
        return line
    promises = Counter(each.promise for each in verdict.broken)
    shown = [f"    {each}" for each in verdict.broken[:8]]
    return "\n".join([line, f"    {dict(promises)}; kept in {outcome.kept}; again: {plan.arguments}", *shown])


class Total:
    def __init__(self) -> None:
        self.n_passed = self.n_failed = self.n_faults = self.n_calls = self.n_raised = 0
        self.duplicates: Counter[str] = Counter()
        self.broken: Counter[str] = Counter()
        self.longest = 0.0

    def add(self, outcome: Outcome | str) -> None:
        if isinstance(outcome, str):
            self.n_failed += 1
            return
        verdict = outcome.verdict
        self.n_passed += verdict.passed
        self.n_failed += not verdict.passed
        self.n_faults += outcome.n_faults
        self.n_calls += verdict.n_calls
        self.n_raised += verdict.n_raised
        self.duplicates += verdict.duplicates
        self.broken += Counter(each.promise for each in verdict.broken)
        self.longest = max(self.longest, verdict.longest)

    def summary(self, seconds: float) -> str:
        duplicates = ", ".join(f"{count} {rule}" for rule, count in self.duplicates.most_common()) or "none"
        broken = ", ".join(f"{count} {promise}" for promise, count in self.broken.most_common()) or "none"
        return (
            f"{self.n_faults} faults, {self.n_calls} calls, {self.n_raised} raised with both sides down, "
            f"longest call {self.longest:.2f} s\n"
            f"duplicates: {duplicates}\n"
            f"broken promises: {broken}\n"
            f"{self.n_passed} passed, {self.n_failed} failed in {seconds:.0f} s"
        )


if __name__ == "__main__":
    sys.exit(main())
