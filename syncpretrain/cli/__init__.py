"""The command line. A command is imported when it is called, so that ``--help`` is quick."""

from __future__ import annotations

from syncpretrain.cli.program import main

__all__ = ["main"]
