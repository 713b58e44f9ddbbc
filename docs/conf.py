"""Sphinx configuration: Markdown pages through MyST, the API reference from docstrings."""

import re
import sys
from pathlib import Path
from typing import Any

DOCS = Path(__file__).parent
sys.path[:0] = [str(DOCS / "_extensions"), str(DOCS.parent / "src"), str(DOCS.parent / "adapters")]

import everstep  # noqa: E402  (found on the path set above where it is not installed)

project = "Everstep"
author = "The Everstep authors"
project_copyright = "The Everstep authors"
release = everstep.__version__

extensions = [
    "myst_parser",
    "sphinx.ext.autodoc",
    "sphinx.ext.napoleon",
    "sphinx.ext.viewcode",
    "command_reference",
    "tables",
]
exclude_patterns = ["_build"]

myst_heading_anchors = 3
myst_enable_extensions = ["colon_fence"]

html_theme = "furo"
html_static_path = ["_static"]
html_css_files = ["pages.css"]
html_js_files = [("tables.js", {"defer": "defer"})]
html_title = f"Everstep {release}"

# Docstrings are Markdown in one respect: single backticks mark code.
default_role = "code"
napoleon_google_docstring = True
napoleon_numpy_docstring = False
napoleon_custom_sections = ["Source"]
autodoc_class_signature = "mixed"
autodoc_member_order = "bysource"
autodoc_typehints = "description"
autodoc_typehints_description_target = "documented_params"
autodoc_typehints_format = "short"
python_use_unqualified_type_names = True
autodoc_default_options = {"members": True, "show-inheritance": True}

_as_written: dict[str, list[str]] = {}


def _before_napoleon(app: Any, what: str, name: str, obj: Any, options: Any, lines: Any) -> None:
    if what in ("attribute", "data", "property"):
        _as_written[name] = list(lines)


def _after_napoleon(app: Any, what: str, name: str, obj: Any, options: Any, lines: Any) -> None:
    """Undo what Napoleon does to attributes: it takes what stands before a colon for a type."""
    lines[:] = [
        re.sub(r"\*\*(?=\w)", r"\\*\\*", line)  # `**config` opens no bold text
        for line in _as_written.pop(name, lines)
    ]


def setup(app: Any) -> None:
    """Prepare docstrings for reStructuredText; Napoleon works at priority 500."""
    app.connect("autodoc-process-docstring", _before_napoleon, priority=400)
    app.connect("autodoc-process-docstring", _after_napoleon, priority=600)
