"""Programs worked by the C extension, with the products of NumPy's own BLAS."""

from __future__ import annotations

import ctypes
from functools import cache
from typing import Any

import numpy as np
from numpy.typing import NDArray
from threadpoolctl import threadpool_info

from syncpretrain.kernels.native import extension

__all__ = ["compiled_program", "run_program"]

SGEMM_NAMES = ("scipy_cblas_sgemm64_", "cblas_sgemm64_", "scipy_cblas_sgemm", "cblas_sgemm")
UNITS = ("bernoulli", "gaussian", "relu")  # as the extension numbers them
NO_CELLS = np.zeros(1, dtype=np.int64)


@cache
def _sgemm() -> tuple[int, bool] | None:
    """Return the address of single-precision matrix product of NumPy's own BLAS.

    And whether its integers have 64 bits; None where it is not to be found.
    """
    found = [info["filepath"] for info in threadpool_info() if info["user_api"] == "blas"]
    for path in sorted(found, key=lambda path: "numpy" not in path):
        library = ctypes.CDLL(path)
        for name in SGEMM_NAMES:
            if hasattr(library, name):
                address = ctypes.cast(getattr(library, name), ctypes.c_void_p).value
                assert address is not None
                return address, "64" in name
    return None


def compiled_program(phases: Any) -> Any:
    """Return phases of shards of operations for :func:`run_program`.

    None where the extension is missing, or an operation or array is not for it.
    """
    blas = None if extension is None else _sgemm()
    if blas is None:
        return None
    try:
        told = [[[_told(*op) for op in ops] for ops in shards] for shards in phases]
        return extension.program(told, *blas)
    except ValueError:
        return None


def _told(name: str, *arguments: Any) -> tuple[Any, ...]:
    """Return an operation as the extension takes it.

    Raises
    ------
    ValueError
        If it has no such form.
    """
    if name == "draw_states":
        x, bias, _, out, units, shard = arguments
        if units != "bernoulli":
            raise ValueError(units)
        return name, x, bias, out, shard
    if name in ("means", "times_derivative"):
        return name, *arguments[:2], UNITS.index(arguments[2])
    if name == "adam_step":
        return name, *arguments, 0.9, 0.999
    return name, *arguments


def run_program(
    program: Any,
    numbers: NDArray[np.float64],
    words: NDArray[np.uint64],
    results: NDArray[np.float64],
    member: int,
    members: int,
    cells: NDArray[np.int64] | None,
    *,
    first: int = 0,
    behind: int = 0,
    broken: int = 0,
    spin_seconds: float = 0.0,
    look_seconds: float = 1.0,
    timeout_seconds: float = 0.0,
) -> int:
    """Work a member's shards of every phase of a program, without the interpreter's lock.

    After each phase the member stores ``behind`` and the number of phases done in the cell
    ``first + member``, and waits for the other members as ``wait_cells`` does
    (:mod:`syncpretrain.kernels.waiting`), for up to ``timeout_seconds`` in each phase. Of a pause
    longer than ``look_seconds``, in which the process was suspended, only so much counts.

    Returns
    -------
    int
        As ``wait_cells``.
    """
    waited: int = extension.run_program(
        program,
        numbers,
        words,
        results,
        member,
        members,
        NO_CELLS if cells is None else cells,
        first,
        behind,
        broken,
        spin_seconds,
        look_seconds,
        timeout_seconds,
    )
    return waited
