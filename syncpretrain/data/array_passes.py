"""Passes over the examples that an iterable gives, checked and cut into minibatches."""

from __future__ import annotations

from collections.abc import Iterator
from itertools import chain, count
from typing import Any

import numpy as np
from numpy.typing import NDArray

from syncpretrain.data.blocks import Prepare, StoredRows, as_float32, chunks
from syncpretrain.data.examples import as_examples, check_values
from syncpretrain.data.meaning import NUMBERS, SHARES, Meaning, check_precision
from syncpretrain.data.minibatches import Minibatches
from syncpretrain.data.scaling import column_means
from syncpretrain.errors import DataError, IterableError

__all__ = ["ArrayPasses"]

Examples = NDArray[np.float32]
END = object()  # of a pass


class ArrayPasses:
    """Passes over :class:`Minibatches`, their arrays checked and as layer 1 sees them.

    The first array is read at once.

    Parameters
    ----------
    source : Minibatches
    width : int
        Values of an example.
    bounded : bool
        False permits values outside [0, 1].
    batch_size : int
        Of layer 1, which errors name the minibatches of.
    trained : int
        How many passes are trained on, or more.
    measured : int
        How many are read before, to measure the columns.

    Raises
    ------
    DataError
        If the source can be read once and is to be read more often, or gives what cannot be trained
        on.
    """

    def __init__(
        self,
        source: Minibatches,
        width: int,
        *,
        bounded: bool,
        batch_size: int,
        trained: int,
        measured: int = 0,
    ) -> None:
        self._source, self._width, self._bounded = source, width, bounded
        self._batch_size = batch_size
        self._prepare: Prepare | None = None
        self._begun: Iterator[Any] | None = None  # of a source that cannot begin anew
        reads = trained + measured + (source.n_examples is None)
        if source.is_read_once and reads > 1:
            counting = ", one of them for lack of n_examples" if source.n_examples is None else ""
            fewer = "; or 1 epoch a layer with delay=0 and n_examples, which need one pass only"
            raise DataError(
                f"X: got {type(source.source).__name__}, which can be read once, for {reads} passes"
                f"{counting}; expected an iterable that begins anew with every iter(), or a"
                f" function of the number of the pass{'' if measured else fewer}"
            )
        self.meaning: Meaning | None = None  # of the numbers of the first array
        self.are_all_ones = False  # bytes in the first array
        self._peek()
        self._rows = source.n_examples or sum(map(len, self.arrays(1)))
        self.means: NDArray[np.float64] | None = None  # of the columns, once measured

    def __len__(self) -> int:
        return self._rows

    @property
    def shape(self) -> tuple[int, int]:
        """The rows of a pass, and the values of an example."""
        return self._rows, self._width

    def prepared_by(self, prepare: Prepare) -> ArrayPasses:
        """Have every array go through ``prepare`` from now on; return the passes."""
        self._prepare = prepare
        return self

    def measure(self) -> None:
        """Read the first pass, and keep the means of its columns.

        Raises
        ------
        DataError
            As :meth:`minibatches`.
        """
        self.means = column_means(self)

    def arrays(self, number: int) -> Iterator[Examples]:
        """Yield the arrays of a pass as float32, unprepared.

        Raises
        ------
        DataError
            At an array that cannot be trained on.
        IterableError
            If the source itself raises an exception.
        """
        begun, self._begun = self._begun, None
        rows = 0
        for i in count(1):
            minibatch = rows // self._batch_size + 1
            name = f"X: array {i} of pass {number}, for minibatch {minibatch} of layer 1"
            begun, item = self._next(begun, number, name)
            if item is END:
                return
            array = self._checked(item, name)
            rows += len(array)
            yield array

    def minibatches(self, number: int, rows: int) -> Iterator[Examples]:
        """Yield a pass in arrays of ``rows`` rows, the last of which may be smaller.

        Each is valid until the next one is asked for.

        Raises
        ------
        DataError
            If the pass ends early, or an array of it cannot be trained on.
        """
        out = np.empty((min(rows, self._rows), self._width), dtype=np.float32)
        done = filled = 0
        for array in self.arrays(number):
            while len(array) and done < self._rows:
                wanted = min(len(out), self._rows - done)
                taken = min(wanted - filled, len(array))
                out[filled : filled + taken] = array[:taken]
                filled, array = filled + taken, array[taken:]
                if filled == wanted:
                    done, filled = done + wanted, 0
                    yield out[:wanted] if self._prepare is None else self._prepare(out[:wanted])
            if done == self._rows:
                return
        raise DataError(
            f"X: pass {number} ended after {done + filled} examples, in minibatch"
            f" {(done + filled) // self._batch_size + 1} of layer 1, expected {self._rows}; every"
            " pass must give as many, n_examples if it is given"
        )

    def blocks(self) -> Iterator[Examples]:
        """Yield the first pass, a few rows at a time."""
        rows = next(chunks(self.shape)).stop
        return self.minibatches(1, rows)

    def _peek(self) -> None:
        name = "X: array 1 of pass 1, for minibatch 1 of layer 1"
        begun, first = self._next(None, 1, name)
        if first is END:
            raise DataError(
                "X: got no array in the first pass, expected one or more of shape"
                f" (any number, {self._width})"
            )
        self._checked(first, name)
        if self._source.is_read_once:
            self._begun = chain([first], begun)

    def _next(
        self, begun: Iterator[Any] | None, number: int, name: str
    ) -> tuple[Iterator[Any], Any]:
        """Return a pass, begun if it is not, and its next array, END if there is none."""
        try:
            if begun is None:
                begun = self._source.begin(number)
            return begun, next(begun, END)
        except Exception as error:
            if begun is None and isinstance(error, DataError):  # it names the pass itself
                raise
            raise IterableError(
                f"{name}: the iterable raised {type(error).__name__}: {error}, expected an array;"
                " see the traceback of its error"
            ) from error

    def _checked(self, item: Any, name: str) -> Examples:
        """Return the examples of an array, or of the first array of several."""
        if isinstance(item, (tuple, list)) and item and np.ndim(item[0]) == 2:
            item = item[0]
        found = as_examples(item, name)
        if found.shape[1] != self._width:
            raise DataError(
                f"{name}: got shape {found.shape}, expected (any number, {self._width}), the first"
                " number of layers"
            )
        if self.meaning is not None:
            found = self.meaning.prepare(found, name, bounded=self._bounded)
        check_values(found, name, bounded=self._bounded)
        if self.meaning is None:  # all bytes of a stream are divided, and its range is not known
            is_bytes = found.dtype == np.uint8
            self.meaning = Meaning("bytes") if is_bytes else SHARES if self._bounded else NUMBERS
            self.are_all_ones = is_bytes and bool(found.max() <= 1)
        if not self._bounded:
            check_precision(found, name)
        if isinstance(found, StoredRows):
            return found[:]
        return as_float32(found, np.empty(found.shape, dtype=np.float32))
