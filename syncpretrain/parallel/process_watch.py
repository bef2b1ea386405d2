"""Watch on another process: its existence and its exit status.

A process's number may be given to another one after its end. So a process is known by its number
and the time it was started at, and is watched through a descriptor, which stays its own.
"""

from __future__ import annotations

import os
import select
import signal
from pathlib import Path

__all__ = ["ProcessWatch", "started"]

STATE, STARTED, STATUS = 0, 19, 49  # fields of /proc/PID/stat behind the name; proc(5)


def started(pid: int) -> int:
    """Return when a process was started, in the kernel's ticks; 0 if that cannot be known."""
    fields = _fields(pid)
    return int(fields[STARTED]) if fields else 0


class ProcessWatch:
    """The processes that one worker watches. Their descriptors are opened when first asked for."""

    def __init__(self) -> None:
        self._descriptors: dict[int, int | None] = {}

    def ended(self, pid: int, start: int) -> str | None:
        """Return how a process ended, or None while it lives; a zombie has ended.

        ``start`` is what :func:`started` returned in that process.
        """
        if pid == os.getpid():
            return None
        try:
            if pid not in self._descriptors:
                self._descriptors[pid] = _opened(pid)
        except ProcessLookupError:
            return "died"
        fields = _fields(pid)
        if fields and start and int(fields[STARTED]) != start:
            return "died"  # and its number is another's now
        descriptor = self._descriptors[pid]
        if descriptor is None:
            over = not _exists(pid) or (fields is not None and fields[STATE] in "ZX")
        else:
            poll = select.poll()
            poll.register(descriptor, select.POLLIN)
            over = bool(poll.poll(0))
        return f"died{_how(_fields(pid))}" if over else None

    def close(self) -> None:
        """Close the descriptors."""
        for descriptor in self._descriptors.values():
            if descriptor is not None:
                os.close(descriptor)
        self._descriptors.clear()


def _opened(pid: int) -> int | None:
    if not hasattr(os, "pidfd_open"):
        return None
    try:
        return os.pidfd_open(pid)
    except ProcessLookupError:
        raise
    except OSError:  # an old kernel, a sandbox, or no descriptor left: /proc must do
        return None


def _exists(pid: int) -> bool:
    try:
        os.kill(pid, 0)
    except ProcessLookupError:
        return False
    except PermissionError:
        return True
    return True


def _fields(pid: int) -> list[str] | None:
    """Return what the kernel reports of a process; None if it is gone or cannot be read."""
    try:
        return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()
    except OSError:
        return None


def _how(fields: list[str] | None) -> str:
    """Describe how a process ended whose exit status has not been collected."""
    if fields is None or fields[STATE] != "Z" or len(fields) <= STATUS:
        return ""
    status = int(fields[STATUS])  # 0 also if we may not know
    if os.WIFSIGNALED(status):
        number = os.WTERMSIG(status)
        names = {int(known): known.name for known in signal.Signals}
        return f": killed by {names.get(number, f'signal {number}')}"
    return f": exit status {os.WEXITSTATUS(status)}" if status else ""
