"""What can be seen of a pairing's two namespaces from outside, without changing anything in them."""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field
from typing import Any

import click

from kombu_paired.brokers.roles import BacklogDepth, Role
from kombu_paired.cli.connecting import result_queue
from kombu_paired.cli.printing import WIDTH, bad, good, paragraph
from kombu_paired.deadline import Deadline
from kombu_paired.errors import NamespaceFailure
from kombu_paired.failures import FailureKind
from kombu_paired.isolation import Isolated
from kombu_paired.pairing import Pairing

__all__ = ("Look", "Side", "look_at", "stand_in_depths")

#: Seconds between two looks for stand-in queues: on RabbitMQ one overlooks those whose names somebody else reads then.
MOMENT = 0.1
#: What to do about a namespace that answers like this.
_ADVICE = {
    FailureKind.UNREACHABLE: "Is it running there, and does the network let you through?",
    FailureKind.TIMEOUT: "It takes connections and does not answer: is it frozen, overloaded, or something else?",
    FailureKind.FAULT: "It answers and takes no messages: is it full, in alarm, read-only, or still loading?",
    FailureKind.THROTTLED: "It says that it is busy: try again later.",
    FailureKind.UNAUTHORIZED: "Check the user, password, rights and virtual host in its URL; on Service Bus, the "
    "policy, its key and its rights.",
    FailureKind.REJECTED: "It refuses the request: is it a broker of the kind that its URL says?",
    FailureKind.MISSING: "Something that should be there is not: check the virtual host or database in its URL.",
}


@dataclass(frozen=True)
class Side:
    """One namespace.

    Attributes:
        name: ``primary`` or ``secondary``.
        uri: its address, without secrets.
        failure: why it cannot be used; None if it can.
    """

    name: str
    uri: str
    failure: NamespaceFailure | None = None

    @property
    def advice(self) -> str:
        if self.failure is None:
            return ""
        return self.failure.advice or _ADVICE[self.failure.kind]

    def as_json(self) -> dict[str, Any]:
        failure = self.failure
        return {
            "uri": self.uri,
            "reachable": failure is None,
            "failure": failure.kind.value if failure else None,
            "detail": str(failure) if failure else None,
        }

    def show(self) -> None:
        """Print a line; and, where it fails, why and what to do."""
        state = good("reachable") if self.failure is None else bad(self.failure.kind.value.upper())
        place = f"  {self.name:<11}{self.uri:<50}"
        fits = len(place) + 2 + len(click.unstyle(state)) <= WIDTH
        click.echo(place + (f"  {state}" if fits else f"\n{'':13}{state}"))
        if self.failure is not None:
            click.echo(paragraph(self.failure.detail, 13))
            click.echo(paragraph(self.advice, 13))


@dataclass(frozen=True)
class Look:
    """Both namespaces, and the backlog queues as far as they could be seen.

    Attributes:
        results: the backlog queue of results, where there is one.
        stand_ins: the stand-in queues, where workers may stand in.
        isolated: what operators have left alone.
    """

    primary: Side
    secondary: Side
    depths: Sequence[BacklogDepth]
    results: BacklogDepth | None = None
    stand_ins: Sequence[BacklogDepth] = ()
    isolated: Isolated = field(default_factory=Isolated)

    @property
    def is_fine(self) -> bool:
        return self.primary.failure is None and self.secondary.failure is None


def look_at(pairing: Pairing, results: str | None = None) -> Look:
    """Probe the primary and count the backlog, both at once: two silent brokers take no longer than one.

    Takes about ``send_timeout`` seconds at most; creates and moves nothing.

    Arguments:
        results: the backlog queue of results; by default that of the application which the command is about.
    """
    timeout = pairing.options.send_timeout
    queue, names = results or result_queue(pairing), pairing.backlog_queue_names
    depths: list[BacklogDepth] = []
    stand_ins: list[BacklogDepth] = []

    def count() -> None:
        deadline = Deadline(timeout)
        depths.extend(pairing.secondary.backlog_depths([*names, *([queue] if queue else [])], deadline.left))
        stand_ins.extend(stand_in_depths(pairing, deadline))
        if pairing.secondary.keeps_notices:
            pairing.isolation.try_to_look(deadline.left)

    with ThreadPoolExecutor(2) as threads:
        probed = threads.submit(_failure_of, lambda: pairing.primary.probe(None, timeout))
        counted = threads.submit(_failure_of, count)
        sides = _side(pairing.primary, probed.result()), _side(pairing.secondary, counted.result())
        return Look(
            *sides, depths[: len(names)], depths[-1] if queue and depths else None, stand_ins, pairing.isolation.now
        )


def stand_in_depths(pairing: Pairing, deadline: Deadline, *, give_back: bool = False) -> list[BacklogDepth]:
    """What waits in the stand-in queues that are there; where workers never stand in, nothing is asked.

    Arguments:
        give_back: put back into them before what killed workers held, where no broker does it.

    Raises:
        NamespaceFailure: the secondary failed.
    """
    if pairing.stand_in is None:
        return []
    names = set(pairing.secondary.stand_in_queues(pairing.name, deadline.left, give_back=give_back))
    time.sleep(min(MOMENT, deadline.left))
    names |= set(pairing.secondary.stand_in_queues(pairing.name, deadline.left))
    depths = pairing.secondary.backlog_depths(sorted(names), deadline.left) if names else []
    return [each for each in depths if each.messages is not None]


def _failure_of(action: Callable[[], object]) -> NamespaceFailure | None:
    try:
        action()
    except NamespaceFailure as failure:
        return failure
    return None


def _side(namespace: Role, failure: NamespaceFailure | None) -> Side:
    return Side(namespace.side, namespace.uri, failure)
