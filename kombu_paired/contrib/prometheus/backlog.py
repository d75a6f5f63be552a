"""What waits in the backlog, asked when somebody scrapes, and no scrape waits for a secondary that does not answer."""

from __future__ import annotations

import logging
import threading
import time
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, field
from typing import Any

from prometheus_client.metrics_core import GaugeMetricFamily, Metric

from kombu_paired.brokers.roles import BacklogDepth
from kombu_paired.contrib.prometheus.metrics import PREFIX
from kombu_paired.errors import NamespaceFailure, PairedError
from kombu_paired.pairing import Pairing
from kombu_paired.transport import pairing_of

__all__ = ("BACKLOG", "BacklogCollector")

logger = logging.getLogger(__name__)

#: Seconds for which an answer is as good as a new one, and for which it may still be shown while none comes.
FRESH, STALE = 10.0, 60.0
#: Seconds that a scrape waits for the secondary.
PATIENCE = 1.0

#: Name -> what it is, and its labels.
BACKLOG = {
    "secondary_up": ("1 if the secondary answered, so that the backlog is known; else 0", ("pairing",)),
    "backlog_messages": ("Messages that wait in a backlog queue", ("pairing", "queue")),
    "backlog_oldest_seconds": ("How long the oldest message of a backlog queue has waited", ("pairing", "queue")),
    "dead_letters": ("Messages in the dead-letter queue of a backlog queue", ("pairing", "queue")),
}


@dataclass(frozen=True)
class _Answer:
    """What the secondary said.

    Attributes:
        at: when, by the monotonic clock.
        depths: its backlog queues; None if it failed.
    """

    at: float
    depths: Sequence[BacklogDepth] | None


@dataclass
class _Question:
    """One that is under way."""

    done: threading.Event = field(default_factory=threading.Event)


class BacklogCollector:
    """The depth of the backlog of one pairing, for one process of a fleet: all others would say the same.

    Each look costs the secondary what ``kombu-paired status`` costs it, at most one in ten seconds. A scrape takes a
    second at most. Of a secondary that has been silent for a minute, ``secondary_up`` alone is left.

    Arguments:
        of: a Celery application, or a Kombu connection, whose broker is a paired one.
        clock: monotonic seconds.
        wall_clock: seconds since 1970, UTC.

    Raises:
        ConfigurationError: its broker is not a paired one, or a setting is wrong.
    """

    def __init__(
        self, of: Any, *, clock: Callable[[], float] = time.monotonic, wall_clock: Callable[[], float] = time.time
    ) -> None:
        self._of = of
        self._clock = clock
        self._wall_clock = wall_clock
        self._lock = threading.Lock()
        self._question: _Question | None = None
        self._answer: _Answer | None = None
        self._pairing = self._find_pairing()

    def describe(self) -> Iterable[Metric]:
        """Without asking: a registry wants it when a collector is registered."""
        return list(self._families().values())

    def collect(self) -> Iterable[Metric]:
        if self._pairing.closed:
            self._pairing = self._find_pairing()
        pairing = self._pairing
        answer = self._ask(pairing)
        is_known = answer is not None and self._clock() - answer.at < STALE
        depths = answer.depths if answer is not None and is_known else None
        families = self._families()
        families["secondary_up"].add_metric([pairing.name], 0 if depths is None else 1)
        for depth in depths or ():
            self._add(families, pairing.name, depth)
        return list(families.values())

    def _families(self) -> dict[str, GaugeMetricFamily]:
        return {
            name: GaugeMetricFamily(PREFIX + name, f"{what}.", labels=labels)
            for name, (what, labels) in BACKLOG.items()
        }

    def _add(self, families: dict[str, GaugeMetricFamily], pairing: str, depth: BacklogDepth) -> None:
        if depth.messages is None:
            return
        oldest = depth.oldest_diverted_at
        age = 0.0 if oldest is None else max(0.0, self._wall_clock() - oldest)
        for name, value in (
            ("backlog_messages", depth.messages),
            ("backlog_oldest_seconds", age),
            ("dead_letters", depth.dead_letters),
        ):
            families[name].add_metric([pairing, depth.queue], value)

    def _find_pairing(self) -> Pairing:
        of = self._of
        return pairing_of(of.connection_for_write() if hasattr(of, "connection_for_write") else of)

    def _ask(self, pairing: Pairing) -> _Answer | None:
        """The last answer: a new one if the last is old, and the secondary answers soon enough."""
        with self._lock:
            if self._answer is not None and self._clock() - self._answer.at < FRESH:
                return self._answer
            question = self._question
            if question is None:
                question = self._question = _Question()
                name = f"kombu-paired-metrics-{pairing.name}"
                threading.Thread(target=self._look, args=(pairing, question), name=name, daemon=True).start()
        question.done.wait(PATIENCE)
        return self._answer

    def _look(self, pairing: Pairing, question: _Question) -> None:
        depths: Sequence[BacklogDepth] | None = None
        try:
            depths = pairing.secondary.backlog_depths(pairing.backlog_queue_names, pairing.options.send_timeout)
        except (NamespaceFailure, PairedError) as failure:
            logger.info("the backlog of pairing %s cannot be counted: %s", pairing.name, failure)
        except Exception:
            logger.exception("the backlog of pairing %s cannot be counted", pairing.name)
        finally:
            with self._lock:
                self._answer, self._question = _Answer(self._clock(), depths), None
            question.done.set()
