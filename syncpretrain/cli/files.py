"""Checks of the files that a command is to write, before it works for them."""

from __future__ import annotations

import os
from pathlib import Path

from syncpretrain.errors import SettingsError

__all__ = ["check_target"]


def check_target(path: Path) -> None:
    """Refuse a file that cannot be written.

    Raises
    ------
    SettingsError
        Saying why.
    """
    if path.is_dir():
        raise SettingsError(f"out: {path} is a folder; name a file")
    if not path.parent.is_dir():
        raise SettingsError(f"out: the folder {path.parent} does not exist")
    if not os.access(path.parent, os.W_OK):
        raise SettingsError(f"out: cannot write to the folder {path.parent}")
