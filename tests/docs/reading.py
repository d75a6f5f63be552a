"""Reads the documentation: its files, code blocks, links and tables.

A Python block that follows a line ``<!-- run -->`` is run, with real brokers in the place of ``main-broker`` and
``spare-broker``, or emulated namespaces in the place of ``contoso`` and ``contoso-dr``; every other one is compiled.
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import cast

from kombu_paired.brokers.servicebus.address import Address
from kombu_paired.testing import Kind

ROOT = Path(__file__).resolve().parents[2]
DOCS = ROOT / "docs"
FILES = [ROOT / "README.md", *sorted(DOCS.glob("*.md")), *sorted((ROOT / "examples").glob("*/README.md"))]

_FENCE = re.compile(
    r"^(?P<indent> *)(?P<fence>```+)(?P<language>\w*)[^\n]*\n(?P<text>.*?)^ *(?P=fence)[ ]*$", re.M | re.S
)
_LINK = re.compile(r"(?<!!)\[[^\]]+\]\((?P<target>[^)\s]+)\)")
_HEADING = re.compile(r"^#+ +(?P<title>.+?) *$", re.M)
_HOST = re.compile(r"(?P<scheme>amqp|redis)://(?P<host>main|spare)-broker[^\"'\s;]*")
_NAMESPACE = re.compile(r"azureservicebus://[^\"'\s]*@contoso(?P<spare>-dr)?(?![\w-])[^\"'\s;]*")
_LOCAL_BROKER = re.compile(r"local_broker\(\"(?P<kind>\w+)\"\)")
_CONNECTION_STRING = re.compile(r"Endpoint=sb://contoso(?P<spare>-dr)?\.[^\"']*")


@dataclass(frozen=True)
class Block:
    """One fenced block of code."""

    path: Path
    line: int
    language: str
    text: str
    runs: bool

    def __str__(self) -> str:
        return f"{self.path.relative_to(ROOT)}:{self.line}"

    @property
    def kind(self) -> Kind:
        """The broker that it is about."""
        if _NAMESPACE.search(self.text) or _CONNECTION_STRING.search(self.text):
            return "azureservicebus"
        local = _LOCAL_BROKER.search(self.text)
        if local is not None:
            return cast(Kind, local["kind"])
        found = _HOST.search(self.text)
        return "redis" if found and found["scheme"] == "redis" else "amqp"

    def with_brokers(self, main: str, spare: str) -> str:
        """Its text, with these URLs in the place of the two names."""
        text = _HOST.sub(lambda found: main if found["host"] == "main" else spare, self.text)
        text = _NAMESPACE.sub(lambda found: spare if found["spare"] else main, text)
        return _CONNECTION_STRING.sub(
            lambda found: Address.parse(spare if found["spare"] else main).connection_string, text
        )


def blocks(path: Path) -> Iterator[Block]:
    text = path.read_text()
    for found in _FENCE.finditer(text):
        before = text[: found.start()].rstrip("\n").rsplit("\n", 1)[-1].strip()
        line = text.count("\n", 0, found.start()) + 1
        indent = len(found["indent"])
        body = "".join(each[indent:] if each.strip() else each for each in found["text"].splitlines(keepends=True))
        yield Block(path, line, found["language"], body, before == "<!-- run -->")


def all_blocks(language: str) -> list[Block]:
    return [block for path in FILES for block in blocks(path) if block.language == language]


def prose(path: Path) -> str:
    """The text without its code blocks."""
    return _FENCE.sub("", path.read_text())


def links(path: Path) -> list[str]:
    return [found["target"] for found in _LINK.finditer(prose(path))]


def anchors(path: Path) -> set[str]:
    """The names by which GitHub links to headings."""
    titles = (found["title"] for found in _HEADING.finditer(prose(path)))
    return {re.sub(r"[^\w\- ]", "", title.lower()).replace(" ", "-") for title in titles}


def section(path: Path, title: str) -> str:
    """The text below a heading, as far as the next heading of any level."""
    text = path.read_text()
    found = re.search(rf"^#+ +{re.escape(title)} *\n(?P<text>.*?)(?=^#|\Z)", text, re.M | re.S)
    if found is None:
        raise LookupError(f"{path.name} has no heading {title!r}")
    return found["text"]


def table(text: str) -> list[dict[str, str]]:
    """The rows of the first table in a text, by the titles of its columns."""
    lines = [line.strip() for line in text.splitlines()]
    start = next(index for index, line in enumerate(lines) if line.startswith("|"))
    rows = []
    for line in lines[start:]:
        if not line.startswith("|"):
            break
        rows.append([cell.strip() for cell in line.strip("|").split("|")])
    titles, _, *body = rows
    return [dict(zip(titles, row, strict=True)) for row in body]


def code(text: str) -> list[str]:
    """What stands between backticks."""
    return re.findall(r"`([^`]+)`", text)
