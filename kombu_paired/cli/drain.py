"""``kombu-paired drain``: move the backlog home once."""

from __future__ import annotations

import json
import threading
import time
from collections import Counter
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Any

import click

from kombu_paired.cli.connecting import as_click_errors, json_option, pairing_options
from kombu_paired.cli.printing import counted, duration
from kombu_paired.cli.sides import look_at, stand_in_depths
from kombu_paired.deadline import Deadline
from kombu_paired.errors import ConfigurationError
from kombu_paired.events import Event, EventKind
from kombu_paired.interrupts import interruptible, uninterrupted
from kombu_paired.pairing import Pairing
from kombu_paired.syphon import Syphon

__all__ = ("Drained", "Tally", "drain", "drain_and_say", "drain_backlog", "patience_option", "waiting")

#: Seconds of one poll, and of the looks at what is left.
SHORT_POLL = 0.5
#: Seconds without progress after which it gives up. Longer than the minute for which a message stays locked that
#: a killed syphon held, and than the longest rest of a failing destination.
PATIENCE = 75.0


def patience_option(text: str) -> Callable[[Callable[..., Any]], Callable[..., Any]]:
    """Decorator: how long to go on without progress; the command gets it as ``patience``."""
    is_time = click.FloatRange(min=0, min_open=True)
    return click.option("--patience", type=is_time, default=PATIENCE, show_default=True, metavar="SECONDS", help=text)


@click.command()
@pairing_options
@patience_option("Give up after so long without progress.")
@json_option
def drain(pairing: Pairing, patience: float, as_json: bool) -> None:
    """Move the backlog home, and stop when it is empty.

    What workers left behind that stood in comes home, too. It may run beside workers and other syphons. Exit status:
    0 the backlog is empty; 1 something became a dead letter or could not be moved; 2 wrong usage.
    """
    drain_and_say(pairing, patience, as_json)


class Tally:
    """How many messages went where, by the syphon's events."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self.moved = 0
        self.dead: Counter[str] = Counter()
        self.last_progress = time.monotonic()

    def note(self, event: Event) -> None:
        with self._lock:
            self.last_progress = time.monotonic()
            if event.kind is EventKind.SYPHONED:
                self.moved += 1
            else:
                self.dead[event.detail] += 1

    def __str__(self) -> str:
        return f"{counted(self.moved, 'message')} moved home{_reasons(self.dead)}"


def _reasons(dead: Mapping[str, int]) -> str:
    if not dead:
        return ""
    reasons = ", ".join(f"{count} {reason}" for reason, count in Counter(dead).most_common())
    return f", {counted(sum(dead.values()), 'dead letter')} ({reasons})"


@dataclass(frozen=True)
class Drained:
    """What came of it.

    Attributes:
        moved: how many messages came home.
        dead_letters: reason -> how many were found to be undeliverable.
        left: how many could not be moved.
        seconds: how long it took.
        was_interrupted: somebody stopped it before its end.
    """

    moved: int
    dead_letters: dict[str, int] = field(default_factory=dict)
    left: int = 0
    seconds: float = 0.0
    was_interrupted: bool = False

    @property
    def ok(self) -> bool:
        return not self.left and not self.dead_letters and not self.was_interrupted

    def as_json(self, pairing: str) -> dict[str, Any]:
        return {
            "ok": self.ok,
            "pairing": pairing,
            "moved": self.moved,
            "dead_letters": self.dead_letters,
            "left": self.left,
            "seconds": round(self.seconds, 3),
        }


def drain_and_say(pairing: Pairing, patience: float, as_json: bool) -> None:
    """Drain, say what came of it, and end the command with its exit status."""

    def begin(left: int) -> None:
        if not as_json:
            click.echo(f"{counted(left, 'message')} in the backlog of {pairing.name}.")

    with interruptible(), as_click_errors(as_json):
        drained = drain_backlog(pairing, patience, begin)
    if as_json:
        click.echo(json.dumps(drained.as_json(pairing.name), indent=2))
    else:
        _show(drained)
    click.get_current_context().exit(0 if drained.ok else 1)


def _show(drained: Drained) -> None:
    tally = f"{counted(drained.moved, 'message')} moved home{_reasons(drained.dead_letters)}"
    if drained.was_interrupted:
        click.echo(f"Stopped. {tally}.")
        return
    click.echo(f"{tally}, in {duration(drained.seconds)}.")
    if drained.left:
        click.echo(f"{counted(drained.left, 'message')} could not be moved: -v says why.", err=True)
    if drained.dead_letters:
        click.echo("Dead letters wait beside their backlog queues: see kombu-paired dead-letters list.", err=True)


def drain_backlog(pairing: Pairing, patience: float, begin: Callable[[int], None]) -> Drained:
    """Run syphons until nothing waits.

    Arguments:
        patience: seconds without progress after which it gives up.
        begin: is told how many messages there are, when it is known that they can be moved.

    Raises:
        NamespaceFailure: a side cannot be used; nothing was moved.
        ConfigurationError: everything is isolated, so that nothing may be moved.
    """
    tally, started = Tally(), time.monotonic()
    _require_a_way(pairing)
    pairing.events.listen(tally.note, (EventKind.SYPHONED, EventKind.DEAD_LETTERED))
    pairing.open()
    left = waiting(pairing)
    begin(left)
    was_interrupted = False
    try:
        while left and time.monotonic() - tally.last_progress < patience:
            _one_round(pairing, tally, patience)
            left = waiting(pairing)
    except KeyboardInterrupt:
        was_interrupted = True
    finally:
        pairing.events.silence(tally.note)
    return Drained(tally.moved, dict(tally.dead), left, time.monotonic() - started, was_interrupted)


def _require_a_way(pairing: Pairing) -> None:
    """Both sides are asked at once: nothing could be moved if either fails, so say so at once."""
    look = look_at(pairing)
    for side in (look.primary, look.secondary):
        if side.failure is not None:
            raise side.failure
    if look.isolated.is_everything:
        raise ConfigurationError(
            f"every entity of {pairing.name} is isolated, and its backlog waits: kombu-paired restore all ends that"
        )


def _one_round(pairing: Pairing, tally: Tally, patience: float) -> None:
    """Run a syphon until all its pumps found their queues empty.

    When it has stopped, all that it held unsettled is back in its queue, so that what is counted then is the truth.
    """
    moving = Syphon(pairing, poll=SHORT_POLL)
    try:
        moving.start()
        while not moving.has_seen_empty and time.monotonic() - tally.last_progress < patience:
            if moving.stopping.wait(SHORT_POLL / 5):
                return
    finally:
        with uninterrupted():
            moving.stop()


def waiting(pairing: Pairing) -> int:
    """Messages in all backlog queues and stand-in queues; a queue that is missing holds none."""
    deadline = Deadline(pairing.options.send_timeout)
    depths = pairing.secondary.backlog_depths(pairing.backlog_queue_names, deadline.left)
    depths += stand_in_depths(pairing, deadline, give_back=True)
    return sum(each.messages or 0 for each in depths)
