"""Shared memory that has a name, which none of this library has."""

from __future__ import annotations

from pathlib import Path

OTHERS = ("mpich_", "sem.", "joblib_")  # of tests that run at the same time


def named_memory() -> set[str]:
    """Return the names of shared memory on this machine that may be the library's."""
    return {path.name for path in Path("/dev/shm").iterdir() if not path.name.startswith(OTHERS)}
