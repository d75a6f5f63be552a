"""What is released: an sdist, and the wheel that is made of it, in an environment with what it asks for and no more.

Nothing is downloaded: the environment's packages are those that the tests run with.
"""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
import tarfile
import zipfile
from importlib.metadata import Distribution, distribution, distributions
from pathlib import Path

import pytest
from packaging.requirements import Requirement

import kombu_paired

ROOT = Path(__file__).resolve().parents[2]
PACKAGE = {
    str(path.relative_to(ROOT))
    for path in (ROOT / "kombu_paired").rglob("*")
    if path.is_file() and "__pycache__" not in path.parts
}
NO_SOURCE = shutil.ignore_patterns(".*", "__pycache__", "*.egg-info", "build", "dist")


def run(*command: str | Path, cwd: Path) -> str:
    """What a program prints; it finds nothing of the source tree."""
    environment = {name: value for name, value in os.environ.items() if name != "PYTHONPATH"}
    done = subprocess.run(command, cwd=cwd, env=environment, capture_output=True, text=True, timeout=120)
    assert done.returncode == 0, done.stdout + done.stderr
    return done.stdout


@pytest.fixture(scope="module")
def sdist(tmp_path_factory: pytest.TempPathFactory) -> Path:
    source = tmp_path_factory.mktemp("source") / "kombu-paired"  # building leaves folders behind
    shutil.copytree(ROOT, source, ignore=NO_SOURCE)
    build = "import sys; from setuptools import build_meta; build_meta.build_sdist(sys.argv[1])"
    run(sys.executable, "-c", build, "dist", cwd=source)
    [built] = (source / "dist").iterdir()
    return built


@pytest.fixture(scope="module")
def wheel(sdist: Path) -> Path:
    run(*pip("wheel", "--no-build-isolation", "--no-deps", "--no-index", sdist), cwd=sdist.parent)
    [built] = sdist.parent.glob("*.whl")
    return built


@pytest.fixture(scope="module")
def fresh(wheel: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A virtual environment that the wheel was installed into."""
    folder = tmp_path_factory.mktemp("fresh")
    run(sys.executable, "-m", "venv", "--without-pip", folder, cwd=folder)
    run(*pip("--python", folder / "bin" / "python", "install", "--no-deps", "--no-index", wheel), cwd=folder)
    for each in required_by(installed_in(folder)).values():
        for name in {file.parts[0] for file in each.files or ()} - {"..", "__pycache__"}:
            (site_of(folder) / name).symlink_to(Path(str(each.locate_file(name))))
    return folder


def pip(*arguments: str | Path) -> list[str | Path]:
    return [sys.executable, "-m", "pip", "--disable-pip-version-check", *arguments]


def site_of(environment: Path) -> Path:
    [site] = (environment / "lib").glob("python*/site-packages")
    return site


def installed_in(environment: Path) -> Distribution:
    [found] = distributions(name="kombu-paired", path=[str(site_of(environment))])
    return found


def required_by(package: Distribution) -> dict[str, Distribution]:
    """What a package needs without any extra, and what that needs, by name."""
    found: dict[str, Distribution] = {}
    for requirement in map(Requirement, package.requires or ()):
        if requirement.marker is None or requirement.marker.evaluate({"extra": ""}):
            needed = distribution(requirement.name)
            found |= {requirement.name: needed} | required_by(needed)
    return found


def test_the_sdist_holds_the_package_and_what_it_is_built_with(sdist: Path):
    with tarfile.open(sdist) as archive:
        names = {member.name.partition("/")[2] for member in archive if member.isfile()}
    assert {*PACKAGE, "pyproject.toml", "README.md", "docs/LICENSE"} <= names


def test_the_wheel_holds_every_file_of_the_package(wheel: Path):
    names = set(zipfile.ZipFile(wheel).namelist())
    assert {name for name in names if ".dist-info/" not in name} == PACKAGE
    assert "kombu_paired/py.typed" in names


def test_what_is_installed_says_its_version_and_its_licence(fresh: Path):
    package = installed_in(fresh)
    assert package.version == kombu_paired.__version__
    assert package.metadata["License-Expression"] == "BSD-3-Clause"
    assert package.read_text("licenses/docs/LICENSE") == (ROOT / "docs" / "LICENSE").read_text()


def test_what_is_installed_can_be_imported(fresh: Path):
    program = "import kombu_paired; print(kombu_paired.__version__, kombu_paired.__file__)"
    version, file = run(fresh / "bin" / "python", "-c", program, cwd=fresh).split()
    assert version == kombu_paired.__version__
    assert Path(file).is_relative_to(fresh)


def test_kombu_knows_the_transport_without_an_import(fresh: Path):
    program = "import kombu.serialization, kombu.transport; print(kombu.transport.TRANSPORT_ALIASES['paired'])"
    assert run(fresh / "bin" / "python", "-c", program, cwd=fresh) == "kombu_paired.transport:Transport\n"


def test_the_command_is_installed(fresh: Path):
    version = run(fresh / "bin" / "kombu-paired", "--version", cwd=fresh)
    assert version == f"kombu-paired, version {kombu_paired.__version__}\n"


def test_celery_finds_the_command_group_and_what_it_loads_is_that(fresh: Path):
    [found] = installed_in(fresh).entry_points.select(group="celery.commands")
    assert (found.name, found.value) == ("paired", "kombu_paired.cli.under_celery:paired")
    program = "from kombu_paired.cli.under_celery import paired; print(*sorted(paired.commands))"
    assert run(fresh / "bin" / "python", "-c", program, cwd=fresh).split() == [
        *("check", "dead-letters", "drain", "isolate", "peek", "restore", "status")
    ]
