"""Examples above their reconstructions, or by feature where they are no images."""

from __future__ import annotations

from typing import Any

import numpy as np
from numpy.typing import NDArray

from syncpretrain.data.examples import evenly_spaced, scale_examples
from syncpretrain.errors import DataError
from syncpretrain.models.stack import Stack
from syncpretrain.runs.report.images import image_grid, shades
from syncpretrain.runs.report.plots.canvas import new_axes
from syncpretrain.runs.report.plots.features import draw_bars, images_of, names_of
from syncpretrain.runs.report.plots.weights import draw_grid
from syncpretrain.shapes import ImageShape

__all__ = ["check_decoder", "error_shares", "reconstructions"]

SHARE_LABEL = "error, % of the mean's"


def reconstructions(
    stack: Stack,
    X: Any,
    *,
    count: int = 20,
    shape: str | ImageShape | None = None,
    axes: Any = None,
) -> Any:
    """Draw examples, and below each its reconstruction by the whole stack.

    Where examples are no images, as those of a table, a bar a value shows the error of its
    reconstructions, in percent of that of its mean: 0 is perfect, and 100 says nothing.

    Parameters
    ----------
    stack : Stack
    X : array-like of shape (n_examples, input units)
    count : int
        Examples, evenly spaced among those of X; bars are of all of them.
    shape : str or ImageShape, optional
        Height and width of an example, such as ``28x28``; default those of the convolutions, or
        a square.
    axes : Axes, optional

    Returns
    -------
    Axes

    Raises
    ------
    DataError
        If the stack has no decoder, X does not fit, or Matplotlib is not installed.

    Examples
    --------
    >>> import numpy as np
    >>> from syncpretrain import plot, pretrain
    >>> X = np.random.default_rng(0).random((100, 16), dtype=np.float32)
    >>> axes = plot.reconstructions(pretrain(X, layers=[16, 8, 4], epochs=1), X, count=5)
    >>> axes.get_title()
    '5 examples above their reconstructions'
    """
    check_decoder(stack)
    images = images_of(stack, shape)
    if images is None:
        shares = error_shares(stack, X)
        axes = new_axes(axes)
        draw_bars(axes, names_of(stack), shares, label=SHARE_LABEL)
        return axes
    rows, stack = _prepared(stack, X)
    rows = evenly_spaced(rows, count)
    drawn = (shades(stack, part) for part in (rows, stack.reconstruct(rows)))
    grid = image_grid(*drawn, shape=images)
    axes = new_axes(axes)
    draw_grid(axes, grid, title=f"{len(rows)} examples above their reconstructions")
    return axes


def _prepared(stack: Stack, X: Any) -> tuple[NDArray[np.float32], Stack]:
    """Return examples as numbers that a decoder can be compared with, and the stack for them."""
    rows: Any = np.asarray(stack.rows_of(X))
    rows = rows if stack.meaning is None else stack.meaning.prepare(rows)
    return scale_examples(rows), stack.for_prepared_rows()


def check_decoder(stack: Stack) -> None:
    """Refuse a classifier or a regression.

    Raises
    ------
    DataError
    """
    if stack.head is not None:
        raise DataError(
            "stack: was fine-tuned to predict and has no decoder; take one without a head"
        )


def error_shares(stack: Stack, X: Any) -> NDArray[np.float64]:
    """Return the error of each value's reconstructions in percent of that of its mean.

    Missing values are left out. A value that is constant has 0, or 100 where it is not met.
    """
    rows, stack = _prepared(stack, X)
    lost = np.isnan(rows)
    known = np.maximum((~lost).sum(axis=0), 1)
    mean = np.where(lost, 0, rows).sum(axis=0, dtype=np.float64) / known
    off = np.where(lost, 0, rows - stack.reconstruct(rows))
    errors = np.square(off, dtype=np.float64).sum(axis=0)
    spread = np.square(np.where(lost, 0, rows - mean)).sum(axis=0)
    least = 1e-9 * known
    shares: NDArray[np.float64] = np.where(
        spread > least, 100 * errors / np.maximum(spread, least), 100.0 * (errors > least)
    )
    return shares
