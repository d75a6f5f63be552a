"""A pump that runs in the thread of its test, by a plan: whenever it would wait, the next step happens instead.

When no step is left, the syphon stops.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import pytest

from kombu_paired.brokers.roles import DEAD_LETTER_SUFFIX
from kombu_paired.events import EventKind
from kombu_paired.syphon import Destinations
from kombu_paired.testing import ManualClock
from tests.unit.syphon.trip import QUEUE, Trip

POLL = 900.0


class Plan(ManualClock):
    """Time that passes when somebody waits; then the next step of the plan happens."""

    def __init__(self) -> None:
        super().__init__()
        self.steps: list[Callable[[], object]] = []
        self.waits: list[float] = []
        self.at_end: Callable[[], None] = lambda: None

    def wait(self, condition: Any, seconds: float) -> None:
        self.pause(seconds)

    def pause(self, timeout: float | None = None) -> bool:
        """As :meth:`threading.Event.wait` that waited in vain."""
        self.waits.append(timeout or 0.0)
        self.now += timeout or 0.0
        step = self.steps.pop(0) if self.steps else self.at_end
        step()
        return False


class Run(Trip):
    """A pump that runs by a plan."""

    def __init__(self, queues: Sequence[str] = (QUEUE,)) -> None:
        self.plan = Plan()
        super().__init__(clock=self.plan, queues=queues)
        self.plan.at_end = self.stop
        self.syphon.poll = POLL
        self.syphon.destinations = Destinations(self.plan)
        self.syphon.stopping.wait = self.plan.pause  # type: ignore[method-assign]
        self.syphon._way.wait = self._watch  # type: ignore[method-assign]
        self._wait_for_message = self.secondary.wait_for_message
        self.secondary.wait_for_message = self._wait_unless_it_goes_round  # type: ignore[method-assign]
        self.log.clear()

    def _wait_unless_it_goes_round(self, *args: Any) -> None:
        if len(self.log) > 1000:
            pytest.fail("it polls and polls, and never waits")
        self._wait_for_message(*args)

    def _watch(self, timeout: float | None = None) -> bool:
        """What the syphon's own thread does for the pumps."""
        if not self.syphon.primary_works:
            self.syphon._probe_primary()
        return True

    def stop(self) -> None:
        self.syphon.stopping.set()
        self.syphon.primary_is_back()

    def __call__(self, *steps: Callable[[], object]) -> None:
        """Run the pump; each step happens when it would wait for the next time."""
        self.plan.steps = list(steps)
        self.pump.run()

    def asked(self, *words: str) -> list[tuple[str, str, str]]:
        return [tuple(each) for each in self.log if each.what in words]

    def kinds(self, *wanted: EventKind) -> list[tuple[EventKind, str | None]]:
        return [(each.kind, each.message_id) for each in self.events if each.kind in wanted]

    @property
    def arrived(self) -> list[str]:
        return [str(message.properties["message_id"]) for message in self.primary.stored]

    @property
    def dead_letters(self) -> list[tuple[str | None, Any]]:
        dead = self.secondary.queues[QUEUE + DEAD_LETTER_SUFFIX]
        return [(message.message_id, message.headers["DeadLetterReason"]) for message in dead]

    @property
    def left(self) -> list[str | None]:
        return [message.message_id for message in self.waiting]
