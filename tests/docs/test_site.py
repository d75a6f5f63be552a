"""The site: Sphinx makes it of the pages without a warning, its links resolve, and all public names are in it."""

from __future__ import annotations

import os
import subprocess
import sys
from html.parser import HTMLParser
from pathlib import Path
from urllib.parse import unquote

import pytest
from sphinx.util.inventory import InventoryFile

import kombu_paired
from kombu_paired import testing
from kombu_paired.contrib import celery
from tests.docs.reading import DOCS, ROOT


class Page(HTMLParser):
    """What a page links to, and what in it can be linked to."""

    def __init__(self, path: Path) -> None:
        super().__init__()
        self.targets: list[str] = []
        self.anchors = {""}
        self.feed(path.read_text())

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        for name, value in attrs:
            if name == "id" and value:
                self.anchors.add(value)
            elif name in ("href", "src") and value:
                self.targets.append(value)


@pytest.fixture(scope="module")
def site(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("site")
    done = subprocess.run(
        [sys.executable, "-m", "sphinx", "-q", "-W", "--keep-going", "-b", "html", "-d", folder / "read", DOCS, folder],
        env=os.environ | {"PYTHONPATH": str(ROOT), "NO_COLOR": "1"},
        capture_output=True,
        text=True,
        timeout=300,
    )
    assert done.returncode == 0, done.stdout + done.stderr
    return folder


def test_every_page_is_in_the_site(site: Path) -> None:
    assert {each.stem for each in DOCS.glob("*.md")} <= {each.stem for each in site.glob("*.html")}


def test_links_of_the_site_resolve(site: Path) -> None:
    pages = {path: Page(path) for path in site.glob("*.html")}
    broken, checked = [], 0
    for path, page in pages.items():
        for target in page.targets:
            if "://" in target or target.startswith(("data:", "mailto:")):
                continue
            checked += 1
            name, _, anchor = unquote(target).partition("#")
            file = (path.parent / name.partition("?")[0]).resolve() if name else path
            if not file.exists() or (file in pages and anchor not in pages[file].anchors):
                broken.append(f"{path.name}: {target}")
    assert checked > 1000
    assert broken == []


def test_public_names_are_in_the_reference(site: Path) -> None:
    inventory = InventoryFile.loads((site / "objects.inv").read_bytes(), uri="")
    documented = {name for kind, names in inventory.data.items() if kind.startswith("py:") for name in names}
    public = {f"{module.__name__}.{name}" for module in (kombu_paired, testing, celery) for name in module.__all__} - {
        f"{celery.__name__}.{name}" for name in kombu_paired.__all__
    }
    assert public - documented == set()
