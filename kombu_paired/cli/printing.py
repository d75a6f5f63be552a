"""How commands say things: words for durations and counts, and lines that fit into 80 columns."""

from __future__ import annotations

import textwrap

import click

__all__ = ("WIDTH", "bad", "bar", "counted", "duration", "good", "heading", "paragraph")

WIDTH = 80


def duration(seconds: float) -> str:
    """Seconds as people say them, in the two largest units: ``3 min 20 s``."""
    if seconds < 10:
        return f"{max(seconds, 0):.1f} s"
    whole = int(seconds)
    units = [(86400, "d"), (3600, "h"), (60, "min"), (1, "s")]
    parts: list[tuple[int, str]] = []
    for size, name in units:
        count, whole = divmod(whole, size)
        if count or parts:
            parts.append((count, name))
    return " ".join(f"{count} {name}" for count, name in parts[:2] if count)


def counted(count: int, thing: str) -> str:
    """``1 message``, ``2 messages``."""
    return f"{count:,} {thing}{'' if count == 1 else 's'}"


def bar(value: float, largest: float, width: int) -> str:
    """A bar whose length is to ``width`` as ``value`` is to ``largest``; anything above zero can be seen."""
    if value <= 0 or largest <= 0:
        return ""
    eighths = max(1, round(8 * width * value / largest))
    return "█" * (eighths // 8) + " ▏▎▍▌▋▊▉"[eighths % 8].strip()


def good(text: str) -> str:
    return click.style(text, fg="green")


def bad(text: str) -> str:
    return click.style(text, fg="red", bold=True)


def heading(text: str) -> str:
    return click.style(text, bold=True)


def paragraph(text: str, indent: int) -> str:
    """A text in lines, each ``indent`` columns to the right. URLs are not broken."""
    margin = " " * indent
    return textwrap.fill(
        text, WIDTH, initial_indent=margin, subsequent_indent=margin, break_long_words=False, break_on_hyphens=False
    )
