"""Files that appear whole or not at all."""

from __future__ import annotations

import errno
import os
import re
from collections.abc import Callable
from pathlib import Path
from typing import Any

RANDOM_BYTES = 8  # of a temporary file's name
TEMPORARY = re.compile(rf"\..+\.[0-9a-f]{{{2 * RANDOM_BYTES}}}")
# Where a folder cannot be flushed, on some network, FUSE and shared file systems, renaming has to
# do; PostgreSQL's fsync_fname_ext ignores the same. A full or broken disk is never ignored.
NOT_OPENED = {errno.EACCES, errno.EISDIR}
NOT_FLUSHED = {errno.EINVAL, errno.EBADF, errno.ENOSYS, errno.ENOTSUP, errno.EOPNOTSUPP}


def expanded(path: str | os.PathLike[str]) -> Path:
    """Return a path with ~ as the user's home; as it is where no home is known."""
    return Path(os.path.expanduser(path))  # noqa: PTH111 - pathlib's raises then


def is_readable(path: Path) -> bool:
    """Return whether a path is that of a file that can be read; of a locked folder it is not."""
    return os.path.isfile(path) and os.access(path, os.R_OK)  # noqa: PTH113 - pathlib's raises then


def write_atomically(
    path: Path, content: bytes, *, check: Callable[[Path], Any] | None = None
) -> None:
    """Write a file beside its place, flush it to the disk, and rename it into place.

    ``check`` may raise on the file before it takes its place; then, as after any failure, what
    was there before stays. Where the system can, the file has no name until it is whole, so that
    a killed process leaves no temporary file behind, or only a whole one in the moment before it
    replaces another. Elsewhere see :func:`remove_temporaries`.

    Raises
    ------
    OSError
        If the file cannot be written or flushed. That a folder cannot be flushed is ignored where
        the file system does not support it.
    """
    # Not tempfile's, which only its owner may read, whatever the umask says.
    temporary = path.with_name(f".{path.name}.{os.urandom(RANDOM_BYTES).hex()}")
    written = path if check is None and not path.exists() else temporary
    try:
        if not _written_nameless(written, content):
            written = temporary
            _write_named(written, content)
        if check is not None:
            check(written)
        if written is not path:
            written.replace(path)
    except BaseException:
        temporary.unlink(missing_ok=True)
        raise
    _flush_folder(path.parent)


def remove_temporaries(folder: Path) -> None:
    """Delete the temporary files in a folder that killed calls of :func:`write_atomically` left.

    A file that is still being written has the same kind of name: call it only as the one owner of
    the folder, while no other process or thread writes into it. Nothing happens where there is no
    such folder; what is no regular file stays.

    Raises
    ------
    OSError
        If the folder cannot be read, or a file in it not be deleted.
    """
    if not folder.is_dir():
        return
    for path in folder.iterdir():
        if TEMPORARY.fullmatch(path.name) and path.is_file() and not path.is_symlink():
            path.unlink(missing_ok=True)


def _write_named(path: Path, content: bytes) -> None:
    with path.open("xb") as file:
        file.write(content)
        file.flush()
        os.fsync(file.fileno())


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
    return True


def _flush_folder(folder: Path) -> None:
    """Flush the names in a folder to the disk, where its file system can."""
    try:
        descriptor = os.open(folder, os.O_RDONLY)
    except OSError as error:
        if error.errno in NOT_OPENED:
            return
        raise
    try:
        os.fsync(descriptor)
    except OSError as error:
        if error.errno not in NOT_FLUSHED:
            raise
    finally:
        os.close(descriptor)
