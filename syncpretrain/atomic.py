"""Files that appear whole or not at all."""

from __future__ import annotations

import os
import secrets
from collections.abc import Callable
from pathlib import Path
from typing import Any

__all__ = ["write_atomically"]


def write_atomically(
    path: Path, content: bytes, *, check: Callable[[Path], Any] | None = None
) -> None:
    """Write a file beside its place, flush it to the disk, and rename it into place.

    ``check`` may raise on the file before it takes its place; then, as after any failure, what
    was there before stays.
    """
    # Not tempfile's, which only its owner may read, whatever the umask says.
    temporary = path.with_name(f".{path.name}.{secrets.token_hex(8)}")
    try:
        with temporary.open("xb") as file:
            file.write(content)
            file.flush()
            os.fsync(file.fileno())
        if check is not None:
            check(temporary)
        temporary.replace(path)
    except BaseException:
        temporary.unlink(missing_ok=True)
        raise
    folder = os.open(path.parent, os.O_RDONLY)
    try:
        os.fsync(folder)
    finally:
        os.close(folder)
