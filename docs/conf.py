"""How Sphinx makes the site of these pages: ``python -m sphinx -W -b html docs build/site``. It asks no network."""

import re
from typing import Any

import kombu_paired

project = "kombu-paired"
version = release = kombu_paired.__version__
extensions = ["myst_parser", "sphinx.ext.autodoc", "sphinx.ext.napoleon"]
html_theme = "furo"
html_title = f"kombu-paired {version}"
html_copy_source = html_show_copyright = html_show_sphinx = False

# The same pages are read in the repository, which makes an anchor of every heading.
myst_heading_anchors = 4

nitpicky = True
#: What other projects document, and what an application has no use for.
nitpick_ignore_regex = [
    ("py:.*", r"(celery|collections|kombu|pathlib|prometheus_client|subprocess)\..*"),
    ("py:.*", r"kombu_paired\.(brokers|contrib\.results|message|testing\.scripted_links)\b.*"),
]

autodoc_member_order = "bysource"
autodoc_class_signature = "separated"
autodoc_typehints = "description"
autodoc_typehints_description_target = "documented_params"
autodoc_default_options = {"exclude-members": "__init__, __new__"}
napoleon_google_docstring = True
napoleon_numpy_docstring = False


def link_examples(app: Any, name: str, source: list[str]) -> None:
    """What lies outside of these pages is in the repository: its name alone is shown, since a site has no such page."""
    source[0] = re.sub(r"\[([^\]]+)\]\(\.\./([^)]+)\)", r"\1 (`\2`)", source[0])


def setup(app: Any) -> None:
    app.connect("source-read", link_examples)
