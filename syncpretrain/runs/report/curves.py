"""Curves of results."""

from __future__ import annotations

import io
from collections.abc import Mapping, Sequence
from pathlib import Path

from syncpretrain.errors import DataError
from syncpretrain.storage import write_atomically

__all__ = ["check_drawing", "save_label_curve"]

Point = tuple[int, float, float | None]


def check_drawing(what: str = "a curve") -> None:
    """Refuse a curve, or something else, that could not be drawn later.

    Raises
    ------
    DataError
        If Matplotlib is not installed.
    """
    try:
        import matplotlib.figure  # noqa: F401 - whether it is there
    except ImportError:
        raise DataError(f'{what} needs Matplotlib: pip install "syncpretrain[plot]"') from None


def save_label_curve(curves: Mapping[str, Sequence[Point]], path: Path) -> None:
    """Draw the share of wrong classes against the number of labels, a curve a start, as a PNG.

    Parameters
    ----------
    curves : mapping of str to sequence of (labels, share wrong, its spread or None)
        By the name of the start.
    path : Path

    Raises
    ------
    DataError
        If Matplotlib is not installed.
    """
    check_drawing()
    from matplotlib.backends.backend_agg import FigureCanvasAgg
    from matplotlib.figure import Figure
    from matplotlib.ticker import LogLocator

    figure = Figure(figsize=(6, 4), layout="constrained")
    FigureCanvasAgg(figure)
    axes = figure.add_subplot()
    for name, points in curves.items():
        labels = [point[0] for point in points]
        wrong = [100 * point[1] for point in points]
        spread = [100 * (point[2] or 0) for point in points]
        axes.errorbar(labels, wrong, yerr=spread, marker="o", capsize=3, label=name)
    axes.set(xscale="log", xlabel="labelled examples", ylabel="wrong on test, %")
    ticks = sorted({point[0] for points in curves.values() for point in points})
    axes.set_xticks(ticks, [f"{tick:,}" for tick in ticks])
    if all(point[1] > 0 for points in curves.values() for point in points):
        axes.set_yscale("log")  # which has no 0
        axes.yaxis.set_major_locator(LogLocator(subs=(1, 2, 5)))
    axes.minorticks_off()  # after the scale, which brings its own
    axes.yaxis.set_major_formatter(lambda value, _: f"{value:g}")
    axes.grid(visible=True, alpha=0.3)
    axes.legend()
    buffer = io.BytesIO()
    figure.savefig(buffer, format="png", dpi=120)
    write_atomically(path, buffer.getvalue())
