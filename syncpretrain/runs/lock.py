"""The one owner of a run folder: a lock that dies with its process."""

from __future__ import annotations

import os
import re
import socket
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from syncpretrain.errors import SettingsError

try:
    import fcntl
except ImportError:  # Windows has no flock
    fcntl = None  # type: ignore[assignment]

__all__ = ["LOCK_NAME", "owned", "owner_of"]

LOCK_NAME = "run.lock"


@contextmanager
def owned(folder: Path, report: Callable[[str], Any]) -> Iterator[None]:
    """Own a run folder as long as the context lasts; refuse it to other processes.

    The lock is the kernel's, on a file that names its owner. It ends with the process, however
    that ends; the file of a killed owner stays and is taken over. On a file system without locks
    the run goes on, and ``report`` is called with a warning.

    Raises
    ------
    SettingsError
        If another process owns the folder, which the message names, or the file cannot be
        written.
    """
    path = folder / LOCK_NAME
    descriptor = _locked(path, report)
    try:
        yield
    finally:
        try:
            path.unlink(missing_ok=True)  # still locked: no other process can own it yet
        except OSError as error:
            report(f"warning: {path} could not be removed: {error.strerror}; it may be deleted")
        os.close(descriptor)


def owner_of(folder: Path) -> str | None:
    """Return the name of the process that owns a run folder, None if there is none.

    The file of a killed owner is ignored. Where the system or the file system has no
    locks, the process that the file names is the owner as long as it lives on this machine.
    """
    path = folder / LOCK_NAME
    try:
        descriptor = os.open(path, os.O_RDONLY)
    except OSError:
        return None
    name = ""
    try:
        name = os.read(descriptor, 200).decode(errors="replace").strip()
        if _has_ended(name) or not _is_at(path, descriptor):
            return None
        if fcntl is None:
            return name
        # Shared, and only while the file names a live process: an owner that is just about to lock
        # it would be refused.
        fcntl.flock(descriptor, fcntl.LOCK_SH | fcntl.LOCK_NB)
        fcntl.flock(descriptor, fcntl.LOCK_UN)
    except BlockingIOError:
        return name or "another process"
    except OSError:
        return name or None  # a file system without locks; a folder has no name
    finally:
        os.close(descriptor)
    return None


def _has_ended(name: str) -> bool:
    """Return whether a lock file names a process of this machine that has ended."""
    found = re.fullmatch(r"process (\d+) on (.+)", name)
    if found is None or found[2] != socket.gethostname():
        return False
    try:
        os.kill(int(found[1]), 0)
    except ProcessLookupError:
        return True
    except OSError:
        return False  # a process of another user
    return False


def _locked(path: Path, report: Callable[[str], Any]) -> int:
    """Return the descriptor of the lock file, locked and with our name in it."""
    name = f"process {os.getpid()} on {socket.gethostname()}\n".encode()
    while True:
        try:
            descriptor = os.open(path, os.O_RDWR | os.O_CREAT, 0o666)
        except OSError as error:
            raise _refusal(path, error) from None
        try:
            if fcntl is not None:
                fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            owner = os.read(descriptor, 200).decode(errors="replace").strip()
            os.close(descriptor)
            raise SettingsError(
                f"resume: the run in {path.parent} is at work in {owner or 'another process'};"
                " wait for it, or stop it first"
            ) from None
        except OSError as error:
            report(
                f"warning: {path.parent} cannot be locked ({error.strerror}): take care that no"
                " second process resumes this run at the same time"
            )
        if not _is_at(path, descriptor):
            os.close(descriptor)  # its former owner has just removed it
            continue
        try:
            os.ftruncate(descriptor, 0)
            os.write(descriptor, name)
        except OSError as error:
            os.close(descriptor)
            raise _refusal(path, error) from None
        return descriptor


def _refusal(path: Path, error: OSError) -> SettingsError:
    return SettingsError(
        f"cannot write to {path.parent}: {error.strerror}; make room or make it writable, or begin"
        " a new run with another --out"
    )


def _is_at(path: Path, descriptor: int) -> bool:
    try:
        return os.path.samestat(path.stat(), os.fstat(descriptor))
    except FileNotFoundError:
        return False
