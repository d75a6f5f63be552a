"""The rules of a subscription: which messages of its topic it gets. Pure."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import asdict, dataclass, field
from functools import cached_property
from typing import Any

from kombu_paired.emulator.broker.errors import Condition, Refusal
from kombu_paired.emulator.broker.sql import Lookup, Truth, compile_filter
from kombu_paired.emulator.wire.envelope import Envelope

__all__ = ("ALL", "FIELDS", "NONE", "Rule")

#: What a correlation rule can ask of a message, with its place in the properties of AMQP.
FIELDS = {
    "correlation_id": 5,
    "message_id": 0,
    "to": 2,
    "reply_to": 4,
    "label": 3,
    "session_id": 10,
    "reply_to_session_id": 12,
    "content_type": 6,
}
_SYSTEM = {**{name.replace("_", ""): place for name, place in FIELDS.items()}, "subject": 3}
_KNOWN = (str, int, float, bool)


@dataclass(frozen=True)
class Rule:
    """One of them.

    Attributes:
        kind: ``true``, ``false``, ``sql`` or ``correlation``.
        expression: the SQL.
        fields: what a correlation rule asks for, by the names in :data:`FIELDS`.
        properties: the same of the application properties.
    """

    kind: str
    expression: str = ""
    fields: dict[str, str] = field(default_factory=dict)
    properties: dict[str, Any] = field(default_factory=dict)

    @classmethod
    def sql(cls, expression: str) -> Rule:
        """A rule in SQL; what is always or never so is a rule of its own kind.

        Raises:
            Refusal: the emulator does not understand it.
        """
        plain = expression.replace(" ", "")
        if plain in ("1=1", "1=0"):
            return ALL if plain == "1=1" else NONE
        compile_filter(expression)
        return cls("sql", expression)

    @classmethod
    def correlation(cls, fields: dict[str, Any], properties: dict[str, Any]) -> Rule:
        """A rule that compares. At least one thing is compared, and nothing but texts, numbers and booleans."""
        wanted = {name: str(value) for name, value in fields.items() if value is not None}
        if not wanted and not properties:
            raise Refusal(Condition.ARGUMENT_ERROR, "a correlation filter asks for something")
        strange = [name for name, value in properties.items() if not isinstance(value, _KNOWN)]
        if strange:
            raise Refusal(Condition.NOT_IMPLEMENTED, f"the emulator does not compare {strange[0]!r} with that")
        return cls("correlation", "", wanted, dict(properties))

    @classmethod
    def from_record(cls, record: dict[str, Any]) -> Rule:
        """From what a store kept."""
        return cls(**record)

    def to_record(self) -> dict[str, Any]:
        """As plain values, for a store."""
        return asdict(self)

    def lets_through(self, envelope: Envelope) -> bool:
        """Whether the subscription gets a message."""
        if self.kind == "sql":
            return self._test(_lookup(envelope)) is True
        if self.kind == "correlation":
            return self._corresponds(envelope)
        return self.kind == "true"

    @cached_property
    def _test(self) -> Callable[[Lookup], Truth]:
        return compile_filter(self.expression)

    def _corresponds(self, envelope: Envelope) -> bool:
        system, own = envelope.properties(), envelope.application_properties() if self.properties else {}
        return all(_text(system[FIELDS[name]]) == wanted for name, wanted in self.fields.items()) and all(
            name in own and own[name] == wanted for name, wanted in self.properties.items()
        )


ALL, NONE = Rule("true"), Rule("false")


def _lookup(envelope: Envelope) -> Lookup:
    """The properties of a message, by the names that SQL has for them."""
    system = envelope.properties()
    own = {str(name).lower(): value for name, value in envelope.application_properties().items()}

    def lookup(scope: str, name: str) -> Any:
        if scope == "sys":
            return _text(system[_SYSTEM[name]]) if name in _SYSTEM else None
        return own.get(name)

    return lookup


def _text(value: Any) -> str | None:
    return None if value is None else str(value)
