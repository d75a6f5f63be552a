"""The numbers as Prometheus' own client keeps them.

With ``PROMETHEUS_MULTIPROC_DIR`` they are in files, one set for each process, and whoever answers a scrape adds up
those of all; without, in this process.
"""

from __future__ import annotations

import threading
from bisect import bisect_left
from collections import Counter as Counts
from collections.abc import Callable, Iterable, Sequence
from typing import Any

from prometheus_client import CollectorRegistry, Counter, Gauge, Histogram
from prometheus_client.metrics_core import Metric

from kombu_paired.contrib.measuring import COUNTERS, GAUGES, TIMERS, Measure

__all__ = ("PREFIX", "Metrics")

PREFIX = "kombu_paired_"
#: How the gauges of several processes become one. A "live" one is forgotten with its process.
_OF_MANY = {"entity_state": "livemax", "syphons": "livesum", "standing_in": "livesum"}


class Metrics:
    """Keeps the numbers, and is a collector of them.

    Nobody but this touches the client's metrics, and never without our lock: a fork that copied one of the client's
    locks while another thread had it would leave a child that waits for ever.

    Attributes:
        before_collecting: is called before the numbers are shown.
    """

    def __init__(self) -> None:
        self.before_collecting: Callable[[], None] = lambda: None
        self._lock = threading.Lock()
        self._make()

    def _make(self) -> None:
        self._registry = registry = CollectorRegistry()
        self._counters = {each.name: Counter(registry=registry, **_facts(each)) for each in COUNTERS}
        self._timers = {
            each.name: Histogram(registry=registry, unit="seconds", buckets=each.buckets, **_facts(each))
            for each in TIMERS
        }
        self._gauges: dict[str, Any] = {
            each.name: Gauge(registry=registry, multiprocess_mode=_OF_MANY[each.name], **_facts(each))  # type: ignore[arg-type]
            for each in GAUGES
        }
        #: (name, labels) -> the client's metric of these labels, which takes longer to look up than to count.
        self._found: dict[tuple[str, Sequence[str]], Any] = {}

    def _labelled(self, metrics: dict[str, Any], name: str, labels: Sequence[str]) -> Any:
        found = self._found.get((name, labels))
        if found is None:
            found = self._found[name, labels] = metrics[name].labels(*labels)
        return found

    def count(self, name: str, *labels: str, times: int = 1) -> None:
        with self._lock:
            self._labelled(self._counters, name, labels).inc(times)

    def time(self, name: str, seconds: Sequence[float], *labels: str) -> None:
        with self._lock:
            observe_all(self._labelled(self._timers, name, labels), seconds)

    def set(self, name: str, value: int, *labels: str) -> None:
        with self._lock:
            self._labelled(self._gauges, name, labels).set(value)

    # -- a collector --------------------------------------------------------------------------------------------

    def collect(self) -> Iterable[Metric]:
        self.before_collecting()
        with self._lock:
            return list(self._registry.collect())

    # -- around a fork ------------------------------------------------------------------------------------------

    def before_fork(self) -> None:
        self._lock.acquire()

    def in_parent(self) -> None:
        self._lock.release()

    def in_child(self) -> None:
        """It begins at nothing: what its parent counted is shown by its parent."""
        self._make()
        self._lock = threading.Lock()


def observe_all(histogram: Any, seconds: Sequence[float]) -> None:
    """What ``histogram.observe`` does for each, at once. By the client's own values, which it has no public way to."""
    bounds = histogram._upper_bounds
    for index, times in Counts(bisect_left(bounds, each) for each in seconds).items():
        histogram._buckets[index].inc(times)
    histogram._sum.inc(sum(seconds))


def _facts(measure: Measure) -> dict[str, Any]:
    return {"name": PREFIX + measure.name, "documentation": f"{measure.what}.", "labelnames": measure.labels}
