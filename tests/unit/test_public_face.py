"""The public face: the names that ``kombu_paired`` gives away, each from its room and none before it is used."""

from __future__ import annotations

import ast
import importlib
import re
from pathlib import Path

import pytest

import kombu_paired

FACE = Path(kombu_paired.__file__)
PROJECT = FACE.parents[1] / "pyproject.toml"


def test_all_names_are_those_of_the_rooms():
    assert list(kombu_paired.__all__) == sorted(kombu_paired._ROOM_OF)


@pytest.mark.parametrize("name", kombu_paired.__all__)
def test_a_name_is_the_one_of_its_room(name):
    home = f"{getattr(kombu_paired, name).__module__}."
    assert home.startswith(f"kombu_paired.{kombu_paired._ROOM_OF[name]}.")
    assert name in dir(kombu_paired)


def test_types_know_the_names_that_programs_find():
    [for_types] = [node for node in ast.parse(FACE.read_text()).body if isinstance(node, ast.If)]
    known = {
        alias.name: node.module for node in for_types.body if isinstance(node, ast.ImportFrom) for alias in node.names
    }
    assert known == {name: f"kombu_paired.{room}" for name, room in kombu_paired._ROOM_OF.items()}


def test_who_catches_and_who_listens_needs_no_other_import():
    assert {"PairingClosed", "PrimaryUnavailable", "Event", "EventKind"} <= set(kombu_paired.__all__)


def test_an_unknown_name_is_an_attribute_error():
    with pytest.raises(AttributeError, match="no attribute 'nonsense'"):
        kombu_paired.nonsense  # noqa: B018


def test_the_version_is_written_once():
    project = PROJECT.read_text()
    assert 'version = { attr = "kombu_paired.__version__" }' in project
    assert re.findall(r'^version = "', project, re.M) == []
    numbers = [path for path in FACE.parent.rglob("*.py") if f'"{kombu_paired.__version__}"' in path.read_text()]
    assert numbers == [FACE]


@pytest.mark.parametrize("name", ["base", "kombu", "redis_transport", "servicebus.transport"])
def test_the_old_import_path_of_a_broker_s_module_goes_on_working(name):
    old = importlib.import_module(f"kombu_paired.namespaces.{name}")
    classes = [each for each in vars(old).values() if isinstance(each, type)]
    assert classes
    assert all(each.__module__.startswith("kombu_paired.brokers.") for each in classes)
