"""Folders as tests look at them, and disks that are full."""

import errno
from pathlib import Path
from typing import NoReturn


def names_in(folder: Path) -> list[str]:
    """Return the names in a folder, sorted."""
    return sorted(path.name for path in folder.iterdir())


def full(*arguments, **options) -> NoReturn:
    """Stand for any function that writes, on a full disk."""
    raise OSError(errno.ENOSPC, "No space left on device")
