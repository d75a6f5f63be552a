"""One episode: clean brokers, traffic, faults, all healed, and the verdict."""

from __future__ import annotations

import json
import os
import shutil
import threading
import time
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from tests.battle.actors import Actor, Producer, Worker
from tests.battle.arena import LOCK_SECONDS, Arena, Field
from tests.battle.faults import Scene
from tests.battle.judge import EXIT_LIMIT, STOP_LIMIT, Verdict, judge
from tests.battle.ledger import Facts, Harm, Record, calls_of, entries_of, runs_of
from tests.battle.plan import Fault, Plan
from tests.support.shop import shop_environment

#: Seconds: for a start, for all that was sent to have run, and in which nothing more must come of it.
START_LIMIT, DRAIN_LIMIT, QUIET = 60.0, 90.0, 1.0
#: How often Celery sends a message by its own policy, when that raises.
CELERYS_TRIES = 4
#: Seconds for which the machine must stand still to count.
STALL = 0.3


@dataclass(frozen=True)
class Outcome:
    """An episode that is over. ``kept``: where all of it is, if it failed."""

    plan: Plan
    verdict: Verdict
    n_faults: int
    seconds: float
    kept: str = ""


def play(plan: Plan, arena: Arena, folder: Path, *, keep: bool = False) -> Outcome:
    """Play an episode in this folder, which is kept if a promise was broken."""
    began = time.monotonic()
    folder.mkdir(parents=True)
    (folder / "plan.txt").write_text(f"{plan}\n")
    with arena.field(plan.pair) as field:
        record = _Episode(plan, field, folder).play()
        logs = {
            f"{name}-{i}": node.broker.log for name, side in field.sides.items() for i, node in enumerate(side.nodes)
        }
    verdict = judge(record)
    failed = keep or not verdict.passed
    if failed:
        for name, log in logs.items():
            if log.exists():
                shutil.copy(log, folder / f"broker-{name}.log")
        (folder / "verdict.txt").write_text("\n".join(map(str, verdict.broken)) + "\n")
    else:
        shutil.rmtree(folder, ignore_errors=True)
    return Outcome(plan, verdict, len(plan.faults), time.monotonic() - began, str(folder) if failed else "")


class _Episode:
    def __init__(self, plan: Plan, field: Field, folder: Path) -> None:
        self.plan = plan
        self.field = field
        self.folder = folder
        self.facts = Facts(_made(folder / "facts"))
        self.journal = _made(folder / "journal")
        self.harms: list[Harm] = []
        self.workers = [Worker(name, folder, self._environment("worker"), plan.pool) for name in plan.workers]
        self.producers = [Producer(name, folder, self._environment("producer")) for name in plan.producers]
        self.actors: dict[str, Actor] = {actor.name: actor for actor in (*self.workers, *self.producers)}
        self._is_over = threading.Event()

    def _environment(self, who: str) -> dict[str, str]:
        field, plan = self.field, self.plan
        return {
            **shop_environment(
                field.broker_url(who),
                field.transport_options(who, plan.send_timeout, self.journal),
                ledger=self.folder / "unused",
                conf={**field.celery_conf(who), "task_publish_retry": plan.publish_retry},
            ),
            "BATTLE_FACTS": str(self.facts.folder),
            "BATTLE_LOCK_SECONDS": str(LOCK_SECONDS),
            "BATTLE_PAUSE": str(len(plan.producers) / plan.rate),
            "BATTLE_TASK_SECONDS": str(plan.task_seconds),
        }

    def play(self) -> Record:
        self.begun = time.monotonic()
        self.clock = time.time() - self.begun
        try:
            self._start()
            watch = threading.Thread(target=self._watch, daemon=True)
            watch.start()
            threading.Thread(target=self._feel_pulse, daemon=True).start()
            self._fight()
            healed = time.monotonic()
            idle = self._roll_call(healed)
            self._end(self.producers, EXIT_LIMIT + 2 * self.plan.send_timeout + 10)
            left = self._drain()
            self._is_over.set()
            watch.join()
            self._end(self.workers, 2 * STOP_LIMIT)
        finally:
            self._is_over.set()
            for actor in self.actors.values():
                with actor.lock:
                    if actor.is_alive:
                        actor.kill()
        return self._record(left, idle)

    def _start(self) -> None:
        for worker in self.workers:
            worker.start()
        for worker in self.workers:
            worker.wait_ready(START_LIMIT)
        for producer in self.producers:
            producer.start()
        names = {producer.name for producer in self.producers}
        _wait(
            lambda: {line["actor"] for line in self.facts.of("returned")} >= names, START_LIMIT, "a producer is silent"
        )

    # -- faults --------------------------------------------------------------------------------------------------------

    def _fight(self) -> None:
        """All faults at their times; those of one target one after the other, each in its whole length."""
        begun = time.monotonic()
        scene = Scene(self.field, self.actors)
        by_target: dict[str, list[Fault]] = {}
        for fault in self.plan.faults:
            by_target.setdefault(fault.target, []).append(fault)
        with ThreadPoolExecutor(max(len(by_target), 1)) as threads:
            for done in [threads.submit(self._suffer, scene, begun, faults) for faults in by_target.values()]:
                done.result()
        with ExitStack() as stack:
            for actor in self.actors.values():
                stack.enter_context(actor.lock)
            self.field.heal()

    def _suffer(self, scene: Scene, begun: float, faults: list[Fault]) -> None:
        for fault in faults:
            time.sleep(max(begun + fault.at - time.monotonic(), 0.0))
            since = time.monotonic()
            try:
                with scene.fault(fault):
                    time.sleep(fault.seconds)
            finally:
                self._note(Harm(fault.kind, fault.target, since, time.monotonic(), fault.amount))

    def _note(self, harm: Harm) -> None:
        self.harms.append(harm)
        with (self.folder / "faults.jsonl").open("a") as file:
            file.write(json.dumps(harm.__dict__) + "\n")

    def _watch(self) -> None:
        """Start again what ended by itself."""
        while not self._is_over.wait(0.1):
            for actor in self.workers:
                if actor.lock.acquire(blocking=False):
                    try:
                        if actor.has_exited_by_itself():
                            self._note(Harm("exit", actor.name, actor.lives[-1].ended, time.monotonic()))
                            actor.start()
                    finally:
                        actor.lock.release()

    def _feel_pulse(self) -> None:
        """Note when the machine stands still: this process, through which all ways lead, or the disk of the brokers."""
        with (self.folder / "pulse").open("wb") as file:
            while not self._is_over.is_set():
                began = time.monotonic()
                time.sleep(0.05)
                file.write(b".")
                file.flush()
                os.fsync(file.fileno())
                if time.monotonic() - began > STALL:
                    self._note(Harm("stall", "machine", began, time.monotonic()))

    # -- the end -------------------------------------------------------------------------------------------------------

    def _roll_call(self, healed: float) -> list[str]:
        """Traffic goes on until every worker has run something; those that did not."""

        def missing() -> set[str]:
            ran = {line["actor"] for line in self.facts.of("began") if line["at"] > healed}
            return {worker.name for worker in self.workers} - ran

        deadline = time.monotonic() + START_LIMIT
        while missing() and time.monotonic() < deadline:
            time.sleep(0.1)
        return sorted(missing())

    def _end(self, actors: list[Any], limit: float) -> None:
        def end(actor: Actor) -> None:
            with actor.lock:
                actor.stop(limit)

        with ThreadPoolExecutor(len(actors)) as threads:
            list(threads.map(end, actors))

    def _drain(self) -> dict[str, int]:
        """Wait until all that was sent has run, and nothing is left in a queue; what is left."""
        deadline = time.monotonic() + DRAIN_LIMIT
        left: dict[str, int] = {}
        empty_since = None
        while time.monotonic() < deadline:
            if not self.facts.returned() <= self.facts.ran():
                empty_since = None
            else:
                left = {queue: size for queue, size in self.field.left().items() if size}
                empty_since = None if left else (empty_since or time.monotonic())
                if empty_since and time.monotonic() - empty_since > QUIET:
                    return {}
            time.sleep(0.2)
        return left or {queue: size for queue, size in self.field.left().items() if size}

    def _record(self, left: dict[str, int], idle: list[str]) -> Record:
        steps = [harm.amount for harm in self.harms if harm.kind == "clock"]
        refusals = [
            Harm("no replica", name, *span) for name, side in self.field.sides.items() for span in side.refusals()
        ]
        return Record(
            self.plan.send_timeout,
            LOCK_SECONDS,
            self.field.sides["primary"].visibility_timeout,
            CELERYS_TRIES if self.plan.publish_retry else 1,
            calls_of(self.facts),
            runs_of(self.facts),
            sorted([*self.harms, *refusals], key=lambda harm: harm.begun),
            [life for actor in self.actors.values() for life in actor.lives],
            entries_of(self.journal, clock=self.clock, begun=self.begun, ended=time.monotonic(), steps=steps),
            left,
            idle,
        )


def _made(folder: Path) -> Path:
    folder.mkdir()
    return folder


def _wait(condition: Any, limit: float, failure: str) -> None:
    deadline = time.monotonic() + limit
    while not condition():
        if time.monotonic() > deadline:
            raise RuntimeError(failure)
        time.sleep(0.05)
