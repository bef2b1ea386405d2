"""A disk that fills up: a small file system of its own, or a limit of file sizes."""

from __future__ import annotations

import errno
import resource
import subprocess
from pathlib import Path

from random_faults.command import Command

__all__ = ["LimitedFiles", "SmallDisk", "can_mount"]

SIZE = 4 << 20
CHUNK = 4096


def can_mount(folder: Path) -> bool:
    """Return whether a file system can be mounted."""
    try:
        with SmallDisk(folder):
            return True
    except (OSError, subprocess.SubprocessError):
        return False


class SmallDisk:
    """A file system of 4 MiB at a folder, as long as the context lasts."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self._filler = folder / "filler"

    def __enter__(self) -> SmallDisk:
        self.folder.mkdir(exist_ok=True)
        mount = ["mount", "-t", "tmpfs", "-o", f"size={SIZE}", "tmpfs", str(self.folder)]
        subprocess.run(mount, check=True, capture_output=True, timeout=60)
        return self

    def __exit__(self, *error: object) -> None:
        unmount = ["umount", "-l", str(self.folder)]
        subprocess.run(unmount, check=True, capture_output=True, timeout=60)

    def fill(self, room: int, command: Command | None = None) -> None:
        """Take all but so many bytes."""
        with self._filler.open("wb", buffering=0) as file:
            try:
                while True:
                    file.write(bytes(CHUNK))
            except OSError as error:
                if error.errno != errno.ENOSPC:
                    raise
            file.truncate(max(0, file.tell() - room))

    def free(self, command: Command | None = None) -> None:
        """Give all of it back."""
        self._filler.unlink(missing_ok=True)


class LimitedFiles:
    """A limit of the sizes of the files that a command may write, here and elsewhere."""

    def fill(self, room: int, command: Command | None = None) -> None:
        """Let no file grow beyond so many bytes."""
        _limit(command, room)

    def free(self, command: Command | None = None) -> None:
        """Let files grow again."""
        _limit(command, resource.RLIM_INFINITY)


def _limit(command: Command | None, size: int) -> None:
    if command is None:
        return
    try:
        hard = resource.prlimit(command.pid, resource.RLIMIT_FSIZE)[1]
        resource.prlimit(command.pid, resource.RLIMIT_FSIZE, (size, hard))
    except ProcessLookupError:
        return  # it has ended
