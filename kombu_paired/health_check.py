"""``kombu_paired.health(app)``: how both namespaces of a pairing are, for a health page."""

from __future__ import annotations

import threading
import time
from collections.abc import Mapping
from dataclasses import asdict, dataclass, field
from typing import Any

from kombu_paired.brokers.roles import Probes
from kombu_paired.errors import NamespaceFailure
from kombu_paired.pairing import Pairing
from kombu_paired.transport import pairing_of

__all__ = ("Health", "NamespaceHealth", "health")


@dataclass(frozen=True)
class NamespaceHealth:
    """One namespace.

    Attributes:
        uri: its address, without secrets.
        reachable: a message could be sent there now.
        why: it could not, without secrets; None if it could.
    """

    uri: str
    reachable: bool
    why: str | None = None


@dataclass(frozen=True)
class Health:
    """A pairing, as this process sees it.

    Attributes:
        pairing: its name.
        primary, secondary: the two sides, asked just now.
        entities: those that are not healthy for senders of this process: name -> ``suspect``, ``failed_over`` or
            ``isolated``.
        isolated: what operators have left alone: name -> since when (seconds since 1970, UTC).
    """

    pairing: str
    primary: NamespaceHealth
    secondary: NamespaceHealth
    entities: Mapping[str, str] = field(default_factory=dict)
    isolated: Mapping[str, float] = field(default_factory=dict)

    @property
    def ok(self) -> bool:
        """Both sides can be reached, every entity is healthy, and none is left alone."""
        return self.primary.reachable and self.secondary.reachable and not self.entities and not self.isolated

    @property
    def accepts_work(self) -> bool:
        """A message would be taken by one side or the other, so that ``delay()`` returns."""
        return self.primary.reachable or self.secondary.reachable

    def as_dict(self) -> dict[str, Any]:
        """All of it, as JSON can hold it."""
        return {"ok": self.ok, "accepts_work": self.accepts_work, **asdict(self)}


def health(of: Any) -> Health:
    """Ask both namespaces of a pairing, side by side.

    Takes ``send_timeout`` at most, whatever the brokers do; stores, creates and moves nothing.

    Arguments:
        of: a Celery application, or a Kombu connection.

    Raises:
        ConfigurationError: its broker is not a paired one, or a setting is wrong.
    """
    if not hasattr(of, "connection_for_write"):
        return _health_of(pairing_of(of))
    with of.connection_for_write() as connection:
        return _health_of(pairing_of(connection))


def _health_of(pairing: Pairing) -> Health:
    timeout = pairing.options.send_timeout
    deadline = time.monotonic() + timeout
    questions = [_Question(namespace, timeout) for namespace in (pairing.primary, pairing.secondary)]
    primary, secondary = [question.answer(deadline - time.monotonic()) for question in questions]
    entities = {entity.path: state.value for entity, state in pairing.circuits.states().items()}
    return Health(pairing.name, primary, secondary, entities, dict(pairing.isolation.now.notices))


class _Question:
    """A probe in a thread of its own, since a broker may never answer."""

    def __init__(self, namespace: Probes, timeout: float) -> None:
        self._namespace = namespace
        self._timeout = timeout
        self._why: str | None = f"no answer within {timeout:g} s"
        self._thread = threading.Thread(target=self._ask, name=f"kombu-paired-health-{namespace.side}", daemon=True)
        self._thread.start()

    def _ask(self) -> None:
        try:
            self._namespace.probe(None, self._timeout)
        except NamespaceFailure as failure:
            self._why = f"{failure.kind.value}: {failure.detail}"
        else:
            self._why = None

    def answer(self, timeout: float) -> NamespaceHealth:
        self._thread.join(max(timeout, 0))
        why = self._why
        return NamespaceHealth(self._namespace.uri, why is None, why)
