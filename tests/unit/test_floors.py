"""The house: imports run only downwards, and what is optional is imported where it is needed."""

from __future__ import annotations

import ast
import subprocess
import sys
from functools import cache
from graphlib import TopologicalSorter
from pathlib import Path

import pytest

import kombu_paired

PACKAGE = "kombu_paired"
HOUSE = Path(kombu_paired.__file__).parent

#: From the ground up. A room is a module, or a package with all that is in it but for what is named apart.
FLOORS = [
    {
        "outage",
        *("options", "parsing", "errors", "urls", "connection_strings", "secrets", "showing", "registration"),
        *("stopping", "bounded"),
        *("process", "forks", "interrupts", "message", "marks", "failures", "deadline", "declarations"),
        *("stand_in", "isolation"),
        # The rules of the pairing are pure, too.
        *(f"pairing.{each}" for each in ("call", "circuit", "clocks", "doubts", "last_send", "raising", "reach")),
        "pairing.rotation",
    },
    {"events"},
    {"brokers", "namespaces", "journal"},
    {"pairing", "syphon", "dead_letters"},
    {"transport", "driver_errors", "connection_settings", "assembling", "publish_batch"},
    {"contrib", "cli", "health_check", ""},  # "" is the public face, kombu_paired/__init__.py
    {"testing"},  # the product ends below: nothing of it imports what is from here on
    {"demo"},
]
FLOOR_OF = {room: number for number, floor in enumerate(FLOORS) for room in floor}
TOP = FLOOR_OF["cli"]  # the command line shows the rooms that stand apart, too
#: The one door from the product up to the demonstration: who may open it, and what is behind.
STAIRS = {"cli.demo": {"testing", "demo"}}
#: Rooms with a door to the outside only: what they may know of the package.
APART = {
    "pipeline": {"journal.format", "pipeline"},
    "simulation": {"journal.format", "simulation"},
    "emulator": {"emulator"},
}
#: Rooms that are houses of their own, from the ground up; "" is their public face, "__main__" a command.
FLOORS_WITHIN = {
    "pipeline": [
        {"archive", "session", "jobs", "schema", "size", "parquet", "costs"},
        {"reading"},
        {"tables"},
        {"page"},
        {"report"},
        {"live", ""},
    ],
    "emulator": [{"wire"}, {"broker"}, {"server"}, {"", "__main__"}],
}
FLOOR_WITHIN = {
    f"{house}.{room}".rstrip("."): number
    for house, floors in FLOORS_WITHIN.items()
    for number, floor in enumerate(floors)
    for room in floor
}

#: The rooms of the pipeline that are Spark's.
ON_SPARK = {
    f"pipeline.{room}"
    for room in ("session", "jobs", "schema", "parquet", "reading", "tables", "page", "report", "live")
}

#: What is not installed with the package, and the rooms that may import it.
OPTIONAL = {
    "azure": {"brokers.servicebus"},
    "celery": {"contrib", "cli", "demo"},
    "django": {"contrib.django"},
    "numpy": {"pipeline.tables"},  # of pandas
    "opentelemetry": {"contrib.opentelemetry"},
    "prometheus_client": {"contrib.prometheus"},
    "py4j": {"pipeline.jobs", "pipeline.live"},
    "pyarrow": {"pipeline.live"},
    "pyspark": ON_SPARK,
    "redis": {"brokers.redis", "testing"},
    "rich": {"cli", "demo"},
}
#: What is installed with the package.
REQUIRED = {"kombu", "tenacity", "amqp", "click"}


def module_of(file):
    """``brokers.kombu``, as seen from the package."""
    return ".".join(file.relative_to(HOUSE).with_suffix("").parts).removesuffix("__init__").rstrip(".")


MODULES = {module_of(file): file for file in HOUSE.rglob("*.py")}
modules = pytest.mark.parametrize("module", sorted(MODULES), ids=lambda module: module or PACKAGE)


def is_for_types(node):
    return isinstance(node, ast.If) and isinstance(node.test, ast.Name) and node.test.id == "TYPE_CHECKING"


@cache
def imports(module, for_types=True):
    return tuple(_imports(module, for_types))


def _imports(module, for_types):
    """Whole names of the modules that a module imports, wherever in it, for type checking alone too if so asked."""
    tree = ast.parse(MODULES[module].read_text())
    if not for_types:
        tree.body = [node for node in tree.body if not is_for_types(node)]
    for node in ast.walk(tree):
        if isinstance(node, ast.Import):
            yield from (alias.name for alias in node.names)
        elif isinstance(node, ast.ImportFrom):
            assert node.level == 0, f"{module} imports relatively: name the room in full"
            for alias in node.names:
                submodule = f"{node.module}.{alias.name}".removeprefix(f"{PACKAGE}.")
                is_ours = node.module.split(".")[0] == PACKAGE and submodule in MODULES
                yield f"{PACKAGE}.{submodule}" if is_ours else node.module


def imports_of_ours(module, for_types=True):
    names = (name for name in imports(module, for_types) if name.split(".")[0] == PACKAGE)
    return {name.removeprefix(PACKAGE).removeprefix(".") for name in names}


def room_of(module):
    return module.split(".")[0]


def floor_of(module):
    return FLOOR_OF.get(module, FLOOR_OF.get(room_of(module), TOP))


def floor_within(module):
    """Which of the floors of the room that it is in."""
    return FLOOR_WITHIN[".".join(module.split(".")[:2])]


def is_in(module, rooms):
    return any(module == room or module.startswith(f"{room}.") for room in rooms)


def test_every_room_that_is_drawn_is_there():
    drawn = {*FLOOR_OF, *APART, *FLOOR_WITHIN, *set().union(*APART.values(), *OPTIONAL.values())}
    assert drawn <= set(MODULES)


@modules
def test_every_module_has_its_place_in_the_house(module):
    assert room_of(module) in FLOOR_OF or room_of(module) in APART


@modules
def test_a_module_imports_nothing_from_a_floor_above(module):
    if room_of(module) in APART:
        assert not {each for each in imports_of_ours(module) if not is_in(each, APART[room_of(module)])}
        return
    above = {each for each in imports_of_ours(module) if floor_of(each) > floor_of(module)}
    assert {room_of(each) for each in above} <= STAIRS.get(module, set())


WITHIN = sorted(module for module in MODULES if room_of(module) in FLOORS_WITHIN)


@pytest.mark.parametrize("module", WITHIN)
def test_a_module_imports_nothing_from_a_floor_above_within_its_room(module):
    neighbours = {each for each in imports_of_ours(module) if room_of(each) == room_of(module)}
    assert {each for each in neighbours if floor_within(each) > floor_within(module)} == set()


def test_no_two_modules_of_such_a_room_know_each_other_even_for_types():
    TopologicalSorter({module: imports_of_ours(module) - {module} for module in WITHIN}).prepare()


def test_no_two_modules_import_each_other():
    graph = {module: imports_of_ours(module, for_types=False) - {module} for module in MODULES}
    TopologicalSorter(graph).prepare()


@modules
def test_a_module_imports_only_what_is_required_or_optional_in_its_room(module):
    outside = {name.split(".")[0] for name in imports(module)} - {PACKAGE} - REQUIRED - sys.stdlib_module_names
    assert outside <= set(OPTIONAL)
    assert {name for name in outside if not is_in(module, OPTIONAL[name])} == set()


@modules
def test_only_the_command_line_imports_click(module):
    assert "click" not in {name.split(".")[0] for name in imports(module)} or is_in(
        module, {"cli", "contrib", "demo", "emulator.server.command"}
    )


def loaded_by(statement):
    """Top-level names of the modules that a fresh interpreter has loaded after a statement."""
    program = f"import sys; {statement}; print(*{{name.split('.')[0] for name in sys.modules}})"
    run = subprocess.run(
        [sys.executable, "-c", program],
        cwd=HOUSE.parent,
        capture_output=True,
        text=True,
        check=True,
        timeout=60,
    )
    return set(run.stdout.split())


def test_importing_the_package_loads_kombu_alone_and_nothing_that_is_optional():
    loaded = loaded_by("import kombu_paired")
    assert {PACKAGE, "kombu"} <= loaded
    assert loaded.isdisjoint({*OPTIONAL, "click", "gevent", "eventlet"})


def test_importing_the_transport_loads_nothing_that_is_optional_either():
    loaded = loaded_by("import kombu_paired.transport")
    assert {"kombu", "tenacity"} <= loaded
    # Kombu itself loads a module of Django's, where that is installed.
    assert loaded.isdisjoint({*OPTIONAL, "click", "gevent", "eventlet"} - {"django"})
