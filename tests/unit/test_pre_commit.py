"""What is checked before a commit is what ``tests/run`` checks."""

from __future__ import annotations

import re
from pathlib import Path

ROOT = Path(__file__).resolve().parents[2]


def lane(name: str) -> list[str]:
    """The commands of a lane of ``tests/run`` that has one line."""
    found = re.search(rf"^{name}\(\) \{{ (.+); \}}$", (ROOT / "tests" / "run").read_text(), re.M)
    assert found
    return [command.replace("$bin/", ".venv-tests/bin/") for command in found[1].split(" && ")]


def test_the_hooks_are_the_lanes_of_lint_and_types():
    hooks = re.findall(r"^ +entry: (.+)$", (ROOT / ".pre-commit-config.yaml").read_text(), re.M)
    assert hooks == [*lane("lint"), *lane("types")]
