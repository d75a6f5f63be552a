"""Syphons that nobody started: of processes that send to a backlog which only they can bring home."""

from __future__ import annotations

from kombu_paired.pairing import Pairing
from kombu_paired.syphon.syphon import Syphon

__all__ = ("run_by_itself", "stop_what_runs_by_itself")

_running: dict[Pairing, Syphon] = {}


def run_by_itself(pairing: Pairing) -> None:
    """Start a syphon beside what this process is there for, if the settings say so, or else the secondary.

    It waits for its turn, where syphons take turns.
    """
    wanted = pairing.options.enable_syphon
    if pairing.secondary.syphons_by_itself if wanted is None else wanted:
        syphon = _running[pairing] = Syphon(pairing, waits_for_turn=True)
        pairing.when_closing(lambda: stop_what_runs_by_itself(pairing))
        syphon.start()


def stop_what_runs_by_itself(pairing: Pairing) -> None:
    """Whoever calls this runs a syphon of its own, and one is enough for a process."""
    syphon = _running.pop(pairing, None)
    if syphon is not None:
        syphon.stop()
