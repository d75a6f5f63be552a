"""Prometheus: how an application and its workers fare, in numbers. Needs the extra ``prometheus``.

::

    kombu_paired.setup(app)
    prometheus.setup(app, port=9464)

Every process counts, and a worker's main process answers scrapes. A web process shows its numbers where it shows its
others: :func:`listen` is enough there. ``docs/monitoring.md`` has all metrics.
"""

from __future__ import annotations

from kombu_paired.contrib.prometheus.backlog import BacklogCollector
from kombu_paired.contrib.prometheus.exposing import ExposeStep, listen, registry_to_scrape, setup
from kombu_paired.contrib.prometheus.metrics import PREFIX, Metrics

__all__ = ("PREFIX", "BacklogCollector", "ExposeStep", "Metrics", "listen", "registry_to_scrape", "setup")
