"""``kombu-paired demo``: kill a broker under a real Celery worker, and see what becomes of each message."""

from __future__ import annotations

import json
import time
from collections.abc import Callable
from contextlib import AbstractContextManager
from dataclasses import dataclass
from importlib.util import find_spec
from pathlib import Path
from typing import TYPE_CHECKING

import click

from kombu_paired.cli.connecting import interruptible, json_option
from kombu_paired.cli.local_brokers import BrokerFailed, BrokerMissing, Kind

if TYPE_CHECKING:
    from kombu_paired.cli.demo_stage import Stage
    from kombu_paired.cli.demo_story import Balance, Story
    from kombu_paired.cli.demo_view import View

__all__ = ("demo",)


@dataclass(frozen=True)
class Pair:
    """What the demo can be played with.

    Attributes:
        kind: of both brokers.
        words: what they are.
        driver: the module that speaks to them.
        seconds: over how long to publish: time enough to see the primary, when it has started again, in use.
    """

    kind: Kind
    words: str
    driver: str
    seconds: float = 14.0


PAIRS = {
    "servicebus": Pair("azureservicebus", "two emulated Service Bus namespaces", "azure.servicebus"),
    "amqp": Pair("amqp", "two RabbitMQ brokers", "amqp", seconds=20.0),
    "redis": Pair("redis", "two Redis brokers", "redis"),
}
#: The primary is killed when this share of the messages has been published.
KILL_AT = 0.3
#: Seconds with no news in the ledger after which what is missing counts as lost: longer than the minute for which a
#: message stays locked that a vanished consumer held.
PATIENCE = 75.0
#: Seconds for which duplicates may follow when all has run.
AFTERMATH = 2.0
#: Seconds between two looks at what the processes wrote.
LOOK = 0.05


@click.command()
@click.option(
    "--pair", type=click.Choice(list(PAIRS)), default="servicebus", show_default=True, help="Which two brokers."
)
@click.option(
    "--messages", type=click.IntRange(min=20), default=600, show_default=True, metavar="N", help="How many to publish."
)
@click.option(
    "--seconds",
    type=click.FloatRange(min=1),
    metavar="SECONDS",
    help=f"Over how long to publish them.  [default: {Pair.seconds:g}, with amqp {PAIRS['amqp'].seconds:g}]",
)
@click.option(
    "--outage",
    type=click.FloatRange(min=0),
    default=6.0,
    show_default=True,
    metavar="SECONDS",
    help="How long the primary stays dead.",
)
@click.option(
    "--journal",
    type=click.Path(file_okay=False, path_type=Path),
    metavar="FOLDER",
    help="Where the processes write their journals, for a report.",
)
@json_option
def demo(pair: str, messages: int, seconds: float | None, outage: float, journal: Path | None, as_json: bool) -> None:
    """Kill a broker in mid-traffic and lose nothing.

    Starts two brokers, a Celery worker and a producer in a temporary folder, kills the primary with SIGKILL while
    messages flow, goes on publishing, and starts it again. The balance at the end compares what the producer's calls
    returned with what the tasks wrote down. Exit status 0: nothing was lost, refused or left behind.

    The brokers are emulated Service Bus namespaces, which come with this package, or real servers: --pair amqp needs
    rabbitmq-server, --pair redis needs redis-server.
    """
    played = PAIRS[pair]
    _require_extras(played)
    from kombu_paired.cli.demo_stage import StageFailed
    from kombu_paired.cli.demo_view import open_view

    try:
        with interruptible():
            balance = _play(played, messages, seconds or played.seconds, outage, journal, open_view(as_json))
    except (BrokerMissing, BrokerFailed, StageFailed) as exc:
        raise click.ClickException(str(exc)) from exc
    if as_json:
        click.echo(json.dumps(balance.as_json()))
    click.get_current_context().exit(0 if balance.is_even else 1)


def _require_extras(pair: Pair) -> None:
    missing = [name for name in ("celery", "rich", pair.driver) if not _is_installed(name)]
    if missing:
        raise click.ClickException(
            f"the demo needs {' and '.join(missing)}: pip install 'kombu-paired[demo]' brings all it needs"
        )


def _is_installed(module: str) -> bool:
    try:
        return find_spec(module) is not None
    except ModuleNotFoundError:  # not even the package that it is in
        return False


def _play(
    pair: Pair,
    messages: int,
    seconds: float,
    outage: float,
    journal: Path | None,
    view: AbstractContextManager[View],
) -> Balance:
    from kombu_paired.cli.demo_stage import Stage
    from kombu_paired.cli.demo_story import Story

    with Stage(pair.kind, messages, seconds, journal) as stage:
        story = Story(stage.folder, messages)
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
        from kombu_paired.cli.demo_stage import StageFailed

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
