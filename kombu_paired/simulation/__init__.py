"""Journals of a fleet with a known truth: demo data, and the oracle of the pipeline's tests.

:func:`simulate` writes what the processes of a fleet would have written, outages and all, and beside it the rows that
the tables ``messages``, ``outages`` and ``quality`` must then have. No Spark in it, and nothing of the rest of the
package but the journal's format.
"""

from __future__ import annotations

from kombu_paired.simulation.fleet import Outcome, simulate
from kombu_paired.simulation.settings import OUTAGE_KINDS, FleetSettings

__all__ = ("OUTAGE_KINDS", "FleetSettings", "Outcome", "simulate")
