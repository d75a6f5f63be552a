"""``kombu-paired watch``: what is happening right now, from journals that are being written."""

from __future__ import annotations

import json
import logging
import signal
import sys
import threading
import time
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import AbstractContextManager, contextmanager
from queue import SimpleQueue
from typing import TYPE_CHECKING, Any, TypeAlias

import click

from kombu_paired.cli.cost import seconds_of
from kombu_paired.cli.printing import duration
from kombu_paired.pipeline.costs import prices
from kombu_paired.pipeline.session import SparkUnavailable, require_spark, spark_session
from kombu_paired.pipeline.size import is_small

if TYPE_CHECKING:
    from kombu_paired.pipeline.live.watch import Refresh

__all__ = ("watch",)

#: Shows a refresh; and is told of each step.
Show = Callable[["Refresh"], None]
OnStep = Callable[[str], None]
#: What the thread that watches says; None is the end.
Said: TypeAlias = "SimpleQueue[Refresh | Exception | None]"

WRONG = ("dead-lettered", "expired", "refused", "lost")


def _seconds(context: click.Context, parameter: click.Parameter, text: str) -> float:
    try:
        found = seconds_of(text)
    except ValueError as exc:
        raise click.BadParameter(str(exc)) from exc
    if found <= 0:
        raise click.BadParameter("it must be more than 0")
    return found


@click.command()
@click.option(
    "--journal", "journals", multiple=True, required=True, metavar="PATH", help="A folder or file. Repeatable."
)
@click.option("--out", required=True, metavar="FOLDER", help="For the tables, and for what was read: of this watch.")
@click.option("--prices", "sheet_path", type=click.Path(dir_okay=False), metavar="FILE", help="A price sheet, in TOML.")
@click.option(
    "--every", callback=_seconds, default="30s", show_default=True, metavar="DURATION", help="Between two looks."
)
@click.option(
    "--last", callback=_seconds, default="7d", show_default=True, metavar="DURATION", help="What the tables tell of."
)
@click.option("--once", is_flag=True, help="Read what is there now, make the tables, and exit.")
@click.option("--master", metavar="URL", help="A Spark cluster. [default: this machine]")
@click.option("--json", "as_json", is_flag=True, envvar="KOMBU_PAIRED_JSON", help="A JSON object per line, each time.")
def watch(
    journals: tuple[str, ...],
    out: str,
    sheet_path: str | None,
    every: float,
    last: float,
    once: bool,
    master: str | None,
    as_json: bool,
) -> None:
    """Say what is happening: what is down, and where the messages are.

    Makes the tables of a report, and makes them again while the journals grow.
    It can be stopped, or killed, at any time: the next one goes on from there.

    Needs Spark: pip install 'kombu-paired[pipeline]', and Java 17 or later.

    Exit status: 0 it was stopped, or with --once done; 1 it cannot go on; 2 wrong usage.
    """
    try:
        options = {"every": every, "last": last, "once": once, "sheet": prices.read(sheet_path) if sheet_path else None}
    except ValueError as exc:
        raise click.UsageError(str(exc)) from exc
    view = _as_json(out) if as_json else _live(out) if sys.stdout.isatty() and not once else _as_lines(out)
    try:
        require_spark(command="a watch")
        _watch(master, journals, out, view, **options)
    except SparkUnavailable as exc:
        raise click.ClickException(str(exc)) from exc


def _watch(
    master: str | None,
    journals: Sequence[str],
    out: str,
    view: AbstractContextManager[tuple[Show, OnStep]],
    **options: Any,
) -> None:
    from kombu_paired.pipeline.live.watch import SPARK_SETTINGS, Stuck
    from kombu_paired.pipeline.live.watch import watch as refreshes
    from kombu_paired.pipeline.reading import NoJournals
    from kombu_paired.pipeline.report import TakenFolder

    logging.getLogger("py4j").setLevel(logging.CRITICAL)  # it prints the traceback of what is raised, too
    said: Said = SimpleQueue()
    with view as (show, on_step), _signals(said):
        on_step("start Spark")
        few_rows = options["once"] and _is_small(journals, out)
        # Signals twice: Spark takes them for itself.
        with spark_session(master=master, few_rows=few_rows, settings=SPARK_SETTINGS) as spark, _signals(said):
            _in_thread(lambda: refreshes(spark, journals, out, on_step=on_step, **options), said)
            try:
                while (each := said.get()) is not None:
                    if isinstance(each, Exception):
                        raise each
                    show(each)
            except (NoJournals, TakenFolder, Stuck, OSError) as exc:
                raise click.ClickException(str(exc)) from exc


def _is_small(journals: Sequence[str], out: str) -> bool:
    """Whether there are few events: in the journals, and of those before in the watch's own folder.

    For ``--once`` alone: whoever goes on for weeks may have many one day, with the Java that was started for few.
    """
    return is_small(journals, beside=out) and is_small([f"{out}/events"])


def _in_thread(make: Callable[[], Iterable[Refresh]], said: Said) -> None:
    """Say each, and what stops it, or None when it has ended.

    A thread that waits for Spark cannot be interrupted; the main one goes, and the session with it.
    """

    def run() -> None:
        try:
            for each in make():
                said.put(each)
        except Exception as exc:
            said.put(exc)
        said.put(None)

    threading.Thread(target=run, name="kombu-paired-watch", daemon=True).start()


@contextmanager
def _signals(said: Said) -> Iterator[None]:
    """Ctrl-C and SIGTERM say that it has ended."""
    both = (signal.SIGINT, signal.SIGTERM)
    before = {each: signal.signal(each, lambda number, frame: said.put(None)) for each in both}
    try:
        yield
    finally:
        for number, handler in before.items():
            signal.signal(number, handler)


# -- what is shown ----------------------------------------------------------------------------------------------------


def _clock(seconds: float) -> str:
    return time.strftime("%H:%M:%S", time.gmtime(seconds))


def as_object(refresh: Refresh, out: str) -> dict[str, Any]:
    """A refresh, as JSON has it."""
    return {
        "at": refresh.at,
        "lag": refresh.lag,
        "seconds": refresh.seconds,
        "balance": refresh.report.balance,
        "down": refresh.outages,
        "outages": refresh.report.outages,
        "problems": refresh.report.problems,
        "files": refresh.report.files,
        "out": out,
    }


def line(refresh: Refresh) -> str:
    """A refresh in one line."""
    counts = refresh.report.balance
    parts = [f"{counts['accepted']:,} sent", f"{counts['diverted']:,} diverted", f"{counts['waiting']:,} waiting"]
    parts += [f"{counts[name]:,} {name}" for name in WRONG if counts[name]]
    down = ", ".join(f"{each['pairing']}/{each['entity']} ({_processes(each)})" for each in refresh.outages)
    text = f"{_clock(refresh.at)}  {', '.join(parts)}. {f'Down: {down}.' if down else 'Nothing is down.'}"
    return f"{text} {_problems(refresh)}{_lag(refresh)}"


def _processes(outage: dict[str, Any]) -> str:
    return f"{outage['processes']:,} {'process' if outage['processes'] == 1 else 'processes'}"


def _problems(refresh: Refresh) -> str:
    problems = refresh.report.problems
    if not problems:
        return ""
    return "In the journals: " + ", ".join(f"{count:,} {name}" for name, count in problems.items()) + ". "


def _lag(refresh: Refresh) -> str:
    return "No event yet." if refresh.lag is None else f"The latest event is {duration(refresh.lag)} old."


@contextmanager
def _as_json(out: str) -> Iterator[tuple[Show, OnStep]]:
    yield lambda refresh: click.echo(json.dumps(as_object(refresh, out))), lambda step: None


@contextmanager
def _as_lines(out: str) -> Iterator[tuple[Show, OnStep]]:
    yield lambda refresh: click.echo(line(refresh)), lambda step: None


@contextmanager
def _live(out: str) -> Iterator[tuple[Show, OnStep]]:
    from rich.live import Live
    from rich.text import Text

    shown: list[Any] = [Text("Nothing is known yet.")]
    with Live(refresh_per_second=4) as picture:

        def on_step(step: str) -> None:
            picture.update(_group(*shown, Text(f"{step} ...", style="dim")))

        def show(refresh: Refresh) -> None:
            shown[:] = _picture(refresh, out)
            picture.update(_group(*shown))

        yield show, on_step


def _group(*parts: Any) -> Any:
    from rich.console import Group

    return Group(*parts)


def _picture(refresh: Refresh, out: str) -> Iterator[Any]:
    """The balance, what is down, what is wrong with the journals, and how old all this is."""
    from rich.table import Table
    from rich.text import Text

    counts = refresh.report.balance
    balance = Table.grid(padding=(0, 3))
    meanwhile = ("stood-in",) if counts["stood-in"] else ()
    names = ("accepted", "direct", "diverted", "recovered", *meanwhile, "waiting", *WRONG)
    balance.add_row(*(Text(f"{counts[name]:,}", style=_style(name, counts[name]), justify="right") for name in names))
    balance.add_row(*(Text("sent" if name == "accepted" else name, style="dim") for name in names))
    yield balance
    yield Text()
    if refresh.outages:
        down = Table("down", "since (UTC)", "for", "processes", "waiting", box=None, pad_edge=False)
        for each in refresh.outages:
            name = Text(f"{each['pairing']}/{each['entity']}", style="bold red")
            numbers = (f"{each[key]:,}" for key in ("processes", "waiting"))
            down.add_row(name, _clock(each["since"]), duration((refresh.latest or 0) - each["since"]), *numbers)
        yield down
    else:
        yield Text("Nothing is down.", style="green")
    yield Text()
    yield Text(_problems(refresh), style="yellow")
    yield Text(f"{_clock(refresh.at)} UTC. {_lag(refresh)} The tables are in {out}.", style="dim")


def _style(name: str, number: int) -> str:
    if name in WRONG and number:
        return "bold red"
    return "bold yellow" if name == "waiting" and number else "bold"
