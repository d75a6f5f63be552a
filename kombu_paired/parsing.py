"""Parsers of single settings: each takes the name of an option and what was given for it. Pure.

They raise :class:`~kombu_paired.errors.ConfigurationError`, whose text names the option, and says what may be written.
"""

from __future__ import annotations

import difflib
import math
import threading
from collections.abc import Callable, Iterable, Mapping
from datetime import timedelta
from typing import Any

from kombu_paired.errors import ConfigurationError

__all__ = ("count", "flag", "mapping", "nearest", "optional", "rate", "seconds", "text")

Parser = Callable[[str, Any], Any]


def nearest(key: object, known: Iterable[str]) -> str:
    """The end of a text about an unknown name: the known one that is meant, or all of them."""
    names = sorted(known)
    found = difflib.get_close_matches(str(key), names, n=1, cutoff=0.6)
    return f"did you mean {found[0]!r}?" if found else f"known options: {', '.join(names)}."


def seconds(low: float, high: float | None = None, *, above: bool = False) -> Callable[[str, Any], float]:
    """A parser of durations within bounds, as seconds."""
    highest = threading.TIMEOUT_MAX if high is None else high
    bounds = f"more than {low:g}" if above else f"{low:g} to {high:g}" if high is not None else f"at least {low:g}"

    def parse(key: str, value: Any) -> float:
        if isinstance(value, timedelta):
            value = value.total_seconds()
        if isinstance(value, bool) or not isinstance(value, int | float):
            raise ConfigurationError(f"option {key!r} must be seconds ({bounds}) or a timedelta, not {value!r}")
        inside = (value > low if above else value >= low) and value <= highest  # never so for NaN
        if not inside:
            raise ConfigurationError(f"option {key!r} must be {bounds} seconds, not {value!r}")
        return float(value)

    return parse


def count(high: int | None = None) -> Callable[[str, Any], int]:
    """A parser of whole numbers from 1."""
    bounds = "at least 1" if high is None else f"1 to {high}"

    def parse(key: str, value: Any) -> int:
        is_number = isinstance(value, int) and not isinstance(value, bool)
        if not is_number or value < 1 or (high is not None and value > high):
            raise ConfigurationError(f"option {key!r} must be a whole number, {bounds}, not {value!r}")
        return int(value)

    return parse


def rate(low: float) -> Callable[[str, Any], float]:
    """A parser of messages per second."""

    def parse(key: str, value: Any) -> float:
        is_number = isinstance(value, int | float) and not isinstance(value, bool)
        if not is_number or not low <= value < math.inf:  # never so for NaN
            raise ConfigurationError(f"option {key!r} must be messages per second (at least {low:g}), not {value!r}")
        return float(value)

    return parse


def flag(key: str, value: Any) -> bool:
    if not isinstance(value, bool):
        raise ConfigurationError(f"option {key!r} must be True or False, not {value!r}")
    return value


def text(key: str, value: Any) -> str:
    if not isinstance(value, str):
        raise ConfigurationError(f"option {key!r} must be a text, not {type(value).__name__}")
    return value


def mapping(what: str) -> Callable[[str, Any], Mapping[str, Any]]:
    """A parser of dicts of something; None is an empty one."""

    def parse(key: str, value: Any) -> Mapping[str, Any]:
        if value is None:
            return {}
        if not isinstance(value, Mapping):
            raise ConfigurationError(f"option {key!r} must be a dict of {what}, not {type(value).__name__}")
        return value

    return parse


def optional(parse: Parser) -> Parser:
    """One that takes None, too."""
    return lambda key, value: None if value is None else parse(key, value)
