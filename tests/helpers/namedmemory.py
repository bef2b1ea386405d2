"""Shared memory that has a name, which none of this library has."""

from pathlib import Path

# Of tests that run at the same time: both MPIs, the UCX below either, semaphores, joblib.
OTHERS = ("mpich_", "sm_segment.", "ucx_", "sem.", "joblib_")


def named_memory() -> set[str]:
    """Return the names of shared memory on this machine that may be the library's."""
    return {path.name for path in Path("/dev/shm").iterdir() if not path.name.startswith(OTHERS)}
