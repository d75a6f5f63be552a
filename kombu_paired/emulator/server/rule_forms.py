"""The rules of subscriptions as clients write them: in XML over HTTP, and in AMQP to ``$management``. Pure."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any
from xml.etree import ElementTree

from kombu_paired.emulator.broker.errors import Condition, Refusal
from kombu_paired.emulator.broker.rules import ALL, FIELDS, NONE, Rule
from kombu_paired.emulator.server import atom
from kombu_paired.emulator.wire.codec import Described, Timestamp, ULong

__all__ = ("from_amqp", "from_xml", "to_amqp", "to_xml")

_TYPE = f"{{{atom.INSTANCE}}}type"
_SCHEMA = "http://www.w3.org/2001/XMLSchema"
_NAMES = {name: "".join(part.capitalize() for part in name.split("_")) for name in FIELDS}
_KINDS = {"true": "TrueFilter", "false": "FalseFilter", "sql": "SqlFilter", "correlation": "CorrelationFilter"}
_READERS: dict[str, Callable[[str], Any]] = {
    "boolean": lambda text: text == "true",
    "double": float,
    "int": int,
    "long": int,
    "string": str,
}

_RULE, _EMPTY_ACTION = 0x13700000004, 0x13700000005
_FILTERS = {"sql": 0x1370000006, "true": 0x1370000007, "false": 0x1370000008, "correlation": 0x1370000009}
_SQL = {"true": "1=1", "false": "1=0"}


# ---------------------------------------------------------------------------------------------------------------- XML


def from_xml(root: ElementTree.Element) -> Rule:
    """The rule of a description."""
    action = root.find(f".//{_tag('Action')}")
    if action is not None and _type_of(action, "EmptyRuleAction") != "EmptyRuleAction":
        raise _no_actions()
    found = root.find(f".//{_tag('Filter')}")
    kind = "TrueFilter" if found is None else _type_of(found, "TrueFilter")
    if found is None or kind == "TrueFilter":
        return ALL
    if kind == "FalseFilter":
        return NONE
    if kind == "SqlFilter":
        if found.findall(f"{_tag('Parameters')}/*"):
            raise Refusal(Condition.NOT_IMPLEMENTED, "the emulator has no parameters in SQL")
        return Rule.sql(found.findtext(_tag("SqlExpression")) or "")
    if kind != "CorrelationFilter":
        raise Refusal(Condition.NOT_IMPLEMENTED, f"the emulator evaluates no {kind}")
    fields = {name: found.findtext(_tag(written)) or None for name, written in _NAMES.items()}
    return Rule.correlation(fields, dict(map(_property, found.findall(f"{_tag('Properties')}/*"))))


def to_xml(name: str, rule: Rule) -> ElementTree.Element:
    """The description of a rule."""
    made = atom.element("RuleDescription")
    chosen = atom.add(made, "Filter", "")
    chosen.set(_TYPE, _KINDS[rule.kind])
    if rule.kind == "correlation":
        for field, value in rule.fields.items():
            atom.add(chosen, _NAMES[field], value)
        if rule.properties:
            _add_properties(atom.add(chosen, "Properties", ""), rule.properties)
    else:
        atom.add(chosen, "SqlExpression", _SQL.get(rule.kind, rule.expression))
        atom.add(chosen, "CompatibilityLevel", 20)
    atom.add(made, "Action", "").set(_TYPE, "EmptyRuleAction")
    atom.add(made, "CreatedAt", atom.moment(0.0))
    atom.add(made, "Name", name)
    return made


def _property(node: ElementTree.Element) -> tuple[str, Any]:
    value = node.find(_tag("Value"))
    kind = "string" if value is None else _type_of(value, "string")
    if kind not in _READERS:
        raise Refusal(Condition.NOT_IMPLEMENTED, f"the emulator compares no {kind}")
    text = "" if value is None else value.text or ""
    return node.findtext(_tag("Key")) or "", _READERS[kind](text)


def _add_properties(parent: ElementTree.Element, properties: dict[str, Any]) -> None:
    for name, value in properties.items():
        pair = atom.add(parent, "KeyValueOfstringanyType", "")
        atom.add(pair, "Key", name)
        node = atom.add(pair, "Value", value)
        # The prefix is part of a value here, where ElementTree does not see that it is used.
        node.set("xmlns:d6p1", _SCHEMA)
        node.set(_TYPE, f"d6p1:{_kind_of(value)}")


def _kind_of(value: Any) -> str:
    if isinstance(value, bool):
        return "boolean"
    if isinstance(value, int):
        return "int" if abs(value) < 2**31 else "long"
    return "double" if isinstance(value, float) else "string"


def _type_of(node: ElementTree.Element, usual: str) -> str:
    return node.get(_TYPE, usual).rpartition(":")[2]


def _tag(name: str) -> str:
    return f"{{{atom.SERVICE_BUS}}}{name}"


# --------------------------------------------------------------------------------------------------------------- AMQP


def from_amqp(description: dict[Any, Any]) -> Rule:
    """The rule of a request to add one."""
    if description.get("sql-rule-action"):
        raise _no_actions()
    if "sql-filter" in description:
        return Rule.sql(str(description["sql-filter"]["expression"]))
    wanted = description["correlation-filter"]
    return Rule.correlation(
        {name: wanted.get(name.replace("_", "-")) for name in FIELDS}, wanted.get("properties") or {}
    )


def to_amqp(name: str, rule: Rule) -> dict[str, Any]:
    """A rule as the answer to the question for all of them has it."""
    content: list[Any] = []
    if rule.kind == "sql":
        content = [rule.expression, None]
    elif rule.kind == "correlation":
        content = [*(rule.fields.get(field) for field in FIELDS), rule.properties or None]
    chosen = Described(ULong(_FILTERS[rule.kind]), content)
    action = Described(ULong(_EMPTY_ACTION), [])
    return {"rule-description": Described(ULong(_RULE), [chosen, action, name, Timestamp(0)])}


def _no_actions() -> Refusal:
    return Refusal(Condition.NOT_IMPLEMENTED, "the emulator has no rule actions")
