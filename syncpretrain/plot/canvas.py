"""Axes, colours and legends of all plots, and the check that Matplotlib is installed."""

from __future__ import annotations

import re
from collections.abc import Sequence
from typing import Any

from syncpretrain.errors import DataError, needed

# By Okabe and Ito (2008), without the yellow that is hard to see on white: blue, vermilion,
# bluish green, orange, reddish purple, sky blue. Markers and styles of lines say the same.
COLOURS_OF_SERIES = ("#0072b2", "#d55e00", "#009e73", "#e69f00", "#cc79a7", "#56b4e9")
MARKERS = "osD^vPX*<>"
LIGHT = {"#e69f00", "#cc79a7", "#56b4e9"}  # white text on them would be hard to read
ASLEEP = "#dddddd"
PANEL = (3.6, 2.7)  # inches
PANELS_ACROSS = 3
# For Matplotlib's texts with a user's words, in which $ begins no formula.
AS_WRITTEN: dict[str, Any] = {"parse_math": False, "usetex": False}
# Characters that XML cannot hold or no font draws: controls and halves of pairs.
UNDRAWABLE = re.compile("[\x00-\x1f\x7f-\x9f\ud800-\udfff\ufffe\uffff]")


def check_drawing(what: str = "a curve") -> None:
    """Refuse to draw without Matplotlib; the message begins with ``what``.

    Raises
    ------
    DataError
        If Matplotlib is not installed.
    """
    text = f'{what} needs Matplotlib: pip install "syncpretrain[plot]"'
    needed("matplotlib.figure", DataError(text))


def colour_of(number: int) -> str:
    """Return the colour of a series, counted from 0."""
    return COLOURS_OF_SERIES[number % len(COLOURS_OF_SERIES)]


def text_colour_on(number: int) -> str:
    """Return the colour of text that lies on the colour of a series."""
    return "black" if colour_of(number) in LIGHT else "white"


def drawable(text: str) -> str:
    """Return a text on one line, with a mark for each character that cannot be drawn."""
    return UNDRAWABLE.sub("\ufffd", " ".join(text.split()))


def add_legend(axes: Any, handles: Sequence[Any], names: Sequence[str], **style: Any) -> None:
    """Add a legend with a user's words as they are: some begin with _, or have a $ in them."""
    numbers = [f"{n}" for n in range(len(names))]  # Matplotlib leaves a name with _ before it out
    legend = axes.legend(handles, numbers, **style)
    for shown, name in zip(legend.get_texts(), names, strict=True):
        shown.set(text=drawable(name), **AS_WRITTEN)


def new_axes(axes: Any = None, *, size: tuple[float, float] = (6.4, 4.4)) -> Any:
    """Return the given axes, or axes of a new figure of ``size`` inches.

    Raises
    ------
    DataError
        If Matplotlib is not installed.
    """
    check_drawing("a plot")
    if axes is not None:
        return axes
    from matplotlib import pyplot

    return pyplot.subplots(figsize=size, layout="constrained")[1]


def new_panels(axes: Any, count: int) -> list[Any]:
    """Return ``count`` axes: the given ones, or axes of a new figure.

    Raises
    ------
    DataError
        If Matplotlib is not installed.
    ValueError
        If another number of axes was given.
    """
    check_drawing("a plot")
    if axes is not None:
        given = list(getattr(axes, "flat", axes))
        if len(given) != count:
            raise ValueError(f"axes: got {len(given)}, expected {count}, one a panel")
        return given
    from matplotlib import pyplot

    across = min(count, PANELS_ACROSS)
    down = -(-count // across)
    size = (PANEL[0] * across, PANEL[1] * down)
    grid = pyplot.subplots(down, across, figsize=size, layout="constrained", squeeze=False)[1]
    for unused in grid.flat[count:]:
        unused.remove()
    return list(grid.flat[:count])
