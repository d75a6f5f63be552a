"""Versions that may be installed are those whose private names were looked at."""

from __future__ import annotations

import importlib
import pkgutil
import re
from collections.abc import Iterator
from pathlib import Path

import pytest

import kombu_paired

PROJECT = (Path(kombu_paired.__file__).parents[1] / "pyproject.toml").read_text()
#: Packages by the modules that they are imported as, where the names differ.
PACKAGES = {"azure": "azure-servicebus"}


def contracts() -> Iterator[str]:
    """Packages of whose private names a module of the house has a list."""
    for found in pkgutil.walk_packages(kombu_paired.__path__, "kombu_paired."):
        if found.name.endswith(".compat"):
            for owner in importlib.import_module(found.name).RELIES_ON:
                module = owner.split(".")[0].split(":")[0]
                yield PACKAGES.get(module, module)


def test_there_are_contracts():
    assert {"kombu", "amqp", "redis"} <= set(contracts())


@pytest.mark.parametrize("package", sorted(set(contracts())))
def test_each_package_whose_private_names_are_used_has_an_upper_bound_wherever_it_is_asked_for(package):
    asked_for = re.findall(rf'"{package}(?:\[\w+\])?([^"]*)"', PROJECT)
    versions = [each for each in asked_for if re.search(r"[<>=]", each)]
    assert versions
    assert [each for each in versions if "<" not in each] == []
