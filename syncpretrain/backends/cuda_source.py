"""The CUDA source of this folder: compiled for each device at its first use, launched by name.

The tests compile the source by NVRTC for several architectures, and run it on the CPU.
``examples/gpu_check.py`` checks it on a GPU; docs/benchmarks.rst says on which it has run.

Guarantees: threads may launch at the same time, each on its own current stream; what one thread
records never changes what another launches. Assumption: the arrays of a launch live until it has
run, which CuPy's pools see to where one stream allocates, uses and frees them.
"""

from __future__ import annotations

import re
from collections.abc import Callable
from contextvars import ContextVar
from functools import cache
from importlib.resources import files
from typing import Any

import numpy as np

from syncpretrain.kernels.dispatch import UnfitError

# Each calls functions of the first.
CUDA_FILES = ("kernels.cu", "errors.cu", "convolutions.cu", "peers.cu")
THREADS = 256
TILE = (32, 8)  # columns and rows, of the sums over examples
# Beyond that a thread takes several elements. A million threads: four times what an H100 holds at
# once (132 multiprocessors of 2,048), so no more are needed to keep it busy.
MOST_BLOCKS = 4096
MOST_ELEMENTS = 2**31 - 1  # kernels number elements by 32 bits
# Without it a product and a sum become one operation that rounds once, where NumPy rounds twice.
COMPILER_OPTIONS = ("--fmad=false",)


@cache
def cuda_source(names: tuple[str, ...] = CUDA_FILES, precision: str = "float32") -> str:
    """Return the source of some files, one translation unit, with products in a precision."""
    folder = files("syncpretrain.backends")
    parts = [folder.joinpath(name).read_text(encoding="utf-8") for name in names]
    return "\n".join([f"#define PRECISION PRECISION_{precision.upper()}", *parts])


def layout(*arrays: Any) -> tuple[int, ...] | None:
    """Return rows, columns, and each array's elements from row to row; None if not to be had.

    The arrays are float32 of one shape, with contiguous rows.
    """
    shape = arrays[0].shape
    if arrays[0].size > MOST_ELEMENTS or len(shape) not in (1, 2):
        return None
    steps = []
    for array in arrays:
        if array.dtype != np.float32 or array.shape != shape:
            return None
        *row, column = array.strides
        if (column != 4 and shape[-1] > 1) or (row and (row[0] % 4 or row[0] < 0)):
            return None
        steps.append(row[0] // 4 if row else shape[0])
    return (shape[0] if len(shape) == 2 else 1, shape[-1], *steps)


def fitted(*arrays: Any) -> tuple[int, ...]:
    """Return what :func:`layout` does, of arrays that have one.

    Raises
    ------
    UnfitError
    """
    found = layout(*arrays)
    require(found is not None)
    return found or ()


def require(*are_fit: bool) -> None:
    """Refuse a call if its arrays do not fit its form.

    Raises
    ------
    UnfitError
    """
    if not all(are_fit):
        raise UnfitError


def require_vectors(length: int, *arrays: Any) -> None:
    """Refuse other arrays than contiguous vectors of float32 of a length that kernels count to.

    Raises
    ------
    UnfitError
    """
    require(length <= MOST_ELEMENTS, *(is_vector(array, length) for array in arrays))


def is_vector(array: Any, length: int) -> bool:
    """Return whether an array is a contiguous vector of float32 of a length."""
    return bool(array.dtype == np.float32 and array.shape == (length,) and array.flags.c_contiguous)


def grid_of(items: int, each: int = THREADS) -> tuple[int]:
    """Return the grid of blocks that take ``each`` of some items at a time."""
    return (min(MOST_BLOCKS, -(-items // each)),)


def rates_of(
    *, momentum: float, learning_rate: float, weight_decay: float = 0.0, l1: float = 0.0
) -> list[np.float32]:
    """Return the numbers that kernels take for the keywords of a momentum step, in their order."""
    numbers = (momentum, learning_rate, learning_rate * weight_decay, learning_rate * l1)
    return [np.float32(number) for number in numbers]


class NotRecordedError(RuntimeError):
    """Work that cannot be recorded: it would be the same each time, or needs the host."""


# The source is one for all threads, and layers record at the same time: as attributes these would
# enter another thread's launches.
_recording: ContextVar[tuple[Any, Any]] = ContextVar("recording", default=(None, None))


class CudaSource:
    """The kernels of the source, compiled for each device at its first use there.

    Parameters
    ----------
    cupy : module
        CuPy, or what stands in for it in a test.
    names : tuple of str
        The files of the source.
    precision : str
        Precision of the products in ``products.cu``, where that is one of the files.

    Attributes
    ----------
    units : dict of str to int
        The kinds of units that the source has, and their numbers there.
    """

    def __init__(
        self, cupy: Any, names: tuple[str, ...] = CUDA_FILES, precision: str = "float32"
    ) -> None:
        self._cupy, source = cupy, cuda_source(names, precision)
        self._module = cupy.RawModule(code=source, options=COMPILER_OPTIONS)
        numbers = re.findall(r"^#define UNITS_(\w+) (\d+)$", source, re.MULTILINE)
        self.units = {name.lower(): int(number) for name, number in numbers}
        self._functions: dict[str, Any] = {}
        self._allowed: set[tuple[str, int]] = set()  # with shared memory, and a device

    @property
    def now(self) -> Any:
        """Device array that a graph reads its step, epoch and rows from; None if none is recorded.

        The array has three numbers of 64 bits. Each thread has its own.
        """
        return _recording.get()[0]

    @property
    def numbers(self) -> Any:
        """Device array that a recorded step reads its optimizer's numbers from; else None."""
        return _recording.get()[1]

    def record(self, now: Any, numbers: Any = None) -> None:
        """Have what this thread launches read these arrays; None where nothing is recorded."""
        _recording.set((now, numbers))

    def require_no_recording(self, what: str) -> None:
        """Refuse what cannot be recorded.

        Raises
        ------
        NotRecordedError
        """
        if self.now is not None:
            raise NotRecordedError(what)

    def launch(
        self, name: str, grid: tuple[int], block: tuple[int, ...], *args: Any, shared: int = 0
    ) -> None:
        """Launch a kernel onto the current stream, with so many bytes of dynamic shared memory."""
        # No lock: two threads that miss a name both look it up, and find the same function.
        function = self._functions.get(name)
        if function is None:
            function = self._functions[name] = self._module.get_function(name)
        if shared:
            key = name, self._cupy.cuda.Device().id
            if key not in self._allowed:  # CUDA refuses more than 48 KiB unless it is told before
                function.max_dynamic_shared_size_bytes = shared
                self._allowed.add(key)
        function(grid, block, args, shared_mem=shared)

    def flat(self, name: str, items: int, *args: Any) -> None:
        """Launch a kernel with one thread for each item; none for no items."""
        if items:
            self.launch(name, grid_of(items), (THREADS,), *args)


class CudaForms:
    """Base of forms of equations: public methods, named and called as the equations.

    A form raises :class:`~syncpretrain.kernels.dispatch.UnfitError`, having done nothing, for what
    its kernel does not take.

    Parameters
    ----------
    cupy : module
        CuPy, or what stands in for it in a test.
    source : CudaSource
    """

    def __init__(self, cupy: Any, source: CudaSource) -> None:
        self._cupy, self._source = cupy, source

    def forms(self) -> dict[str, Callable[..., Any]]:
        """Return the forms by the names of their equations."""
        own = (name for name in vars(type(self)) | vars(self) if not name.startswith("_"))
        return {name: getattr(self, name) for name in own}

    def _number(self, units: str) -> int:
        """Return the number of a kind of units in the source.

        Raises
        ------
        UnfitError
            If the source has no such units.
        """
        require(units in self._source.units)
        return self._source.units[units]
