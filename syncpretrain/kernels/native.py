"""Compiled forms of the elementwise equations, and waits for counters in shared memory.

The C extension ``_native`` is optional: it is built where there is a C compiler. Then its forms
stand in for those in NumPy, for rows of float32 whose elements lie side by side; anything else goes
to NumPy still. The environment variable ``SYNCPRETRAIN_KERNELS`` chooses: ``numpy`` leaves the
extension out, ``native`` insists on it.

Equal to the NumPy forms bit for bit: the random numbers, and every form but for the sigmoid, which
differs in its last bits, and the sum of squared errors, whose terms are added in another order.
Nothing warns of a number that is not finite; ``noise``, ``scratch`` and what else a NumPy form uses
up stays as it is.
"""

from __future__ import annotations

import math
import os
import time
from typing import Any

import numpy as np
from numpy.typing import NDArray

from syncpretrain.backends.draws import Address
from syncpretrain.errors import SyncpretrainError

# Imported for the equations that they name: a form can be registered only for one that exists.
from syncpretrain.kernels import activations, contrastive_divergence, errors, optimizers
from syncpretrain.kernels.dispatch import register

__all__ = [
    "NativeKernelsError",
    "arrive_and_wait",
    "available",
    "store_cell",
    "wait_cells",
]

Array = NDArray[np.float32]
Cells = NDArray[np.int64]
VARIABLE = "SYNCPRETRAIN_KERNELS"
EQUATIONS = (activations, contrastive_divergence, errors, optimizers)
FEW = 100  # looks without a sleep, of a wait in Python
NAP = 50e-6


class NativeKernelsError(SyncpretrainError, ImportError):
    """The compiled kernels were asked for but are missing, or another kind was that is unknown."""


def _loaded() -> Any:
    """Return the extension, or None where it was not built or is not wanted."""
    wanted = os.environ.get(VARIABLE, "")
    if wanted not in ("", "native", "numpy"):
        raise NativeKernelsError(f"got {VARIABLE}={wanted!r}; expected 'native', 'numpy' or none")
    if wanted == "numpy":
        return None
    try:
        from syncpretrain.kernels import _native
    except ImportError as error:
        if wanted == "native":
            raise NativeKernelsError(
                f"got {VARIABLE}=native, but the compiled kernels are missing ({error}); install "
                "syncpretrain again with a C compiler (GCC or Clang) and Python's headers, or "
                f"unset {VARIABLE} to use NumPy's"
            ) from error
        return None
    return _native


_native: Any = _loaded()


def available() -> bool:
    """Return whether the compiled forms are in use."""
    return _native is not None


def _means(x: Array, bias: Array, units: str) -> Any:
    return _native.means(x, bias, units)


def _times_derivative(delta: Array, a: Array, units: str = "bernoulli") -> Any:
    return _native.times_derivative(delta, a, units)


def _draw_states(
    x: Array, bias: Array, units: str, address: Address, *, noise: Array, out: Array
) -> Any:
    if units != "bernoulli":
        return NotImplemented
    return _native.draw_states(x, bias, out, address.key, address.counter)


def _phase_differences(v: Array, h: Array, *, da: Array, db: Array, examples: int) -> Any:
    return _native.phase_differences(v, h, da, db, examples)


def _momentum_step(
    parameter: Array,
    gradient: Array,
    velocity: Array,
    *,
    momentum: float,
    learning_rate: float,
    weight_decay: float = 0.0,
    l1: float = 0.0,
) -> Any:
    return _native.momentum_step(
        parameter, gradient, velocity, momentum, learning_rate, weight_decay, l1
    )


def _squared_error(x: Array, y: Array, *, out: Array) -> Any:
    return _native.squared_error(x, y, out)


def _sgd_step(
    parameters: Array,
    gradient: Array,
    velocity: Array,
    *,
    learning_rate: float,
    scratch: Array,
    momentum: float = 0.0,
    nesterov: bool = False,
) -> Any:
    return _native.sgd_step(parameters, gradient, velocity, learning_rate, momentum, nesterov)


def _adam_step(
    parameters: Array,
    gradient: Array,
    first: Array,
    second: Array,
    *,
    step: int,
    learning_rate: float,
    scratch: Array,
    beta1: float = 0.9,
    beta2: float = 0.999,
    epsilon: float = 1e-8,
) -> Any:
    # The same two factors as in the NumPy form, which says where they are from.
    scale1 = (1 - beta1) / (1 - beta1**step)
    scale2 = math.sqrt((1 - beta2) / (1 - beta2**step))
    size, floor = learning_rate * scale1 / scale2, epsilon / scale2
    return _native.adam_step(parameters, gradient, first, second, beta1, beta2, size, floor)


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

    First spinning, then giving way to others, then sleeping. Whoever sees a value that
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
    if _native is not None:
        waited: int = _native.wait_cells(
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
    if _native is not None:
        _native.store_cell(cells, index, value)
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
    if _native is not None:
        waited: int = _native.arrive_and_wait(
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


if _native is not None:
    register(
        np.ndarray,
        {
            "means": _means,
            "times_derivative": _times_derivative,
            "draw_states": _draw_states,
            "phase_differences": _phase_differences,
            "momentum_step": _momentum_step,
            "squared_error": _squared_error,
            "sgd_step": _sgd_step,
            "adam_step": _adam_step,
        },
    )
