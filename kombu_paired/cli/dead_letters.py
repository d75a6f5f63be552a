"""``kombu-paired dead-letters``: what can never be delivered, and what an operator does with it."""

from __future__ import annotations

import functools
import json
from collections.abc import Callable
from typing import Any

import click

from kombu_paired.brokers.roles import DEAD_LETTER_SUFFIX
from kombu_paired.cli.connecting import as_click_errors, json_option, pairing_options, result_queue
from kombu_paired.cli.peek import find, show_rows
from kombu_paired.cli.printing import counted
from kombu_paired.cli.sides import stand_in_depths
from kombu_paired.dead_letters import Chosen, delete, requeue
from kombu_paired.deadline import Deadline
from kombu_paired.pairing import Pairing

__all__ = ("dead_letters", "queues_with_dead_letters")


@click.group()
def dead_letters() -> None:
    """Show, re-queue or delete what can never be delivered."""


def _chosen(command: Callable[..., Any]) -> Callable[..., Any]:
    """Decorator: the options that say which dead letters are meant; the command gets them as ``chosen``."""

    @click.argument("ids", metavar="[ID]...", nargs=-1)
    @click.option("--reason", metavar="REASON", help="Those of this reason, MissingEntity for example.")
    @click.option("--all", "all_of_them", is_flag=True, help="Whatever is there.")
    @functools.wraps(command)
    def with_chosen(ids: tuple[str, ...], reason: str | None, all_of_them: bool, **rest: Any) -> Any:
        if not ids and reason is None and not all_of_them:
            raise click.UsageError("which ones? Give their ids, --reason, or --all.")
        if all_of_them and (ids or reason is not None):
            raise click.UsageError("--all means all: give ids and --reason, or --all.")
        return command(chosen=Chosen(frozenset(ids), reason), **rest)

    return with_chosen


@dead_letters.command("list")
@pairing_options
@click.option("--limit", type=click.IntRange(min=1), default=100, show_default=True, help="Show so many at most.")
@json_option
def list_them(pairing: Pairing, limit: int, as_json: bool) -> None:
    """Show dead letters, the oldest first, and leave them there.

    Exit status: 0 they are shown; 1 the secondary cannot be asked; 2 wrong usage.
    """
    with as_click_errors(as_json):
        queues = [each + DEAD_LETTER_SUFFIX for each in queues_with_dead_letters(pairing)]
        rows = find(pairing, queues, limit)
    if as_json:
        click.echo(json.dumps({"ok": True, "pairing": pairing.name, "dead_letters": rows}, indent=2))
        return
    show_rows(rows)
    click.echo(f"{counted(len(rows), 'dead letter')} shown." if rows else "There are no dead letters.")


@dead_letters.command("requeue")
@_chosen
@pairing_options
@json_option
def requeue_them(pairing: Pairing, chosen: Chosen, as_json: bool) -> None:
    """Put dead letters back into the backlog, so that the syphon takes them up again.

    Repair first what made them dead. Exit status: 0 they are back; 1 there were none like that, or it failed;
    2 wrong usage.
    """
    _settle(pairing, requeue, chosen, "requeued", "put back into the backlog", as_json)


@dead_letters.command("delete")
@_chosen
@pairing_options
@click.option("--yes", is_flag=True, help="Do not ask.")
@json_option
def delete_them(pairing: Pairing, chosen: Chosen, yes: bool, as_json: bool) -> None:
    """Throw dead letters away. Nothing brings them back.

    Exit status: 0 they are gone; 1 there were none like that, or it failed; 2 wrong usage.
    """
    if not yes:
        click.confirm(f"Throw dead letters of {pairing.name} away for good?", abort=True, err=True)
    _settle(pairing, delete, chosen, "deleted", "thrown away", as_json)


def queues_with_dead_letters(pairing: Pairing) -> list[str]:
    """The backlog queues, stand-in queues and the queue of results that have some now.

    Raises:
        NamespaceFailure: the secondary cannot be asked.
    """
    deadline, queue = Deadline(pairing.options.send_timeout), result_queue(pairing)
    names = [*pairing.backlog_queue_names, *([queue] if queue else [])]
    depths = [*pairing.secondary.backlog_depths(names, deadline.left), *stand_in_depths(pairing, deadline)]
    return [each.queue for each in depths if each.dead_letters]


def _settle(pairing: Pairing, action: Callable[..., int], chosen: Chosen, key: str, what: str, as_json: bool) -> None:
    with as_click_errors(as_json):
        count = action(pairing.secondary, queues_with_dead_letters(pairing), chosen, pairing.options.send_timeout)
    if as_json:
        click.echo(json.dumps({"ok": count > 0, "pairing": pairing.name, key: count}, indent=2))
    else:
        click.echo(f"{counted(count, 'dead letter')} {what}." if count else "There is no such dead letter.")
    click.get_current_context().exit(0 if count else 1)
