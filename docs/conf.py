"""Sphinx: how the pages in this folder become HTML. See CONTRIBUTING.rst for the command."""

from __future__ import annotations

from importlib.metadata import version as installed_version

project = "syncpretrain"
author = "the syncpretrain authors"
copyright = author
version = release = installed_version("syncpretrain")

extensions = ["sphinx.ext.autodoc", "sphinx.ext.napoleon", "sphinx_click"]
root_doc = "index"
exclude_patterns = ["_build"]
nitpicky = False
default_role = None

autodoc_typehints = "none"  # numpydoc sections give the types
autodoc_member_order = "bysource"
napoleon_google_docstring = False
napoleon_use_rtype = False

html_theme = "furo"
html_title = f"syncpretrain {release}"
html_show_sourcelink = False
