"""Files that appear whole or not at all."""

from __future__ import annotations

import os
import re
import secrets
from collections.abc import Callable
from pathlib import Path
from typing import Any

__all__ = ["remove_temporaries", "write_atomically"]


def write_atomically(
    path: Path, content: bytes, *, check: Callable[[Path], Any] | None = None
) -> None:
    """Write a file beside its place, flush it to the disk, and rename it into place.

    ``check`` may raise on the file before it takes its place; then, as after any failure, what
    was there before stays. Where the system can, the file has no name until it is whole, so that
    not even a killed process leaves a temporary one behind.
    """
    if check is None and not path.exists() and _written_nameless(path, content):
        return
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
    _flush_folder(path)


def remove_temporaries(folder: Path) -> None:
    """Delete the temporary files that killed writers left in a folder that this process owns."""
    for path in folder.iterdir():
        if re.fullmatch(r"\..+\.[0-9a-f]{16}", path.name):
            path.unlink(missing_ok=True)


def _written_nameless(path: Path, content: bytes) -> bool:
    """Write a new file that gets its name last; return False where that cannot be done."""
    nameless = getattr(os, "O_TMPFILE", None)  # Linux
    if nameless is None:
        return False
    try:
        descriptor = os.open(path.parent, nameless | os.O_WRONLY, 0o666)
    except OSError:
        return False  # by this file system; a full disk or a lack of rights shows in the other way
    with os.fdopen(descriptor, "wb") as file:
        file.write(content)
        file.flush()
        os.fsync(file.fileno())
        own = file.fileno()
        try:  # src_dir_fd makes it linkat, which alone follows the link in /proc
            os.link(f"/proc/self/fd/{own}", path, src_dir_fd=own, follow_symlinks=True)
        except OSError:
            return False
    _flush_folder(path)
    return True


def _flush_folder(path: Path) -> None:
    folder = os.open(path.parent, os.O_RDONLY)
    try:
        os.fsync(folder)
    finally:
        os.close(folder)
