"""Atom and XML of the management API: entity options to elements and back. Pure."""

from __future__ import annotations

import re
from dataclasses import fields
from datetime import datetime, timezone
from typing import Any
from xml.etree import ElementTree

from kombu_paired.emulator.broker.entities import Options
from kombu_paired.emulator.broker.errors import Condition, Refusal

__all__ = (
    "COUNTS",
    "INSTANCE",
    "SERVICE_BUS",
    "add",
    "element",
    "entry",
    "error",
    "feed",
    "from_options",
    "moment",
    "to_options",
    "write",
)

ATOM = "http://www.w3.org/2005/Atom"
SERVICE_BUS = "http://schemas.microsoft.com/netservices/2010/10/servicebus/connect"
COUNTS = "http://schemas.microsoft.com/netservices/2011/06/servicebus"
INSTANCE = "http://www.w3.org/2001/XMLSchema-instance"

_UNLIMITED = "P10675199DT2H48M5.4775807S"
_UNLIMITED_DAYS = 100_000
_DURATION = re.compile(
    r"P(?:(?P<days>[\d.]+)D)?(?:T(?:(?P<hours>[\d.]+)H)?(?:(?P<minutes>[\d.]+)M)?(?:(?P<seconds>[\d.]+)S)?)?"
)
_DURATIONS = (
    "lock_duration",
    "default_message_time_to_live",
    "duplicate_detection_history_time_window",
    "auto_delete_on_idle",
)


def duration(seconds: float | None) -> str:
    """ISO 8601; None is the service's "for ever"."""
    if seconds is None:
        return _UNLIMITED
    days, rest = divmod(seconds, 86400)
    hours, rest = divmod(rest, 3600)
    minutes, rest = divmod(rest, 60)
    text = f"{rest:.6f}".rstrip("0").rstrip(".")
    return f"P{int(days)}DT{int(hours)}H{int(minutes)}M{text}S"


def read_duration(text: str) -> float | None:
    """Seconds; None for "for ever"."""
    found = _DURATION.fullmatch(text.strip())
    if found is None:
        raise Refusal(Condition.ARGUMENT_ERROR, f"{text!r} is no ISO 8601 duration of days, hours, minutes and seconds")
    parts = {unit: float(value or 0) for unit, value in found.groupdict().items()}
    if parts["days"] > _UNLIMITED_DAYS:
        return None
    return parts["days"] * 86400 + parts["hours"] * 3600 + parts["minutes"] * 60 + parts["seconds"]


def moment(seconds: float) -> str:
    """A point in time, in ISO 8601."""
    return datetime.fromtimestamp(seconds, timezone.utc).strftime("%Y-%m-%dT%H:%M:%S.%fZ")


def element(name: str, text: str | None = None, namespace: str = SERVICE_BUS) -> ElementTree.Element:
    """An element with a text."""
    made = ElementTree.Element(f"{{{namespace}}}{name}")
    made.text = text
    return made


def add(parent: ElementTree.Element, name: str, text: Any, namespace: str = SERVICE_BUS) -> ElementTree.Element:
    """An element inside another; a boolean is written as XML has it."""
    value = str(text).lower() if isinstance(text, bool) else str(text)
    made = element(name, value, namespace)
    parent.append(made)
    return made


def from_options(parent: ElementTree.Element, options: Any) -> None:
    """Write every option that has a value."""
    for each in fields(options):
        value = getattr(options, each.name)
        if each.name in _DURATIONS:
            add(parent, _camel(each.name), duration(value))
        elif value is not None:
            add(parent, _camel(each.name), value)


def to_options(body: bytes, description: str, base: Options) -> Options:
    """Read the options that a request has; the others are those of ``base``. What is not an option is left out."""
    try:
        root = ElementTree.fromstring(body)
    except ElementTree.ParseError as problem:
        raise Refusal(Condition.ARGUMENT_ERROR, f"the body is not XML: {problem}") from problem
    found = root.find(f".//{{{SERVICE_BUS}}}{description}")
    if found is None:
        raise Refusal(Condition.ARGUMENT_ERROR, f"the body has no {description}")
    values: dict[str, Any] = {}
    for each in fields(base):
        node = found.find(f"{{{SERVICE_BUS}}}{_camel(each.name)}")
        if node is not None and node.text:
            values[each.name] = _read(each.name, node.text, str(each.type))
    return type(base)(**{**{each.name: getattr(base, each.name) for each in fields(base)}, **values})


def _read(name: str, text: str, kind: str) -> Any:
    if name in _DURATIONS:
        return read_duration(text)
    if kind.startswith("bool"):
        return text.strip().lower() in ("true", "1")
    return int(text) if kind.startswith("int") else text


def _camel(name: str) -> str:
    return "".join(part.capitalize() for part in name.split("_"))


def entry(title: str, content: ElementTree.Element, updated: float) -> ElementTree.Element:
    """An Atom entry."""
    made = element("entry", None, ATOM)
    add(made, "id", title, ATOM)
    add(made, "title", title, ATOM).set("type", "text")
    add(made, "published", moment(updated), ATOM)
    add(made, "updated", moment(updated), ATOM)
    add(add(made, "author", "", ATOM), "name", "emulator", ATOM)
    wrapper = add(made, "content", "", ATOM)
    wrapper.set("type", "application/xml")
    wrapper.append(content)
    return made


def feed(title: str, entries: list[ElementTree.Element], next_page: str | None = None) -> bytes:
    """An Atom feed, with a link to its next page where there is one."""
    made = element("feed", None, ATOM)
    add(made, "title", title, ATOM).set("type", "text")
    links = [("self", title)] + ([("next", next_page)] if next_page else [])
    for relation, address in links:
        link = add(made, "link", "", ATOM)
        link.set("rel", relation)
        link.set("href", address)
    made.extend(entries)
    return write(made)


def error(status: int, detail: str) -> bytes:
    """An error, as the service words it."""
    made = ElementTree.Element("Error")
    for name, text in (("Code", str(status)), ("Detail", detail)):
        node = ElementTree.SubElement(made, name)
        node.text = text
    return write(made)


def write(root: ElementTree.Element) -> bytes:
    """The bytes of a document."""
    text: bytes = ElementTree.tostring(root, encoding="utf-8", xml_declaration=True)
    return text
