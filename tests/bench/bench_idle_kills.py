"""How many tasks are lost when idle Redis consumers are killed, frozen or cut off under trickling traffic?

    python -m tests.bench.bench_idle_kills [plain|paired …] [--rounds N] [--celery] [--seed N]

In each round one consumer serves a queue into which a message comes every few milliseconds, and is harmed within two
milliseconds of one of them; the next consumer, which is ready, takes over. A consumer writes down what it got before
it acknowledges it, so nothing is lost by its own doing. At the end a last one takes what came back. With ``--celery``
the consumers are real workers that acknowledge late, and take a few seconds more each.
"""

from __future__ import annotations

import argparse
import json
import os
import random
import tempfile
import time
from collections import Counter
from collections.abc import Callable
from contextlib import ExitStack
from pathlib import Path
from typing import Any

from kombu import Connection, Producer

from kombu_paired.testing import local_broker, stop_tree
from tests.bench.idle_consumer import QUEUE, LightConsumer
from tests.support.ledger import Ledger
from tests.support.nodes import LocalTestWorker
from tests.support.proxy import Proxy
from tests.support.shop import make_app, shop_environment

HARMS = ("kill", "freeze", "cut", "blackhole")
#: What a vanished consumer held comes back after seconds.
COMES_BACK = {"visibility_timeout": 4, "unacked_restore_interval": 1, "unacked_restore_throttle": 1}
#: Seconds between two messages, at most, and of a round before the harm.
PACE, ROUND = 0.02, (0.3, 1.0)
#: Seconds without news after which nothing comes any more: a lease, and the visibility timeout.
SILENCE = 25.0


class Worker:
    """A real one, whose tasks write down what they got."""

    def __init__(self, folder: Path, url: str, options: dict[str, Any]) -> None:
        environment = shop_environment(
            url, options, ledger=folder / "seen", setup=url.startswith("paired"), conf={"task_acks_late": True}
        )
        quiet = ("--without-mingle", "--without-gossip")
        self._worker = LocalTestWorker(Path(tempfile.mkdtemp(dir=folder)), env=environment, concurrency=1, args=quiet)

    def begin(self) -> None:
        self._worker.ready()

    def freeze(self) -> None:
        self._worker.freeze()

    def kill(self) -> None:
        process = self._worker.container.process
        assert process is not None
        stop_tree(process)


class Traffic:
    """Publishes numbers, straight to the broker."""

    def __init__(self, url: str, celery: bool, folder: Path) -> None:
        self.sent = 0
        if celery:
            task = make_app(shop_environment(url, {}, ledger=folder / "seen", setup=False)).record
            self._send: Callable[[int], Any] = task.delay
        else:
            producer = Producer(Connection(url).channel())
            self._send = lambda number: producer.publish(str(number), routing_key=QUEUE)

    def one(self) -> None:
        self._send(self.sent)
        self.sent += 1

    def trickle(self, seconds: float, dice: random.Random) -> None:
        until = time.monotonic() + seconds
        while time.monotonic() < until:
            time.sleep(dice.uniform(0, PACE))
            self.one()


def measure(side: str, rounds: int, celery: bool, seed: int) -> dict[str, Any]:
    """Harm that many consumers; what was lost, by the harm of the round in which it was published."""
    dice = random.Random(seed)
    make: Any = Worker if celery else LightConsumer
    began: list[tuple[int, str]] = []  # first number of each round, and its harm
    with ExitStack() as stack:
        folder = Path(stack.enter_context(tempfile.TemporaryDirectory()))
        primary, secondary = (stack.enter_context(local_broker("redis")) for _ in range(2))
        primary.command("CONFIG", "SET", "appendfsync", "no")  # nothing happens to Redis itself
        proxy = stack.enter_context(Proxy(primary.port))
        url = primary.url.replace(str(primary.port), str(proxy.port))
        options: dict[str, Any] = dict(COMES_BACK)
        if side == "paired":
            url = "paired+" + url
            options = {
                "secondary": secondary.url,
                "primary_options": options,
                "send_timeout": 2,
                "primary_name": "shop",
            }
        traffic = Traffic(primary.url, celery, folder)
        victim, frozen = make(folder, url, options), []
        for number in range(rounds):
            harm = HARMS[number % len(HARMS)]
            successor = make(folder, url, options)
            victim.begin()
            began.append((traffic.sent, harm))
            traffic.trickle(dice.uniform(*ROUND), dice)
            time.sleep(dice.uniform(0, 0.002))
            if harm == "freeze":
                victim.freeze()
                frozen.append(victim)
            elif harm != "kill":
                proxy.cut() if harm == "cut" else proxy.blackhole()
            traffic.trickle(0.05, dice)
            if harm != "freeze":
                victim.kill()
                proxy.heal()
            if len(frozen) > 1:
                frozen.pop(0).kill()
            victim = successor
        victim.begin()
        found = _wait_until_nothing_comes(Ledger(folder / "seen"), traffic.sent)
        for each in (victim, *frozen):
            each.kill()
    lost = [number for number in range(traffic.sent) if number not in found]
    harms = Counter(next(harm for first, harm in reversed(began) if first <= number) for number in lost)
    return {
        "side": side,
        "consumers": "celery" if celery else "kombu",
        "rounds": rounds,
        "published": traffic.sent,
        "lost": len(lost),
        "lost_by_harm": dict(harms),
        "twice": sum(count > 1 for count in found.values()),
        "load": os.getloadavg()[0],
    }


def _wait_until_nothing_comes(ledger: Ledger, sent: int) -> Counter[int]:
    news, found = time.monotonic(), ledger.counts()
    while len(found) < sent and time.monotonic() - news < SILENCE:
        time.sleep(0.2)
        now = ledger.counts()
        if len(now) > len(found):
            news = time.monotonic()
        found = now
    return found


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("sides", nargs="*")
    parser.add_argument("--rounds", type=int, default=200)
    parser.add_argument("--celery", action="store_true", help="real workers; slower")
    parser.add_argument("--seed", type=int, default=random.randrange(10**6))
    options = parser.parse_args()
    for side in options.sides or ["plain", "paired"]:
        result = measure(side, options.rounds, options.celery, options.seed)
        print(json.dumps(result | {"seed": options.seed}), flush=True)


if __name__ == "__main__":
    main()
