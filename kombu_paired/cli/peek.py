"""``kombu-paired peek``: the messages themselves, without taking any."""

from __future__ import annotations

import json
import time
from collections.abc import Iterable, Sequence
from typing import Any

import click

from kombu_paired.brokers.forms import float_or_none
from kombu_paired.cli.connecting import as_click_errors, json_option, pairing_options
from kombu_paired.cli.printing import counted, duration
from kombu_paired.dead_letters import DESCRIPTION, REASON
from kombu_paired.message import DIVERTED_AT, DIVERTED_FOR, MAYBE_DUPLICATE, PATH, Message
from kombu_paired.pairing import Pairing

__all__ = ("as_row", "find", "peek", "show_rows")


@click.command()
@pairing_options
@click.option("--limit", type=click.IntRange(min=1), default=20, show_default=True, help="Show so many at most.")
@json_option
def peek(pairing: Pairing, limit: int, as_json: bool) -> None:
    """Show the oldest messages of the backlog, and leave them there.

    Of each what it is and where it goes, and never what is in it. Exit status: 0 they are shown; 1 the secondary
    cannot be asked; 2 wrong usage.
    """
    with as_click_errors(as_json):
        rows = find(pairing, pairing.backlog_queue_names, limit)
    if as_json:
        click.echo(json.dumps({"ok": True, "pairing": pairing.name, "messages": rows}, indent=2))
        return
    show_rows(rows)
    click.echo(f"{counted(len(rows), 'message')} shown." if rows else "Nothing waits in the backlog.")


def find(pairing: Pairing, queues: Sequence[str], limit: int) -> list[dict[str, Any]]:
    """The oldest messages of these queues, as JSON has them, the oldest first.

    Takes about ``send_timeout`` seconds at most.

    Raises:
        NamespaceFailure: the secondary cannot be asked.
        ConfigurationError: it cannot be looked into.
    """
    found = pairing.secondary.look_into(queues, limit, pairing.options.send_timeout)
    now = time.time()
    rows = [as_row(queue, each, now) for queue, messages in found.items() for each in messages]
    return sorted(rows, key=lambda row: -(row["age_s"] or 0.0))[:limit]


def as_row(queue: str, message: Message, now: float) -> dict[str, Any]:
    """What is known of a message, but for its body.

    Arguments:
        now: seconds since 1970, UTC.
    """
    headers = message.headers
    at = float_or_none(headers.get(DIVERTED_AT))
    return {
        "queue": queue,
        "id": message.message_id,
        "entity": _text(headers.get(PATH)),
        "task": _text(headers.get("task")),
        "age_s": None if at is None else round(max(0.0, now - at), 3),
        "diverted_for": _text(headers.get(DIVERTED_FOR)),
        "maybe_duplicate": MAYBE_DUPLICATE in headers,
        "size": message.size,
        "dead_letter_reason": _text(headers.get(REASON)),
        "dead_letter_description": _text(headers.get(DESCRIPTION)),
    }


def _text(value: object) -> str | None:
    return None if value is None else str(value)


def show_rows(rows: Iterable[dict[str, Any]]) -> None:
    """Two lines for each message: what it is, and why it is there."""
    for row in rows:
        age = "" if row["age_s"] is None else f", {duration(row['age_s'])} ago"
        click.echo(f"{row['id'] or 'no id'}  {row['task'] or ''}".rstrip())
        where = f"to {row['entity'] or 'nobody knows where'}{age}, {row['size']:,} bytes"
        why = row["dead_letter_reason"]
        click.echo(click.style(f"  {where}, in {row['queue']}", dim=True))
        if why:
            click.echo(f"  {why}: {row['dead_letter_description'] or ''}")
