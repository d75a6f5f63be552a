"""docs/django.md: its tables are those of the code."""

from __future__ import annotations

import re

from kombu_paired.contrib.django import views
from kombu_paired.health_check import Health, NamespaceHealth
from tests.docs.reading import DOCS, ROOT, code, section, table

PAGE = DOCS / "django.md"


def named_in(title: str) -> set[str]:
    """What the first column of a section's table names."""
    return {name for row in table(section(PAGE, title)) for name in code(next(iter(row.values())))}


def test_every_check_has_its_row():
    source = (ROOT / "kombu_paired" / "contrib" / "django" / "checks.py").read_text()
    assert named_in("Checks") == set(re.findall(r"kombu_paired\.[EW]\d+", source))


def test_every_command_has_its_row():
    folder = ROOT / "kombu_paired" / "contrib" / "django" / "management" / "commands"
    assert named_in("Commands") == {f"manage.py {each.stem}" for each in folder.glob("paired_*.py")}


def test_everything_that_the_health_page_says_has_its_row():
    side = NamespaceHealth("uri", True)
    assert named_in("A health page") == set(views.facts(Health("name", side, side)))
