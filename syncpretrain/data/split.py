"""Choice of held-out examples: the same share of every class where there are labels."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
from numpy.typing import NDArray

from syncpretrain.errors import DataError
from syncpretrain.rng import Purpose, generator

__all__ = ["stratified_split"]

Rows = NDArray[np.intp]
Share = Callable[[Rows, int, np.random.Generator], Rows]


def stratified_split(
    labels: NDArray[Any] | None,
    n: int,
    *,
    held_out: int,
    seed: int,
    equal_classes: bool = False,
    step: int = 0,
) -> tuple[Rows, Rows]:
    """Divide n rows into kept ones and ``held_out`` held ones, a function of the arguments alone.

    Parameters
    ----------
    labels : array of shape (n,), or None
        Classes, each of which gives its share; without them the held rows are drawn uniformly.
    n : int
        The number of rows.
    held_out, seed : int
        How many rows are held out, 0 or more, and where the draw starts.
    equal_classes : bool
        Hold out as many rows of one class as of another, as far as the classes' sizes permit
        (1,000 of each of MNIST's). Otherwise in proportion to their sizes, to within one row.
    step : int
        Number that distinguishes several splits under one seed.

    Returns
    -------
    kept, held : arrays of row numbers, ascending

    Raises
    ------
    DataError
        If ``held_out`` is negative or leaves nothing, or there is not one label a row.
    """
    if not 0 <= held_out < max(n, 1):
        raise DataError(
            f"validation and test: got {held_out} of {n} examples to hold out, expected at least 0"
            " and fewer than there are; hold out a smaller part, or give more examples"
        )
    if labels is not None and np.shape(labels) != (n,):
        raise DataError(f"labels: got shape {np.shape(labels)}, expected ({n},), one an example")
    draws = generator(seed, Purpose.SPLIT, step=step)
    held = np.zeros(n, dtype=bool)
    if labels is None:
        held[draws.permutation(n)[:held_out]] = True
    else:
        share = _equal if equal_classes else _proportional
        held[_draw_by_class(labels, held_out, share, draws)] = True
    return np.flatnonzero(~held), np.flatnonzero(held)


def _draw_by_class(
    labels: NDArray[Any], held_out: int, share: Share, draws: np.random.Generator
) -> Rows:
    _, classes, sizes = np.unique(labels, return_inverse=True, return_counts=True)
    shares = share(sizes, held_out, draws)
    # Rows grouped by class, each group in row order.
    groups = np.split(np.argsort(classes, kind="stable"), np.cumsum(sizes)[:-1])
    chosen = [draws.permutation(g)[:n] for g, n in zip(groups, shares, strict=True)]
    return np.concatenate(chosen)


def _proportional(sizes: Rows, held_out: int, draws: np.random.Generator) -> Rows:
    """Shares by the largest remainder; ties fall by chance, lest the low labels always win."""
    total = int(sizes.sum())
    shares, remainders = np.divmod(sizes * held_out, total)
    order = np.lexsort((draws.permutation(len(sizes)), -remainders))
    shares[order[: held_out - int(shares.sum())]] += 1
    return shares


def _equal(sizes: Rows, held_out: int, draws: np.random.Generator) -> Rows:
    """Shares that differ by one at most, except where a class has no more to give."""
    shares = np.zeros_like(sizes)
    order = draws.permutation(len(sizes))
    while (left := held_out - int(shares.sum())) > 0:
        able = order[shares[order] < sizes[order]]
        if left < len(able):
            shares[able[:left]] += 1
        else:
            shares[able] = np.minimum(sizes[able], shares[able] + left // len(able))
    return shares
