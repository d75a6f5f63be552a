"""Faults on request: what goes wrong, where, and how often. Pure: it only says so, the doors act on it."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, field
from typing import Any

from kombu_paired.emulator.broker.errors import Condition, Refusal

__all__ = ("KINDS", "OPERATIONS", "Fault", "Faults")

OPERATIONS = ("connect", "token", "attach", "send", "receive", "settle", "request", "manage")

_ALL = frozenset(OPERATIONS)
_SEND = frozenset({"send"})
#: Nobody has said yet what entity it is about.
_OF_NO_ENTITY = frozenset({"connect", "token"})
#: Whoever connects cannot be told anything yet.
_ANSWERED = _ALL - {"connect"}
#: A request over HTTP is on no link, and its connection ends without a condition.
_ON_A_LINK = _ANSWERED - {"manage"}


@dataclass(frozen=True)
class _Kind:
    """What a kind of fault does: refuse with a condition, or something else when there is none.

    Attributes:
        operations: where it happens, unless it is said.
        possible: where it can happen.
    """

    operations: frozenset[str]
    condition: str | None = None
    status: int = 500
    description: str = ""
    possible: frozenset[str] = _ANSWERED


KINDS: dict[str, _Kind] = {
    "server-busy": _Kind(_SEND, Condition.SERVER_BUSY, 429, "The request was terminated: the server is busy."),
    "timeout": _Kind(_SEND, Condition.TIMEOUT, 504, "The operation did not complete within the allotted time."),
    "disabled": _Kind(
        frozenset({"attach", "send", "receive", "request"}),
        Condition.ENTITY_DISABLED,
        403,
        "The messaging entity is disabled.",
    ),
    "quota": _Kind(_SEND, Condition.RESOURCE_LIMIT_EXCEEDED, 403, "The maximum entity size has been reached."),
    "unauthorized": _Kind(
        frozenset({"attach", "request", "manage"}), Condition.UNAUTHORIZED_ACCESS, 401, "Unauthorized access."
    ),
    "not-found": _Kind(frozenset({"attach"}), Condition.NOT_FOUND, 404, "The messaging entity could not be found."),
    "internal-error": _Kind(_SEND, Condition.INTERNAL_ERROR, 500, "The service was unable to process the request."),
    "container-close": _Kind(_SEND, Condition.CONTAINER_CLOSE, 503, "The container is closing."),
    "operation-cancelled": _Kind(_SEND, Condition.OPERATION_CANCELLED, 503, "The operation was cancelled."),
    "size": _Kind(_SEND, Condition.MESSAGE_SIZE_EXCEEDED, 413, "The message is too large."),
    "lock-lost": _Kind(frozenset({"settle"}), Condition.MESSAGE_LOCK_LOST, 410, "The lock supplied is invalid."),
    "token": _Kind(frozenset({"token", "manage"}), Condition.AUTH_FAILED, 401, "The token is not good."),
    "slow": _Kind(_ALL - {"receive"}, possible=_ALL),
    "silent": _Kind(_ALL, possible=_ALL),
    "reset": _Kind(_SEND, possible=_ALL),
    "detach": _Kind(_SEND, possible=_ON_A_LINK),
    "close": _Kind(_SEND, possible=_ON_A_LINK),
    "lost-acknowledgement": _Kind(_SEND),
}


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
        condition, status: instead of the kind's own; ``detach`` and ``close`` say this condition.
    """

    kind: str
    entity: str | None = None
    operations: frozenset[str] = field(default_factory=frozenset)
    times: int | None = None
    seconds: float = 1.0
    condition: str | None = None
    status: int = 500
    description: str = ""

    @classmethod
    def parse(cls, spec: dict[str, Any]) -> Fault:
        """From the JSON of a request: ``{"kind": "server-busy", "entity": "orders", "times": 3, "on": ["send"]}``.

        Raises:
            ValueError: it makes no sense; the text says why, and what would.
        """
        kind = KINDS.get(str(spec.get("kind")))
        if kind is None:
            raise ValueError(f"kind is {spec.get('kind')!r}, not one of {', '.join(KINDS)}")
        unknown = set(spec) - {"kind", "entity", "on", "times", "seconds", "condition", "status"}
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
            condition=spec.get("condition") or kind.condition,
            status=int(spec.get("status") or kind.status),
            description=kind.description,
        )

    def refusal(self) -> Refusal | None:
        """The refusal of a fault that refuses."""
        if KINDS[self.kind].condition is None or self.condition is None:
            return None
        return Refusal(self.condition, f"{self.description} (fault on request)")

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


def _operations(kind: _Kind, spec: dict[str, Any]) -> frozenset[str]:
    """Where a fault happens: where it is said, or where its kind does."""
    possible = kind.possible
    if spec.get("entity") is not None:
        possible = possible - _OF_NO_ENTITY
    wanted = frozenset(spec.get("on") or kind.operations & possible)
    if not wanted <= _ALL:
        raise ValueError(f"on is some of {', '.join(OPERATIONS)}, not {', '.join(sorted(wanted - _ALL))}")
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
