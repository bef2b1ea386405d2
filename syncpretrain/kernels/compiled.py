"""Programs worked by the C extension, with the products of NumPy's own BLAS."""

from __future__ import annotations

import ctypes
from functools import cache
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray
from threadpoolctl import threadpool_info

from syncpretrain.kernels.native import extension, shape_numbers
from syncpretrain.shapes import ConvolutionShape

__all__ = ["SHARED_COUNTERS", "compiled_program", "run_program", "share_program"]

# With NumPy's prefix or not, with the suffix that says integers of 64 bits or not.
NAMES = ("scipy_cblas_{}64_", "cblas_{}64_", "scipy_cblas_{}", "cblas_{}")
EXACT = 2**24  # integers that a float32 holds
NO_COUNTERS = np.zeros(1, dtype=np.int64)
SHARED_COUNTERS = 17  # those of :func:`share_program`


class Sgemm(NamedTuple):
    """The single-precision matrix product of a BLAS: its address, and whether it takes int64."""

    address: int
    wide: bool


@cache
def _sgemm() -> Sgemm | None:
    """Return the product of NumPy's own BLAS, or None if it is not found or not sure."""
    found = [info["filepath"] for info in threadpool_info() if info["user_api"] == "blas"]
    for path in sorted(found, key=lambda path: "numpy" not in path):
        library = ctypes.CDLL(path)
        for name in NAMES:
            if hasattr(library, name.format("sgemm")):
                return sgemm_of(library, name)
    return None


def sgemm_of(library: Any, name: str) -> Sgemm | None:
    """Return the product of a library, whose names are formed so.

    None if it is not sure that its integers have 32 bits, or that they have 64.
    """
    wide = _takes_int64(getattr(library, name.format("scopy"), None))
    if wide is None or ("64" in name and not wide):
        return None
    return Sgemm(_address(getattr(library, name.format("sgemm"))), wide)


def _takes_int64(scopy: Any) -> bool | None:
    """Return whether the integers of a BLAS have 64 bits, as its ``cblas_scopy`` sees them.

    Neither the symbol nor the file is named after them in every build. So a number is copied n
    times, where n is 1 in its lower 32 bits and negative as a whole: nothing is copied if it is
    read as a whole. All arguments lie in registers, of which a function may read the lower half.
    None if it did not copy as it should.
    """
    if scopy is None or ctypes.sizeof(ctypes.c_void_p) != 8:
        return None
    kinds = (ctypes.c_int64, ctypes.c_void_p, ctypes.c_int64, ctypes.c_void_p, ctypes.c_int64)
    copy = ctypes.CFUNCTYPE(None, *kinds)(_address(scopy))
    given = np.ones(1, dtype=np.float32)
    taken = np.zeros((2, 1), dtype=np.float32)
    for n, out in zip((1, 1 - 2**32), taken, strict=True):
        copy(n, given.ctypes.data, 1, out.ctypes.data, 1)
    if not taken[0, 0]:
        return None
    return not taken[1, 0]


def _address(function: Any) -> int:
    address = ctypes.cast(function, ctypes.c_void_p).value
    assert address is not None
    return address


def compiled_program(phases: Any) -> Any:
    """Return phases of shards of operations for :func:`run_program`.

    None where the extension is missing, or an operation or array is not for it.
    """
    blas = None if extension is None else _sgemm()
    if blas is None:
        return None
    try:
        forms = [[[_compiled_form(*op) for op in ops] for ops in shards] for shards in phases]
        return extension.program(forms, *blas)
    except ValueError:
        return None


def _compiled_form(name: str, *arguments: Any) -> tuple[Any, ...]:
    """Return an operation as the extension takes it.

    Raises
    ------
    ValueError
        If it has no such form.
    """
    if name == "sample_states":
        x, bias, _, out, units, shard = arguments
        if units not in extension.DRAWN:
            raise ValueError(units)
        return name, x, bias, out, shard
    if name in ("means", "times_derivative"):
        return name, *arguments[:2], _units_number(arguments[2])
    if name == "phase_differences" and arguments[-1] > EXACT:
        raise ValueError(arguments[-1])
    if any(isinstance(value, ConvolutionShape) for value in arguments):
        return name, *_convolution_form(arguments)
    if name == "adam_step":
        return name, *arguments, 0.9, 0.999
    return name, *arguments


def _convolution_form(arguments: tuple[Any, ...]) -> list[Any]:
    """Return the arguments of a convolution with numbers for its shape and its units."""
    form: list[Any] = []
    for value in arguments:
        if isinstance(value, ConvolutionShape):
            form += shape_numbers(value)
        elif isinstance(value, str):
            form.append(_units_number(value))
        else:
            form.append(value)
    return form


def _units_number(units: str) -> Any:
    if units not in extension.UNITS:
        raise ValueError(units)
    return extension.UNITS[units]


def run_program(
    program: Any,
    numbers: NDArray[np.float64],
    words: NDArray[np.uint64],
    results: NDArray[np.float64],
    rank: int,
    workers: int,
    counters: NDArray[np.int64] | None,
    *,
    first: int = 0,
    behind: int = 0,
    broken: int = 0,
    spin_seconds: float = 0.0,
    look_seconds: float = 1.0,
    timeout_seconds: float = 0.0,
) -> int:
    """Run a worker's shards of every phase of a program, without the interpreter's lock.

    After each phase the worker stores ``behind`` and the number of phases done in the counter
    ``first + rank``, and waits for the other workers as ``wait_for_counters`` does
    (:mod:`syncpretrain.parallel.waiting`), for up to ``timeout_seconds`` in each phase. Of a pause
    longer than ``look_seconds``, in which the process was suspended, only that much counts.

    Returns
    -------
    int
        As ``wait_for_counters``.
    """
    waited: int = extension.run_program(
        program,
        numbers,
        words,
        results,
        NO_COUNTERS if counters is None else counters,
        rank,
        workers,
        first,
        behind,
        broken,
        spin_seconds,
        look_seconds,
        timeout_seconds,
    )
    return waited


def share_program(
    program: Any,
    numbers: NDArray[np.float64],
    words: NDArray[np.uint64],
    results: NDArray[np.float64],
    counters: NDArray[np.int64],
    *,
    base: int,
    broken: int,
    is_owner: bool,
    first: int = 0,
    spin_seconds: float = 0.0,
    look_seconds: float = 1.0,
    timeout_seconds: float = 0.0,
) -> int:
    """Run shards of a program that no thread has taken yet, without the interpreter's lock.

    The owner, of which there is one, begins the step, and returns when all of it is done. Any
    other returns when all shards are taken. Shards are numbered through all steps: ``base`` have
    been before this one. ``counters[first:]`` has :data:`SHARED_COUNTERS` counters, 0 before the
    first step.

    Returns
    -------
    int
        As ``wait_for_counters``; late if a phase takes longer than ``timeout_seconds``.
    """
    waited: int = extension.share_program(
        program,
        numbers,
        words,
        results,
        counters,
        first,
        base,
        broken,
        is_owner,
        spin_seconds,
        look_seconds,
        timeout_seconds,
    )
    return waited
