"""Faults on request: what goes wrong, where, and how often. Pure: it only says so, the doors act on it."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, field
from typing import Any

from kombu_paired.emulator.broker.errors import Condition, Refusal
from kombu_paired.emulator.broker.kinds import KINDS, OPERATIONS, OUTCOMES, TOKEN_ANSWERS, Kind

__all__ = ("KINDS", "OPERATIONS", "Fault", "Faults")

#: Nobody has said yet what entity it is about.
_OF_NO_ENTITY = frozenset({"connect"})
#: A fault of an entity happens there only where it is said.
_ON_REQUEST = frozenset({"token"})


@dataclass
class Fault:
    """Something that goes wrong.

    Attributes:
        kind: one of :data:`KINDS`. Those with a condition refuse. ``slow`` answers after ``seconds``. ``silent``
            neither acts nor answers. ``reset`` cuts the connection, ``detach`` ends the link and ``close`` the
            connection, before anything is done. ``lost-acknowledgement`` acts, and cuts the connection unanswered.
        entity: the only entity that is concerned; None: all of them.
        operations: which of :data:`OPERATIONS`; each kind has its own default.
        times: how often; None: until cleared.
        seconds: of ``slow``.
        condition, status, text: instead of the kind's own; ``detach`` and ``close`` say this condition. ``{entity}``
            in a text is whom it is about.
    """

    kind: str
    entity: str | None = None
    operations: frozenset[str] = field(default_factory=frozenset)
    times: int | None = None
    seconds: float = 1.0
    condition: str | None = None
    status: int | None = None
    text: str | None = None

    @classmethod
    def parse(cls, spec: dict[str, Any]) -> Fault:
        """From the JSON of a request: ``{"kind": "server-busy", "entity": "orders", "times": 3, "on": ["send"]}``.

        Raises:
            ValueError: it makes no sense; the text says why, and what would.
        """
        kind = KINDS.get(str(spec.get("kind")))
        if kind is None:
            raise ValueError(f"kind is {spec.get('kind')!r}, not one of {', '.join(KINDS)}")
        unknown = set(spec) - {"kind", "entity", "on", "times", "seconds", "condition", "status", "text"}
        if unknown:
            raise ValueError(f"unknown: {', '.join(sorted(unknown))}")
        times = spec.get("times")
        if times is not None and (not isinstance(times, int) or times < 1):
            raise ValueError(f"times is {times!r}, not a number of 1 or more: leave it out for a fault without an end")
        return cls(
            kind=str(spec["kind"]),
            entity=spec.get("entity"),
            operations=_operations(kind, spec),
            times=times,
            seconds=float(spec.get("seconds", 1.0)),
            condition=spec.get("condition"),
            status=None if spec.get("status") is None else int(spec["status"]),
            text=spec.get("text"),
        )

    @property
    def refuses(self) -> bool:
        """Whether it is an answer, and the answer is no."""
        return KINDS[self.kind].condition is not None or self.kind in OUTCOMES

    @property
    def http_status(self) -> int:
        """The status of its answer over HTTP."""
        return self.status or KINDS[self.kind].status

    def refusal(self, entity: str = "") -> Refusal:
        """What a client is told by a fault that refuses, or ends something.

        Arguments:
            entity: whom it is about.
        """
        kind = KINDS[self.kind]
        text = self.text or kind.description
        if self.kind == "token" and self.status is not None and self.text is None:
            text = TOKEN_ANSWERS.get(self.status, text)
        condition = self.condition or kind.condition or kind.ending or Condition.INTERNAL_ERROR
        outcome = self.kind if self.kind in OUTCOMES else None
        return Refusal(condition, text.replace("{entity}", entity), self.status, outcome)

    def concerns(self, operation: str, entity: str | None) -> bool:
        """Whether it is about this operation on this entity, its dead letters and subscriptions included."""
        if operation not in self.operations:
            return False
        if self.entity is None:
            return True
        path, mine = (entity or "").lower().strip("/"), self.entity.lower().strip("/")
        return path == mine or path.startswith((f"{mine}/$", f"{mine}/subscriptions/"))

    def as_dict(self) -> dict[str, Any]:
        """What is left of it, for the one who asks."""
        return {"kind": self.kind, "entity": self.entity, "on": sorted(self.operations), "times": self.times}


def _operations(kind: Kind, spec: dict[str, Any]) -> frozenset[str]:
    """Where a fault happens: where it is said, or where its kind does."""
    possible, usual = kind.possible, kind.operations
    if spec.get("entity") is not None:
        possible, usual = possible - _OF_NO_ENTITY, usual - _OF_NO_ENTITY - _ON_REQUEST
    wanted = frozenset(spec.get("on") or usual)
    unknown = wanted - frozenset(OPERATIONS)
    if unknown:
        raise ValueError(f"on is some of {', '.join(OPERATIONS)}, not {', '.join(sorted(unknown))}")
    if not wanted <= possible:
        whose = "" if spec.get("entity") is None else " of an entity"
        raise ValueError(
            f"{spec['kind']}{whose} cannot happen on {', '.join(sorted(wanted - possible))}, only on "
            f"{', '.join(each for each in OPERATIONS if each in possible)}"
        )
    return wanted


class Faults:
    """The faults that are on."""

    def __init__(self) -> None:
        self._faults: list[Fault] = []

    def __iter__(self) -> Iterator[Fault]:
        return iter(self._faults)

    def __bool__(self) -> bool:
        return bool(self._faults)

    def add(self, fault: Fault) -> None:
        """Let it go wrong from now on."""
        self._faults.append(fault)

    def clear(self, entity: str | None = None) -> None:
        """Let all be well again: everywhere, or in one entity."""
        keep = [] if entity is None else [f for f in self._faults if (f.entity or "").lower() != entity.lower()]
        self._faults = keep

    def take(self, operation: str, entity: str | None) -> Fault | None:
        """The fault that this operation meets, which is counted as met."""
        for fault in self._faults:
            if fault.concerns(operation, entity):
                if fault.times is not None:
                    fault.times -= 1
                    if fault.times <= 0:
                        self._faults.remove(fault)
                return fault
        return None
