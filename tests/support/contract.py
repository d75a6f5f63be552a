"""Holds the private names that a ``compat`` room relies on against the versions that are installed, and against use."""

from __future__ import annotations

import ast
import inspect
import re
from collections.abc import Iterable, Iterator, Mapping
from functools import cache
from importlib import import_module
from importlib.metadata import version
from textwrap import dedent
from types import ModuleType
from typing import Any

_VARIADIC = (inspect.Parameter.VAR_POSITIONAL, inspect.Parameter.VAR_KEYWORD)
_NOTHING = object()


def broken_promises(package: str, relies_on: Mapping[str, Iterable[str]]) -> list[str]:
    """A sentence for each name that the installed version lacks, or that takes other parameters.

    Arguments:
        package: whose names they are, as pip knows it.
        relies_on: owner, a module or ``module:class``, -> names; of a method with the parameters that are given or
            overridden, in parentheses.
    """
    found = (_broken(owner, each) for owner, names in relies_on.items() for each in names)
    return [f"{package} {version(package)}: {sentence}" for sentence in found if sentence]


def unlisted(relies_on: Mapping[str, Iterable[str]], owner: str, *ours: Any) -> set[str]:
    """Private names of an owner that ours use or override as its subclasses, and that nobody wrote down.

    One that was meant to be new, and which a later version of the owner has, too, is among them.
    """
    listed = {each.partition("(")[0] for names in relies_on.values() for each in names}
    used = {name for each in ours for is_own, name in private_names(_source(each)) if is_own}
    holder = _holder(owner)
    return {name for name in used - listed if _has(holder, name)}


def private_names(source: str) -> Iterator[tuple[bool, str]]:
    """Private names in a text, and of each whether it is one of the class in which it stands, or somebody else's."""
    for node in ast.walk(ast.parse(dedent(source))):
        if isinstance(node, ast.Attribute) and _is_private(node.attr):
            yield ast.unparse(node.value) in ("self", "super()"), node.attr
        elif isinstance(node, ast.FunctionDef) and _is_private(node.name):
            yield True, node.name


_source = cache(inspect.getsource)  # it reads a whole module for each class


def _is_private(name: str) -> bool:
    return name.startswith("_") and not name.startswith("__")


def _holder(owner: str) -> Any:
    module, _, name = owner.partition(":")
    return getattr(import_module(module), name) if name else import_module(module)


def _broken(owner: str, promise: str) -> str | None:
    try:
        holder = _holder(owner)
    except (ImportError, AttributeError):
        return f"{owner} is gone"
    name, is_method, parameters = promise.partition("(")
    if not is_method:
        return None if _has(holder, name) else f"{owner} has no {name}"
    if inspect.getattr_static(holder, name, None) is None:
        return f"{owner} has no {name}"
    wanted = [each for each in parameters.rstrip(")").split(", ") if each]
    taken = inspect.signature(getattr(holder, name)).parameters
    needed = {each.name for each in taken.values() if each.default is each.empty and each.kind not in _VARIADIC}
    if needed <= {"self", *wanted} <= {"self", *taken}:
        return None
    return f"{owner}.{name} takes {', '.join(sorted(taken))}, and not {', '.join(wanted)}"


def _has(holder: Any, name: str) -> bool:
    """Whether a module or a class has an attribute, or gives it to instances: itself, or what it is made of."""
    if inspect.getattr_static(holder, name, _NOTHING) is not _NOTHING:
        return True
    classes = [] if isinstance(holder, ModuleType) else [each for each in holder.__mro__ if each is not object]
    written = re.compile(rf"\bself\.{name}\b")
    return any(written.search(_source(each)) for each in classes if each.__module__ != "builtins")
