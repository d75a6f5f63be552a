"""Numbers and times as people read them. Times are in UTC."""

from __future__ import annotations

from datetime import datetime, timedelta, timezone

__all__ = ("clock", "count", "counted", "day_and_clock", "duration", "money", "shortened")

_EPOCH = datetime(1970, 1, 1, tzinfo=timezone.utc)


def count(number: int) -> str:
    """``1,204,331``."""
    return f"{number:,}"


def counted(number: int, one: str, many: str | None = None) -> str:
    """``1 message``, ``2 messages``."""
    return f"{number:,} {one if number == 1 else many or one + 's'}"


def money(amount: float | None, currency: str) -> str:
    """``0.0123 USD``: small sums keep digits that say something."""
    if amount is None:
        return ""
    digits = 2 if amount == 0 or round(amount, 2) >= 1 else 4
    return f"{amount:,.{digits}f} {currency}"


def duration(seconds: float | None) -> str:
    """``0.3 s``, ``42 s``, ``8 min 5 s``, ``2 h 10 min``, ``3 days 4 h``; a number stays with its unit."""
    if seconds is None:
        return "not known"
    if seconds < 9.95:
        return f"{seconds:.1f}".removesuffix(".0") + "\u00a0s"
    whole = round(seconds)
    for size, unit, small_size, small in ((86400, "day", 3600, "h"), (3600, "h", 60, "min"), (60, "min", 1, "s")):
        if whole >= size:
            large, rest = divmod(whole, size)
            rest //= small_size
            name = f"{unit}s" if unit == "day" and large > 1 else unit
            return f"{large}\u00a0{name}" + (f" {rest}\u00a0{small}" if rest else "")
    return f"{whole}\u00a0s"


def _moment(micros: int) -> datetime:
    return _EPOCH + timedelta(microseconds=micros)


def clock(micros: int) -> str:
    """``05:12:31``."""
    return f"{_moment(micros):%H:%M:%S}"


def day_and_clock(micros: int) -> str:
    """``2 March 2026, 05:12:31``."""
    moment = _moment(micros)
    return f"{moment.day} {moment:%B %Y, %H:%M:%S}"


def shortened(text: str, most: int) -> str:
    """Without its middle, if it is longer."""
    if len(text) <= most:
        return text
    half = (most - 1) // 2
    return f"{text[: most - 1 - half]}…{text[-half:]}"
