"""``docs/architecture.md`` is what code cites: every rule that is cited is there, and the house is drawn as it is."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

from tests.docs.reading import code, section, table
from tests.unit.test_floors import APART, FLOORS, FLOORS_WITHIN, PACKAGE

ROOT = Path(__file__).resolve().parents[2]
PAGE = ROOT / "docs" / "architecture.md"
CITING = sorted(
    path
    for folder in ("kombu_paired", "tests", "docs", "examples")
    for path in (ROOT / folder).rglob("*")
    if path.suffix in {".py", ".md", ".lua", ".toml"} and path not in (PAGE, Path(__file__))
)

#: A citation, and where it ends if it is one of several rules.
_CITED = re.compile(r"docs/architecture\.md, rules? (\d+)(?: (?:to|and) (\d+))?")
#: What speaks of a rule by its number, with the page or without.
_RULE = re.compile(r"\brules? \d+")


def text_of(path: Path) -> str:
    """What a file says, as one line: a sentence may go on in the next comment."""
    return re.sub(r"\s*\n\s*(?:#:? )?", " ", path.read_text())


def rules() -> list[int]:
    return [int(number) for number in re.findall(r"^(\d+)\. ", PAGE.read_text(), re.M)]


def cited_in(text: str) -> set[int]:
    """Every rule that a text cites, those between two ends too."""
    found = set()
    for first, last in _CITED.findall(text):
        found |= set(range(int(first), int(last or first) + 1))
    return found


def test_the_rules_are_numbered_without_a_gap():
    assert rules() == list(range(1, len(rules()) + 1))


@pytest.mark.parametrize("citation", ["rule 9", "rules 6 and 7", "rules 12 to 14"])
def test_a_citation_is_found_across_lines(citation):
    first, *last = map(int, re.findall(r"\d+", citation))
    assert cited_in(f"(docs/architecture.md, {citation})") == set(range(first, (last or [first])[0] + 1))


def test_every_rule_that_is_cited_is_there():
    cited = {path: cited_in(text_of(path)) for path in CITING}
    assert sum(map(bool, cited.values())) >= 9
    assert {path: numbers - set(rules()) for path, numbers in cited.items() if numbers - set(rules())} == {}


def test_no_rule_is_cited_without_the_page_that_has_it():
    without = [path for path in CITING if _RULE.search(_CITED.sub("", text_of(path)))]
    assert without == []


def drawn(text: str, column: str) -> list[set[str]]:
    """The floors in the first table of a text, from the ground up."""
    floors: dict[int, set[str]] = {}
    for row in table(text):
        floors.setdefault(int(row["floor"]), set()).update(code(row[column]))
    assert list(floors) == list(range(1, len(floors) + 1))
    return list(floors.values())


def test_the_floors_are_drawn_as_they_are():
    rooms = drawn(section(PAGE, "The house"), "rooms")
    assert [{room.removeprefix(PACKAGE) for room in floor} for floor in rooms] == FLOORS


def test_the_rooms_that_stand_apart_are_drawn_as_they_are():
    rows = table(section(PAGE, "The house").partition("stand apart")[2])
    assert {room: {room, *code(row["knows"])} for row in rows for room in code(row["room"])} == APART


def test_the_floors_of_the_pipeline_are_drawn_as_they_are():
    rooms = drawn(section(PAGE, "The house").partition("floors of its own")[2], "rooms of `pipeline`")
    assert rooms == [floor - {""} for floor in FLOORS_WITHIN["pipeline"]]
