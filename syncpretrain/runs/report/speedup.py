"""Curves of predicted speed-up."""

from __future__ import annotations

import io
from collections.abc import Mapping, Sequence
from pathlib import Path

from syncpretrain.runs.report.curves import check_drawing
from syncpretrain.storage import write_atomically

__all__ = ["save_speedup_curves"]


def save_speedup_curves(
    curves: Mapping[str, Sequence[tuple[int, float]]], path: Path, *, title: str = ""
) -> None:
    """Draw speed-ups against the number of devices, both on logarithmic axes, as a PNG.

    Parameters
    ----------
    curves : mapping of str to sequence of (devices, speed-up)
        By the name of the way to train.
    path : Path
    title : str

    Raises
    ------
    DataError
        If Matplotlib is not installed.
    """
    check_drawing()
    from matplotlib.backends.backend_agg import FigureCanvasAgg
    from matplotlib.figure import Figure

    figure = Figure(figsize=(6.4, 4.4), layout="constrained")
    FigureCanvasAgg(figure)
    axes = figure.add_subplot()
    devices = sorted({point[0] for points in curves.values() for point in points})
    axes.plot(devices, devices, color="0.7", linestyle="--", label="as many times as devices")
    for (name, points), mark in zip(curves.items(), "osD^vPX" * len(curves), strict=False):
        axes.plot(*zip(*points, strict=True), marker=mark, markersize=4, label=name)
    axes.set(xlabel="devices", ylabel="times greedy training on one", title=title)
    axes.set_xscale("log", base=2)
    axes.set_yscale("log", base=2)
    axes.set_xticks(devices, [f"{count:,}" for count in devices])
    axes.minorticks_off()
    axes.yaxis.set_major_formatter(lambda value, _: f"{value:g}")
    axes.grid(visible=True, alpha=0.3)
    axes.legend(fontsize="small")
    buffer = io.BytesIO()
    figure.savefig(buffer, format="png", dpi=110)
    write_atomically(path, buffer.getvalue())
