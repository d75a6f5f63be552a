"""``kombu-paired isolate`` and ``restore``: fail an entity over by hand, in the whole fleet, and end that."""

from __future__ import annotations

import json
from datetime import datetime, timezone
from typing import Any

import click

from kombu_paired.cli.connecting import as_click_errors, json_option, pairing_options
from kombu_paired.cli.printing import bad, duration, good
from kombu_paired.isolation import ALL, Isolated
from kombu_paired.pairing import Pairing

__all__ = ("as_report", "isolate", "restore", "since")


@click.command()
@click.argument("entity")
@pairing_options
@json_option
def isolate(pairing: Pairing, entity: str, as_json: bool) -> None:
    """Have ENTITY left alone by every process: fail it over by hand.

    ENTITY is a queue, an exchange/routing-key, or all. From now on what is sent there goes to the backlog, and the
    primary is not tried; workers go on with what is in their queues. It needs the secondary alone, which keeps it
    until kombu-paired restore. Exit status: 0 it is isolated; 1 it is not, and the text says why; 2 wrong usage.
    """
    with as_click_errors(as_json):
        _say(pairing, pairing.isolation.isolate(entity), as_json)
    if not as_json:
        heard = duration(pairing.isolation.interval)
        click.echo(f"Processes that send hear of it within {heard}, and others when they begin to.")


@click.command()
@click.argument("entity")
@pairing_options
@json_option
def restore(pairing: Pairing, entity: str, as_json: bool) -> None:
    """Let ENTITY be used again that is isolated.

    all ends whatever is isolated. Every process that diverted to the backlog pings at once, and goes back to the
    primary if that works. Exit status: 0 ENTITY is not isolated any more; 1 it still is, and the text says why;
    2 wrong usage.
    """
    with as_click_errors(as_json):
        left = pairing.isolation.restore(entity)
        _say(pairing, left, as_json)
    if left.has(entity):
        click.echo(f"{entity} is isolated still, with all: see kombu-paired restore all.", err=True)
        click.get_current_context().exit(1)


def as_report(pairing: Pairing, isolated: Isolated) -> dict[str, Any]:
    """What is isolated, as JSON has it: name -> since when (seconds since 1970, UTC)."""
    return {"ok": True, "pairing": pairing.name, "isolated": dict(sorted(isolated.notices.items()))}


def since(at: float) -> str:
    """A time, for people."""
    return datetime.fromtimestamp(at, timezone.utc).strftime("%Y-%m-%d %H:%M:%S UTC")


def _say(pairing: Pairing, isolated: Isolated, as_json: bool) -> None:
    if as_json:
        click.echo(json.dumps(as_report(pairing, isolated), indent=2))
        return
    for name, at in sorted(isolated.notices.items()):
        what = f"every entity of {pairing.name}" if name == ALL else name
        click.echo(bad(f"{what} is isolated since {since(at)}."))
    if not isolated:
        click.echo(good(f"Nothing of {pairing.name} is isolated."))
