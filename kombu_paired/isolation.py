"""Isolating an entity: failing it over by hand, in every process of the fleet (docs/architecture.md, rule 32).

What is isolated is known from *notices*, which lie on the secondary: a process that cannot reach the primary looks
there. Pure.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping
from types import MappingProxyType

from kombu_paired.declarations import Entity

__all__ = ("ALL", "BY_HAND", "ISOLATED_MARK", "Isolated", "as_notice", "notice_in", "notices_name")

#: Every entity of the primary.
ALL = "all"
#: Why an entity is failed over that is isolated: in the log, and in its event.
BY_HAND = "isolated by hand"
#: What is in the names of all that keeps notices, after the primary's name.
ISOLATED_MARK = "/x-paired-isolated"


def notices_name(primary: str) -> str:
    """Where the secondary keeps the notices about a primary.

    Arguments:
        primary: its name, which names the backlog queues, too.
    """
    return f"{primary}{ISOLATED_MARK}"


def as_notice(name: str, at: float) -> str:
    """A notice as a line of text.

    Arguments:
        at: since when (seconds since 1970, UTC).
    """
    return f"{at} {name}"


def notice_in(line: str) -> tuple[str, float] | None:
    """The name and the time in such a line; None if it is none."""
    at, _, name = line.partition(" ")
    try:
        return (name, float(at)) if name else None
    except ValueError:
        return None


class Isolated:
    """What is isolated, at one moment.

    Arguments:
        notices: names of entities, or :data:`ALL` -> since when (seconds since 1970, UTC).
    """

    def __init__(self, notices: Mapping[str, float] = MappingProxyType({})) -> None:
        self.notices = MappingProxyType(dict(notices))

    def __bool__(self) -> bool:
        return bool(self.notices)

    def __eq__(self, other: object) -> bool:
        return isinstance(other, Isolated) and self.notices == other.notices

    __hash__ = None  # type: ignore[assignment]

    @property
    def is_everything(self) -> bool:
        return ALL in self.notices

    def has(self, name: str) -> bool:
        """Whether a queue or an exchange of this name is left alone."""
        return self.is_everything or name in self.notices

    def covers(self, entities: Collection[Entity]) -> bool:
        """Whether an entity is, by any of the names under which it is known."""
        return bool(self.notices) and (self.is_everything or any(each.path in self.notices for each in entities))
