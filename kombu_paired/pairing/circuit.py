"""Health of entities. Pure: the clock is injected.

::

    HEALTHY --failure--> SUSPECT --failover_interval without a success--> FAILED_OVER
       ^                    |                                                  |
       +------success-------+                 +-----------first good ping------+
       +--------------------------------------+

See docs/architecture.md, rules 6 to 8.
"""

from __future__ import annotations

import enum
import threading
from collections.abc import Callable
from typing import NamedTuple

from kombu_paired.declarations import Entity

__all__ = ("CircuitState", "EntityCircuit", "EntityCircuits", "Transition")

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
