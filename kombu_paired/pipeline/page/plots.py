"""The plots of the page, as inline SVG. They are drawn 360 units wide: on a phone a unit is about a pixel."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence

from kombu_paired.pipeline.page.facts import Outage, Row
from kombu_paired.pipeline.page.markup import Markup, element
from kombu_paired.pipeline.page.style import COLOURS
from kombu_paired.pipeline.page.words import clock, count, duration, shortened

__all__ = ("bar", "legend", "settings_plot", "timeline")

WIDTH = 360
#: Of the text in a plot.
SIZE = 10.5
_LINE = 15
_ROW, _GAP = 9, 5
_CURVE = 64


def bar(share: float, colour: str = COLOURS["bar"]) -> Markup:
    """A bar of a table's row; what is above nothing shows."""
    width = 0 if share <= 0 else max(100 * min(share, 1), 0.7)
    drawn = element("rect", x=0, y=0, width=f"{width:.2f}", height=10, fill=colour)
    box = {"viewBox": "0 0 100 10", "preserveAspectRatio": "none", "aria-hidden": "true"}
    return element("svg", drawn, class_="bar", **box)


def legend(*names: tuple[str, str]) -> Markup:
    """Colour and meaning of each part."""

    def one(colour: str, meaning: str) -> Markup:
        square = element("rect", width=10, height=10, fill=COLOURS[colour])
        return element("span", element("svg", square, viewBox="0 0 10 10", aria_hidden="true"), meaning)

    return element("div", *(one(*each) for each in names), class_="legend")


def _text(x: float, y: float, text: str, anchor: str = "start", colour: str = "text", weight: int = 400) -> Markup:
    return element(
        "text",
        text,
        x=f"{x:.1f}",
        y=f"{y:.1f}",
        text_anchor=anchor,
        font_size=SIZE,
        font_weight=weight,
        style=f"fill:{COLOURS[colour]}",
    )


def _rect(x: float, y: float, width: float, height: float, colour: str) -> Markup:
    return element(
        "rect", x=f"{x:.2f}", y=f"{y:.2f}", width=f"{max(width, 0.8):.2f}", height=height, fill=COLOURS[colour]
    )


# -- an outage --------------------------------------------------------------------------------------------------------


def timeline(outage: Outage) -> Markup:
    """From the first failure to the end: what failed when, and how many messages were in the backlog."""
    first, until = int(outage.row["first_failure_at"]), outage.until
    scale = WIDTH / (until - first)

    def place(time: int) -> float:
        return float(min(max(time, first), until) - first) * scale

    parts: list[Markup] = []
    y = 0.0
    for row in outage.entities:
        parts.append(_text(0, y + SIZE, shortened(row["entity"], 44)))
        y += _LINE
        parts += _spans(row, place, y)
        y += _ROW + _GAP
    if max(outage.backlog, default=0) > 0:
        parts.append(_curve(outage.backlog, y))
        parts.append(_text(0, y + SIZE, f"messages in the backlog, at most {count(max(outage.backlog))}"))
        y += _LINE + _CURVE
    parts.append(element("line", x1=0, x2=WIDTH, y1=y + 0.5, y2=y + 0.5, stroke=COLOURS["soft"], stroke_width=0.8))
    parts.append(_text(0, y + _LINE, clock(first), colour="soft"))
    parts.append(_text(WIDTH, y + _LINE, clock(until), "end", "soft"))
    parts.append(_text(WIDTH / 2, y + _LINE, duration((until - first) / 1e6), "middle", "soft"))
    label = f"Timeline of the outage of {outage.row['pairing']} from {clock(first)} to {clock(until)}"
    box = {"viewBox": f"0 0 {WIDTH} {y + _LINE + 5:.1f}", "role": "img", "aria-label": label}
    return element("svg", *parts, **box)


def _spans(row: Row, place: Callable[[int], float], y: float) -> list[Markup]:
    begin, over = row["first_failure_at"], row["failed_over_at"]
    end, drained = row["restored_at"] or row["ended_at"], row["drained_at"]
    parts = [_rect(0, y, WIDTH, _ROW, "grid")]
    parts.append(_rect(place(begin), y, place(over or end) - place(begin), _ROW, "suspect"))
    if over:
        parts.append(_rect(place(over), y, place(end) - place(over), _ROW, "failed_over"))
    if drained and drained > end:
        parts.append(_rect(place(end), y, place(drained) - place(end), _ROW, "draining"))
    return parts


def _curve(levels: Sequence[int], y: float) -> Markup:
    bottom, most = y + _LINE + _CURVE, max(levels)
    step = WIDTH / (len(levels) - 1)
    points = [f"{number * step:.1f},{bottom - level / most * _CURVE:.1f}" for number, level in enumerate(levels)]
    path = f"M0,{bottom:.1f}L{'L'.join(points)}L{WIDTH},{bottom:.1f}Z"
    return element("path", d=path, fill=COLOURS["backlog"], fill_opacity=0.35, stroke=COLOURS["backlog"])


# -- what if ----------------------------------------------------------------------------------------------------------


def settings_plot(settings: Sequence[Row]) -> Markup:
    """Each setting by its operations and its seconds to notice a recovery, both by their logarithm."""
    left, top, bottom, right = 8.0, 30.0, 190.0, 352.0
    xs, ys = _Axis([row["operations"] for row in settings]), _Axis([row["notice_s"] or 0.0 for row in settings])
    parts = [
        _text(0, SIZE, "seconds to notice a recovery", colour="soft"),
        _text(right, bottom + 2 * _LINE, "operations →", "end", "soft"),
    ]
    for value in xs.marks():
        x = left + xs.share(value) * (right - left)
        parts.append(_line(x, top, x, bottom))
        parts.append(_text(x, bottom + _LINE, count(int(value)), "middle", "soft"))
    for value in ys.marks():
        y = bottom - ys.share(value) * (bottom - top)
        parts.append(_line(left, y, right, y))
        parts.append(_text(left + 2, y - 2, f"{value:g} s", colour="soft"))
    for row in sorted(settings, key=lambda each: (each["is_recommended"], each["is_recorded"])):
        x = left + xs.share(row["operations"]) * (right - left)
        y = bottom - ys.share(row["notice_s"] or 0.0) * (bottom - top)
        parts.append(_point(x, y, row))
    label = "Settings on the front, by operations and by the time to notice a recovery"
    return element("svg", *parts, viewBox=f"0 0 {WIDTH} {bottom + 2 * _LINE + 5:.0f}", role="img", aria_label=label)


def _line(x1: float, y1: float, x2: float, y2: float) -> Markup:
    places = {"x1": f"{x1:.1f}", "y1": f"{y1:.1f}", "x2": f"{x2:.1f}", "y2": f"{y2:.1f}"}
    return element("line", stroke=COLOURS["grid"], stroke_width=0.8, **places)


def _point(x: float, y: float, row: Row) -> Markup:
    at = {"cx": f"{x:.1f}", "cy": f"{y:.1f}"}
    if row["is_recommended"]:
        return element("circle", r=6, fill=COLOURS["good"], stroke="#fff", **at)
    if row["is_recorded"]:
        return element("circle", r=5, fill="#fff", stroke=COLOURS["failed_over"], stroke_width=2.5, **at)
    return element("circle", r=3, fill=COLOURS["bar"], fill_opacity=0.6, **at)


class _Axis:
    """From the least value to the most, by the logarithm of one more."""

    def __init__(self, values: Sequence[float]) -> None:
        low, high = min(values), max(values)
        self._low, self._high = math.log1p(low * 0.9), math.log1p(high * 1.1 + 1)
        self._values = low, high

    def share(self, value: float) -> float:
        return (math.log1p(value) - self._low) / (self._high - self._low)

    def marks(self) -> list[float]:
        """A few round values, not too near to the edges or each other."""
        found: list[float] = []
        for power in range(0, 16):
            for digit in (1, 1.5, 2, 3, 5, 7):
                value = float(digit * 10**power)
                share = self.share(value)
                if 0.08 <= share <= 0.92 and (not found or share - self.share(found[-1]) >= 0.16):
                    found.append(value)
        return found
