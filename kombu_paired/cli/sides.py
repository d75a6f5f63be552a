"""What can be seen of a pairing's two namespaces from outside, without changing anything in them."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from typing import Any

import click

from kombu_paired.cli.printing import WIDTH, bad, good, paragraph
from kombu_paired.errors import NamespaceFailure
from kombu_paired.failures import FailureKind
from kombu_paired.namespaces.base import BacklogDepth, Role
from kombu_paired.pairing import Pairing

__all__ = ("Look", "Side", "look_at")

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
    """Both namespaces, and the backlog queues as far as they could be seen."""

    primary: Side
    secondary: Side
    depths: Sequence[BacklogDepth]

    @property
    def is_fine(self) -> bool:
        return self.primary.failure is None and self.secondary.failure is None


def look_at(pairing: Pairing) -> Look:
    """Probe the primary and count the backlog, both at once: two silent brokers take no longer than one.

    Takes about ``send_timeout`` seconds at most; creates and moves nothing.
    """
    timeout = pairing.options.send_timeout
    with ThreadPoolExecutor(2) as threads:
        probe = threads.submit(_failure_of, lambda: pairing.primary.probe(None, timeout))
        depths: list[BacklogDepth] = []
        count = threads.submit(
            _failure_of,
            lambda: depths.extend(pairing.secondary.backlog_depths(pairing.backlog_queue_names, timeout)),
        )
        return Look(_side(pairing.primary, probe.result()), _side(pairing.secondary, count.result()), depths)


def _failure_of(action: Callable[[], object]) -> NamespaceFailure | None:
    try:
        action()
    except NamespaceFailure as failure:
        return failure
    return None


def _side(namespace: Role, failure: NamespaceFailure | None) -> Side:
    return Side(namespace.side, namespace.uri, failure)
