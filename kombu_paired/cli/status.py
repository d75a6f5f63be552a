"""``kombu-paired status``: is the primary reachable, and what waits in the backlog."""

from __future__ import annotations

import json
import time
from collections.abc import Sequence
from typing import Any

import click

from kombu_paired.cli.connecting import json_option, pairing_options
from kombu_paired.cli.printing import bad, bar, counted, duration, good, heading
from kombu_paired.cli.sides import Look, look_at
from kombu_paired.namespaces.base import BacklogDepth
from kombu_paired.pairing import Pairing

__all__ = ("status",)

#: Columns of the bar that shows how full a backlog queue is beside the others.
BAR = 16


@click.command()
@pairing_options
@json_option
def status(pairing: Pairing, as_json: bool) -> None:
    """Show what waits in the backlog. Changes nothing, and works while either side is down.

    Exit status: 0 both sides are reachable and nothing is dead-lettered; 1 otherwise; 2 wrong usage.
    """
    look = look_at(pairing)
    report = as_report(pairing.name, look, time.time())
    if as_json:
        click.echo(json.dumps(report, indent=2))
    else:
        show(pairing.name, look, report)
    click.get_current_context().exit(0 if report["ok"] else 1)


def as_report(name: str, look: Look, now: float) -> dict[str, Any]:
    """All that is known, as JSON has it.

    Arguments:
        now: seconds since 1970, UTC; ages are counted from here.
    """
    queues = [
        {
            "queue": each.queue,
            "messages": each.messages,
            "oldest_age_s": _age(each, now),
            "dead_letters": each.dead_letters,
            "dead_letter_reason": each.dead_letter_reason,
        }
        for each in look.depths
    ]
    totals = _totals(look.depths, now) if look.secondary.failure is None else None
    return {
        "ok": look.is_fine and totals is not None and not totals["dead_letters"],
        "pairing": name,
        "primary": look.primary.as_json(),
        "secondary": look.secondary.as_json(),
        "backlog": queues,
        "totals": totals,
    }


def _age(depth: BacklogDepth, now: float) -> float | None:
    return None if depth.oldest_diverted_at is None else round(max(0.0, now - depth.oldest_diverted_at), 3)


def _totals(depths: Sequence[BacklogDepth], now: float) -> dict[str, Any]:
    ages = [age for each in depths if (age := _age(each, now)) is not None]
    return {
        "messages": sum(each.messages or 0 for each in depths),
        "oldest_age_s": max(ages, default=None),
        "dead_letters": sum(each.dead_letters for each in depths),
        "missing_queues": sum(each.messages is None for each in depths),
    }


def show(name: str, look: Look, report: dict[str, Any]) -> None:
    """The report for people."""
    click.echo(f"{heading('pairing')} {name}\n")
    look.primary.show()
    look.secondary.show()
    click.echo(f"\n{heading('backlog queues')} {name}/x-servicebus-transfer/…")
    totals = report["totals"]
    if totals is None:
        click.echo("  not known while the secondary cannot be asked")
        return
    click.echo(click.style(f"  {'':>5}{'waiting':>9}  {'':<{BAR}}  {'oldest':>11}{'dead':>7}  reason", dim=True))
    largest = max((each.messages or 0 for each in look.depths), default=0)
    for each, row in zip(look.depths, report["backlog"], strict=True):
        _show_queue(each, row["oldest_age_s"], largest)
    oldest = totals["oldest_age_s"]
    dead = f"{totals['dead_letters']:>7,}"
    click.echo(
        f"  {'total':>5}{totals['messages']:>9,}  {'':<{BAR}}  {'' if oldest is None else duration(oldest):>11}"
        f"{bad(dead) if totals['dead_letters'] else dead}\n"
    )
    click.echo(_verdict(report))


def _show_queue(depth: BacklogDepth, age: float | None, largest: int) -> None:
    number = depth.queue.rpartition("/")[2]
    if depth.messages is None:
        click.echo(click.style(f"  {number:>5}  missing: opening a pairing creates it (kombu-paired check)", dim=True))
        return
    dead = f"{depth.dead_letters:>7,}"
    text = (
        f"  {number:>5}{depth.messages:>9,}  {bar(depth.messages, largest, BAR):<{BAR}}  "
        f"{'' if age is None else duration(age):>11}{bad(dead) if depth.dead_letters else dead}"
        f"  {depth.dead_letter_reason or ''}"
    )
    click.echo(text.rstrip())


def _verdict(report: dict[str, Any]) -> str:
    """What an operator should take from it, the worst first."""
    totals = report["totals"]
    sentences = []
    if not report["primary"]["reachable"]:
        sentences.append(bad("The primary cannot be used."))
    if totals["dead_letters"]:
        sentences.append(bad(f"{counted(totals['dead_letters'], 'dead letter')}: somebody has to look at them."))
    if totals["messages"]:
        sentences.append(f"{counted(totals['messages'], 'message')} waiting for a syphon (see kombu-paired syphon).")
    return "\n".join(sentences) or good("Nothing waits in the backlog.")
