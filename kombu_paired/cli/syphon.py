"""``kombu-paired syphon``: move the backlog home without Celery."""

from __future__ import annotations

import logging
import threading
import time
from collections import Counter

import click

from kombu_paired.cli.connecting import LOGGER, as_click_errors, pairing_options
from kombu_paired.cli.printing import counted, duration
from kombu_paired.events import Event, EventKind
from kombu_paired.interrupts import interruptible, uninterrupted
from kombu_paired.pairing import Pairing
from kombu_paired.syphon import Syphon

__all__ = ("syphon",)

logger = logging.getLogger(__name__)

#: Seconds between two log lines that say how many were moved.
TELL_INTERVAL = 60.0
#: Seconds of one poll with --once, and of the looks at what is left.
SHORT_POLL = 0.5
#: Seconds without progress after which --once gives up. Longer than the minute for which a message stays locked that
#: a killed syphon held, and than the longest rest of a failing destination.
PATIENCE = 75.0


@click.command()
@pairing_options
@click.option("--once", is_flag=True, help="Stop when the backlog is empty.")
@click.option(
    "--patience",
    type=click.FloatRange(min=0, min_open=True),
    default=PATIENCE,
    show_default=True,
    metavar="SECONDS",
    help="With --once: give up after so long without progress.",
)
def syphon(pairing: Pairing, once: bool, patience: float) -> None:
    """Move backlog messages home to the primary, until SIGINT or SIGTERM.

    Any number may run beside each other and beside workers. With --once the exit status is 0 when the backlog is
    empty, and 1 when something became a dead letter or could not be moved.
    """
    tally = Tally()
    pairing.events.listen(tally.note, (EventKind.SYPHONED, EventKind.DEAD_LETTERED))
    with interruptible(), as_click_errors():
        worked = _drain(pairing, tally, patience) if once else _pump(pairing, tally)
    click.get_current_context().exit(0 if worked else 1)


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
        text = f"{counted(self.moved, 'message')} moved home"
        if not self.dead:
            return text
        reasons = ", ".join(f"{count} {reason}" for reason, count in self.dead.most_common())
        return f"{text}, {counted(self.dead.total(), 'dead letter')} ({reasons})"


# -- until it is stopped ------------------------------------------------------------------------------------------


def _pump(pairing: Pairing, tally: Tally) -> bool:
    """Pump until a signal; False if the syphon ended by itself, because a namespace was closed."""
    LOGGER.setLevel(min(LOGGER.level, logging.INFO))
    moving = Syphon(pairing)
    try:
        pairing.open()
        moving.start()
        while moving.is_running:
            _tell_each_minute(moving, tally)
    except KeyboardInterrupt:
        return True
    finally:
        with uninterrupted():
            moving.stop()
            logger.info("stopped: %s", tally)
    return False


def _tell_each_minute(moving: Syphon, tally: Tally) -> None:
    """Wait a minute, or until the syphon stops by itself; say what was moved, if anything was."""
    before = str(tally)
    moving.stopping.wait(TELL_INTERVAL)
    if str(tally) != before:
        logger.info("so far: %s", tally)


# -- until the backlog is empty -----------------------------------------------------------------------------------


def _drain(pairing: Pairing, tally: Tally, patience: float) -> bool:
    started = time.monotonic()
    pairing.primary.probe(None, pairing.options.send_timeout)  # nothing could be moved: say so at once
    pairing.open()
    left = waiting(pairing)
    click.echo(f"{counted(left, 'message')} in the backlog of {pairing.name}.")
    try:
        while left and time.monotonic() - tally.last_progress < patience:
            _one_round(pairing, tally, patience)
            left = waiting(pairing)
    except KeyboardInterrupt:
        click.echo(f"Stopped. {tally}.")
        return False
    click.echo(f"{tally}, in {duration(time.monotonic() - started)}.")
    if left:
        click.echo(f"{counted(left, 'message')} could not be moved: -v says why.", err=True)
    if tally.dead:
        click.echo("Dead letters wait beside their backlog queues: see kombu-paired status.", err=True)
    return not left and not tally.dead


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
    """Messages in all backlog queues; a queue that is missing holds none."""
    depths = pairing.secondary.backlog_depths(pairing.backlog_queue_names, pairing.options.send_timeout)
    return sum(each.messages or 0 for each in depths)
