"""What a URL of a spool says: ``spool:///var/lib/shop/spool?max_size=2GB``. Pure."""

from __future__ import annotations

import difflib
import os.path
import re
from dataclasses import dataclass
from functools import lru_cache
from urllib.parse import parse_qsl, unquote, urlsplit

from kombu_paired.errors import ConfigurationError

__all__ = ("SpoolAddress", "shown_size")

_SIZE = re.compile(r"(\d+(?:\.\d+)?)\s*([KMGT]i?)?B?", re.IGNORECASE)
_POWERS = {"": 0, "K": 1, "M": 2, "G": 3, "T": 4}
#: Bytes; the file alone takes some, and less than this would be full at once.
SMALLEST = 1_000_000
_EXAMPLE = "spool:///var/lib/shop/spool?max_size=2GB"


@dataclass(frozen=True)
class SpoolAddress:
    """Where a spool is, and how large it may become.

    Attributes:
        folder: an absolute path.
        max_size: bytes that messages may take there; None for as many as the disk has.
    """

    folder: str
    max_size: int | None = None

    @classmethod
    @lru_cache(maxsize=64)
    def of(cls, url: str) -> SpoolAddress:
        """The address in a URL.

        Raises:
            ConfigurationError: the URL makes no sense; the text says why, and what would.
        """
        parts = urlsplit(url)
        if parts.netloc or not parts.path.startswith("/"):
            raise ConfigurationError(
                "the folder of a spool is an absolute path on this machine, so that its URL has three slashes: "
                f"{_EXAMPLE}"
            )
        folder = unquote(parts.path, errors="surrogateescape")
        if parts.fragment or "\0" in folder:
            raise ConfigurationError(f"write '#' of a spool's folder as %23, and no NUL: {_EXAMPLE}")
        folder = os.path.normpath(folder)
        if folder.strip("/") == "":
            raise ConfigurationError(f"a spool needs a folder of its own, and '/' is none: {_EXAMPLE}")
        return cls(folder, _max_size(parts.query))


def _max_size(query: str) -> int | None:
    found = None
    for name, value in parse_qsl(query, keep_blank_values=True):
        if name != "max_size":
            near = difflib.get_close_matches(name, ["max_size"], n=1)
            hint = f"did you mean '{near[0]}'?" if near else "it knows 'max_size'"
            raise ConfigurationError(f"'{name}' is nothing that a spool's URL may say: {hint} {_EXAMPLE}")
        found = _size(value)
    return found


def _size(text: str) -> int:
    match = _SIZE.fullmatch(text.strip())
    if match is None:
        raise ConfigurationError(
            f"'max_size' of a spool is a number of bytes with KB, MB, GB or TB (or KiB, …) after it, not {text!r}"
        )
    unit = (match[2] or "").upper()
    size = int(float(match[1]) * (1024 if unit.endswith("I") else 1000) ** _POWERS[unit.rstrip("I")])
    if size < SMALLEST:
        raise ConfigurationError(f"'max_size' of a spool is at least {shown_size(SMALLEST)}, not {text!r}")
    return size


def shown_size(size: float) -> str:
    """Bytes, for people."""
    for unit in ("bytes", "KB", "MB", "GB"):
        if size < 1000:
            return f"{size:.3g} {unit}"
        size /= 1000
    return f"{size:.4g} TB"
