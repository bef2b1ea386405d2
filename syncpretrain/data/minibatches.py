"""Examples that come a few at a time, pass after pass, as a user gives them to a streamed run."""

from __future__ import annotations

import inspect
from collections.abc import Callable, Iterable, Iterator
from typing import Any

import numpy as np
from numpy.typing import ArrayLike

from syncpretrain.errors import DataError

__all__ = ["Minibatches", "is_iterable_of_arrays"]

NO_EXAMPLES = (str, bytes, dict, set, frozenset, list, tuple)  # arrays, or nothing of the kind


class Minibatches:
    """Examples that come a few at a time, for ``pretrain(..., handoff="minibatch")``.

    Every pass over the data begins anew. A pass gives arrays of shape (n, visible) with any number
    of rows; they are cut into minibatches of ``batch_size`` in the order in which they come, so
    that shuffling is up to the source. Values are as for arrays: in [0, 1], or bytes, or any finite
    ones for Gaussian visible units. Of a tuple or list of arrays, such as a ``DataLoader`` of
    PyTorch gives, the first array counts.

    Parameters
    ----------
    source : iterable or callable
        An object of which every ``iter()`` begins a pass, or a function that is called with the
        number of a pass, counted from 1, and returns an iterable. If it gives the same arrays for
        the same pass, the same seed gives the same weights.
    n_examples : int, optional
        Rows of a pass; what a pass gives beyond them is not asked for. By default a pass is read
        before training to count them, and to check every value.

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
        source: Any = self.source
        if not hasattr(source, "__iter__"):
            source = source(number)
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
        """Whether the source is an iterator, such as a generator, which cannot begin anew."""
        return hasattr(self.source, "__next__")


def _takes_a_number(source: Any) -> bool:
    try:
        inspect.signature(source).bind(1)
    except TypeError:
        return False
    except ValueError:  # nothing is known of it
        return True
    return True


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
