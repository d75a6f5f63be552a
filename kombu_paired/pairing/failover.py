"""Fails entities over, and restores them."""

from __future__ import annotations

from collections.abc import Callable

from kombu_paired.declarations import Entity
from kombu_paired.errors import NamespaceFailure
from kombu_paired.isolation import Isolated
from kombu_paired.options import PairedNamespaceOptions
from kombu_paired.pairing.circuit import CircuitState, EntityCircuits, Transition
from kombu_paired.pairing.clocks import Clocks
from kombu_paired.pairing.pinger import Pinger
from kombu_paired.pairing.primary_route import PrimaryRoute
from kombu_paired.pairing.teller import Teller

__all__ = ("Failover",)


class Failover:
    """What the failures and successes of sends mean for their entities, and the pings of those that are failed over.

    Arguments:
        pairing: the pairing's name.
        route: to the primary, for pings.
        options: the settings.
        teller: tells of every change.
        clocks: the time.
        when_back: called when a ping succeeds.
        concerns: the entity whose health a message's entity shares.
        leads_to: the queue that an entity leads to.

    Attributes:
        circuits: the health of each entity.
        last_failure: the last one of the primary that counted, by a send or a ping.
    """

    def __init__(
        self,
        pairing: str,
        route: PrimaryRoute,
        options: PairedNamespaceOptions,
        teller: Teller,
        clocks: Clocks,
        when_back: Callable[[], None],
        concerns: Callable[[Entity], Entity],
        leads_to: Callable[[Entity], Entity],
    ) -> None:
        self.circuits = EntityCircuits(options.failover_interval, clocks.monotonic, leads_to)
        self.last_failure: NamespaceFailure | None = None
        self._route = route
        self._patience = options.send_timeout / 2
        self._teller = teller
        self._wall_clock = clocks.wall
        self._when_back = when_back
        self._concerns = concerns
        name = f"kombu-paired-ping-{pairing}"
        self._pinger = Pinger(self.ping, options.ping_interval, name=name, clock=clocks.monotonic)

    def is_failed_over(self, entity: Entity) -> bool:
        """A message wants to go to it: whether it may not, and is to be diverted at once."""
        entity = self._concerns(entity)
        return self._note(entity, self.circuits.asked(entity)).after.diverts

    def state(self, entity: Entity) -> CircuitState:
        """How it is, as far as is known."""
        return self.circuits.state(self._concerns(entity))

    def count(self, entity: Entity, failure: NamespaceFailure) -> bool:
        """A send failed; some kinds of failure do not count. Returns whether the entity is failed over now."""
        entity = self._concerns(entity)
        if failure.kind.counts:
            self.last_failure = failure
            self._note(entity, self.circuits.failed(entity), failure)
        return self.circuits.state(entity).diverts

    def succeeded(self, entity: Entity) -> None:
        """A send did. What is failed over waits for a ping all the same."""
        entity = self._concerns(entity)
        self._note(entity, self.circuits.succeeded(entity))

    def restore(self, entity: Entity, detail: str = "") -> None:
        """It works: so says a ping, an operator, or a message that it took."""
        entity = self._concerns(entity)
        self._note(entity, self.circuits.restored(entity), detail=detail)

    def isolate(self, isolated: Isolated) -> None:
        """Operators have this left alone from now on, and nothing else. What is released is pinged at once."""
        for entity, transition in self.circuits.isolate(isolated).items():
            self._note(entity, transition)

    def ping(self, entity: Entity) -> bool:
        """Probe a failed-over entity; True if it works again."""
        started, reach = self._wall_clock(), self._route.reach
        failure = reach.silence or reach.verdict(self._patience)
        if failure is None:
            failure = self._route.probe(entity)
            self.last_failure = failure or self.last_failure
        self._teller.pinged(entity, started, failure)
        if failure is not None:
            return False
        self.restore(entity)
        self._when_back()
        return True

    def close(self) -> None:
        """Ping no more."""
        self._pinger.close()

    def _note(
        self, entity: Entity, transition: Transition, failure: NamespaceFailure | None = None, detail: str = ""
    ) -> Transition:
        """Tell a change of an entity's state, and have it pinged while it is failed over."""
        before, after = transition
        if before is after:
            return transition
        if after is CircuitState.HEALTHY or after is CircuitState.ISOLATED:
            self._pinger.forget(entity)
            if self.circuits.state(entity) is CircuitState.FAILED_OVER:  # another thread's failure came in between
                self._pinger.watch(entity)
        self._teller.changed(entity, transition, failure, detail)
        if after is CircuitState.FAILED_OVER:
            self._pinger.watch(entity, at_once=before is CircuitState.ISOLATED)
        return transition
