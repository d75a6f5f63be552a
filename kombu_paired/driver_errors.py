"""The error tuples of a transport: which exceptions Kombu and Celery take for the broker's.

Kombu reads them off the transport *class*, in :class:`kombu.Connection`'s ``connection_errors``, ``channel_errors``,
``recoverable_connection_errors`` and ``recoverable_channel_errors``, once per connection, and often before the
connection has a transport. All else reads them there: Kombu's ``ensure``, ``ensure_connection``, ``ignore_errors``
and its mixins, Celery's ``Consumer`` when it is made (what is in neither tuple ends a worker as an "Unrecoverable
error"), its event loops and its publishing with a retry policy. Off an *instance* Kombu only asks, in ``ensure``,
whether there is a ``recoverable_connection_errors``; the transports read their own there, as ours does.

A class cannot know whose connection asks. Its answer holds for every driver that the connection may have, whichever
of them another connection has used before: what a connection keeps must not depend on who came first.
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

from kombu.transport import base

from kombu_paired.brokers.drivers import usual_transports

__all__ = ("DriverErrors", "note_driver")

ErrorTuple = tuple[type[BaseException], ...]

#: Drivers that connections of this process have had. None is ever taken away.
_in_use: dict[type[base.Transport], None] = {}


class DriverErrors:
    """An error tuple of a transport: that of its driver, and errors of ours.

    Off the class it is that of all drivers that are usual and installed, and of those that :func:`note_driver` told of.

    Arguments:
        ours: errors of ours that belong to it.
        instead: the tuple to take of a driver that has none of this name.
    """

    def __init__(self, *ours: type[BaseException], instead: str | None = None) -> None:
        self._ours = ours
        self._instead = instead
        #: Kombu asks a transport for each message, and what a driver has does not change.
        self._of_drivers: dict[Any, ErrorTuple] = {}

    def __set_name__(self, transport_class: type, name: str) -> None:
        self._name = name

    def __get__(self, transport: Any, transport_class: type | None = None) -> ErrorTuple:
        if transport is None:
            return self._of((*usual_transports(), *_in_use))
        driver = transport.settings.driver
        found = self._of_drivers.get(driver)
        if found is None:
            found = self._of_drivers[driver] = self._of((driver,))
        return found

    def _of(self, drivers: Iterable[Any]) -> ErrorTuple:
        found: dict[type[BaseException], None] = {}
        for driver in drivers:
            found.update(dict.fromkeys(self._of_driver(driver)))
        return (*found, *self._ours)

    def _of_driver(self, driver: Any) -> ErrorTuple:
        return tuple(getattr(driver, self._name, None) or getattr(driver, self._instead or self._name, ()) or ())


def note_driver(driver: type[base.Transport]) -> None:
    """A connection has this driver: another one may get it, too."""
    _in_use[driver] = None
