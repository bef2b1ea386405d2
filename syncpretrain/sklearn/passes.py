"""Passes of examples through a stack: the result for a row does not depend on the other rows.

BLAS adds up in an order that depends on the number of rows, and in float32 on the place of a row
among them. So each block has the same number of rows (the last block is filled up), and all
products are in float64. The parameters are float32, and so is all training; results are rounded to
the precision of the examples.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import replace
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from syncpretrain.data.examples import has_missing, marked
from syncpretrain.data.scaling import without_novel
from syncpretrain.data.sparse_rows import SparseRows
from syncpretrain.kernels.conditions import as_documents
from syncpretrain.models.inputs import is_bounded
from syncpretrain.models.layer import rows_at_once, with_log_odds
from syncpretrain.models.scores import row_energies
from syncpretrain.models.stack import Stack

Matrix = NDArray[Any]  # float32 or float64
Pass = Callable[[Stack, Matrix], Matrix]  # what rows become, by a stack with float64 parameters
ROWS_TOGETHER = 96  # divisible by the usual numbers of threads: BLAS divides rows among threads
NARROW, MOST_TIMES = 512, 16  # stacks narrower than 512 units take up to 16 times as many rows
DOUBLE = np.dtype(np.float64)
LEAST_VARIANCE = 0.01  # smallest variance, as a share of the mean variance


def codes_of(stack: Stack, X: Matrix, *, log_odds: bool = False) -> Matrix:
    """Return the codes of examples, of shape (n_examples, top units), or their log-odds."""
    if log_odds:
        stack = replace(stack, layers=with_log_odds(stack.layers))
    read = as_meant(stack, X)
    return _by_rows(read, stack, lambda own, rows: _up(own, _prepared(own, rows)), X.dtype)


def outputs_of(stack: Stack, X: Matrix) -> Matrix:
    """Return the outputs of the head for examples, of shape (n_examples, outputs)."""

    def outputs(own: Stack, rows: Matrix) -> Matrix:
        return _head(own, _up(own, _prepared(own, rows)))

    return _by_rows(as_meant(stack, X), stack, outputs, X.dtype)


def decoded(stack: Stack, codes: Matrix) -> Matrix:
    """Decode codes to examples of shape (n_examples, input units)."""

    def decode(own: Stack, rows: Matrix) -> Matrix:
        down = _down(own, rows)
        return down if own.scaling is None else down * own.scaling.scale + own.scaling.shift

    found = _by_rows(codes, stack, decode, codes.dtype)
    return found if stack.meaning is None else stack.meaning.restored(found)


def reconstruction_errors(stack: Stack, X: Matrix) -> NDArray[np.float64]:
    """Return the squared error of each example, as layer 1 sees it, averaged over its values.

    Missing values are left out.
    """

    def errors(own: Stack, rows: Matrix) -> Matrix:
        _, residuals, known = _code_and_residuals(own, rows)
        total: Matrix = np.square(residuals).sum(axis=1)
        total /= np.maximum(known.sum(axis=1), 1)
        return total

    return _by_rows(as_meant(stack, X), stack, errors)


class Usual(NamedTuple):
    """Usual errors and codes of the rows that a stack was trained on.

    Attributes
    ----------
    errors : ndarray of shape (n_features,)
        Mean squared error of each column.
    mean : ndarray of shape (top units,)
        Mean of the codes.
    whitening : ndarray of shape (top units, top units)
        Matrix that makes the codes' covariance the identity.
    """

    errors: NDArray[np.float64]
    mean: NDArray[np.float64]
    whitening: NDArray[np.float64]

    @classmethod
    def of(cls, stack: Stack, X: Matrix) -> Usual:
        """Measure the usual errors and codes of examples.

        No variance is below a hundredth of the mean variance: deviations in a direction that never
        varied would count without bound.
        """

        def squares(own: Stack, rows: Matrix) -> Matrix:
            _, residuals, _ = _code_and_residuals(own, rows)
            return np.square(residuals)

        lost = np.isnan(X).sum(axis=0) if isinstance(X, np.ndarray) else 0  # sparse rows have none
        known = np.maximum(X.shape[0] - lost, 1)
        read = as_meant(stack, X)
        errors = sum(part.sum(axis=0) for part in _parts(read, stack, squares)) / known
        codes = codes_of(stack, X).astype(np.float64)
        mean = codes.mean(axis=0)
        variances, axes = np.linalg.eigh(np.atleast_2d(np.cov(codes, rowvar=False, bias=True)))
        return cls(_bounded(errors), mean, axes / np.sqrt(_bounded(variances)))

    def strangeness(self, stack: Stack, X: Matrix) -> NDArray[np.float64]:
        """Return the distance of each example from the usual: 1 on average for usual examples.

        The distance is minus twice the Gaussian log density of the code and of the residuals,
        without the constant, divided by the number of their values. Missing values are left out.
        """

        def squares(own: Stack, rows: Matrix) -> Matrix:
            code, residuals, known = _code_and_residuals(own, rows)
            by_error = (np.square(residuals) / self.errors).sum(axis=1)
            by_code = np.square((code - self.mean) @ self.whitening).sum(axis=1)
            mean: Matrix = (by_error + by_code) / (known.sum(axis=1) + len(self.mean))
            return mean

        return _by_rows(as_meant(stack, X), stack, squares)


def _bounded(variances: NDArray[np.float64]) -> NDArray[np.float64]:
    mean = variances.mean()
    return np.maximum(variances, LEAST_VARIANCE * mean) if mean > 0 else np.ones_like(variances)


def _code_and_residuals(stack: Stack, X: Matrix) -> tuple[Matrix, Matrix, NDArray[np.bool_]]:
    """Return codes, residuals of the reconstruction (0 for missing values), and known values."""
    rows, seen = _with_novel(stack, X)
    known = ~np.isnan(X)
    code = _up(stack, seen)
    down = as_documents(_down(stack, code), seen, stack.units[0])
    return code, (rows - down) * known, known


def energies(stack: Stack, X: Matrix) -> NDArray[np.float64]:
    """Return the free energy of each example under layer 1, an RBM, in nats."""

    def own_energies(own: Stack, rows: Matrix) -> Matrix:
        return row_energies(own, _with_novel(own, rows)[0], missing=has_missing(rows))

    return _by_rows(as_meant(stack, X), stack, own_energies)


def _by_rows(X: Matrix, stack: Stack, function: Pass, dtype: np.dtype[Any] = DOUBLE) -> Matrix:
    return np.concatenate([part.astype(dtype, copy=False) for part in _parts(X, stack, function)])


def as_meant(stack: Stack, X: Matrix) -> Matrix:
    """Prepare examples by the meaning of the stack's numbers, if it is bytes or has an origin.

    Raises
    ------
    DataError
        As for :meth:`syncpretrain.data.meaning.Meaning.prepare`.
    """
    meaning = stack.meaning
    if meaning is None or not (meaning.values == "bytes" or meaning.origin):
        return X
    bounded = is_bounded(stack.units[0], stack.scaling)
    read: Any = meaning.prepare(X, bounded=bounded)
    return read[:] if isinstance(read, SparseRows) else read


def _parts(X: Matrix, stack: Stack, function: Pass) -> Iterator[Matrix]:
    """Apply a function to a few rows at a time, in float64; yield its results."""
    own = _in_doubles(stack)
    widest = max(stack.widths)
    count = rows_at_once(stack.layers, ROWS_TOGETHER * min(max(NARROW // widest, 1), MOST_TIMES))
    for start in range(0, X.shape[0], count):
        rows: Any = X[start : start + count]
        dense = rows.toarray() if hasattr(rows, "toarray") else rows
        known = len(dense)
        filled = dense[np.minimum(np.arange(count), known - 1)]  # the last row, repeated
        yield function(own, np.ascontiguousarray(filled, dtype=np.float64))[:known]


def _in_doubles(stack: Stack) -> Stack:
    """Return a stack with float64 parameters."""

    def cast(array: Matrix) -> Matrix:
        return array.astype(np.float64)

    layers = tuple(layer.to(cast) for layer in stack.layers)
    scaling, head = stack.scaling, stack.head
    if scaling is not None:
        scaling = replace(scaling, shift=cast(scaling.shift), scale=cast(scaling.scale))
    if head is not None:
        head = replace(head, weight=cast(head.weight), bias=cast(head.bias))
    return Stack(layers, stack.info, scaling, head)


def _with_novel(stack: Stack, X: Matrix) -> tuple[Matrix, Matrix]:
    """Return prepared rows with new values of constant columns marked, and without the marks.

    The layers see the rows without marks.
    """
    if stack.scaling is not None:
        stack = replace(stack, scaling=stack.scaling.marking())
    rows = _prepared(stack, X)
    return rows, without_novel(rows, stack.scaling)


def _prepared(stack: Stack, X: Matrix) -> Matrix:
    if has_missing(X):
        return marked(X, stack.scaling)
    return X if stack.scaling is None else stack.scaling.apply(X)


def _up(stack: Stack, X: Matrix) -> Matrix:
    for layer in stack.layers:
        X = layer.up(X)
    return X


def _down(stack: Stack, codes: Matrix) -> Matrix:
    for layer, units in zip(reversed(stack.layers), reversed(stack.units[:-1]), strict=True):
        codes = layer.down(codes, units=units)
    return codes


def _head(stack: Stack, codes: Matrix) -> Matrix:
    assert stack.head is not None
    weight, bias = stack.head.weight, stack.head.bias
    if len(bias) == 1:  # for one column, BLAS adds up four rows at a time
        products: Matrix = (codes * weight[:, 0]).sum(axis=1, keepdims=True)
        return products + bias
    return codes @ weight + bias
