"""``kombu-paired syphon``: move the backlog home without Celery."""

from __future__ import annotations

import logging

import click

from kombu_paired.cli.connecting import LOGGER, as_click_errors, pairing_options
from kombu_paired.cli.drain import Tally, drain_and_say, patience_option
from kombu_paired.events import EventKind
from kombu_paired.interrupts import interruptible, uninterrupted
from kombu_paired.pairing import Pairing
from kombu_paired.syphon import Syphon

__all__ = ("syphon",)

logger = logging.getLogger(__name__)

#: Seconds between two log lines that say how many were moved.
TELL_INTERVAL = 60.0


@click.command()
@pairing_options
@click.option("--once", is_flag=True, help="Stop when the backlog is empty, as kombu-paired drain does.")
@patience_option("With --once: give up after so long without progress.")
def syphon(pairing: Pairing, once: bool, patience: float) -> None:
    """Move backlog messages home to the primary, until SIGINT or SIGTERM.

    Any number may run beside each other and beside workers. With --once the exit status is 0 when the backlog is
    empty, and 1 when something became a dead letter or could not be moved. Where workers may stand in, what they
    left behind comes home, too.
    """
    if once:
        drain_and_say(pairing, patience, as_json=False)
    tally = Tally()
    pairing.events.listen(tally.note, (EventKind.SYPHONED, EventKind.DEAD_LETTERED))
    with interruptible(), as_click_errors():
        worked = _pump(pairing, tally)
    click.get_current_context().exit(0 if worked else 1)


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
