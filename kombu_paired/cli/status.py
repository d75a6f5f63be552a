"""``kombu-paired status``: is the primary reachable, and what waits in the backlog."""

from __future__ import annotations

import json
import time
from collections.abc import Sequence
from typing import Any

import click

from kombu_paired.brokers.roles import BacklogDepth
from kombu_paired.cli.connecting import json_option, pairing_options
from kombu_paired.cli.isolate import since
from kombu_paired.cli.printing import WIDTH, bad, bar, counted, duration, good, heading
from kombu_paired.cli.sides import Look, look_at
from kombu_paired.isolation import ALL
from kombu_paired.pairing import Pairing
from kombu_paired.stand_in import STAND_IN_MARK, plain_name

__all__ = ("status",)

#: Columns of the bar that shows how full a backlog queue is beside the others.
BAR = 16
#: Columns to the left of what does not fit into its line.
MARGIN = 8


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
    totals = _totals(look.depths, now) if look.secondary.failure is None else None
    return {
        "ok": look.is_fine and totals is not None and not totals["dead_letters"] and not _dead_elsewhere(look),
        "pairing": name,
        "primary": look.primary.as_json(),
        "secondary": look.secondary.as_json(),
        "backlog": [_queue_as_json(each, now) for each in look.depths],
        "stand_in": [_queue_as_json(each, now) for each in look.stand_ins],
        "isolated": dict(sorted(look.isolated.notices.items())),
        "totals": totals,
        "results": _queue_as_json(look.results, now) if look.results else None,
    }


def _queue_as_json(depth: BacklogDepth, now: float) -> dict[str, Any]:
    return {
        "queue": depth.queue,
        "messages": depth.messages,
        "oldest_age_s": _age(depth, now),
        "dead_letters": depth.dead_letters,
        "dead_letter_reason": depth.dead_letter_reason,
    }


def _dead_elsewhere(look: Look) -> int:
    """Dead letters that are none of the backlog's."""
    return sum(each.dead_letters for each in (look.results, *look.stand_ins) if each is not None)


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
    if look.stand_ins:
        _show_stand_ins(name, look.stand_ins, report["stand_in"])
    click.echo(_verdict(report))


def _show_stand_ins(name: str, depths: Sequence[BacklogDepth], rows: Sequence[dict[str, Any]]) -> None:
    click.echo(f"{heading('stand-in queues')} {name}{STAND_IN_MARK}…")
    largest = max(each.messages or 0 for each in depths)
    for each, row in zip(depths, rows, strict=True):
        line = _line("", each, row["oldest_age_s"], largest)
        queue = plain_name(name, each.queue) or each.queue
        fits = len(click.unstyle(line)) + len(queue) <= WIDTH
        click.echo(line + queue if fits else f"{line.rstrip()}\n{'':{MARGIN}}{queue}")
        if each.dead_letters:
            click.echo(f"{'':{MARGIN}}{each.dead_letter_reason or ''}")
    click.echo()


def _show_queue(depth: BacklogDepth, age: float | None, largest: int) -> None:
    number = depth.queue.rpartition("/")[2]
    if depth.messages is None:
        click.echo(click.style(f"  {number:>5}  missing: opening a pairing creates it (kombu-paired check)", dim=True))
        return
    click.echo((_line(number, depth, age, largest) + (depth.dead_letter_reason or "")).rstrip())


def _line(label: str, depth: BacklogDepth, age: float | None, largest: int) -> str:
    messages, dead = depth.messages or 0, f"{depth.dead_letters:>7,}"
    return (
        f"  {label:>5}{messages:>9,}  {bar(messages, largest, BAR):<{BAR}}  "
        f"{'' if age is None else duration(age):>11}{bad(dead) if depth.dead_letters else dead}  "
    )


def _of_stand_ins(rows: Sequence[dict[str, Any]]) -> list[str]:
    messages, dead = (sum(each[key] or 0 for each in rows) for key in ("messages", "dead_letters"))
    sentences = []
    if dead:
        sentences.append(bad(f"{counted(dead, 'dead letter')} beside stand-in queues: somebody has to look at them."))
    if messages:
        sentences.append(f"{counted(messages, 'message')} waiting for workers that stand in, or for the way home.")
    return sentences


def _verdict(report: dict[str, Any]) -> str:
    """What an operator should take from it: what one has done first, and then the worst."""
    totals = report["totals"]
    sentences = [
        bad(f"{'Every entity' if name == ALL else name} is isolated since {since(at)} (see kombu-paired restore).")
        for name, at in report["isolated"].items()
    ]
    if not report["primary"]["reachable"]:
        sentences.append(bad("The primary cannot be used."))
    if totals["dead_letters"]:
        sentences.append(bad(f"{counted(totals['dead_letters'], 'dead letter')}: somebody has to look at them."))
    results = report["results"]
    if results and results["messages"]:
        sentences.append(f"{counted(results['messages'], 'result')} waiting for the result backend.")
    if results and results["dead_letters"]:
        sentences.append(bad(f"{counted(results['dead_letters'], 'result')} in {results['queue']} cannot be stored."))
    sentences += _of_stand_ins(report["stand_in"])
    if totals["messages"]:
        sentences.append(f"{counted(totals['messages'], 'message')} waiting for a syphon (see kombu-paired drain).")
    return "\n".join(sentences) or good("Nothing waits in the backlog.")
