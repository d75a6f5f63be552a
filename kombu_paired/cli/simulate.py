"""``kombu-paired simulate``: the journals of a fleet that does not exist, and what is true of them."""

from __future__ import annotations

import dataclasses
import json
import sys
from pathlib import Path

import click

from kombu_paired.cli.connecting import json_option
from kombu_paired.cli.printing import counted, heading
from kombu_paired.simulation import FleetSettings, Outcome
from kombu_paired.simulation import simulate as run_simulation

__all__ = ("simulate",)

#: Settings that have an option of their own.
_OWN = ("processes", "days", "outages", "messages", "seed")


def _list_settings(context: click.Context, parameter: click.Parameter, wanted: bool) -> None:
    if not wanted or context.resilient_parsing:
        return
    for each in dataclasses.fields(FleetSettings):
        if each.name not in _OWN:
            default = ",".join(each.default) if isinstance(each.default, tuple) else f"{each.default:g}"
            click.echo(f"{each.name}={default}\n    {each.metadata['meaning']}")
    context.exit()


@click.command()
@click.option("--fleet", type=int, default=12, show_default=True, metavar="PROCESSES", help="How many.")
@click.option("--days", type=float, default=1.0, show_default=True, metavar="D", help="That the journals cover.")
@click.option("--outages", type=int, default=6, show_default=True, metavar="N", help="Of the primary.")
@click.option("--messages", type=int, default=100_000, show_default=True, metavar="N", help="That are sent.")
@click.option("--seed", type=int, default=1, show_default=True, metavar="S", help="Same seed, same bytes.")
@click.option(
    "--out", type=click.Path(file_okay=False, path_type=Path), required=True, metavar="FOLDER", help="For the journals."
)
@click.option(
    "--truth", type=click.Path(file_okay=False, path_type=Path), metavar="FOLDER", help="For what is true of them."
)
@click.option("--set", "changes", multiple=True, metavar="NAME=VALUE", help="Another setting. Repeatable.")
@click.option("--clean", is_flag=True, help="Whole journals and one clock: nothing that is hard to read.")
@click.option(
    "--list-settings", is_flag=True, is_eager=True, expose_value=False, callback=_list_settings, help="For --set."
)
@json_option
def simulate(
    fleet: int,
    days: float,
    outages: int,
    messages: int,
    seed: int,
    out: Path,
    truth: Path | None,
    changes: tuple[str, ...],
    clean: bool,
    as_json: bool,
) -> None:
    """Write journals of any size with a known truth.

    There is every fate of a message in them, every kind of failure and outage, and whatever can be wrong with a file.
    With --truth, the rows that a report must come to are written, too: not into the folder of the journals.

    Exit status: 0; 1 a folder cannot be used; 2 wrong usage.
    """
    try:
        settings = FleetSettings(fleet, days, outages, messages, seed)
        settings = _changed(settings.without_faults() if clean else settings, changes)
    except ValueError as exc:
        raise click.UsageError(str(exc)) from exc
    if truth is not None and (truth.resolve() == out.resolve() or out.resolve() in truth.resolve().parents):
        raise click.UsageError("--truth must not lie in --out: a report would take it for a journal")
    try:
        outcome = _run(settings, out, truth, quiet=as_json)
    except OSError as exc:
        raise click.ClickException(str(exc)) from exc
    if as_json:
        click.echo(json.dumps({"events": outcome.events, "files": outcome.files, "balance": outcome.balance}))
    else:
        _show(outcome, out, truth)


def _changed(settings: FleetSettings, changes: tuple[str, ...]) -> FleetSettings:
    for change in changes:
        name, equals, value = change.partition("=")
        if not equals:
            raise ValueError("--set needs NAME=VALUE, e.g. --set garbage=0.01; see --list-settings")
        settings = settings.changed(name.strip(), value)
    return settings


def _run(settings: FleetSettings, out: Path, truth: Path | None, *, quiet: bool) -> Outcome:
    if quiet:
        return run_simulation(settings, out, truth)
    with click.progressbar(length=settings.messages, label="messages", file=sys.stderr, width=30) as bar:
        return run_simulation(settings, out, truth, bar.update)


def _show(outcome: Outcome, out: Path, truth: Path | None) -> None:
    balance = outcome.balance
    click.echo(f"{heading('journals')} {out}: {counted(outcome.events, 'event')} in {counted(outcome.files, 'file')}\n")
    for name in ("direct", "recovered", "stood-in", "waiting", "dead-lettered", "expired", "duplicated", "unknown"):
        click.echo(f"  {name:<14}{balance[name]:>14,}")
    click.echo(f"  {heading('messages'.ljust(14))}{balance['messages']:>14,}\n")
    of_entities = sum(row["scope"] == "entity" for row in outcome.outages)
    click.echo(
        f"{counted(of_entities, 'outage')} of entities, {len(outcome.outages) - of_entities} of namespaces; "
        f"{counted(len(outcome.quality), 'row')} about the quality of the data."
    )
    if truth is not None:
        click.echo(f"{heading('truth')} {truth}")
