"""Waits for counters in memory that other threads or processes share."""

from __future__ import annotations

import time

import numpy as np
from numpy.typing import NDArray

from syncpretrain.kernels.native import extension

__all__ = ["LATE", "READY", "arrive_and_wait", "store_cell", "wait_cells"]

Cells = NDArray[np.int64]
READY, LATE = 0, 2  # what waiting ends with; 1 is broken
FEW = 100  # looks without a sleep, of a wait in Python
NAP = 50e-6


def wait_cells(
    cells: Cells,
    first: int,
    count: int,
    target: int,
    broken: int,
    spin_seconds: float,
    timeout_seconds: float,
    stagger_seconds: float = 0.0,
) -> int:
    """Wait, without the interpreter's lock, until some cells have all reached a target.

    It spins, then yields to others, then sleeps. A thread that sees a value that
    :func:`store_cell` put into a cell also sees all that was written before it. Where the extension
    is missing, this looks and sleeps in turn.

    Parameters
    ----------
    cells : ndarray of int64, of shape (n,)
        May lie in memory shared by processes.
    first, count, target : int
        Until ``cells[first : first + count]`` are all at least ``target``.
    broken : int
        Or until ``cells[broken]`` is not 0.
    spin_seconds, timeout_seconds : float
        How long to spin, and to wait in all.
    stagger_seconds : float
        How long to spin once the target is reached, so that those who waited together do not all
        want the interpreter's lock at once: to be woken for it takes some 40 us. The extension's
        only.

    Returns
    -------
    int
        0 if the target was reached, 1 if the wait was broken, 2 if the time was over.

    Raises
    ------
    IndexError, ValueError
        If there are no such cells, or they are not int64 side by side.
    KeyboardInterrupt
        Or what else a signal's handler raises.
    """
    if extension is not None:
        waited: int = extension.wait_cells(
            cells, first, count, target, broken, spin_seconds, timeout_seconds, stagger_seconds
        )
        return waited
    _check_cells(cells, first, count)
    _check_cells(cells, broken, 1)
    awaited, deadline, looks = cells[first : first + count], time.monotonic() + timeout_seconds, 0
    while True:
        if cells[broken]:
            return 1
        if (awaited >= target).all():
            return 0
        if time.monotonic() >= deadline:
            return 2
        looks += 1
        time.sleep(0 if looks < FEW else NAP)


def store_cell(cells: Cells, index: int, value: int) -> None:
    """Store a value in a cell, after all that this thread has written so far.

    Where the extension is missing, that order is the processor's: kept by x86-64, and between the
    threads of one interpreter.

    Raises
    ------
    IndexError, ValueError
        As :func:`wait_cells`.
    """
    if extension is not None:
        extension.store_cell(cells, index, value)
        return
    _check_cells(cells, index, 1)
    cells[index] = value


def arrive_and_wait(
    cells: Cells,
    rank: int,
    first: int,
    count: int,
    target: int,
    broken: int,
    spin_seconds: float,
    timeout_seconds: float,
    stagger_seconds: float = 0.0,
) -> int:
    """Store the target in the cell ``rank``, then wait for the others as :func:`wait_cells`.

    Raises
    ------
    IndexError, ValueError, KeyboardInterrupt
        As :func:`wait_cells`; nothing was stored if there are no such cells.
    """
    if extension is not None:
        waited: int = extension.arrive_and_wait(
            cells,
            rank,
            first,
            count,
            target,
            broken,
            spin_seconds,
            timeout_seconds,
            stagger_seconds,
        )
        return waited
    _check_cells(cells, first, count)
    _check_cells(cells, broken, 1)
    store_cell(cells, rank, target)
    return wait_cells(cells, first, count, target, broken, spin_seconds, timeout_seconds)


def _check_cells(cells: Cells, first: int, count: int) -> None:
    if cells.dtype != np.int64 or cells.ndim != 1 or not cells.flags.c_contiguous:
        raise ValueError(
            f"got cells of {cells.ndim} dimensions and type {cells.dtype}; expected one of int64: "
            "take np.zeros(n, dtype=np.int64), or a view like it of shared memory"
        )
    if first < 0 or count < 0 or first + count > len(cells):
        raise IndexError(
            f"got cells {first} to {first + count - 1}; there are {len(cells)}, counted from 0"
        )
