"""``kombu-paired demo``: kill a broker under a real Celery worker, and see what becomes of each message."""

from __future__ import annotations

import json
from importlib.util import find_spec
from pathlib import Path

import click

from kombu_paired.cli.connecting import json_option
from kombu_paired.demo.pairs import PAIRS, Pair
from kombu_paired.interrupts import interruptible
from kombu_paired.testing import BrokerFailed, BrokerMissing

__all__ = ("demo",)


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
@click.option("--stand-in", is_flag=True, help="The worker works on: it consumes from the secondary meanwhile.")
@click.option(
    "--journal",
    type=click.Path(file_okay=False, path_type=Path),
    metavar="FOLDER",
    help="Where the processes write their journals, for a report.",
)
@json_option
def demo(
    pair: str,
    messages: int,
    seconds: float | None,
    outage: float,
    stand_in: bool,
    journal: Path | None,
    as_json: bool,
) -> None:
    """Kill a broker in mid-traffic and lose nothing.

    Starts two brokers, a Celery worker and a producer in a temporary folder, kills the primary with SIGKILL while
    messages flow, goes on publishing, and starts it again. The balance at the end compares what the producer's calls
    returned with what the tasks wrote down. Exit status 0: nothing was lost, refused or left behind.

    The brokers are emulated Service Bus namespaces, which come with this package, or real servers: --pair amqp needs
    rabbitmq-server, --pair redis needs redis-server. With +spool there is one broker, and a folder on the local disk
    keeps what it cannot take.
    """
    played = PAIRS[pair]
    if stand_in and played.has_spool:
        raise click.UsageError("workers cannot stand in at a spool: leave --stand-in, or choose a pair of brokers")
    _require_extras(played)
    from kombu_paired.demo.director import play
    from kombu_paired.demo.stage import StageFailed
    from kombu_paired.demo.view import open_view

    try:
        with interruptible():
            view = open_view(as_json)
            balance = play(played, messages, seconds or played.seconds, outage, journal, view, stand_in)
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
