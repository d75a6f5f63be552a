"""HTML elements as functions. Text is escaped unless it was made here."""

from __future__ import annotations

import html
import re

__all__ = ("Markup", "element", "joined")

#: Characters that no HTML may hold, and those that turn the direction of the text around them.
_UNSEEN = re.compile("[\x00-\x08\x0b\x0c\x0e-\x1f\x7f-\x9f\u202a-\u202e\u2066-\u2069\ud800-\udfff\ufffe\uffff]")
_EMPTY = frozenset({"meta", "br", "rect", "line", "circle", "path"})


class Markup(str):
    """Text that is HTML already."""

    __slots__ = ()


def escaped(text: object) -> Markup:
    if isinstance(text, Markup):
        return text
    return Markup(html.escape(_UNSEEN.sub("\ufffd", str(text)), quote=True))


def joined(*parts: object) -> Markup:
    """Texts and elements, one after the other."""
    return Markup("".join(escaped(part) for part in parts))


def element(name: str, /, *children: object, **attributes: object) -> Markup:
    """An element. An attribute's underscores are hyphens; one at its end is left out, as in ``class_``."""
    given = {key.rstrip("_").replace("_", "-"): value for key, value in attributes.items() if value is not None}
    inside = "".join(f' {key}="{escaped(value)}"' for key, value in given.items())
    if name in _EMPTY:
        return Markup(f"<{name}{inside}>" if name in ("meta", "br") else f"<{name}{inside}/>")
    return Markup(f"<{name}{inside}>{joined(*children)}</{name}>")
