"""Plots of hidden units: a map of the codes, and histograms of activities."""

from __future__ import annotations

import math
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from syncpretrain.data.dataset import is_labelled
from syncpretrain.data.table import is_null
from syncpretrain.errors import DataError
from syncpretrain.kernels.arrays import Array
from syncpretrain.models.diagnosis import idle_units
from syncpretrain.models.layer import up_through
from syncpretrain.models.stack import Stack
from syncpretrain.plot import canvas
from syncpretrain.units.kinds import kind_of

MOST_CLASSES = 10  # in a legend; the others share one entry
BINS = 30
OTHERS = "#999999"


class Activity(NamedTuple):
    """Mean activities of one layer's hidden units.

    ``values`` has a row for each example, or for each position of a convolution. ``dead`` and
    ``saturated`` count units that are off, or on, in every row; None for units without that limit.
    """

    layer: int
    units: str
    values: Array
    dead: int | None
    saturated: int | None


def codes(stack: Stack, X: Any, y: Any = None, *, axes: Any = None) -> Any:
    """Draw a map of the codes of X: their two principal components.

    Parameters
    ----------
    stack : Stack
    X : array-like of shape (n_examples, input units)
    y : array-like of shape (n_examples,), optional
        Classes, which get colours and markers of their own, or numbers of a float type, which get
        shades; -1, NaN and "" stand for none.
    axes : Axes, optional

    Returns
    -------
    Axes

    Raises
    ------
    DataError
        If X or y does not fit, or Matplotlib is not installed.

    Examples
    --------
    >>> import numpy as np
    >>> from syncpretrain import plot, pretrain
    >>> X = np.random.default_rng(0).random((100, 16), dtype=np.float32)
    >>> stack = pretrain(X, layers=[16, 8, 4], epochs=1)
    >>> axes = plot.codes(stack, X, np.arange(100) % 3)
    >>> [text.get_text() for text in axes.get_legend().get_texts()]
    ['0', '1', '2']
    """
    found = stack.encode(X)
    labels = None if y is None else np.asarray(y)
    if labels is not None and labels.dtype.kind == "O":  # texts among which None is no label
        labels = np.array(["" if is_null(label) else str(label) for label in labels.ravel()])
        labels = labels.reshape(np.shape(y))
    if labels is not None and labels.shape != (len(found),):
        raise DataError(f"y: got shape {labels.shape}, expected ({len(found)},), one an example")
    axes = canvas.new_axes(axes, size=(5.6, 4.6))
    draw_codes(axes, found, labels)
    return axes


def principal_components(codes: Array) -> tuple[NDArray[np.float64], float]:
    """Return the first two principal components of codes, and their share of the variance.

    The second component of codes of a single unit is 0. The greatest entry by magnitude of each
    direction is positive.
    """
    centred = codes.astype(np.float64) - codes.mean(axis=0, dtype=np.float64)
    directions, lengths = np.zeros((0, codes.shape[1])), np.zeros(0)
    if len(codes):
        _, lengths, directions = np.linalg.svd(centred, full_matrices=False)
    first = directions[:2]
    greatest = np.abs(first).argmax(axis=1) if first.size else np.zeros(0, dtype=int)
    first = first * np.sign(first[np.arange(len(first)), greatest])[:, None]
    points = np.zeros((len(codes), 2))
    points[:, : len(first)] = centred @ first.T
    whole = float(np.square(lengths).sum())
    share = float(np.square(lengths[:2]).sum()) / whole if whole > 0 else 1.0
    return points, share


def draw_codes(axes: Any, found: Array, labels: NDArray[Any] | None) -> None:
    """Draw a map of codes."""
    points, share = principal_components(found)
    if labels is None:
        _scatter(axes, points, 0)
    elif labels.dtype.kind == "f":
        known = is_labelled(labels)
        shaded = axes.scatter(*points[known].T, c=labels[known], cmap="cividis", s=12, linewidths=0)
        axes.figure.colorbar(shaded, ax=axes)
    else:
        _draw_classes(axes, points, labels)
    axes.set(xlabel="first component", ylabel="second component")
    axes.set_title(f"{100 * share:.0f} % of the variance of {found.shape[1]} units")
    axes.xaxis.get_major_locator().set_params(nbins=6)  # more labels of small numbers overlap
    axes.ticklabel_format(scilimits=(-3, 4))
    axes.grid(visible=True, alpha=0.4)


def _draw_classes(axes: Any, points: NDArray[np.float64], labels: NDArray[Any]) -> None:
    known = is_labelled(labels)
    names, counts = np.unique(labels[known], return_counts=True)
    frequent = names if len(names) <= MOST_CLASSES else names[np.argsort(-counts)[:MOST_CLASSES]]
    others = ~np.isin(labels, frequent)
    handles, shown = [], []
    if others.any():
        shown.append("others" if known[others].any() else "no label")
        handles.append(axes.scatter(*points[others].T, c=OTHERS, marker=".", s=10))
    for number, name in enumerate(frequent):
        shown.append(str(name))
        handles.append(_scatter(axes, points[labels == name], number))
    columns = 1 + (len(frequent) > 5)
    canvas.add_legend(axes, handles, shown, fontsize="small", ncols=columns, framealpha=0.6)


def _scatter(axes: Any, points: NDArray[np.float64], number: int) -> Any:
    # The second round through the colours has open markers: shapes alone are hard to see.
    is_open = number >= len(canvas.COLOURS_OF_SERIES)
    colours: dict[str, Any] = {"facecolors": "none" if is_open else canvas.colour_of(number)}
    colours |= {"edgecolors": canvas.colour_of(number), "linewidths": 0.8 if is_open else 0}
    return axes.scatter(*points.T, s=16, marker=canvas.MARKERS[number], **colours)


def activities(stack: Stack, X: Any, *, axes: Any = None) -> NDArray[Any]:
    """Draw histograms of the mean activities of each layer's hidden units, the code's last.

    The title of a panel counts dead and saturated units, which are off, or on, for every example.

    Parameters
    ----------
    stack : Stack
    X : array-like of shape (n_examples, input units)
        A thousand examples are enough.
    axes : sequence of Axes, optional
        One a layer; default axes of a new figure.

    Returns
    -------
    ndarray of Axes

    Raises
    ------
    DataError
        If X does not fit, or Matplotlib is not installed.

    Examples
    --------
    >>> import numpy as np
    >>> from syncpretrain import plot, pretrain
    >>> X = np.random.default_rng(0).random((100, 16), dtype=np.float32)
    >>> panels = plot.activities(pretrain(X, layers=[16, 8, 4], epochs=1), X)
    >>> panels[1].get_title()
    'layer 2, the code: 0 dead, 0 saturated of 4'
    """
    found = activities_of(stack, X)
    panels = canvas.new_panels(axes, len(found))
    for panel, activity in zip(panels, found, strict=True):
        draw_activity(panel, activity, is_code=activity.layer == len(found))
    return np.array(panels, dtype=object)


def activities_of(stack: Stack, X: Any) -> list[Activity]:
    """Return the activities of each layer, from the lowest up."""
    below, found = stack.prepared(X, missing=True), []
    for number, layer in enumerate(stack.layers, start=1):
        below = up_through([layer], below)
        values = below.reshape(-1, layer.shape.biases[1])
        idle = idle_units(layer.hidden_units, values)
        found.append(Activity(number, layer.hidden_units, values, *idle))
    return found


def draw_activity(axes: Any, activity: Activity, *, is_code: bool) -> None:
    """Draw the histogram of a layer."""
    values, kind = activity.values.ravel(), kind_of(activity.units)
    limits = (kind.lower, kind.upper)
    bounds = limits if all(map(math.isfinite, limits)) else None
    weights = np.full(len(values), 100 / max(1, len(values)))
    colour = canvas.colour_of(activity.layer - 1)
    axes.hist(values, bins=BINS, range=bounds, weights=weights, color=colour)
    name = f"layer {activity.layer}, the code" if is_code else f"layer {activity.layer}"
    counts = ((activity.dead, "dead"), (activity.saturated, "saturated"))
    parts = [f"{count} {word}" for count, word in counts if count is not None]
    units = activity.values.shape[1]
    text = f"{', '.join(parts)} of {units}" if parts else f"{units} units"
    axes.set(title=f"{name}: {text}", xlabel=f"activity ({activity.units})", ylabel="share, %")
    axes.grid(visible=True, axis="y", alpha=0.4)
