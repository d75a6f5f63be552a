"""Health of entities, and what is known of a whole namespace. Pure: the clock is injected.

::

    HEALTHY --failure--> SUSPECT --failover_interval without a success--> FAILED_OVER
       ^                    |                                                  |
       +------success-------+                 +-----------first good ping------+
       +--------------------------------------+

Design, section 3, rules 6 to 8.
"""

from __future__ import annotations

import enum
import threading
from collections.abc import Callable
from typing import NamedTuple

from kombu_paired.declarations import Entity
from kombu_paired.errors import NamespaceFailure

__all__ = ("CircuitState", "EntityCircuit", "EntityCircuits", "NamespaceReach", "Transition")

Clock = Callable[[], float]


class CircuitState(enum.Enum):
    HEALTHY = "healthy"
    SUSPECT = "suspect"
    FAILED_OVER = "failed_over"


class Transition(NamedTuple):
    """A change of state; ``before is after`` when nothing changed."""

    before: CircuitState
    after: CircuitState

    def enters(self, state: CircuitState) -> bool:
        return self.after is state and self.before is not state


class EntityCircuit:
    """One entity's health as one process sees it.

    Arguments:
        failover_interval: seconds an entity may fail, with no success in between, before it is failed over.
        clock: monotonic seconds.
    """

    def __init__(self, failover_interval: float, clock: Clock) -> None:
        self.failover_interval = failover_interval
        self.state = CircuitState.HEALTHY
        self._clock = clock
        self._failing_since = 0.0

    def asked(self) -> Transition:
        """A message wants to go to the primary; it may, unless the circuit is FAILED_OVER afterwards."""
        if self.state is CircuitState.SUSPECT and self._interval_is_over():
            return self._become(CircuitState.FAILED_OVER)
        return self._become(self.state)

    def succeeded(self) -> Transition:
        """The primary took a message. An answer that comes after the failover changes nothing: pings decide."""
        if self.state is CircuitState.SUSPECT:
            return self._become(CircuitState.HEALTHY)
        return self._become(self.state)

    def failed(self) -> Transition:
        """The primary failed in a way that counts."""
        if self.state is CircuitState.HEALTHY:
            self._failing_since = self._clock()
            over = self.failover_interval == 0
            return self._become(CircuitState.FAILED_OVER if over else CircuitState.SUSPECT)
        return self.asked()

    def restored(self) -> Transition:
        """A ping succeeded, or an operator says so."""
        return self._become(CircuitState.HEALTHY)

    def _interval_is_over(self) -> bool:
        return self._clock() - self._failing_since >= self.failover_interval

    def _become(self, state: CircuitState) -> Transition:
        before, self.state = self.state, state
        return Transition(before, state)


class EntityCircuits:
    """The circuits of all entities, shared by every sender of the process.

    Only entities that are not HEALTHY are kept, so a name that is used once (a reply queue) costs nothing, and the
    healthy path is a look at an empty dict.
    """

    def __init__(self, failover_interval: float, clock: Clock) -> None:
        self._failover_interval = failover_interval
        self._clock = clock
        self._lock = threading.Lock()
        self._ailing: dict[Entity, EntityCircuit] = {}

    def __bool__(self) -> bool:
        """True while any entity is not HEALTHY."""
        return bool(self._ailing)

    def state(self, entity: Entity) -> CircuitState:
        circuit = self._ailing.get(entity)
        return circuit.state if circuit else CircuitState.HEALTHY

    def states(self) -> dict[Entity, CircuitState]:
        """Every entity that is not HEALTHY."""
        with self._lock:
            return {entity: circuit.state for entity, circuit in self._ailing.items()}

    def failed_over(self) -> list[Entity]:
        return [entity for entity, state in self.states().items() if state is CircuitState.FAILED_OVER]

    def asked(self, entity: Entity) -> Transition:
        return self._change(entity, EntityCircuit.asked)

    def succeeded(self, entity: Entity) -> Transition:
        return self._change(entity, EntityCircuit.succeeded)

    def failed(self, entity: Entity) -> Transition:
        return self._change(entity, EntityCircuit.failed)

    def restored(self, entity: Entity) -> Transition:
        return self._change(entity, EntityCircuit.restored)

    def _change(self, entity: Entity, event: Callable[[EntityCircuit], Transition]) -> Transition:
        with self._lock:
            circuit = self._ailing.get(entity)
            if circuit is None:
                circuit = EntityCircuit(self._failover_interval, self._clock)
            transition = event(circuit)
            if transition.after is CircuitState.HEALTHY:
                self._ailing.pop(entity, None)
            else:
                self._ailing[entity] = circuit
            return transition


class NamespaceReach:
    """Whether a namespace could be reached a moment ago, so that not everybody has to find out.

    While a failure is fresh, everyone gets it without trying. Once it is stale, the next one who asks is let through
    to try; the others keep the stale answer until that one reports, or has not come back within ``try_within``.

    Arguments:
        fresh: seconds for which a failure is believed.
        try_within: seconds the one who tries has to report.
        clock: monotonic seconds.
    """

    def __init__(self, fresh: float, try_within: float, clock: Clock) -> None:
        self._fresh = fresh
        self._try_within = try_within
        self._clock = clock
        self._lock = threading.Lock()
        self._failure: NamespaceFailure | None = None
        self._fresh_until = 0.0
        self._trying_until = 0.0

    @property
    def has_failed(self) -> bool:
        """The last that is known is a failure, fresh or stale."""
        return self._failure is not None

    @property
    def last_failure(self) -> NamespaceFailure | None:
        """The failure that is the last that is known, fresh or stale."""
        return self._failure

    def fresh_failure(self) -> NamespaceFailure | None:
        """The failure, if it is fresh, for one who would not try in any case."""
        failure = self._failure
        return failure if failure is not None and self._clock() < self._fresh_until else None

    def known_failure(self) -> NamespaceFailure | None:
        """The failure to share, or None when the caller is to try, and to report, for itself."""
        if self._failure is None:
            return None
        with self._lock:
            now = self._clock()
            if now < self._fresh_until or now < self._trying_until:
                return self._failure
            self._trying_until = now + self._try_within
            return None

    def failed(self, failure: NamespaceFailure) -> None:
        """It could not be reached."""
        with self._lock:
            self._failure = failure
            self._fresh_until = self._clock() + self._fresh
            self._trying_until = 0.0

    def reached(self) -> None:
        """It answered."""
        if self._failure is not None:
            with self._lock:
                self._failure = None
                self._trying_until = 0.0

    def undecided(self) -> None:
        """The one who tried learned nothing about the namespace: the next one may try."""
        self._trying_until = 0.0
