"""What the ways to both sides have in common."""

from __future__ import annotations

from kombu_paired.brokers.roles import Sends
from kombu_paired.errors import NamespaceFailure
from kombu_paired.failures import FailureKind
from kombu_paired.pairing.link_pool import LinkPool
from kombu_paired.pairing.reach import NamespaceReach

__all__ = ("Route",)


class Route:
    """The way to one side: a namespace, what is known of it, and the links to it.

    Arguments:
        namespace: where it leads.
        reach: what the callers of the process know of that together.
    """

    def __init__(self, namespace: Sends, reach: NamespaceReach) -> None:
        self.namespace = namespace
        self.reach = reach
        self.links = LinkPool(namespace.sender)

    def learn(self, failure: NamespaceFailure, took: float) -> None:
        """What one failure, found in so many seconds, says about the namespace as a whole."""
        if failure.whole_namespace:
            self.reach.failed(failure, took)
        elif failure.kind is FailureKind.TIMEOUT or failure.kind is FailureKind.UNREACHABLE:
            self.reach.undecided()
        else:
            self.reach.reached()
        if failure.kind is FailureKind.UNREACHABLE:
            self.links.drop_idle()
