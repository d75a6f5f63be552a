"""``kombu-paired report``: what the journals of a fleet say about an outage, added up by Spark."""

from __future__ import annotations

import json
import sys
import threading
from collections.abc import Callable, Iterator, Sequence
from contextlib import AbstractContextManager, contextmanager
from datetime import datetime, timezone
from typing import TYPE_CHECKING, Any

import click

from kombu_paired.cli.connecting import json_option
from kombu_paired.cli.printing import bad, counted, duration, good, heading
from kombu_paired.pipeline.costs import prices
from kombu_paired.pipeline.session import SparkUnavailable, require_spark, share_done, spark_session
from kombu_paired.pipeline.size import is_small

if TYPE_CHECKING:
    from kombu_paired.pipeline.report import Report

__all__ = ("report",)

#: Seconds between two looks at how far Spark is.
LOOK = 0.25


def moment(context: click.Context, parameter: click.Parameter, text: str | None) -> int | None:
    """Microseconds since 1970, from a date, or a date and time, as ISO 8601 has them; UTC unless it says otherwise."""
    if text is None:
        return None
    try:
        found = datetime.fromisoformat(text.replace("Z", "+00:00"))
    except ValueError as exc:
        raise click.BadParameter(f"{text!r} is no time: write e.g. 2026-03-02 or 2026-03-02T09:30") from exc
    found = found if found.tzinfo else found.replace(tzinfo=timezone.utc)
    return round(found.timestamp() * 1_000_000)


@click.command()
@click.option(
    "--journal", "journals", multiple=True, required=True, metavar="PATH", help="A file or folder. Repeatable."
)
@click.option("--out", required=True, metavar="FOLDER", help="For the tables; those there are replaced.")
@click.option("--from", "since", callback=moment, metavar="TIME", help="Only what happened from then on (UTC).")
@click.option("--to", "until", callback=moment, metavar="TIME", help="Only what happened before (UTC).")
@click.option(
    "--azure-metrics",
    multiple=True,
    metavar="PATH",
    help="Azure Monitor's of the namespace: a file or folder. Repeatable.",
)
@click.option("--prices", "sheet_path", type=click.Path(dir_okay=False), metavar="FILE", help="A price sheet, in TOML.")
@click.option("--master", metavar="URL", help="A Spark cluster. [default: this machine]")
@click.option("--remote", metavar="URL", help="A Spark Connect server, sc://HOST:15002.")
@json_option
def report(
    journals: tuple[str, ...],
    out: str,
    since: int | None,
    until: int | None,
    azure_metrics: tuple[str, ...],
    sheet_path: str | None,
    master: str | None,
    remote: str | None,
    as_json: bool,
) -> None:
    """Say what an outage did: what was lost, what was late, what failed over.

    Reads the journals of any number of processes, and writes tables as
    Parquet files, and report.html, for people. What is wrong with the
    journals is counted in one of them, and does not stop the report.

    Needs Spark: pip install 'kombu-paired[pipeline]', and Java 17 or later.

    Exit status: 0 the report is made; 1 it cannot be made; 2 wrong usage.
    """
    if master and remote:
        raise click.UsageError("--master and --remote are two ways to one thing: give one of them")
    if since is not None and until is not None and since >= until:
        raise click.UsageError("--from must be before --to")
    try:
        sheet = prices.read(sheet_path) if sheet_path else None
        options = {"since": since, "until": until, "sheet": sheet, "azure_metrics": azure_metrics}
        require_spark(remote)
        session = spark_session(master=master, remote=remote, few_rows=is_small(journals, beside=out))
        made = _make(session, journals, out, **options)
    except prices.PriceSheetError as exc:
        raise click.UsageError(str(exc)) from exc
    except SparkUnavailable as exc:
        raise click.ClickException(str(exc)) from exc
    if as_json:
        click.echo(json.dumps({**vars(made), "out": out}, indent=2))
    else:
        show(made, out)


def _make(session: AbstractContextManager[Any], journals: Sequence[str], out: str, **options: Any) -> Report:
    from kombu_paired.pipeline.reading import NoJournals
    from kombu_paired.pipeline.report import STEPS, TakenFolder, make_report

    with _progress(("start Spark", *STEPS)) as (on_step, watch):
        on_step("start Spark")
        with session as spark:
            watch(spark)
            try:
                return make_report(spark, journals, out, on_step=on_step, **options)
            except (NoJournals, TakenFolder) as exc:
                raise click.ClickException(str(exc)) from exc


@contextmanager
def _progress(steps: tuple[str, ...]) -> Iterator[tuple[Callable[[str], None], Callable[[Any], None]]]:
    """A bar on standard error, where that is a terminal: to be told of each step, and of the session to watch."""
    if not sys.stderr.isatty():
        yield lambda step: None, lambda session: None
        return
    from rich.console import Console
    from rich.progress import BarColumn, Progress, TextColumn, TimeElapsedColumn

    columns = (TextColumn("{task.description:<14}"), BarColumn(), TimeElapsedColumn())
    with Progress(*columns, console=Console(stderr=True), transient=True) as picture:
        bar, done, is_over = picture.add_task("", total=len(steps)), 0, threading.Event()

        def on_step(step: str) -> None:
            nonlocal done
            done = steps.index(step)
            picture.update(bar, description=step, completed=done)

        def look(session: Any) -> None:
            while not is_over.wait(LOOK):
                share = share_done(session)
                if share is not None:
                    picture.update(bar, completed=done + share)

        def watch(session: Any) -> None:
            threading.Thread(target=look, args=(session,), name="report-progress", daemon=True).start()

        try:
            yield on_step, watch
        finally:
            is_over.set()


def show(made: Report, out: str) -> None:
    """The balance first, and where the rest is."""
    counts = made.balance
    click.echo(
        heading(
            f"{counts['accepted']:,} sent, {counts['diverted']:,} diverted, {counts['recovered']:,} recovered, "
            f"{counts['lost']:,} lost"
        )
    )
    click.echo("")
    for name, meaning in MEANINGS.items():
        number = f"{counts[name]:>13,}"
        is_wrong = name in WRONG and counts[name]
        click.echo(f"{bad(number) if is_wrong else number}  {name:<15}{click.style(meaning, dim=True)}")
    click.echo("")
    median, p95 = made.late_s.get("median"), made.late_s.get("p95")
    if median is not None and p95 is not None:
        click.echo(
            f"{counted(counts['ran_meanwhile'], 'task')} ran during the outage: half within {duration(median)} of "
            f"being sent, 95 of 100 within {duration(p95)}."
        )
    of_entities, of_namespaces = (made.outages.get(scope, 0) for scope in ("entity", "namespace"))
    click.echo(f"{counted(of_namespaces, 'outage')} of a namespace, {of_entities:,} of an entity.")
    if made.problems:
        click.echo("In the journals: " + ", ".join(f"{count:,} {name}" for name, count in made.problems.items()) + ".")
    else:
        click.echo(good("Nothing is wrong with the journals."))
    seconds = duration(sum(made.seconds.values()))
    click.echo(f"{counted(made.files, 'file')} read in {seconds}. The page is {made.page}; the tables are beside it.")


#: The fates, and some more counts, for people.
MEANINGS = {
    "direct": "sent straight to the primary",
    "recovered": "went through the backlog, and came home",
    "stood-in": "went through the backlog to workers that stood in",
    "waiting": "still in the backlog, as far as the journals go",
    "dead-lettered": "in the backlog's dead letters",
    "expired": "their time to live ran out in the backlog",
    "duplicated": "delivered more often than sent",
    "refused": "neither namespace took it: the caller got an error",
    "unknown": "the journal that knew more is not there (and refused)",
    "consumed": "finished by a worker",
}
WRONG = ("dead-lettered", "expired", "refused")
