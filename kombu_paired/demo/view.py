"""How the demo is shown: a live picture where there is a terminal, plain lines where there is none."""

from __future__ import annotations

import math
import sys
import threading
import time
from abc import ABC, abstractmethod
from collections import Counter
from collections.abc import Sequence
from types import TracebackType
from typing import TYPE_CHECKING, TextIO

import click

from kombu_paired.demo.stage import Spool, Stage
from kombu_paired.demo.story import Balance, Chapter, Fate, Story
from kombu_paired.testing import HOST, LocalBroker

if TYPE_CHECKING:
    from rich.console import RenderableType
    from rich.text import Text

__all__ = ("LivePicture", "PlainLines", "View", "open_view")

#: Seconds between two pictures.
FRAME = 0.125
#: Columns and rows of the grid of messages, and rows of the chronicle: all fits into 80 by 24.
COLUMNS, ROWS, CHRONICLE = 76, 8, 7

#: Glyph, style and name of each fate. The glyphs tell them apart without colours.
LOOKS: dict[Fate, tuple[str, str, str]] = {
    Fate.RAN_DIRECT: ("■", "green", "ran directly"),
    Fate.RAN_FROM_BACKLOG: ("◆", "magenta", "ran via the backlog"),
    Fate.RAN_MEANWHILE: ("★", "bright_green", "ran in the outage"),
    Fate.WAITING: ("▫", "blue", "waits in primary"),
    Fate.CAME_HOME: ("▲", "cyan", "came home, waits"),
    Fate.IN_BACKLOG: ("▼", "bold yellow", "in the backlog"),
    Fate.ERROR: ("✗", "bold red", "publish failed"),
    Fate.PLANNED: ("·", "dim", "not published yet"),
}

#: Those that the legend names only where there are any.
SELDOM = {Fate.ERROR, Fate.RAN_MEANWHILE}

#: Style of a chronicle's line, and what it says; the event's own text follows.
KINDS: dict[str, tuple[str, str]] = {
    "stage": ("dim", ""),
    "killed": ("bold red", ""),
    "back": ("bold green", ""),
    "error": ("bold red", ""),
    "suspect": ("yellow", "suspect: the queue failed for the first time"),
    "failed_over": ("bold yellow", "failed_over: straight to the backlog from now on"),
    "restored": ("bold green", "restored: a ping got through, straight to the primary again"),
    "diverted": ("yellow", "diverted to the backlog"),
    "syphoned": ("cyan", "syphoned: moved home to the primary"),
    "standing_in": ("bold bright_green", "standing in: the worker consumes from the secondary"),
    "handed_out": ("bright_green", "handed out to the worker that stands in"),
    "came_home": ("bold green", "came home: the worker consumes from the primary again"),
    "dead_lettered": ("bold red", "dead-lettered"),
    "backlog_unavailable": ("bold red", "backlog unavailable"),
}


def open_view(as_json: bool) -> View:
    """The view for where the output goes; with ``as_json`` standard output is left to the balance."""
    stream = sys.stderr if as_json else sys.stdout
    return (LivePicture if stream.isatty() else PlainLines)(stream, with_balance=not as_json)


def line_of(chapter: Chapter) -> tuple[str, str]:
    """Style and text of a line of the chronicle."""
    style, words = KINDS.get(chapter.kind, ("", chapter.kind))
    text = f"{words} ({chapter.text})" if words and chapter.text else words or chapter.text
    return style, f"{text}, {chapter.count} times" if chapter.count > 1 else text


class View(ABC):
    """Reads a story on, and shows it, in a thread of its own."""

    def __init__(self, stream: TextIO, *, with_balance: bool) -> None:
        self.stream = stream
        self.started = time.time()
        self._with_balance = with_balance
        self._stopping = threading.Event()
        self._thread: threading.Thread | None = None

    def follow(self, stage: Stage, story: Story) -> None:
        """Show from now on, until the ``with`` block is left."""
        self.stage, self.story = stage, story
        self._thread = threading.Thread(target=self._run, name="demo-view", daemon=True)
        self._thread.start()

    def _run(self) -> None:
        while not self._stopping.wait(FRAME):
            self.story.read_on()
            self.draw()

    def __enter__(self) -> View:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._stopping.set()
        if self._thread is not None:
            self._thread.join()
            self.story.read_on()
            self.draw(is_last=True)

    @abstractmethod
    def draw(self, is_last: bool = False) -> None:
        """Show what is known now."""

    def conclude(self, balance: Balance) -> None:
        """Show the balance."""
        if self._with_balance:
            for line in balance_lines(balance):
                click.echo(line, file=self.stream)


class PlainLines(View):
    """One line for each chapter of the story, when it is complete."""

    _shown = 0

    def draw(self, is_last: bool = False) -> None:
        chapters = self.story.chapters
        end = len(chapters) if is_last else self.story.settled_chapters
        for chapter in chapters[self._shown : end]:
            click.echo(f"{chapter.at - self.started:>6.1f} s  {line_of(chapter)[1]}", file=self.stream)
        self._shown = max(self._shown, end)


class LivePicture(View):
    """Both brokers, every message, and the chronicle, redrawn in place."""

    def __enter__(self) -> View:
        from rich.console import Console
        from rich.live import Live

        self._live = Live(console=Console(file=self.stream), auto_refresh=False)
        self._live.start()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        try:
            super().__exit__(kind, error, trace)
        finally:
            self._live.stop()

    def draw(self, is_last: bool = False) -> None:
        self._live.update(self._picture(whole=is_last), refresh=True)

    def _picture(self, whole: bool) -> RenderableType:
        from rich.console import Group
        from rich.padding import Padding
        from rich.text import Text

        fates = self.story.fates()
        rule = Text("─" * COLUMNS, "dim")
        clock = f"{time.time() - self.started:.1f} s"
        body = Group(
            Text(f"kombu-paired demo{clock:>{COLUMNS - 17}}", "bold"),
            self._broker("primary", self.stage.primary),
            self._broker("secondary", self.stage.secondary),
            rule,
            grid(fates),
            rule,
            *legend(fates),
            rule,
            *self._chronicle(whole),
        )
        return Padding(body, (0, 2))

    def _broker(self, name: str, broker: LocalBroker | Spool) -> Text:
        from rich.text import Text

        times = self.story.times
        if broker is self.stage.primary and times.killed and not times.restored:
            state = Text(f"✗ dead for {time.time() - times.killed:.1f} s", "bold red")
        elif broker.state == "running":
            state = Text("● running", "green")
        else:
            state = Text("○ not there yet", "dim")
        place = broker.url if isinstance(broker, Spool) else f"{broker.kind}://{HOST}:{broker.port}"
        return Text.assemble(f"{name:<11}{place:<40} ", state)

    def _chronicle(self, whole: bool) -> list[Text]:
        from rich.text import Text

        shown = self.story.chapters[0 if whole else -CHRONICLE :]
        lines = [
            Text.assemble((f"{each.at - self.started:>6.1f} s  ", "dim"), line_of(each)[::-1], no_wrap=True)
            for each in shown
        ]
        return lines + [Text()] * (CHRONICLE - len(shown))


def grid(fates: Sequence[Fate]) -> Text:
    """A cell per message, in the order of publishing; where there are too many, the least advanced of several."""
    from rich.text import Text

    size = max(1, math.ceil(len(fates) / (COLUMNS * ROWS)))
    text = Text()
    for start in range(0, len(fates), size):
        if start and start % (size * COLUMNS) == 0:
            text.append("\n")
        glyph, style, _ = LOOKS[min(fates[start : start + size])]
        text.append(glyph, style)
    return text


def legend(fates: Sequence[Fate]) -> list[Text]:
    """What the glyphs mean, and how many messages there are of each."""
    from rich.text import Text

    counts = Counter(fates)
    entries = []
    for fate, (glyph, style, name) in LOOKS.items():
        if fate not in SELDOM or counts[fate]:
            entries.append(Text.assemble((glyph, style), f"{counts[fate]:>5} ", f"{name:<18}"))
    return [Text("").join(entries[start : start + 3]) for start in range(0, len(entries), 3)]


def balance_lines(balance: Balance) -> list[str]:
    """The balance for people."""
    rows = [
        (balance.published, "published", "calls that returned"),
        (balance.publish_errors, "publish errors", "calls that raised"),
        (balance.executed, "executed", "different numbers that tasks wrote into the ledger"),
        (balance.lost, "lost", "published, and never executed"),
        (balance.duplicates, "duplicates", "executions beyond the first"),
        (balance.stranded, "stranded", "still on the secondary"),
    ]
    if balance.ran_during_outage is not None:
        rows.insert(3, (balance.ran_during_outage, "ran meanwhile", "sent after the kill, and run before the restart"))
    wrong = {"publish errors": balance.publish_errors, "lost": balance.lost, "stranded": balance.stranded}
    lines = [""]
    for count, name, meaning in rows:
        number = click.style(f"{count:>9}", fg="red" if wrong.get(name) else None, bold=True)
        lines.append(f"{number}  {name:<16}{click.style(meaning, dim=True)}")
    times = [
        (balance.longest_publish_s, "longest publish", "the slowest of all calls"),
        (balance.failover_s, "failover", "from the kill to the next call that returned"),
        (balance.drain_s, "drain", "from the restart until all sent by then had run"),
    ]
    for seconds, name, meaning in times:
        number = click.style(f"{'-' if seconds is None else f'{seconds:.3f}':>7} s", bold=True)
        lines.append(f"{number}  {name:<16}{click.style(meaning, dim=True)}")
    verdict = "Nothing was lost, and no caller saw the outage." if balance.is_even else "The balance is not even."
    return [*lines, "", click.style(f"  {verdict}", fg="green" if balance.is_even else "red", bold=True)]
