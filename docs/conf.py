"""Sphinx: how the pages in this folder become HTML. See CONTRIBUTING.rst for the command."""

from __future__ import annotations

from importlib.metadata import version as installed_version
from typing import Any

from msgspec import NODEFAULT

from syncpretrain.settings import PretrainSettings
from syncpretrain.settings.fields import Frozen, settings_of

project = "syncpretrain"
author = "the authors of syncpretrain"
copyright = author
version = release = installed_version("syncpretrain")

extensions = ["sphinx.ext.autodoc", "numpydoc", "sphinx_click"]
root_doc = "index"
exclude_patterns = ["_build"]
nitpicky = True  # a reference to nothing is a warning
smartquotes = False  # they make a dash of the two of an option

autodoc_typehints = "none"  # numpydoc sections give the types
autodoc_member_order = "bysource"
numpydoc_show_class_members = False

html_theme = "furo"
html_title = f"syncpretrain {release}"
html_show_sourcelink = False
html_static_path = ["_static"]
html_css_files = ["custom.css"]


def setup(app: Any) -> None:
    """Show the examples of a command's help as code, and the declared settings as tables."""
    app.connect("sphinx-click-process-description", _examples_as_code)
    app.connect("autodoc-process-docstring", _table_of_settings, priority=900)  # after numpydoc


def _table_of_settings(
    app: Any, what: str, name: str, thing: Any, options: Any, lines: list[str]
) -> None:
    if what != "class" or not issubclass(thing, Frozen) or thing is PretrainSettings:
        return
    rows = [("field", "default", "in short")]
    for field, own in settings_of(thing).items():
        default = "" if own.default in (None, NODEFAULT) else f"``{own.default}``"
        rows.append((f"``{field}``", default, own.text))
    lines += ["", ".. list-table::", "   :header-rows: 1", ""]
    for first, *others in rows:
        lines += [f"   * - {first}", *(f"     - {text}" for text in others)]
    lines.append("")


def _examples_as_code(app: Any, ctx: Any, lines: list[str]) -> None:
    if "| Examples:" in lines:
        first = lines.index("| Examples:")
        lines[first] = ".. code-block:: shell"
        lines.insert(first + 1, "")
        for i, line in enumerate(lines):
            if i > first and line.startswith("|"):
                lines[i] = "    " + line.removeprefix("|").strip()
