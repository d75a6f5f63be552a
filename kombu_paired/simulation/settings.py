"""What to simulate: the size of the fleet, and how much of what goes wrong."""

from __future__ import annotations

import dataclasses
import difflib
import math
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any

__all__ = ("OUTAGE_KINDS", "FleetSettings")

#: What an outage can look like; a simulation takes them in turn.
#:
#: ========== ====================================================================================
#: namespace   all entities, for all processes
#: entity      one entity, for all processes
#: partial     all entities, for some hosts only: the others see nothing
#: overlapping two entities one after the other, with an overlap: one outage of their namespace
#: blip        all entities, shorter than the failover interval: suspect, never failed over
#: ========== ====================================================================================
OUTAGE_KINDS = ("namespace", "entity", "partial", "overlapping", "blip")


def _known(default: Any, meaning: str) -> Any:
    return field(default=default, metadata={"meaning": meaning})


@dataclass(frozen=True)
class FleetSettings:
    """How large the fleet is, what happens to its messages, and what is wrong with its journals.

    Shares are between 0 and 1. A setting of 0 switches its fault off. :meth:`without_faults` switches all off that
    would make journals hard to read; the outages stay.
    """

    processes: int = _known(12, "that write a journal; every second one is a worker with a syphon")
    days: float = _known(1.0, "that the journals cover")
    outages: int = _known(6, "of the primary, evenly over the time")
    messages: int = _known(100_000, "that applications send")
    seed: int = _known(1, "of everything random: same settings, same bytes")
    entities: int = _known(5, "that messages go to")
    pairings: int = _known(1, "that the entities belong to")
    backlog_queues: int = _known(10, "of each pairing")
    failover_interval: float = _known(10.0, "seconds")
    ping_interval: float = _known(60.0, "seconds, give or take a tenth")
    poll: float = _known(900.0, "seconds of the syphon's long poll")
    stand_in_after: float = _known(0.0, "seconds without the primary after which workers stand in; 0: they never do")
    outage_kinds: tuple[str, ...] = _known(OUTAGE_KINDS, "taken in turn")

    unconsumed: float = _known(0.01, "share of the messages that wait in the primary to the end")
    duplicated: float = _known(0.001, "share of the messages that run twice, or come home twice")
    retried: float = _known(0.002, "share of the messages that a task sends again under the same id")
    odd_failures: float = _known(0.001, "share of the messages that are throttled, unauthorized, rejected, missing")
    left_behind: float = _known(0.01, "share of the messages handed out that no worker takes, and that come home")
    waiting: float = _known(0.001, "share of the diverted messages that never come home")
    dead_lettered: float = _known(0.002, "share of the diverted messages that become dead letters")
    expired: float = _known(0.002, "share of the diverted messages whose time to live runs out")
    abandoned: float = _known(0.01, "share of the diverted messages that the syphon gives back once")
    secondary_outages: int = _known(1, "while the primary is away: callers get an error")
    pulled: int = _known(2, "backlog queues that fail for a while in an outage")

    skew: float = _known(3.0, "seconds between the clocks of two hosts, at most")
    restarts: int = _known(2, "processes that are closed or faulted, and start again")
    killed: int = _known(2, "processes that are killed: the last line is torn")
    holes: int = _known(2, "times at which a process cannot write for 20 s")
    lost_restored: int = _known(2, "restored events that are lost, every other one with its ping")
    copies: int = _known(2, "files that are there twice, every other copy cut in mid-line")
    garbage: float = _known(0.001, "garbage lines per line")
    future: int = _known(1, "files of an unknown future version")
    empty: int = _known(1, "empty files")
    binary: int = _known(2, "files that are no journals, every other one named .gz")

    def __post_init__(self) -> None:
        least = {"processes": 1, "entities": 1, "pairings": 1, "backlog_queues": 1}
        for each in dataclasses.fields(self):
            value = getattr(self, each.name)
            if each.name == "outage_kinds":
                _check_kinds(value)
            elif each.name != "seed" and not least.get(each.name, 0) <= value < math.inf:
                raise ValueError(f"{each.name} must be at least {least.get(each.name, 0)}, not {value}")
        for name in ("days", "ping_interval", "poll"):
            if not getattr(self, name) > 0:
                raise ValueError(f"{name} must be above 0, not {getattr(self, name)}")
        shares = ("unconsumed", "duplicated", "retried", "odd_failures")
        backlog_shares = ("waiting", "dead_lettered", "expired", "abandoned")
        for names in (shares, backlog_shares, ("left_behind",), ("garbage",)):
            if sum(getattr(self, name) for name in names) > 1:
                raise ValueError(f"the shares {', '.join(names)} must not be more than 1 together")

    def without_faults(self) -> FleetSettings:
        """The same fleet with the same outages, and whole journals of hosts with one clock."""
        broken = ("skew", "restarts", "killed", "holes", "lost_restored", "copies")
        strange = ("garbage", "future", "empty", "binary")
        off: dict[str, Any] = dict.fromkeys((*broken, *strange), 0)
        return dataclasses.replace(self, **off)

    def changed(self, name: str, text: str) -> FleetSettings:
        """With one setting as a text says it.

        Raises:
            ValueError: there is no such setting, or the text is no value of it.
        """
        known = {each.name: each.default for each in dataclasses.fields(self)}
        if name not in known:
            near = difflib.get_close_matches(name, known, n=1)
            raise ValueError(f"no setting {name}; " + (f"did you mean {near[0]}?" if near else ", ".join(known)))
        read: Callable[[str], Any] = _names if name == "outage_kinds" else type(known[name])
        try:
            value = read(text)
        except ValueError as exc:
            kind = "a whole number" if read is int else "a number"
            raise ValueError(f"{name} must be {kind}, not {text!r}") from exc
        return dataclasses.replace(self, **{name: value})


def _names(text: str) -> tuple[str, ...]:
    return tuple(each.strip() for each in text.split(",") if each.strip())


def _check_kinds(kinds: tuple[str, ...]) -> None:
    unknown = [kind for kind in kinds if kind not in OUTAGE_KINDS]
    if unknown or not kinds:
        raise ValueError(f"outage_kinds must be some of {', '.join(OUTAGE_KINDS)}; not {', '.join(unknown) or 'none'}")
