"""What will happen in an episode: all of it follows from the seed. Pure."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from random import Random

#: Seconds of faults in an episode: all begin within them.
LENGTH = 10.0

POOLS = ("prefork", "threads", "gevent")
WAYS = ("producer>primary", "producer>secondary", "worker>primary", "worker>secondary")

_NODE_FAULTS = ("kill", "freeze", "full", "close", "disk full")
_WAY_FAULTS = ("cut", "blackhole", "hold", "slow", "reset")


@dataclass(frozen=True)
class Pair:
    """Two kinds of brokers, and what can happen to them.

    Attributes:
        name: as on the command line.
        primary, secondary: which broker of the arena.
        nodes: how many servers the primary has that may fail alone.
        results: the primary is the result backend, too.
        has_ways: clients come through proxies.
        weight: how often it is drawn.
        without: faults that it does not know.
    """

    name: str
    primary: str
    secondary: str
    nodes: int = 1
    results: bool = False
    has_ways: bool = True
    weight: int = 4
    without: frozenset[str] = frozenset()


PAIRS = {
    pair.name: pair
    for pair in (
        Pair("rabbitmq+rabbitmq", "rabbitmq", "rabbitmq"),
        Pair("rabbitmq+redis", "rabbitmq", "redis"),
        Pair("redis+rabbitmq", "redis", "rabbitmq"),
        Pair("redis+redis", "redis", "redis"),
        Pair("redis/results+redis", "redis", "redis", results=True),
        Pair(
            "sentinel+redis", "sentinel", "redis", nodes=2, has_ways=False, weight=2, without=frozenset({"disk full"})
        ),
        Pair("cluster+redis", "cluster", "redis", nodes=3, weight=1),
        Pair(
            "servicebus+servicebus",
            "servicebus",
            "servicebus",
            weight=2,
            # Without an event loop a pool's processes share a pipe: Celery's own hangs when one is killed in reading.
            without=frozenset({"close", "disk full", "kill child"}),
        ),
    )
}


@dataclass(frozen=True)
class Fault:
    """One fault: what, to whom, when after the first call, and for how long.

    ``amount`` is by how much the clock is set, or how slow the link gets, in seconds.
    """

    kind: str
    target: str
    at: float
    seconds: float
    amount: float = 0.0

    def __str__(self) -> str:
        amount = f" {self.amount:+.3g} s" if self.amount else ""
        return f"{self.at:5.1f} s: {self.kind} {self.target} for {self.seconds:.1f} s{amount}"


@dataclass(frozen=True)
class Plan:
    seed: int
    pair: Pair
    pool: str
    send_timeout: float
    producers: tuple[str, ...]
    workers: tuple[str, ...]
    rate: float  # calls a second, of all producers
    task_seconds: float  # the longest that a task takes
    faults: tuple[Fault, ...]
    publish_retry: bool  # as Celery does by default: three times more, when neither side took a message

    @property
    def arguments(self) -> str:
        """What makes this episode happen again."""
        return f"--seed {self.seed} --pair {self.pair.name} --pool {self.pool}"

    def __str__(self) -> str:
        lines = [
            f"python -m tests.battle {self.arguments}",
            f"send_timeout {self.send_timeout:g} s, {self.rate:.0f} calls a second from {', '.join(self.producers)}, "
            f"tasks of up to {self.task_seconds:.2f} s in {', '.join(self.workers)}"
            f"{'' if self.publish_retry else ', task_publish_retry off'}",
            *map(str, self.faults),
        ]
        return "\n".join(lines)


def make_plan(seed: int, pair: str | None = None, pool: str | None = None, pairs: Sequence[str] = ()) -> Plan:
    """The plan of this seed.

    Arguments:
        pair, pool: instead of those that the seed draws.
        pairs: draw from these alone.
    """
    draw = Random(f"battle {seed}")
    offered = [PAIRS[name] for name in pairs or PAIRS]
    drawn = draw.choices(offered, [each.weight for each in offered])[0]
    chosen = drawn if pair is None else PAIRS[pair]
    drawn_pool = draw.choice(POOLS)
    producers = tuple(f"producer{i}" for i in range(1, draw.randint(1, 2) + 1))
    workers = tuple(f"worker{i}" for i in range(1, draw.choice((1, 2, 2)) + 1))
    chosen_pool = pool or drawn_pool
    return Plan(
        seed,
        chosen,
        chosen_pool,
        send_timeout=draw.choice((1.0, 1.5, 2.0)),
        producers=producers,
        workers=workers,
        rate=draw.uniform(20, 50),
        task_seconds=draw.choice((0.0, 0.02, 0.1)),
        faults=_draw_faults(draw, chosen, chosen_pool, producers, workers),
        publish_retry=draw.random() < 0.5,
    )


def _draw_faults(
    draw: Random, pair: Pair, pool: str, producers: Sequence[str], workers: Sequence[str]
) -> tuple[Fault, ...]:
    wanted = draw.randint(4, 12)
    found: list[Fault] = []
    for _ in range(40 * wanted):
        if len(found) >= wanted:
            break
        at = draw.uniform(0.0, LENGTH)
        for fault in _draw_some(draw, pair, pool, producers, workers, at):
            if _fits(fault, found):
                found.append(fault)
    return tuple(sorted(found, key=lambda fault: fault.at))


def _draw_some(
    draw: Random, pair: Pair, pool: str, producers: Sequence[str], workers: Sequence[str], at: float
) -> list[Fault]:
    """One fault, or the same one on both sides at once."""
    seconds = draw.uniform(0.5, 4.0)
    what = draw.choices(("node", "both", "way", "worker", "producer"), (8, 2, 8 * pair.has_ways, 6, 3))[0]
    if what in ("node", "both"):
        kinds = [kind for kind in _NODE_FAULTS if kind not in pair.without]
        kind = draw.choice(kinds)
        primary = _node(draw, pair)
        if pair.nodes == 3 and kind == "kill" and draw.random() < 0.5:
            return [Fault("remove", primary, at, LENGTH)]
        if what == "both":
            return [Fault(kind, primary, at, seconds), Fault(kind, "secondary", at, seconds)]
        return [Fault(kind, draw.choice((primary, "secondary")), at, seconds)]
    if what == "way":
        kind = draw.choice(_WAY_FAULTS)
        return [Fault(kind, draw.choice(WAYS), at, seconds, draw.uniform(0.05, 0.6) if kind == "slow" else 0.0)]
    if what == "worker":
        kinds = ["kill", "stop", "freeze", "clock"]
        if pool == "prefork" and "kill child" not in pair.without:
            kinds.append("kill child")
        return [_of_actor(draw, draw.choice(kinds), draw.choice(workers), at, seconds)]
    return [_of_actor(draw, draw.choice(("kill", "fork", "clock")), draw.choice(producers), at, seconds)]


def _node(draw: Random, pair: Pair) -> str:
    return "primary" if pair.nodes == 1 else f"primary/{draw.randint(1, pair.nodes)}"


def _of_actor(draw: Random, kind: str, actor: str, at: float, seconds: float) -> Fault:
    # Far more than an episode takes: a look at a time shows by how much it is wrong.
    step = draw.choice((-1, 1)) * draw.uniform(300, 4000) if kind == "clock" else 0.0
    return Fault(kind, actor, at, seconds, step)


def _fits(fault: Fault, others: Sequence[Fault]) -> bool:
    """A target suffers one fault at a time, and of a cluster one node is removed."""
    if fault.kind == "remove" and any(other.kind == "remove" for other in others):
        return False
    return not any(
        fault.target == other.target
        and fault.at < other.at + other.seconds + 0.5
        and other.at < fault.at + fault.seconds + 0.5
        for other in others
    )
