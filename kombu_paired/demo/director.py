"""The course of the demo: what happens when."""

from __future__ import annotations

import time
from collections.abc import Callable
from contextlib import AbstractContextManager
from pathlib import Path

from kombu_paired.demo.pairs import Pair
from kombu_paired.demo.stage import Stage, StageFailed
from kombu_paired.demo.story import Balance, Story
from kombu_paired.demo.view import View

__all__ = ("Director", "play")

#: The primary is killed when this share of the messages has been published.
KILL_AT = 0.3
#: Seconds with no news in the ledger after which what is missing counts as lost: longer than the minute for which a
#: message stays locked that a vanished consumer held.
PATIENCE = 75.0
#: Seconds for which duplicates may follow when all has run.
AFTERMATH = 2.0
#: Seconds between two looks at what the processes wrote.
LOOK = 0.05


def play(
    pair: Pair,
    messages: int,
    seconds: float,
    outage: float,
    journal: Path | None,
    view: AbstractContextManager[View],
    stand_in: bool = False,
) -> Balance:
    """Play it from beginning to end, shown in ``view``.

    Arguments:
        seconds: over how long to publish.
        outage: for how many seconds the primary stays dead.
        journal: where the processes write their journals.
        stand_in: the worker consumes from the secondary while the primary is dead.

    Raises:
        StageFailed: the worker or the producer did not do its part.
        BrokerMissing, BrokerFailed: a broker did not.
    """
    with Stage(pair.kind, messages, seconds, journal, stand_in, pair.has_spool) as stage:
        story = Story(stage.folder, messages, stand_in)
        with view as shown:
            shown.follow(stage, story)
            director = Director(stage, story)
            director.set_up(pair.words)
            director.break_it(outage)
            director.wait_for_the_end(seconds)
            balance = story.balance(stage.stranded())
        shown.conclude(balance)
    return balance


class Director:
    """Says what happens when."""

    def __init__(self, stage: Stage, story: Story) -> None:
        self.stage = stage
        self.story = story

    def set_up(self, brokers: str) -> None:
        self.story.tell("stage", f"{brokers} start")
        self.stage.start_brokers()
        self.story.tell("stage", "a Celery worker starts")
        self.stage.start_worker()
        self._require(lambda: self.story.ready_workers > 0, 60, "the worker is not ready")
        self.story.tell("stage", "a producer starts to publish")
        self.stage.start_producer()

    def break_it(self, outage: float) -> None:
        """Kill the primary in mid-traffic, and start it again ``outage`` seconds later."""
        story, primary = self.story, self.stage.primary
        enough = KILL_AT * story.messages
        self._require(lambda: story.returned >= enough, 300, "the producer does not publish")
        story.times.killed = time.time()
        primary.kill()
        story.tell("killed", "the primary is killed with SIGKILL", story.times.killed)
        self._wait_for(lambda: time.time() >= story.times.killed + outage, outage)
        story.tell("stage", "the primary starts again")
        primary.restart()
        story.times.restored = time.time()
        story.tell("back", "the primary is ready", story.times.restored)

    def wait_for_the_end(self, seconds: float) -> None:
        """Until all has been published and run; or until nothing more comes."""
        self._require(lambda: self.stage.has_exited("producer"), 4 * seconds + 60, "the producer does not end")
        self.story.read_on()
        self.story.last_change = time.monotonic()
        self._wait_for(lambda: not self.story.missing or self._quiet_for() > PATIENCE, 10 * PATIENCE)
        self._wait_for(lambda: self._quiet_for() > AFTERMATH, PATIENCE)

    def _quiet_for(self) -> float:
        return time.monotonic() - self.story.last_change

    def _require(self, condition: Callable[[], bool], timeout: float, failure: str) -> None:
        if not self._wait_for(condition, timeout):
            raise StageFailed(
                f"after {timeout:g} s {failure}. The worker's last words:\n{self.stage.last_words('worker')}"
            )

    def _wait_for(self, condition: Callable[[], bool], timeout: float) -> bool:
        """Wait at most ``timeout`` seconds, reading on; False if it did not come true."""
        deadline = time.monotonic() + timeout
        while not condition():
            if time.monotonic() > deadline:
                return False
            self.stage.require_alive()
            self.story.read_on()
            time.sleep(LOOK)
        return True
