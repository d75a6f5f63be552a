"""Remote control of Celery's: what a worker tells of its pairing, and isolating by hand.

::

    celery -A proj inspect paired
    celery -A proj control paired_isolate all
    celery -A proj control paired_restore all
"""

from __future__ import annotations

import threading
from collections import Counter
from collections.abc import Callable
from typing import Any
from weakref import WeakKeyDictionary

from celery.worker.control import control_command, inspect_command, nok, ok

from kombu_paired import events
from kombu_paired.errors import ConfigurationError, NamespaceFailure
from kombu_paired.events import Event, EventKind
from kombu_paired.isolation import Isolated
from kombu_paired.pairing import Pairing
from kombu_paired.process import at_fork
from kombu_paired.syphon import Syphon
from kombu_paired.transport import pairing_of

__all__ = ("count_events", "runs_syphon", "what_is_known")

#: Seconds that a worker has for a notice: while it waits it hears of nothing else.
PATIENCE = 3.0
#: What would be counted at every send is not.
COUNTED = frozenset(EventKind) - {EventKind.SENT, EventKind.CONSUMED}


class _Counters:
    """How often each thing happened, for each pairing. A child process begins with none."""

    def __init__(self) -> None:
        self.begin()

    def begin(self) -> None:
        self._lock = threading.Lock()
        self._counts: Counter[tuple[str, str]] = Counter()

    def note(self, event: Event) -> None:
        with self._lock:
            self._counts[event.pairing, event.kind.value] += 1

    def of(self, pairing: str) -> dict[str, int]:
        with self._lock:
            return {kind: count for (name, kind), count in sorted(self._counts.items()) if name == pairing}


_counters = _Counters()
_syphons: WeakKeyDictionary[Pairing, Syphon] = WeakKeyDictionary()
at_fork(in_child=_counters.begin)


def count_events(**kwargs: Any) -> None:
    """A worker starts: count what happens in it. Listening twice changes nothing."""
    events.everywhere.listen(_counters.note, COUNTED)


def runs_syphon(pairing: Pairing, syphon: Syphon) -> None:
    """A worker's syphon, of which it tells."""
    _syphons[pairing] = syphon


def what_is_known(pairing: Pairing) -> dict[str, Any]:
    """What this process knows of a pairing, as JSON can hold it. Asks nobody, and takes no time."""
    seconds = pairing.circuits.seconds()
    syphon = _syphons.get(pairing)
    return {
        "pairing": pairing.name,
        "entities": {
            entity.path: {"state": state.value, "for_s": round(seconds.get(entity, 0.0), 3)}
            for entity, state in pairing.circuits.states().items()
        },
        "isolated": dict(pairing.isolation.now.notices),
        "rotation": {"queues": [*pairing.rotation.queues], "pulled": pairing.rotation.pulled()},
        "syphon": None
        if syphon is None
        else {
            "running": syphon.is_running,
            "primary_works": syphon.primary_works,
            "last_received_s": syphon.last_received,
        },
        "counters": _counters.of(pairing.name),
    }


def _of(state: Any) -> Pairing:
    with state.app.connection_for_write() as connection:
        return pairing_of(connection)


def _tell(answer: Callable[[], Any]) -> dict[str, Any]:
    try:
        reply: dict[str, Any] = ok(answer())
    except (ConfigurationError, NamespaceFailure) as exc:
        reply = nok(str(exc))
    return reply


@inspect_command()  # type: ignore[untyped-decorator]
def paired(state: Any, **kwargs: Any) -> dict[str, Any]:
    """State of the pairing: entities, backlog queues, the syphon."""
    try:
        return what_is_known(_of(state))
    except ConfigurationError as exc:
        return {"error": str(exc)}


@control_command(args=[("entity", str)], signature="<queue|all>")  # type: ignore[untyped-decorator]
def paired_isolate(state: Any, entity: str, **kwargs: Any) -> dict[str, Any]:
    """Have an entity left alone by every process of the fleet."""
    return _tell(lambda: _said(_of(state).isolation.isolate(entity, PATIENCE)))


@control_command(args=[("entity", str)], signature="<queue|all>")  # type: ignore[untyped-decorator]
def paired_restore(state: Any, entity: str, **kwargs: Any) -> dict[str, Any]:
    """Let an entity be used again that is isolated."""
    return _tell(lambda: _said(_of(state).isolation.restore(entity, PATIENCE)))


def _said(isolated: Isolated) -> str:
    return f"isolated: {', '.join(sorted(isolated.notices)) or 'nothing'}"
