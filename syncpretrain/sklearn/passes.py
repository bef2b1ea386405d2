"""Passes of examples through a stack, in the precision of the examples.

The parameters are float32, and so is all training. For examples of float64 the products are taken
in float64 too, so that the result for a row does not depend on the other rows.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from typing import Any

import numpy as np
from numpy.typing import NDArray
from sklearn.utils import gen_batches

from syncpretrain.data.visible import has_missing, marked
from syncpretrain.kernels.conditions import as_documents
from syncpretrain.models.likelihood import free_energy
from syncpretrain.models.passes import rows_at_once
from syncpretrain.models.stack import Stack

__all__ = ["Matrix", "codes_of", "decoded", "energies", "outputs_of", "reconstruction_errors"]

Matrix = NDArray[Any]  # of float32 or float64
ROWS_TOGETHER = 2000


def codes_of(stack: Stack, X: Matrix) -> Matrix:
    """Return the codes of examples, of shape (n_examples, top units)."""
    return _by_rows(X, stack, lambda own, rows: _up(own, _prepared(own, rows)))


def outputs_of(stack: Stack, X: Matrix) -> Matrix:
    """Return what the head makes of examples, of shape (n_examples, outputs)."""
    return _by_rows(X, stack, lambda own, rows: _head(own, _up(own, _prepared(own, rows))))


def decoded(stack: Stack, codes: Matrix) -> Matrix:
    """Return the examples that codes stand for, of shape (n_examples, input units)."""

    def decode(own: Stack, rows: Matrix) -> Matrix:
        down = _down(own, rows)
        return down if own.scaling is None else down * own.scaling.scale + own.scaling.shift

    return _by_rows(codes, stack, decode)


def reconstruction_errors(stack: Stack, X: Matrix) -> NDArray[np.float64]:
    """Return the squared error of each example, as layer 1 sees it, averaged over its values.

    Those that are missing are left out.
    """

    def errors(own: Stack, rows: Matrix) -> Matrix:
        seen, known = _prepared(own, rows), ~np.isnan(rows)
        down = as_documents(_down(own, _up(own, seen)), seen, own.units[0])
        total: Matrix = (np.square(seen - down) * known).sum(axis=1)
        total /= np.maximum(known.sum(axis=1), 1)
        return total

    return _by_rows(X, stack, errors).astype(np.float64)


def energies(stack: Stack, X: Matrix) -> NDArray[np.float64]:
    """Return the free energy of each example under layer 1, an RBM, in nats."""

    def own_energies(own: Stack, rows: Matrix) -> Matrix:
        return free_energy(own.layers[0], _prepared(own, rows), missing=has_missing(rows))

    return _by_rows(X, stack, own_energies)


def _by_rows(X: Matrix, stack: Stack, function: Callable[[Stack, Matrix], Matrix]) -> Matrix:
    own = _in_precision(stack, X.dtype)
    count = rows_at_once(stack.layers, ROWS_TOGETHER)
    parts = [function(own, _dense(X[rows])) for rows in gen_batches(X.shape[0], count)]
    return np.concatenate(parts)


def _dense(X: Any) -> Matrix:
    """Return a few rows as an array."""
    dense: Matrix = X.toarray() if hasattr(X, "toarray") else X
    return dense


def _in_precision(stack: Stack, dtype: np.dtype[Any]) -> Stack:
    """Return a stack whose parameters have the type of the examples."""

    def cast(array: Matrix) -> Matrix:
        return array.astype(dtype, copy=False)

    layers = tuple(layer.to(cast) for layer in stack.layers)
    scaling, head = stack.scaling, stack.head
    if scaling is not None:
        scaling = replace(scaling, shift=cast(scaling.shift), scale=cast(scaling.scale))
    if head is not None:
        head = replace(head, weight=cast(head.weight), bias=cast(head.bias))
    return Stack(layers, stack.info, scaling, head)


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
    return codes @ stack.head.weight + stack.head.bias
