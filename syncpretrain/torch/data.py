"""Examples, targets and weights as rows: of arrays, tensors, or what a ``DataLoader`` gives."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from contextlib import nullcontext
from typing import Any, NamedTuple

import numpy as np
import torch

from syncpretrain.data.examples import evenly_spaced
from syncpretrain.data.minibatches import ArrayPasses, Minibatches
from syncpretrain.errors import DataError
from syncpretrain.kernels.arrays import Array
from syncpretrain.torch.block import Layout, drawing, loaded, saved, seeded
from syncpretrain.workers.worker import PROBE_ROWS

END = object()  # of an iterable
LOADER = -1  # in place of a block's number: the draws of a pass over a loader


class Given(NamedTuple):
    """Rows to train on with their layout, some of them as an array, and their batch size."""

    train: Any
    layout: Layout
    sample: Array
    batch_size: int


def given_rows(
    X: Any, y: Any, weight: Any, *, batch_size: int | None, passes: int, seed: int, classes: Any
) -> Given:
    """Return what is given to be trained on.

    Raises DataError if the parts do not belong together, or it is an empty iterable.
    """
    if hasattr(X, "shape"):
        layout = _layout(classes, X, y, weight)
        rows = layout.rows(_host(X), _host(y), _host(weight))
        size = min(batch_size or 64, len(rows))
        return Given(rows, layout, rows[:size], size)
    if y is not None or weight is not None:
        raise DataError("y: got it with an iterable, expected tuples of X and y from the iterable")
    if hasattr(X, "__next__") or not hasattr(X, "__iter__"):  # such as a data set by itself
        raise DataError(f"X: got {type(X).__name__}, expected arrays or an iterable of minibatches")
    source = _Passes(X, seed, classes)
    first = next(source(1), None)
    if first is None:
        expected = "one or more; drop_last leaves out a smaller one than batch_size"
        raise DataError(f"X: got an iterable without a minibatch, expected {expected}")
    size = batch_size or getattr(X, "batch_size", None) or len(first)
    how: dict[str, Any] = {"bounded": False, "batch_size": size, "trained": passes}
    # A pass has as many rows as it says; an iterable that says nothing is read once to count them.
    train = _RowPasses(Minibatches(source, n_examples=_rows_of(X)), source.layout.width, **how)
    return Given(train, source.layout, first[:size], size)


def held_out_rows(validation: Any, layout: Layout) -> Array:
    """Return at most :data:`PROBE_ROWS` rows of validation examples; none without any."""
    if validation is None:
        return np.empty((0, layout.width), np.float32)
    kinds = tuple, list
    is_whole = isinstance(validation, kinds) and not isinstance([*validation, None][0], kinds)
    is_whole = is_whole or hasattr(validation, "shape")
    if not is_whole and not isinstance(validation, Iterable):
        got = type(validation).__name__
        raise DataError(f"validation: got {got}, expected (X, y) or an iterable of minibatches")
    rows = [np.empty((0, layout.width), np.float32)]
    try:
        for item in [validation] if is_whole and len(validation) else validation:
            rows.append(layout.rows(*map(_host, _parts(item))))
            if sum(map(len, rows)) >= PROBE_ROWS:
                break
    except (DataError, TypeError) as error:  # of what has no length
        raise DataError(f"validation: {error}") from error
    if not len(own := np.concatenate(rows)):
        raise DataError("validation: got no examples, expected one or more")
    return evenly_spaced(own, PROBE_ROWS) if is_whole else own[:PROBE_ROWS]


def _layout(classes: int | None, x: Any, y: Any = None, weight: Any = None) -> Layout:
    """Return the layout of arrays or tensors."""
    if any(getattr(own, "shape", ())[:1] == (0,) for own in (x, y)):
        raise DataError("X or y: got no rows, expected one or more; give examples to train on")
    try:
        x = torch.tensor(np.asarray(_host(x))[0].copy())
        y = None if y is None else torch.tensor(np.asarray(_host(y))[0].copy())
    except (TypeError, ValueError, LookupError, AttributeError) as error:  # of what is no array
        raise DataError(f"X or y: expected numbers, a row an example ({error})") from error
    dtype = torch.float32 if x.is_floating_point() else x.dtype
    if y is None:
        return Layout(tuple(x.shape), dtype, is_weighted=weight is not None)
    y_dtype = torch.float32 if y.is_floating_point() else torch.int64
    own = tuple(x.shape), dtype, tuple(y.shape), y_dtype
    return Layout(*own, is_weighted=weight is not None, classes=classes)


def _host(values: Any) -> Any:
    return values.numpy(force=True) if isinstance(values, torch.Tensor) else values


def _parts(item: Any) -> tuple[Any, ...]:
    """Return X, and maybe y and the weights, of a minibatch."""
    parts = tuple(item) if isinstance(item, (tuple, list)) else (item,)
    if len(parts) > 3:
        raise DataError(f"X: got {len(parts)} parts of a minibatch, expected X, y and weights")
    return parts


def _rows_of(loader: Any) -> int | None:
    """Return how many rows a pass over a loader has; None where it does not say."""
    dataset: Any = getattr(loader, "dataset", None)
    size = getattr(loader, "batch_size", None)
    try:
        if size and getattr(loader, "drop_last", False):
            return len(loader) * int(size)
        own: Any = getattr(loader, "sampler", dataset)  # a sampler of an iterable has no length
        return len(own if hasattr(own, "__len__") else dataset) if size else None
    except TypeError:  # it has no length
        return None


class _RowPasses(ArrayPasses):
    """Passes over rows of a layout, which are checked as they are made."""

    def _checked(self, item: Any, name: str) -> Array:
        return item if len(item) else super()._checked(item, name)


class _Passes:
    """Passes over an iterable of minibatches as rows: a function of the number of the pass.

    All draws of a pass from PyTorch's generator, such as the order of a ``DataLoader``, follow from
    the seed and the number of the pass.
    """

    can_be_sent = True

    def __init__(self, source: Any, seed: int, classes: int | None) -> None:
        self._source, self._seed, self._classes = source, seed, classes
        self.layout: Any = None  # from the first minibatch on

    def __getstate__(self) -> dict[str, Any]:
        return {"saved": saved("the iterable", self.__dict__)}

    def __setstate__(self, state: dict[str, Any]) -> None:
        self.__dict__.update(loaded(state["saved"]))

    def __call__(self, number: int) -> Iterator[Array]:
        """Return an iterator over the minibatches of a pass."""
        state = seeded(self._seed + (number << 32), -LOADER << 32)
        batches = getattr(self._source, "batch_sampler", None)  # of a loader, whose sampler it has
        for own in (self._source, getattr(batches, "sampler", None)):
            if isinstance(given := getattr(own, "generator", None), torch.Generator):
                given.set_state(state)
        with drawing(state):
            minibatches = iter(self._source)
        while True:
            # Processes of a loader draw for themselves: then only the begin of a pass is in turn.
            with nullcontext() if getattr(self._source, "num_workers", 0) else drawing(state):
                item = next(minibatches, END)
            if item is END:
                return
            parts = _parts(item)
            if self.layout is None:
                self.layout = _layout(self._classes, *parts)
            yield self.layout.rows(*map(_host, parts))
