"""What the rig raises."""

from __future__ import annotations

__all__ = ("BrokerFailed", "BrokerMissing")


class BrokerMissing(RuntimeError):
    """The broker's program is not installed."""


class BrokerFailed(RuntimeError):
    """The broker runs no more, or does not do what it was asked to do."""
