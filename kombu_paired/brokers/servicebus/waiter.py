"""How a thread waits while another one reads from the connection that both share."""

from __future__ import annotations

import threading
from collections.abc import Sequence
from typing import Generic, Protocol, TypeVar

from kombu_paired.brokers.bell import Bell

__all__ = ("Waiter",)


class Place(Protocol):
    """A link's place on a connection.

    Attributes:
        arrived: is notified when something has come for it.
        bell: rings then, too, if there is one.
        is_patient: it waits for what may come some day, and not for an answer.
    """

    arrived: threading.Condition
    bell: Bell | None
    is_patient: bool


PlaceLike = TypeVar("PlaceLike", bound=Place)


class Waiter(Generic[PlaceLike]):
    """Who waits for links: for one, or for several with a bell."""

    def __init__(self, stations: Sequence[PlaceLike], bell: Bell | None) -> None:
        self.stations = stations
        self.bell = bell

    @property
    def is_patient(self) -> bool:
        """It waits for what may come some day."""
        return self.bell is not None or self.stations[0].is_patient

    @property
    def was_called(self) -> bool:
        """Its bell has rung."""
        return self.bell is not None and self.bell.rang

    def wait(self, lock: threading.Lock, seconds: float) -> None:
        """Until it is woken. With the lock, but not while it waits."""
        if self.bell is None:
            self.stations[0].arrived.wait(seconds)
            return
        for each in self.stations:
            each.bell = self.bell
        lock.release()
        try:
            self.bell.wait(seconds)
        finally:
            lock.acquire()
            for each in self.stations:
                each.bell = None

    def wake(self) -> None:
        if self.bell is None:
            self.stations[0].arrived.notify_all()
        else:
            self.bell.ring()
