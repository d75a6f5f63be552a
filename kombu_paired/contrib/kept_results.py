"""A result that could not be stored: its form in the backlog, and whether it is still news when its server is back.

A state and its result are kept as the backend would have encoded them, and with them what the backend wants to know of
the task's request. A part of a chord that has ended is kept besides, since storing a result does not count it.
"""

from __future__ import annotations

import uuid
from collections.abc import Iterable, Mapping
from dataclasses import asdict, dataclass, field, fields
from datetime import datetime, timezone, tzinfo
from typing import Any

from celery import Celery, states
from celery.app.task import Context
from celery.backends.base import Backend
from celery.result import result_from_tuple

from kombu_paired.errors import MalformedBacklogMessage
from kombu_paired.message import PERSISTENT, Message, from_backlog

__all__ = ("ENTITY", "KeptResult", "facts_of", "is_news", "moment_of", "newest")

#: What stands for the result backend where a message has its entity.
ENTITY = "x-paired-results"

#: What backends read of a request, whatever the result; ``args`` and ``kwargs`` with ``result_extended`` only.
_FACTS = (
    *("id", "task", "hostname", "retries", "group", "group_index", "parent_id", "root_id", "ignore_result"),
    *("reply_to", "correlation_id", "stamped_headers", "stamps"),
)


@dataclass(frozen=True)
class KeptResult:
    """What a worker wanted to store, and could not.

    Attributes:
        task_id: of the task.
        state: its state.
        result: its result, prepared for the backend's serializer.
        traceback: of its failure.
        facts: what backends read of its request; empty without one.
        at: when it was to be stored (seconds since 1970, UTC).
        is_part: count it as a part of its chord.
        has_state: store the state, too: it is always, but for a part whose task ignores its result.
        is_over: the body of its chord was sent, and the server is to know.
    """

    task_id: str
    state: str
    result: Any = None
    traceback: str | None = None
    facts: Mapping[str, Any] = field(default_factory=dict)
    at: float = 0.0
    is_part: bool = False
    has_state: bool = True
    is_over: bool = False

    @property
    def is_final(self) -> bool:
        return self.state in states.READY_STATES

    def request(self, app: Celery) -> Context | None:
        """The task's request, as far as it was kept."""
        if not self.facts:
            return None
        facts = dict(self.facts)
        children = facts.pop("children", ())
        request = Context(**facts, called_directly=False)
        request.children.extend(result_from_tuple(each, app) for each in children)
        return request

    def as_message(self, backend: Backend) -> Message:
        """Its form before it goes to the backlog.

        Raises:
            kombu.exceptions.EncodeError: the backend's serializer cannot encode it; it could not be stored, either.
        """
        return Message(
            body=backend.encode(asdict(self)),
            routing_key=ENTITY,
            content_type=backend.content_type,
            content_encoding=backend.content_encoding,
            properties={"message_id": str(uuid.uuid4()), "delivery_mode": PERSISTENT},
        )

    @classmethod
    def from_message(cls, stored: Message, backend: Backend, now: float) -> KeptResult:
        """What a message in the backlog has.

        Raises:
            MalformedBacklogMessage: it is none of ours, or in a serializer that the application does not accept.
        """
        message = from_backlog(stored, now)
        try:
            if message.routing_key != ENTITY:
                raise ValueError(f"it is for {message.entity.path!r}")
            decoded = backend.decode(message.body)
            return cls(**{each.name: decoded[each.name] for each in fields(cls)})
        except Exception as exc:  # whatever a serializer raises at what it cannot read
            raise MalformedBacklogMessage("MalformedResult", f"no result: {type(exc).__name__}: {exc}") from exc


def facts_of(request: Any, backend: Backend, *, chord: bool) -> dict[str, Any]:
    """What is kept of a request.

    Arguments:
        chord: the signature of the chord's body, too, which whoever counts the last part sends.
    """
    if request is None:
        return {}
    names = [*_FACTS, "chord"] if chord else list(_FACTS)
    if backend.app.conf.find_value_for_key("extended", "result"):
        names += ["args", "kwargs"]
    found = {name: getattr(request, name, None) for name in names}
    facts = {name: value for name, value in found.items() if value is not None}
    queue = (getattr(request, "delivery_info", None) or {}).get("routing_key")
    if queue is not None:
        facts["delivery_info"] = {"routing_key": queue}
    children = backend.current_task_children(request)
    return {**facts, "children": children} if children else facts


def newest(kept: Iterable[KeptResult]) -> dict[str, KeptResult]:
    """Task id -> the last of its states. A final one is later than any other, whatever the clock says."""
    last: dict[str, KeptResult] = {}
    for each in kept:
        before = last.get(each.task_id)
        if each.has_state and (before is None or (each.is_final, each.at) >= (before.is_final, before.at)):
            last[each.task_id] = each
    return last


def is_news(kept: KeptResult, there: Mapping[str, Any], local: tzinfo) -> bool:
    """Whether a state that was kept is later than the one that its server has.

    A server says when a state was stored only of those that are final. Of two others the one that Celery ranks higher
    is the later one, as it is for Celery's own events.

    Arguments:
        there: the meta of the task that the server has.
        local: the zone of a time that names none.
    """
    status = str(there["status"])
    if status == states.SUCCESS:
        return False
    if status in states.READY_STATES:
        done = moment_of(there.get("date_done"), local)
        return kept.is_final and done is not None and kept.at > done
    return kept.is_final or states.precedence(kept.state) < states.precedence(status)


def moment_of(done: object, local: tzinfo) -> float | None:
    """When a task ended (seconds since 1970, UTC), as backends have it; None if it is not to be read."""
    if isinstance(done, str):
        try:
            done = datetime.fromisoformat(done.removesuffix("Z") + "+00:00" if done.endswith("Z") else done)
        except ValueError:
            return None
    if not isinstance(done, datetime):
        return None
    zone = timezone.utc if done.tzinfo is None and local is None else local
    return (done if done.tzinfo is not None else done.replace(tzinfo=zone)).timestamp()
