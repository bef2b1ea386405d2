"""The place of this process in a job that a launcher such as ``mpiexec`` started.

It is read from the environment, since to ask MPI would start it. So it loads nothing else: the
command line asks before it knows whether a command needs ranks.
"""

from __future__ import annotations

import os
from typing import NamedTuple

# Names of rank and size: MPICH and Intel MPI (Hydra), Open MPI, and srun with any PMIx.
LAUNCHERS = (
    ("PMI_RANK", "PMI_SIZE"),
    ("OMPI_COMM_WORLD_RANK", "OMPI_COMM_WORLD_SIZE"),
    ("PMIX_RANK", "SLURM_NTASKS"),
)
START_HINT = "mpiexec -n 4 syncpretrain train ... --runtime mpi"


class Place(NamedTuple):
    """Rank of a process and number of ranks."""

    rank: int
    size: int


def launched() -> Place | None:
    """Return the place of this process among the ranks of a job; None if it was started alone."""
    for names in LAUNCHERS:
        texts = [os.environ.get(name, "") for name in names]
        if all(text.isdigit() for text in texts):
            place = Place(*map(int, texts))
            return place if place.size > 1 else None
    return None
