"""``kombu-paired cost``: what a month with outages would cost on Azure Service Bus, before the fact."""

from __future__ import annotations

import json
import re
from typing import Any

import click

from kombu_paired.cli.connecting import json_option
from kombu_paired.cli.printing import counted, duration, heading
from kombu_paired.pipeline.costs import charges, prices

__all__ = ("cost", "seconds_of")

#: What each stage is, for people.
MEANING = {
    "send_to_primary": "straight to the primary",
    "send_to_backlog": "diverted, to a backlog queue",
    "receive_from_backlog": "by the syphon",
    "complete_in_backlog": "by the syphon",
    "send_home": "by the syphon, to the primary",
    "receive_from_primary": "by the workers",
    "complete_at_primary": "by the workers",
    "lock_renewal": "by the workers",
    "ping": "of what is down, at most",
    "heartbeat": "events of Celery's workers",
    "idle_consume": "of empty queues, by workers",
    "idle_receive": "of empty backlog queues",
}


_SECONDS_OF = {"": 1, "s": 1, "m": 60, "min": 60, "h": 3600, "d": 86400}
_WHOLE = re.compile(r"\s*(?:\d+(?:\.\d+)?\s*(?:min|[smhd])\s*)+|\s*\d+(?:\.\d+)?\s*")
_PART = re.compile(r"(\d+(?:\.\d+)?)\s*(min|[smhd]?)")


def seconds_of(text: str) -> float:
    """Seconds, from ``90``, ``15m``, ``2h`` or ``1h30m``.

    Raises:
        ValueError: it is no duration; the text says how to write one.
    """
    if not _WHOLE.fullmatch(text):
        raise ValueError(f"{text!r} is no duration: write e.g. 90s, 15m, 2h or 1h30m")
    return float(sum(float(count) * _SECONDS_OF[unit] for count, unit in _PART.findall(text)))


def _duration(context: click.Context, parameter: click.Parameter, text: str) -> float:
    try:
        return seconds_of(text)
    except ValueError as exc:
        raise click.BadParameter(str(exc)) from exc


@click.command()
@click.option("--messages-per-day", type=click.FloatRange(min=0), required=True, metavar="N", help="Sent by all.")
@click.option("--outage", callback=_duration, default="0", metavar="DURATION", help="Of one outage, e.g. 90s, 15m, 2h.")
@click.option(
    "--outages-per-month", type=click.FloatRange(min=0), default=1.0, show_default=True, metavar="N", help="In 30 days."
)
@click.option(
    "--backlog-queues", type=click.IntRange(min=1), default=10, show_default=True, metavar="N", help="How many."
)
@click.option("--poll", callback=_duration, default="15m", show_default=True, metavar="DURATION", help="syphon_poll.")
@click.option("--workers", type=click.IntRange(min=0), default=1, show_default=True, metavar="N", help="Of Celery.")
@click.option(
    "--queues", type=click.IntRange(min=0), default=1, show_default=True, metavar="N", help="A worker consumes from."
)
@click.option(
    "--heartbeat", callback=_duration, default="2s", show_default=True, metavar="DURATION", help="Between two; 0: off."
)
@click.option("--no-remote-control", is_flag=True, help="worker_enable_remote_control is False.")
@click.option("--syphons", type=click.IntRange(min=0), metavar="N", help="That poll; one in each worker.")
@click.option(
    "--size", type=click.IntRange(min=0), default=1024, show_default=True, metavar="BYTES", help="Of one message."
)
@click.option(
    "--entities", type=click.IntRange(min=0), default=1, show_default=True, metavar="N", help="Pinged in an outage."
)
@click.option(
    "--processes", type=click.IntRange(min=0), default=1, show_default=True, metavar="N", help="That send, and so ping."
)
@click.option(
    "--ping-interval", callback=_duration, default="60s", show_default=True, metavar="DURATION", help="As set."
)
@click.option(
    "--failover-interval", callback=_duration, default="10s", show_default=True, metavar="DURATION", help="As set."
)
@click.option(
    "--renewals", type=click.FloatRange(min=0), default=0.0, metavar="N", help="Of a message's lock, by long tasks."
)
@click.option("--prices", "sheet_path", type=click.Path(dir_okay=False), metavar="FILE", help="A price sheet, in TOML.")
@json_option
def cost(
    messages_per_day: float,
    outage: float,
    outages_per_month: float,
    backlog_queues: int,
    poll: float,
    workers: int,
    queues: int,
    heartbeat: float,
    no_remote_control: bool,
    syphons: int | None,
    size: int,
    entities: int,
    processes: int,
    ping_interval: float,
    failover_interval: float,
    renewals: float,
    sheet_path: str | None,
    as_json: bool,
) -> None:
    """What 30 days would cost on Azure Service Bus.

    Counts the operations that the service charges, by stage, with the backlog, the pings, the polls of the syphon and
    what idle workers do in it. With a price sheet, money too: prices are yours to give.

    Exit status: 0; 2 wrong usage.
    """
    try:
        load = charges.Load(messages_per_day, size, renewals)
        outages = charges.Outages(outage, outages_per_month, entities, processes, failover_interval, ping_interval)
        fleet = charges.Workers(workers, queues, heartbeat, not no_remote_control)
        watchers = charges.Syphons(backlog_queues, poll, workers if syphons is None else syphons)
        sheet = prices.read(sheet_path) if sheet_path else None
    except ValueError as exc:
        raise click.UsageError(str(exc)) from exc
    report = as_report(load, outages, watchers, fleet, sheet)
    if as_json:
        click.echo(json.dumps(report, indent=2))
    else:
        show(report, load, outages)


def as_report(
    load: charges.Load,
    outages: charges.Outages,
    syphons: charges.Syphons,
    workers: charges.Workers,
    sheet: prices.PriceSheet | None,
) -> dict[str, Any]:
    """All that is known, as JSON has it. Operations and money are those of 30 days."""
    operations = charges.of_month(load, outages, syphons, workers)
    return {
        "days": charges.HOURS_OF_MONTH // 24,
        "messages_diverted": charges.diverted_of_month(load, outages),
        "operations_of_a_message": {
            route: charges.of_message(load.size, diverted=route == "diverted") for route in ("direct", "diverted")
        },
        "idle_receives": {
            name: charges.idle_receives(syphons, hours)
            for name, hours in (("hour", 1), ("day", 24), ("month", charges.HOURS_OF_MONTH))
        },
        "idle_hour": charges.of_idle_hour(syphons, workers),
        "operations": operations,
        "total": sum(operations.values()),
        "money": None if sheet is None else _money(operations, sheet),
    }


def _money(operations: dict[str, int], sheet: prices.PriceSheet) -> dict[str, Any]:
    total = sum(operations.values())
    charged = sheet.of_operations(total)
    return {
        "currency": sheet.currency,
        "base_fee": sheet.base_fee,
        "operations": round(charged, 6),
        "total": round(sheet.of_month(total), 6),
        "by_stage": {stage: round(charged * count / total, 6) if total else 0.0 for stage, count in operations.items()},
        "prices": {"name": sheet.name, "date": sheet.date.isoformat(), "source": sheet.source},
    }


def show(report: dict[str, Any], load: charges.Load, outages: charges.Outages) -> None:
    """The report for people."""
    money = report["money"]
    click.echo(f"{heading('operations')} in {report['days']} days, in steps of 64 KB\n")
    for stage, count in report["operations"].items():
        price = f"{money['by_stage'][stage]:>11,.2f}" if money else ""
        click.echo(f"  {stage.replace('_', ' '):<21}{count:>15,}{price}  {MEANING[stage]}")
    price = f"{money['operations']:>11,.2f}  {money['currency']}" if money else ""
    click.echo(f"  {heading('together'.ljust(21))}{report['total']:>15,}{price}\n")
    _show_messages(report, load, outages)
    _show_idle(report)
    if money is None:
        click.echo("For money, give a price sheet: --prices FILE (docs/cost.md says how to write one).")
        return
    click.echo(f"{heading('money')} {money['total']:,.2f} {money['currency']}, of it {money['base_fee']:,.2f} base fee")
    source = money["prices"]
    click.echo(f"  by {source['name']}, {source['date']}: {source['source']}")


def _show_idle(report: dict[str, Any]) -> None:
    idle, hour = report["idle_receives"], report["idle_hour"]
    click.echo(f"The syphon polls {idle['hour']:,} times an hour, {idle['day']:,} a day, {idle['month']:,} in 30 days.")
    click.echo(f"While nothing is sent, an hour takes {counted(sum(hour.values()), 'operation')}.")
    if hour["heartbeat"]:
        click.echo(f"Of these {hour['heartbeat']:,} are heartbeats: celery worker --without-heartbeat has none.")
    click.echo()


def _show_messages(report: dict[str, Any], load: charges.Load, outages: charges.Outages) -> None:
    both = report["operations_of_a_message"]
    click.echo(
        f"A message of {load.size:,} bytes takes {counted(sum(both['direct'].values()), 'operation')}, "
        f"a diverted one {sum(both['diverted'].values())}."
    )
    if outages.seconds and outages.per_month:
        click.echo(
            f"An outage of {duration(outages.seconds)} diverts for {duration(outages.diverting_seconds)}; "
            f"{counted(report['messages_diverted'], 'message')} in 30 days."
        )
