"""The pages for who changes the project: the files that they name are there, and they keep to their forms."""

from __future__ import annotations

import re

from tests.docs.reading import DOCS, ROOT, code, prose, section, table

ARCHITECTURE, CONTRIBUTING, CHANGELOG = (DOCS / f"{name}.md" for name in ("architecture", "contributing", "changelog"))
_FILE = re.compile(r"(kombu_paired|tests|docs|\.ci)/[\w./]+")


def test_the_files_that_the_pages_name_are_there():
    named = {name for page in (ARCHITECTURE, CONTRIBUTING) for name in code(prose(page)) if _FILE.fullmatch(name)}
    assert len(named) > 20
    assert {name for name in named if not (ROOT / name).exists()} == set()


def test_the_changelog_begins_with_what_is_not_released_and_keeps_to_the_form():
    text = CHANGELOG.read_text()
    versions = re.findall(r"^## (.+)$", text, re.M)
    assert versions[0] == "[Unreleased]"
    assert all(re.fullmatch(r"\[\d+\.\d+\.\d+\] - \d{4}-\d\d-\d\d", version) for version in versions[1:])
    kinds = set(re.findall(r"^### (.+)$", text, re.M))
    assert kinds <= {"Added", "Changed", "Deprecated", "Removed", "Fixed", "Security"}


def test_the_words_are_the_same_for_users_and_for_the_code():
    for_users = section(DOCS / "how-it-works.md", "How it works").partition("The words")[2]
    assert table(for_users) == table(section(ARCHITECTURE, "The words"))


def test_every_step_of_a_trip_is_in_its_file():
    steps = re.findall(r"^ *([\w/]+\.py) +(?:(\w+)\.)?(\w+)", section(ARCHITECTURE, "The trip of a message"), re.M)
    assert len(steps) > 20
    for file, owner, name in steps:
        source = (ROOT / "kombu_paired" / file).read_text()
        assert f"def {name}(" in source, (file, name)
        assert not owner or f"class {owner}" in source, (file, owner)
