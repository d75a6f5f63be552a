"""The price sheet: what operations cost, as a TOML file says it. Prices are input: none is built in as the truth.

::

    name = "Service Bus Standard"
    date = 2026-01-01                      # when somebody looked
    source = "list price, USD, check yours"
    currency = "USD"
    base_fee = 9.81                        # a month; 0 if left out
    included_operations = 13_000_000       # a month; 0 if left out

    [[tiers]]                              # for what is not included, the cheapest last
    up_to = 100_000_000                    # operations of the month; the last tier has no end
    per_million = 0.80

    [[tiers]]
    per_million = 0.50

``up_to`` counts all operations of the month, the included ones too. A sheet without tiers prices no operation.
"""

from __future__ import annotations

import datetime
import difflib
import math
import sys
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

__all__ = ("PriceSheet", "PriceSheetError", "Tier", "parse", "read")

_MILLION = 1_000_000
_TEXTS = ("name", "source", "currency")
_KEYS = (*_TEXTS, "date", "base_fee", "included_operations", "tiers")
_TIER_KEYS = ("up_to", "per_million")


class PriceSheetError(ValueError):
    """A price sheet cannot be read, or says something that cannot be; its text says where, and what to do."""


@dataclass(frozen=True)
class Tier:
    """Operations up to a number of them cost so much.

    Attributes:
        up_to: operations of the month, all counted; None: without end.
        per_million: price of a million of them.
    """

    up_to: int | None
    per_million: float


@dataclass(frozen=True)
class PriceSheet:
    """Prices, and how far to trust them.

    Attributes:
        name: of what is priced.
        date: when the prices were looked up.
        source: where.
        currency: e.g. ``USD``.
        base_fee: a month, whatever happens.
        included_operations: a month, in the base fee.
        tiers: prices of the others; rising ``up_to``, the last without end.
    """

    name: str
    date: datetime.date
    source: str
    currency: str
    base_fee: float = 0.0
    included_operations: int = 0
    tiers: tuple[Tier, ...] = ()

    def of_operations(self, operations: int) -> float:
        """What so many operations of one month cost, without the base fee."""
        total, floor = 0.0, self.included_operations
        for tier in self.tiers:
            ceiling = operations if tier.up_to is None else min(operations, tier.up_to)
            if ceiling > floor:
                total += (ceiling - floor) * tier.per_million / _MILLION
                floor = ceiling
        return total

    def of_month(self, operations: int) -> float:
        """What a month with so many operations costs, with the base fee."""
        return self.base_fee + self.of_operations(operations)


def read(path: str | Path) -> PriceSheet:
    """The price sheet in a TOML file.

    Raises:
        PriceSheetError: it cannot be read, is not TOML, or is no price sheet.
    """
    try:
        text = Path(path).read_text(encoding="utf-8")
    except OSError as exc:
        raise PriceSheetError(f"price sheet {path}: {exc.strerror}") from exc
    except UnicodeDecodeError as exc:
        raise PriceSheetError(f"price sheet {path} is not UTF-8 text: is it the right file?") from exc
    return parse(_toml(text, path), str(path))


def _toml(text: str, path: str | Path) -> Mapping[str, Any]:
    if sys.version_info >= (3, 11):
        import tomllib

        try:
            return tomllib.loads(text)
        except tomllib.TOMLDecodeError as exc:
            raise PriceSheetError(f"price sheet {path} is not TOML: {exc}") from exc
    raise PriceSheetError(f"price sheet {path}: reading TOML needs Python 3.11, as the pipeline does")


def parse(document: Mapping[str, Any], where: str = "price sheet") -> PriceSheet:
    """The price sheet in a parsed TOML document.

    Arguments:
        where: names the document in errors.

    Raises:
        PriceSheetError: a key is missing, unknown, or has a value that cannot be.
    """
    _require_known(document, _KEYS, where)
    for key in (*_TEXTS, "date"):
        if key not in document:
            raise PriceSheetError(f"{where}: {key} is missing; it says how far the prices can be trusted")
    for key in _TEXTS:
        if not isinstance(document[key], str) or not document[key].strip():
            raise PriceSheetError(f"{where}: {key} must be a text, not {document[key]!r}")
    date = document["date"]
    if isinstance(date, datetime.datetime) or not isinstance(date, datetime.date):
        raise PriceSheetError(f"{where}: date must be a date without quotes, e.g. date = 2026-01-31, not {date!r}")
    included = _operations(document.get("included_operations", 0), "included_operations", where)
    return PriceSheet(
        name=document["name"],
        date=date,
        source=document["source"],
        currency=document["currency"],
        base_fee=_price(document.get("base_fee", 0), "base_fee", where),
        included_operations=included,
        tiers=_tiers(document.get("tiers", []), included, where),
    )


def _tiers(found: object, included: int, where: str) -> tuple[Tier, ...]:
    if not isinstance(found, Sequence) or not all(isinstance(each, Mapping) for each in found):
        raise PriceSheetError(f"{where}: tiers must be tables, each under a line [[tiers]]")
    tiers: list[Tier] = []
    floor = included
    for number, table in enumerate(found, start=1):
        place = f"{where}: tier {number}"
        _require_known(table, _TIER_KEYS, place)
        if "per_million" not in table:
            raise PriceSheetError(f"{place}: per_million is missing")
        up_to = None if "up_to" not in table else _operations(table["up_to"], "up_to", place)
        if (up_to is None) != (number == len(found)):
            raise PriceSheetError(
                f"{place}: the last tier, and only the last, goes without up_to, so that every operation has a price"
            )
        if up_to is not None and up_to <= floor:
            raise PriceSheetError(
                f"{place}: up_to = {up_to:,} is not above {floor:,}, where the tier begins; it counts all operations "
                "of the month, the included ones too"
            )
        floor = up_to or floor
        tiers.append(Tier(up_to, _price(table["per_million"], "per_million", place)))
    return tuple(tiers)


def _require_known(table: Mapping[str, Any], known: Sequence[str], where: str) -> None:
    for key in table:
        if key not in known:
            near = difflib.get_close_matches(key, known, n=1)
            hint = f"did you mean {near[0]}?" if near else f"known are {', '.join(known)}"
            raise PriceSheetError(f"{where}: unknown key {key}; {hint}")


def _price(value: object, key: str, where: str) -> float:
    if isinstance(value, bool) or not isinstance(value, (int, float)) or not 0 <= value < math.inf:
        raise PriceSheetError(f"{where}: {key} must be a number, not negative, not {value!r}")
    return float(value)


def _operations(value: object, key: str, where: str) -> int:
    if isinstance(value, bool) or not isinstance(value, int) or value < 0:
        raise PriceSheetError(f"{where}: {key} must be a whole number, not negative, not {value!r}")
    return value
