"""Examples that come a few at a time, pass after pass, for a streamed run.

A user wraps an iterable, or a function, in :class:`Minibatches`; :class:`ArrayPasses` reads it,
checks its arrays and cuts them into minibatches.
"""

from __future__ import annotations

import inspect
from collections.abc import Callable, Iterable, Iterator
from itertools import chain, count
from typing import Any

import numpy as np
from numpy.typing import ArrayLike, NDArray

from syncpretrain.data.blocks import Prepare, StoredRows, as_float32, chunks
from syncpretrain.data.examples import as_examples, check_values
from syncpretrain.data.meaning import NUMBERS, SHARES, Meaning, check_precision
from syncpretrain.data.scaling import column_means
from syncpretrain.errors import DataError, IterableError

Examples = NDArray[np.float32]
NO_EXAMPLES = (str, bytes, dict, set, frozenset, list, tuple)  # arrays, or no examples at all
END = object()  # stands for the end of a pass


class Minibatches:
    """Examples that come a few at a time, for ``pretrain(..., handoff="minibatch")``.

    Every pass over the data begins anew. A pass gives arrays of shape (n, visible) with any number
    of rows; they are cut into minibatches of ``batch_size`` in the order in which they come, so
    that shuffling is up to the source. Values are as for arrays: in [0, 1], or bytes, or any finite
    numbers for Gaussian visible units. If a pass gives tuples or lists of arrays, as a
    ``DataLoader`` of PyTorch does, the first array of each is used.

    Parameters
    ----------
    source : iterable or callable
        An object that begins a pass with every ``iter()``, or a function that is called with the
        number of a pass, counted from 1, and returns an iterable. If it gives the same arrays for
        the same pass, the same seed gives the same weights.
    n_examples : int, optional
        Rows of a pass; further rows are not read. By default one pass is read before training, to
        count the rows and check every value.

    Raises
    ------
    DataError
        If the source is neither, or ``n_examples`` is no whole number, or below 1.

    Notes
    -----
    Gaussian visible units, and ``visible_bias="log-odds"``, each read the first pass once more
    before training. With ``n_examples`` only the first array is checked before training, all others
    as they come; an error then ends the run, and its ``stack`` holds what was learned.

    Examples
    --------
    >>> import numpy as np
    >>> from syncpretrain import Minibatches, pretrain
    >>> def one_pass(number):
    ...     draws = np.random.default_rng(number)
    ...     for _ in range(5):
    ...         yield draws.random((20, 8), dtype=np.float32)
    >>> X = Minibatches(one_pass, n_examples=100)
    >>> pretrain(X, layers=[8, 4, 2], handoff="minibatch", epochs=2, batch_size=10).widths
    (8, 4, 2)
    """

    def __init__(
        self,
        source: Iterable[ArrayLike] | Callable[[int], Iterable[ArrayLike]],
        *,
        n_examples: int | None = None,
    ) -> None:
        if not (hasattr(source, "__iter__") or callable(source)):
            raise DataError(
                f"X: got {type(source).__name__}, expected an iterable of arrays, or a function"
                " that returns one for the number of a pass"
            )
        if not hasattr(source, "__iter__") and not _takes_a_number(source):
            raise DataError(
                f"X: got {source!r}, which cannot be called with one number, expected a function of"
                " the number of the pass"
            )
        is_number = isinstance(n_examples, (int, np.integer)) and not isinstance(n_examples, bool)
        if n_examples is not None and not (is_number and n_examples >= 1):
            raise DataError(
                f"n_examples: got {n_examples!r}, expected a whole number, 1 or more, the rows of a"
                " pass"
            )
        self.source, self.n_examples = source, n_examples

    def begin(self, number: int) -> Iterator[Any]:
        """Return an iterator over the arrays of a pass.

        Raises
        ------
        DataError
            If the source gives none.
        Exception
            Whatever the source itself raises.
        """
        source = self.source if hasattr(self.source, "__iter__") else self.source(number)
        try:
            return iter(source)
        except TypeError:
            if hasattr(source, "__iter__"):  # it is the source's own
                raise
            raise DataError(
                f"X: got {type(source).__name__} for pass {number}, expected an iterable of arrays"
            ) from None

    @property
    def is_read_once(self) -> bool:
        """True for an iterator, such as a generator: it cannot begin anew."""
        return hasattr(self.source, "__next__")


def is_iterable_of_arrays(X: Any) -> bool:
    """Return whether X gives its examples pass by pass, and is no array or list of rows."""
    if isinstance(X, Minibatches):
        return True
    if isinstance(X, NO_EXAMPLES) or any(hasattr(X, n) for n in ("__array__", "toarray")):
        return False
    try:
        memoryview(X)  # an array of another kind
    except TypeError:
        return hasattr(X, "__iter__") or callable(X)
    return False


def _takes_a_number(source: Any) -> bool:
    try:
        inspect.signature(source).bind(1)
    except TypeError:
        return False
    except ValueError:  # its signature is unknown
        return True
    return True


class ArrayPasses:
    """Passes over :class:`Minibatches`: arrays that are checked and prepared for layer 1.

    The constructor reads the first array.

    Parameters
    ----------
    source : Minibatches
    width : int
        Values of an example.
    bounded : bool
        False permits values outside [0, 1].
    batch_size : int
        Batch size of layer 1; errors name its minibatches.
    trained : int
        Number of passes that are trained on, at least.
    measured : int
        Number of passes that are read before, to measure the columns.

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
        self._begun: Iterator[Examples] | None = None  # the only pass of a source that is read once
        reads = trained + measured + (source.n_examples is None)
        if source.is_read_once and reads > 1:
            counting = ", one of them for lack of n_examples" if source.n_examples is None else ""
            fewer = "; or 1 epoch a layer with delay=0 and n_examples, which need one pass only"
            raise DataError(
                f"X: got {type(source.source).__name__}, which can be read once, for {reads} passes"
                f"{counting}; expected an iterable that begins anew with every iter(), or a"
                f" function of the number of the pass{'' if measured else fewer}"
            )
        self.meaning: Meaning | None = None  # known after the first array
        self.are_all_ones = False  # True if the first array has bytes of 0 and 1 alone
        self._peek()
        self._rows = source.n_examples or sum(map(len, self.arrays(1)))
        self.means: NDArray[np.float64] | None = None  # means of the columns, once measured

    def __len__(self) -> int:
        return self._rows

    @property
    def shape(self) -> tuple[int, int]:
        """The rows of a pass, and the values of an example."""
        return self._rows, self._width

    @property
    def can_be_sent(self) -> bool:
        """Whether the source was made to be sent to another process, and read there."""
        return bool(getattr(self._source.source, "can_be_sent", False))

    def prepared_by(self, prepare: Prepare) -> ArrayPasses:
        """Pass every array through ``prepare`` from now on; return the passes."""
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
        if self._begun is not None:  # its first array has been read
            begun, self._begun = self._begun, None
            yield from begun
            return
        source, rows = None, 0
        for i in count(1):
            minibatch = rows // self._batch_size + 1
            name = f"X: array {i} of pass {number}, for minibatch {minibatch} of layer 1"
            try:
                source = self._source.begin(number) if source is None else source
                item = next(source, END)
            except Exception as error:
                if source is None and isinstance(error, DataError):  # it names the pass itself
                    raise
                raise IterableError(
                    f"{name}: the iterable raised {type(error).__name__}: {error}, expected an"
                    " array; see the traceback of its error"
                ) from error
            if item is END:
                return
            array = self._checked(item, name)
            rows += len(array)
            yield array

    def minibatches(self, number: int, rows: int) -> Iterator[Examples]:
        """Yield a pass in arrays of ``rows`` rows; the last array may be smaller.

        An array is valid until the next one is requested.

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
        return self.minibatches(1, next(chunks(self.shape)).stop)

    def _peek(self) -> None:
        arrays = self.arrays(1)
        first = next(arrays, None)
        if first is None:
            raise DataError(
                "X: got no array in the first pass, expected one or more of shape"
                f" (any number, {self._width})"
            )
        if self._source.is_read_once:
            self._begun = chain([first], arrays)

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
