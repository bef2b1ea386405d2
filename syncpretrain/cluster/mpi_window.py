"""Windows of MPI: memory that ranks read and change by one-sided calls.

Of MPI's one-sided calls only those are used that every library gets right: ``MPI_Win_allocate``,
one passive epoch for as long as a window is open, ``MPI_Put``, ``MPI_Get``, ``MPI_Accumulate`` with
``MPI_SUM``, and ``MPI_Fetch_and_op`` in windows of its own. ``MPI_Get_accumulate`` aborts Open MPI
5.0, fences and ``MPI_Win_create`` hang between machines with some versions of libfabric, and sums
in one window by both ``MPI_Accumulate`` and ``MPI_Fetch_and_op`` are wrong in Open MPI.

Every call ends with ``MPI_Win_flush``. On one machine that needs nothing of the other rank; between
machines it may wait for the next call of MPI there, since MPICH moves nothing on by itself.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np

from syncpretrain.cluster.engine import Window, WindowValues

__all__ = ["MPIWindow"]


class MPIWindow(Window):
    """A window of a communicator.

    Parameters
    ----------
    mpi : module
        ``mpi4py.MPI``.
    comm : Intracomm
    lengths : sequence of int
        Elements of each rank.
    kind : str
        ``float32`` or ``int64``.
    """

    def __init__(self, mpi: Any, comm: Any, lengths: Sequence[int], kind: str) -> None:
        self._mpi = mpi
        self._type = {"float32": mpi.FLOAT, "int64": mpi.INT64_T}[kind]
        width = np.dtype(kind).itemsize
        self._win = mpi.Win.Allocate(lengths[comm.Get_rank()] * width, width, comm=comm)
        self._win.Lock_all(mpi.MODE_NOCHECK)  # no rank is ever locked exclusively

    def get(self, rank: int, at: int, out: WindowValues) -> None:
        """Copy elements of a rank's vector from ``at`` on to ``out``."""
        self._win.Get([out, self._type], rank, self._place(at, out))
        self._win.Flush(rank)

    def put(self, rank: int, at: int, values: WindowValues) -> None:
        """Set elements of a rank's vector from ``at`` on."""
        self._win.Put([values, self._type], rank, self._place(at, values))
        self._win.Flush(rank)

    def add(self, rank: int, at: int, values: WindowValues) -> None:
        """Add to elements of a rank's vector from ``at`` on."""
        place = self._place(at, values)
        self._win.Accumulate([values, self._type], rank, place, self._mpi.SUM)
        self._win.Flush(rank)

    def fetch_and_add(self, rank: int, at: int, value: int) -> int:
        """Add to an element of whole numbers; return what it was before."""
        own, found = np.array([value], np.int64), np.empty(1, np.int64)
        self._win.Fetch_and_op([own, self._type], [found, self._type], rank, at, self._mpi.SUM)
        self._win.Flush(rank)
        return int(found[0])

    def close(self) -> None:
        """Give it back, when every rank does."""
        self._win.Unlock_all()
        self._win.Free()

    def _place(self, at: int, values: WindowValues) -> tuple[int, int, Any]:
        return at, values.size, self._type
