"""Curves as PNG files: wrong classes by number of labels, and speed-up by number of devices."""

from __future__ import annotations

import io
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from syncpretrain.plot.canvas import check_drawing
from syncpretrain.storage import write_atomically

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
    axes = _new_axes(size=(6, 4))
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
    axes = _new_axes(size=(6.4, 4.4))
    devices = sorted({point[0] for points in curves.values() for point in points})
    axes.plot(devices, devices, color="0.7", linestyle="--", label="as many times as devices")
    for (name, points), mark in zip(curves.items(), "osD^vPX" * len(curves), strict=False):
        axes.plot(*zip(*points, strict=True), marker=mark, markersize=4, label=name)
    axes.set(xlabel="devices", ylabel="times greedy training on one", title=title)
    axes.set_xscale("log", base=2)
    axes.set_yscale("log", base=2)
    _save_png(axes, path, devices, dpi=110, fontsize="small")


def _new_axes(*, size: tuple[float, float]) -> Any:
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
