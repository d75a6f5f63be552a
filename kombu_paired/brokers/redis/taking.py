"""How a consumer takes messages out of Redis and holds none that nobody else could bring back.

Where messages lie in the queues, one script takes one and notes it. Scripts cannot wait, so where none lies Redis is
asked to *move* the next one (``BLMOVE``) into a list of the consumer's own, from which the script takes it then. Such
a list is registered before, in the sorted set of takers, until its lease runs out; who is alive extends his lease
while he looks, and gives back what is in the lists of those who do not: to the front of their queue, in order.

A move that was asked for before may come to pass afterwards, held up by a network; so a list whose lease ran out is
looked into again a minute later, and half an hour later.
"""

from __future__ import annotations

import os
from functools import lru_cache
from typing import Any
from uuid import uuid4

__all__ = ("LEASE", "MOST_LISTS", "UPKEEP", "Wait", "own_list", "taken_prefix")

#: Seconds for which a registration outlasts the last move that can be asked for under it.
LEASE = 8.0
#: Seconds between two looks for leases that ran out.
UPKEEP = 1.0
#: Lists that a channel waits on at most, one connection each (Kombu lets a channel have ten): others are looked at.
MOST_LISTS = 8


@lru_cache(1)
def _taker(pid: int) -> str:
    return uuid4().hex


def taken_prefix(unacked_key: str) -> str:
    """What the names of all own lists begin with, before 32 digits, a colon and the name of the list they are for."""
    return f"{unacked_key}_taken:"


def own_list(unacked_key: str, name: str) -> str:
    """This process' own list for messages from that list."""
    return f"{taken_prefix(unacked_key)}{_taker(os.getpid())}:{name}"


class Wait:
    """A connection on which Redis is asked for the next message of a list, or of some.

    Attributes:
        name: the list that it waits on; None for any number of them, whose messages are not kept in a list of our own.
        connection: once there is one.
        since: when it was asked (monotonic), while there is no answer.
        not_before: when it may be tried (monotonic).
    """

    def __init__(self, name: str | None) -> None:
        self.name = name
        self.connection: Any = None
        self.since: float | None = None
        self.not_before = 0.0
