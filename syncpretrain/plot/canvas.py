"""Axes, colours and legends of all plots, and curves as PNG files.

The curves are of wrong classes by the number of labels, and of the speed-up by that of devices.
"""

from __future__ import annotations

import io
import re
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from syncpretrain.errors import DataError, needed
from syncpretrain.storage import write_atomically

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


def drawable(text: str) -> str:
    """Return a text on one line, with a mark for each character that cannot be drawn."""
    return UNDRAWABLE.sub("\ufffd", " ".join(text.split()))


def add_legend(axes: Any, handles: Sequence[Any], names: Sequence[str], **style: Any) -> None:
    """Add a legend with a user's words as they are: some begin with _, or have a $ in them."""
    numbers = [f"{n}" for n in range(len(names))]  # Matplotlib leaves a name with _ before it out
    for shown, name in zip(axes.legend(handles, numbers, **style).get_texts(), names, strict=True):
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


Point = tuple[int, float, float | None]


def save_label_curve(curves: Mapping[str, Sequence[Point]], path: Path) -> None:
    """Draw the share of wrong classes against the number of labels, a curve a start, as a PNG.

    Parameters
    ----------
    curves : mapping of str to sequence of (labels, share wrong, its spread or None)
        Points of each curve, by the name of the start.
    path : Path

    Raises
    ------
    DataError
        If Matplotlib is not installed.
    """
    axes = _axes_of_file(size=(6, 4))
    from matplotlib.ticker import LogLocator

    for name, points in curves.items():
        labels = [point[0] for point in points]
        wrong = [100 * point[1] for point in points]
        spread = [100 * (point[2] or 0) for point in points]
        axes.errorbar(labels, wrong, yerr=spread, marker="o", capsize=3, label=name)
    axes.set(xscale="log", xlabel="labelled examples", ylabel="wrong on test, %")
    ticks = sorted({point[0] for points in curves.values() for point in points})
    if all(point[1] > 0 for points in curves.values() for point in points):
        axes.set_yscale("log")  # a logarithmic axis has no 0
        axes.yaxis.set_major_locator(LogLocator(subs=(1, 2, 5)))
    _save_png(axes, path, ticks, dpi=120)


def save_speedup_curves(
    curves: Mapping[str, Sequence[tuple[int, float]]], path: Path, *, title: str = ""
) -> None:
    """Draw speed-ups against the number of devices, both on logarithmic axes, as a PNG.

    Parameters
    ----------
    curves : mapping of str to sequence of (devices, speed-up)
        Points of each curve, by the name of the way to train.
    path : Path
    title : str

    Raises
    ------
    DataError
        If Matplotlib is not installed.
    """
    axes = _axes_of_file(size=(6.4, 4.4))
    devices = sorted({point[0] for points in curves.values() for point in points})
    axes.plot(devices, devices, color="0.7", linestyle="--", label="as many times as devices")
    for (name, points), mark in zip(curves.items(), "osD^vPX" * len(curves), strict=False):
        axes.plot(*zip(*points, strict=True), marker=mark, markersize=4, label=name)
    axes.set(xlabel="devices", ylabel="times greedy training on one", title=title)
    axes.set_xscale("log", base=2)
    axes.set_yscale("log", base=2)
    _save_png(axes, path, devices, dpi=110, fontsize="small")


def _axes_of_file(*, size: tuple[float, float]) -> Any:
    """Return the axes of a new figure of ``size`` inches, drawn without a window."""
    check_drawing()
    from matplotlib.figure import Figure

    return Figure(figsize=size, layout="constrained").add_subplot()


def _save_png(axes: Any, path: Path, ticks: Sequence[int], *, dpi: int, **legend: Any) -> None:
    axes.set_xticks(ticks, [f"{tick:,}" for tick in ticks])
    axes.minorticks_off()  # after the scale, which adds minor ticks
    axes.yaxis.set_major_formatter(lambda value, _: f"{value:g}")
    axes.grid(visible=True, alpha=0.3)
    axes.legend(**legend)
    buffer = io.BytesIO()
    axes.figure.savefig(buffer, format="png", dpi=dpi)
    write_atomically(path, buffer.getvalue())
