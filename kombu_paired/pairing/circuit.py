"""Health of entities. Pure: the clock is injected.

::

    HEALTHY --failure--> SUSPECT --failover_interval without a success--> FAILED_OVER
       ^                    |                                                  |
       +------success-------+                 +-----------first good ping------+
       +--------------------------------------+

    any --isolated by hand--> ISOLATED --released--> FAILED_OVER

See docs/architecture.md, rules 6 to 8; and on isolating, docs/architecture.md, rule 32.
"""

from __future__ import annotations

import enum
import threading
from collections.abc import Callable
from typing import NamedTuple

from kombu_paired.declarations import Entity, as_it_is
from kombu_paired.isolation import Isolated

__all__ = ("CircuitState", "EntityCircuit", "EntityCircuits", "Transition")

Clock = Callable[[], float]


class CircuitState(enum.Enum):
    HEALTHY = "healthy"
    SUSPECT = "suspect"
    FAILED_OVER = "failed_over"
    ISOLATED = "isolated"

    @property
    def diverts(self) -> bool:
        """Messages go to the backlog, and the primary is not tried."""
        return self is CircuitState.FAILED_OVER or self is CircuitState.ISOLATED


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

    Attributes:
        since: when it got its state, by that clock.
    """

    def __init__(self, failover_interval: float, clock: Clock) -> None:
        self.failover_interval = failover_interval
        self.state = CircuitState.HEALTHY
        self.since = clock()
        self._clock = clock
        self._failing_since = 0.0

    def asked(self) -> Transition:
        """A message wants to go to the primary; it may, unless the circuit diverts afterwards."""
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
        """A ping succeeded, or an operator says so. What is isolated stays so: it works, and is left alone."""
        return self._become(self.state if self.state is CircuitState.ISOLATED else CircuitState.HEALTHY)

    def isolated(self) -> Transition:
        """An operator has it left alone."""
        return self._become(CircuitState.ISOLATED)

    def released(self) -> Transition:
        """It is isolated no more; whether it works is for a ping to find out."""
        return self._become(CircuitState.FAILED_OVER if self.state is CircuitState.ISOLATED else self.state)

    def _interval_is_over(self) -> bool:
        return self._clock() - self._failing_since >= self.failover_interval

    def _become(self, state: CircuitState) -> Transition:
        before, self.state = self.state, state
        if before is not state:
            self.since = self._clock()
        return Transition(before, state)


class EntityCircuits:
    """The circuits of all entities, shared by every sender of the process.

    Only entities that are not HEALTHY are kept, so a name that is used once (a reply queue) costs nothing, and the
    healthy path is a look at an empty dict.

    Arguments:
        failover_interval: seconds, as for one circuit.
        clock: monotonic seconds.
        leads_to: the queue that an entity leads to, which may be isolated by its own name.

    Attributes:
        isolated: what operators have left alone.
    """

    def __init__(self, failover_interval: float, clock: Clock, leads_to: Callable[[Entity], Entity] = as_it_is) -> None:
        self.isolated = Isolated()
        self._failover_interval = failover_interval
        self._clock = clock
        self._leads_to = leads_to
        self._lock = threading.Lock()
        self._ailing: dict[Entity, EntityCircuit] = {}

    def __bool__(self) -> bool:
        """True while any entity is not HEALTHY."""
        return bool(self._ailing or self.isolated.notices)

    def state(self, entity: Entity) -> CircuitState:
        if self._is_isolated(entity):
            return CircuitState.ISOLATED
        circuit = self._ailing.get(entity)
        return circuit.state if circuit else CircuitState.HEALTHY

    def states(self) -> dict[Entity, CircuitState]:
        """Every entity that is not HEALTHY; of those that are isolated, the ones that messages were sent to."""
        with self._lock:
            return {entity: circuit.state for entity, circuit in self._ailing.items()}

    def seconds(self) -> dict[Entity, float]:
        """For how long each of them has been in its state."""
        with self._lock:
            now = self._clock()
            return {entity: now - circuit.since for entity, circuit in self._ailing.items()}

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

    def isolate(self, isolated: Isolated) -> dict[Entity, Transition]:
        """This is isolated from now on, and nothing else; what changes by that of entities which are not HEALTHY.

        Those that are get to know with their next message.
        """
        with self._lock:
            self.isolated = isolated
            return {
                entity: circuit.isolated() if self._is_isolated(entity) else circuit.released()
                for entity, circuit in self._ailing.items()
            }

    def _is_isolated(self, entity: Entity) -> bool:
        return bool(self.isolated) and self.isolated.covers((entity, self._leads_to(entity)))

    def _change(self, entity: Entity, event: Callable[[EntityCircuit], Transition]) -> Transition:
        with self._lock:
            circuit = self._ailing.get(entity)
            if circuit is None:
                circuit = EntityCircuit(self._failover_interval, self._clock)
            transition = circuit.isolated() if self._is_isolated(entity) else event(circuit)
            if transition.after is CircuitState.HEALTHY:
                self._ailing.pop(entity, None)
            else:
                self._ailing[entity] = circuit
            return transition
