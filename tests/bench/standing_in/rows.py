"""What is played: each row an outage, and what workers that stand in promise in it."""

from __future__ import annotations

import itertools
import time
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from celery import chain, group

from kombu_paired.testing import Kind
from kombu_paired.transport import pairing_of
from tests.bench.standing_in.figures import Finding, delays, median, quantile
from tests.bench.standing_in.filling import fill
from tests.bench.standing_in.stage import IS_BACK, STAND_IN_AFTER, STANDS_IN, Stage
from tests.support.ledger import Ledger

__all__ = ("ROWS", "Play")

#: From here on the numbers of the tasks that are behind others.
MAILS = 1_000_000


@dataclass(frozen=True)
class Play:
    """How a row is to be played.

    Attributes:
        pair: the kinds of primary and secondary.
        harm: what is done to the primary, ``kill`` or ``freeze``.
        seconds: of the outage, where a row has a long one.
        messages: of a backlog, where a row has a large one.
        folder: for all that is written.
    """

    pair: tuple[Kind, Kind]
    harm: str
    seconds: float
    messages: int
    folder: Path

    def stage(self, **options: Any) -> Stage:
        return Stage(self.pair, self.folder, options)


def outage(play: Play) -> Finding:
    """1: the primary is away under 50 tasks a second, and comes back."""
    finding = Finding()
    with play.stage() as stage:
        worker, shop = stage.worker(), stage.shop()
        with stage.traffic(shop.record, 50, itertools.count()):
            time.sleep(5)
            away = stage.hit(stage.primary, play.harm)
            time.sleep(play.seconds)
            back = stage.mend(stage.primary)
            finding.require(stage.wait_for(lambda: IS_BACK in worker.logs(), 60), "the worker does not go home")
            time.sleep(5)
        stage.settle(finding, [worker])
        runs = stage.ledger.entries()
        new = {id for id, each in stage.sent.items() if each.at >= away}
        first = min((at for _, at, id in runs if id in new), default=float("inf")) - away
        late = delays(stage.sent, runs, away, back)
        finding.figures = {
            "first": first,
            "median": median(late),
            "p95": quantile(late, 0.95),
            "longest": quantile(late, 1.0),
            "longest call": stage.longest_call,
            **finding.figures,
        }
        finding.require(first <= STAND_IN_AFTER + 5, f"the first ran {first:.1f} s after the {play.harm}")
        finding.require(median(late) < 1, f"half of them ran {median(late):.1f} s late")
        finding.require(not stage.raised, f"raised {stage.raised[:1]}")
    return finding


def homecoming(play: Play) -> Finding:
    """2: tasks of ten seconds with late acknowledgements, and the primary is back in the middle of them."""
    finding = Finding()
    with play.stage(primary_options={}, secondary_options={}) as stage:  # it holds them for long
        worker, shop = stage.worker(conf={"task_acks_late": True}), stage.shop()
        stage.hit(stage.primary, play.harm)
        worker.wait_for_log(STANDS_IN, timeout=60)
        for number in range(12):
            stage.send(shop.slow_record, number, 10)
        stage.wait_for(lambda: worker.count_in_log("slow_record.* received") >= 4)
        time.sleep(5)
        stage.mend(stage.primary)
        finding.require(stage.wait_for(lambda: IS_BACK in worker.logs(), 60), "the worker does not go home")
        finding.figures["ran before"] = len(stage.ledger.counts())
        stage.settle(finding, [worker])
        twice = stage.ledger.duplicates()
        finding.require(not twice, f"ran twice: {twice}")
    return finding


def worker_killed(play: Play) -> Finding:
    """3: a worker is killed while it stands in, and another takes over."""
    finding = Finding()
    with play.stage() as stage:
        shop, late = stage.shop(), {"task_acks_late": True}
        victim = stage.worker(conf=late)
        stage.hit(stage.primary, play.harm)
        victim.wait_for_log(STANDS_IN, timeout=60)
        with stage.traffic(shop.slow_record, 20, itertools.count(), 0.1):
            stage.wait_for(lambda: len(stage.ledger.counts()) > 50)
            stage.kill(victim)
            heir = stage.worker(conf=late)
            taken_over = time.time()
            finding.require(
                stage.wait_for(lambda: any(at > taken_over for _, at, _ in stage.ledger.entries()), 60),
                "nobody takes over",
            )
            time.sleep(10)
            stage.mend(stage.primary)
            time.sleep(5)
        stage.settle(finding, [heir])
    return finding


def two_groups(play: Play) -> Finding:
    """4: a large backlog of one group of workers is in front of the tasks of another."""
    finding = Finding()
    with play.stage() as stage:
        shop = stage.shop()
        stage.hit(stage.primary, play.harm)
        stage.send(shop.record, -1, queue="mail")  # opens the pairing
        with shop.connection_for_write() as connection:
            connection.connect()
            stage.sent |= fill(pairing_of(connection), "bulk", range(play.messages))
        workers = [stage.worker(queue=queue, wait=False) for queue in ("bulk", "mail")]
        for worker in workers:
            worker.wait_for_log(STANDS_IN, timeout=120)
        began = time.time()
        with stage.traffic(shop.record, 2, itertools.count(MAILS), queue="mail"):
            time.sleep(play.seconds)
        mails = {id: each for id, each in stage.sent.items() if each.number >= MAILS}
        stage.wait_for(lambda: stage.has_run(*(each.number for each in mails.values())), 60)
        late = delays(mails, stage.ledger.entries(), began, time.time())
        for worker in workers:
            worker.stop(60)
        ran, waiting = len(stage.ledger.counts()), sum(stage.left("secondary").values())
        finding.figures = {
            "median": median(late),
            "p95": quantile(late, 0.95),
            "longest": quantile(late, 1.0),
            "sent": len(stage.sent),
            "ran": ran,
            "waiting": waiting,
        }
        finding.require(len(late) == len(mails), f"{len(mails) - len(late)} mails did not run")
        finding.require(quantile(late, 1.0) < 60, f"one ran {quantile(late, 1.0):.0f} s late")
        finding.require(ran + waiting >= len(stage.sent), "some are lost")
    return finding


def strangers_broker(play: Play) -> Finding:
    """5: the secondary is another application's broker, with queues of the same names."""
    finding = Finding()
    with play.stage() as stage:
        theirs = Ledger(play.folder / "theirs")
        other, stranger = stage.stranger(theirs)
        worker, shop = stage.worker(), stage.shop()
        sent = 0
        with stage.traffic(shop.record, 20, itertools.count()):
            for moment in range(int(play.seconds) * 5):
                if moment == 25:
                    stage.hit(stage.primary, play.harm)
                if moment == int(play.seconds) * 4:
                    stage.mend(stage.primary)
                other.record.delay(1_000_000 + moment)
                sent += 1
                time.sleep(0.2)
        stage.settle(finding, [worker])
        stage.wait_for(lambda: len(theirs.counts()) >= sent, 30)
        ran = theirs.counts()
        finding.figures |= {"theirs": sent, "theirs ran": len(ran), "theirs twice": len(theirs.duplicates())}
        finding.require(stranger.alive(), "their worker ended")
        finding.require(set(ran) == set(range(1_000_000, 1_000_000 + sent)), "their worker ran others than theirs")
        finding.require(not theirs.duplicates(), "some of theirs ran twice")
        finding.require(not any(number >= 1_000_000 for number in stage.ledger.counts()), "ours ran some of theirs")
        other.close()
    return finding


def comes_and_goes(play: Play) -> Finding:
    """6: the primary goes and returns twenty times, three seconds apart."""
    finding = Finding()
    with play.stage() as stage:
        worker, shop = stage.worker(), stage.shop()
        with stage.traffic(shop.record, 20, itertools.count()):
            for _ in range(20):
                time.sleep(3)
                stage.hit(stage.primary, play.harm)
                time.sleep(3)
                stage.mend(stage.primary)
        changes = worker.count_in_log(STANDS_IN)
        stage.settle(finding, [worker])
        finding.figures["stood in"] = changes
        finding.require(not stage.raised, f"raised {stage.raised[:1]}")
    return finding


def secondary_killed(play: Play) -> Finding:
    """7: the secondary is killed while workers stand in there, and returns before the primary does."""
    finding = Finding()
    with play.stage() as stage:
        worker, shop = stage.worker(), stage.shop()
        with stage.traffic(shop.record, 20, itertools.count()):
            time.sleep(2)
            stage.hit(stage.primary, play.harm)
            worker.wait_for_log(STANDS_IN, timeout=60)
            time.sleep(5)
            stage.hit(stage.secondary)
            time.sleep(5)
            again = stage.mend(stage.secondary)
            finding.require(
                stage.wait_for(lambda: any(at > again + 1 for _, at, _ in stage.ledger.entries()), 60),
                "nobody stands in again",
            )
            time.sleep(5)
            stage.mend(stage.primary)
            time.sleep(5)
        stage.settle(finding, [worker])
    return finding


def different_brokers(play: Play) -> Finding:
    """8: workers are cut off from the primary, and producers are not; later one more worker is not, either."""
    finding = Finding()
    with play.stage() as stage:
        cut_off = stage.worker(stage.primary.proxied_url)
        shop, shop_cut_off = stage.shop(), stage.shop(stage.primary.proxied_url)
        numbers = itertools.count()
        with stage.traffic(shop.record, 20, numbers), stage.traffic(shop_cut_off.record, 20, numbers):
            time.sleep(3)
            stage.primary.cut()
            stage.harmed("primary")
            cut_off.wait_for_log(STANDS_IN, timeout=60)
            time.sleep(10)
            other = stage.worker()
            time.sleep(10)
            stage.primary.heal()
            finding.require(stage.wait_for(lambda: IS_BACK in cut_off.logs(), 60), "the worker does not go home")
            time.sleep(3)
        stage.settle(finding, [cut_off, other])
    return finding


#: The number that every beat writes.
BEAT = 900_000


def as_on_a_good_day(play: Play) -> Finding:
    """9: countdown, expires, retry, chain, group and beat, before, in and after an outage."""
    finding = Finding()
    schedule = {"tick": {"task": "shop.record", "schedule": 1.0, "args": [BEAT]}}
    with play.stage() as stage:
        beat = ("--beat", "--schedule", str(play.folder / "schedule"))
        worker, shop = stage.worker(conf={"beat_schedule": schedule}, args=beat), stage.shop()
        began = time.time()
        time.sleep(5)
        _chain(shop, shop.slow_record.si(800, 3), shop.record.si(801))
        shop.record.apply_async((810,), countdown=10)
        time.sleep(1)
        away = stage.hit(stage.primary, play.harm)
        worker.wait_for_log(STANDS_IN, timeout=60)
        time.sleep(3)
        called = time.time()
        _send_all_kinds(stage, shop)
        time.sleep(max(away + play.seconds - 4 - time.time(), 0))
        _chain(shop, shop.slow_record.si(700, 6), shop.record.si(701))
        shop.record.apply_async((710,), countdown=8)
        across = time.time()
        time.sleep(max(away + play.seconds - time.time(), 0))
        back = stage.mend(stage.primary)
        finding.require(stage.wait_for(lambda: IS_BACK in worker.logs(), 60), "the worker does not go home")
        expected = {800, 801, 810, 700, 701, 710}
        stage.wait_for(lambda: stage.has_run(*expected), 60)
        time.sleep(5)
        ended = time.time()
        _judge_kinds(finding, stage, called, across)
        counts = stage.ledger.counts()
        wrong = {number: counts[number] for number in expected if counts[number] != 1}
        finding.require(not wrong, f"across the switch, not once: {wrong}")
        _judge_beat(finding, stage, began, away, ended)
        at = {number: when for number, when, _ in stage.ledger.entries()}
        finding.figures["before the outage"] = at.get(810, float("inf")) - back
        _stop_beat(worker, stage, finding)
    return finding


def _chain(shop: Any, *tasks: Any) -> None:
    chain(*tasks, app=shop).apply_async()


def _send_all_kinds(stage: Stage, shop: Any) -> None:
    for number in range(100, 105):
        stage.send(shop.record, number, countdown=5)
    stage.send(shop.record, 200, expires=10)
    shop.record.apply_async((210,), countdown=6, expires=2)
    stage.send(shop.retry, 300, 3, runs=4)
    _chain(shop, shop.record.si(400), shop.slow_record.si(401, 2), shop.record.si(402))
    group((shop.record.si(number) for number in range(500, 520)), app=shop).apply_async()


def _judge_kinds(finding: Finding, stage: Stage, called: float, across: float) -> None:
    entries, counts = stage.ledger.entries(), stage.ledger.counts()
    at = {number: when for number, when, _ in entries}
    never = float("inf")
    countdown = max(at.get(number, never) - called - 5 for number in range(100, 105))
    home = at.get(710, never) - across - 8
    finding.figures |= {
        "countdown late": countdown,
        "expires": at.get(200, never) - called,
        "retried": at.get(300, never) - called,
        "chain": at.get(402, never) - called - 2,
        "group": max(at.get(number, never) for number in range(500, 520)) - called,
        "countdown home": home,
    }
    finding.require(-0.5 < countdown < 3, f"the countdown ran {countdown:.1f} s late")
    finding.require(-0.5 < home < 8, f"the countdown over the homecoming ran {home:.1f} s late")
    once = [*range(100, 105), 200, 400, 401, 402, *range(500, 520)]
    wrong = {number: counts[number] for number in once if counts[number] != 1}
    finding.require(not wrong, f"not run once: {wrong}")
    finding.require(counts[300] == 4, f"retried {counts[300]} times, not 4")
    finding.require(not counts[210], "what had expired ran")
    finding.require(at.get(400, never) < at.get(401, 0) < at.get(402, 0), "the chain is out of order")


def _judge_beat(finding: Finding, stage: Stage, began: float, away: float, ended: float) -> None:
    ticks = [(when, id) for number, when, id in stage.ledger.entries() if number == BEAT]
    ids = {id for _, id in ticks}
    times = [when for when, _ in ticks if when >= away]
    gap = max((after - before for before, after in itertools.pairwise([away, *times])), default=float("inf"))
    finding.figures |= {
        "beats": len(ids),
        "of": round(ended - began),
        "longest gap": gap,
        "twice": len(ticks) - len(ids),
    }
    finding.require(len(ids) >= 0.9 * (ended - began) - 3, "beats are missing")
    finding.require(gap < STAND_IN_AFTER + 6, f"no beat ran for {gap:.1f} s")


def _stop_beat(worker: Any, stage: Stage, finding: Finding) -> None:
    worker.stop(60)  # and beat with it
    sweeper = stage.worker()
    stage.settle(finding, [sweeper])


def option_off(play: Play) -> Finding:
    """11: without the setting: connections to the secondary, what is declared there, and a diverted message."""
    finding = Finding()
    with play.stage(stand_in_after=None) as stage:
        worker, shop = stage.worker(), stage.shop()
        stage.send(shop.record, 0)
        stage.wait_for(lambda: stage.has_run(0), 30)
        stage.hit(stage.primary, play.harm)
        stage.send(shop.record, 1)
        time.sleep(play.seconds)
        queues = sorted(stage.secondary.depths())
        finding.figures |= {"queues there": len(queues), "other than backlog queues": len(_others(queues))}
        finding.require(not _others(queues), f"it has {_others(queues)}")
        finding.require(STANDS_IN not in worker.logs(), "the worker stands in")
        finding.require(not stage.has_run(1), "the task ran")
        stage.mend(stage.primary)
        stage.settle(finding, [worker])
    return finding


def _others(queues: list[str]) -> list[str]:
    return [each for each in queues if "/x-servicebus-transfer/" not in each]


ROWS: dict[int, Callable[[Play], Finding]] = {
    1: outage,
    2: homecoming,
    3: worker_killed,
    4: two_groups,
    5: strangers_broker,
    6: comes_and_goes,
    7: secondary_killed,
    8: different_brokers,
    9: as_on_a_good_day,
    11: option_off,
}
