"""Plots of the course of a run: its learning curves, and its space-time diagram.

The diagram has a row a layer, and a bar an epoch (Santara et al. 2016, fig. 3):

layer 1   |1(0)|2(0)|3(0)|4(0)|
layer 2   .....|1(1)|2(2)|3(3)|4(4)|
time ->
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from syncpretrain.errors import DataError
from syncpretrain.models.stack import Stack
from syncpretrain.observers.history import ErrorCurve, ErrorHistory, History
from syncpretrain.plot import canvas
from syncpretrain.plot.canvas import ASLEEP, colour_of
from syncpretrain.runs.record import EpochSpan, Timeline, critical_path, read_timeline, timeline_of

FEW_EPOCHS = 40  # at most so many epochs have a mark each
MARKS_OF_A_LINE = 10  # marks of a line with more epochs
POINTS_OF_A_LINE = 600  # at most: it has fewer pixels, and more make a large file
SQUARED, WRONG = "squared error", "share of wrong classes"
MOST_BARS = 360  # more are hard to see, and make a large file; epochs then share a bar
HEIGHT = 0.72  # of a bar, where rows are 1 apart
NUMBER_INCHES = 0.45  # of a bar: narrower ones have no number
LEAST_BARS = 6  # of a layer
TUNING_NAME = "fine-tuning"
TUNING_COLOUR = "#777777"
PALER = 0.84  # of every second bar, to see where one ends
TRANSFORM = 0.45
PIXELS_PER_INCH = 86  # at least: text of 11 pixels


class Curve(NamedTuple):
    """Errors after each epoch of a layer, or of fine-tuning; nan for a missing error."""

    title: str
    epochs: NDArray[np.float64]
    train: NDArray[np.float64]
    validation: NDArray[np.float64]
    label: str = SQUARED


def learning_curves(run: Any, *, axes: Any = None) -> NDArray[Any]:
    """Draw the errors of each layer and of fine-tuning, by epoch.

    Solid lines are the running errors of training minibatches, dashed lines the errors of held-out
    examples: squared errors, summed over the units of an example, or for a classifier's fine-tuning
    shares of wrong classes.

    Parameters
    ----------
    run : str, Path, Stack, History or ErrorHistory
        The folder of a run, a result of :func:`syncpretrain.pretrain`, or an observer of a run.
    axes : sequence of Axes, optional
        One for each layer that trained, and one for fine-tuning if there was any; default axes of
        a new figure.

    Returns
    -------
    ndarray of Axes

    Raises
    ------
    DataError
        If there are no errors, or Matplotlib is not installed.

    Examples
    --------
    >>> import numpy as np
    >>> from syncpretrain import plot, pretrain
    >>> X = np.random.default_rng(0).random((100, 16), dtype=np.float32)
    >>> stack = pretrain(X, layers=[16, 8, 4], epochs=3)
    >>> [panel.get_title() for panel in plot.learning_curves(stack)]
    ['layer 1', 'layer 2']
    """
    curves = curves_of(run)
    if not curves:
        wanted = "the folder of a run that trained, or a stack as pretrain() returns it"
        raise DataError(f"run: it has no finished epoch; expected {wanted}")
    panels = canvas.new_panels(axes, len(curves))
    for panel, curve in zip(panels, curves, strict=True):
        draw_curve(panel, curve)
    return np.array(panels, dtype=object)


def curves_of(run: Any) -> list[Curve]:
    """Return the curves of a run, a stack or a history; curves without an epoch are left out."""
    is_classifier = False
    if isinstance(run, Stack):
        is_classifier = run.head is not None and run.head.kind == "classification"
        run = run.history or ErrorHistory()
    if isinstance(run, ErrorHistory):
        named = [(f"layer {n}", curve) for n, curve in enumerate(run.layers, start=1)]
        found = [_curve_of_errors(title, x) for title, x in (*named, ("fine-tuning", run.finetune))]
    else:
        timeline = course_of(run)
        numbers = range(1, len(timeline.layers))
        found = [_curve_of_spans(f"layer {n}", timeline.of_layer(n)) for n in numbers]
        found.append(_curve_of_spans("fine-tuning", timeline.of_layer(0)))
        is_classifier = timeline.objective == "classification"
    if is_classifier:
        found[-1] = found[-1]._replace(label=WRONG)
    return [curve for curve in found if len(curve.epochs)]


def course_of(run: Any) -> Timeline:
    """Return the timeline of a run, given as such, as its history or as its folder."""
    if isinstance(run, Timeline):
        return run
    return timeline_of(run.events) if isinstance(run, History) else read_timeline(Path(run))


def _curve_of_errors(title: str, curve: ErrorCurve) -> Curve:
    count = len(curve.train)
    held_out = np.full(count, np.nan)
    held_out[count - len(curve.validation) :] = curve.validation
    return Curve(title, np.arange(1.0, count + 1), np.array(curve.train, dtype=float), held_out)


def _curve_of_spans(title: str, spans: Sequence[EpochSpan]) -> Curve:
    def column(name: str) -> NDArray[np.float64]:
        return np.array([getattr(span, name) for span in spans], dtype=np.float64)

    return Curve(title, column("epoch"), column("train_error"), column("validation_error"))


def _drawn_points(errors: NDArray[np.float64]) -> NDArray[np.intp]:
    """Return the indices of points to draw: of many points the least and greatest of each few."""
    places = np.arange(len(errors))
    if len(places) <= POINTS_OF_A_LINE:
        return places
    found = [places[:1], places[-1:]]
    for few in np.array_split(places, (POINTS_OF_A_LINE - 2) // 2):
        known = few[np.isfinite(errors[few])]
        if len(known):
            found.append(known[[errors[known].argmin(), errors[known].argmax()]])
    return np.unique(np.concatenate(found))


def draw_curve(axes: Any, curve: Curve, *, series: int = 0, legend: bool = True) -> None:
    """Draw a curve; ``series`` is the number of its colour and of its two markers."""
    marks = canvas.MARKERS[2 * series : 2 * series + 2]
    style: dict[str, Any] = {"color": colour_of(series), "markersize": 3, "linewidth": 1.4}
    for name, errors, line, mark in (
        ("training", curve.train, "-", marks[0]),
        ("validation", curve.validation, "--", marks[1]),
    ):
        if np.isfinite(errors).any():
            shown = _drawn_points(errors)
            every = 1 if len(shown) <= FEW_EPOCHS else len(shown) // MARKS_OF_A_LINE
            style |= {"marker": mark, "markevery": every}
            axes.plot(curve.epochs[shown], errors[shown], line, label=name, **style)
    axes.set(title=curve.title, xlabel="epoch", ylabel=curve.label)
    axes.xaxis.get_major_locator().set_params(integer=True)
    axes.grid(visible=True, alpha=0.4)
    if legend and axes.get_legend_handles_labels()[0]:
        axes.legend(fontsize="small", frameon=False)


def space_time(run: Any, *, axes: Any = None) -> Any:
    """Draw who trained when: a row a layer, a bar an epoch, grey while a layer sleeps.

    A bar has the number of its epoch, and in brackets the version of the layer below that it
    trained on. Its paler beginning is the time in which its input was computed. A dark frame
    is the critical path: each of its epochs began when the one before it was done. The diagram is
    figure 3 of Santara et al. 2016 for a run as it was.

    Parameters
    ----------
    run : str, Path or History
        The folder of a run, or an observer of one.
    axes : Axes, optional

    Returns
    -------
    Axes

    Raises
    ------
    DataError
        If the run has no finished epoch, or Matplotlib is not installed.

    Examples
    --------
    >>> import numpy as np
    >>> from syncpretrain import plot, pretrain
    >>> from syncpretrain.observers.history import History
    >>> X, history = np.random.default_rng(0).random((100, 16), dtype=np.float32), History()
    >>> stack = pretrain(X, layers=[16, 8, 4], epochs=3, observers=[history])
    >>> axes = plot.space_time(history)
    >>> [label.get_text() for label in axes.get_yticklabels()]
    ['layer 1', 'layer 2']
    """
    timeline = course_of(run)
    if not (timeline.spans or timeline.tuning):
        raise DataError("run: no epoch of it is finished; a diagram needs one")
    rows = len(timeline.layers) - 1 + bool(timeline.tuning)
    axes = canvas.new_axes(axes, size=(9, 1.2 + 0.45 * rows))
    draw_space_time(axes, timeline)
    return axes


def draw_space_time(
    axes: Any, timeline: Timeline, *, prefix: str = "", seconds: float = 0.0
) -> dict[str, str]:
    """Draw a diagram; return the title of each bar by its id, which begins with ``prefix``.

    The axis spans at least ``seconds``, so that runs can be compared.
    """
    layers = range(1, len(timeline.layers)) if timeline.spans else ()
    rows = [*layers, *([0] if timeline.tuning else [])]
    end = max(span.end for span in (*timeline.spans, *timeline.tuning))
    begin = first_second(timeline)
    end = max(end, begin + seconds)
    titles: dict[str, str] = {}
    most = max(LEAST_BARS, MOST_BARS // max(1, len(rows)))
    numbered = NUMBER_INCHES / axes.figure.get_figwidth() * (end - begin)
    for place, layer in enumerate(rows):
        if layer and timeline.seconds:  # the row of its sleep, on which its epochs lie
            sleep = {"left": timeline.began, "height": HEIGHT, "color": ASLEEP, "linewidth": 0}
            axes.barh(place, timeline.seconds, **sleep)
        for group in _grouped(timeline.of_layer(layer), most):
            name = f"{prefix}bar{len(titles)}"
            titles[name] = _title(timeline, group)
            _draw_bar(axes, group, place, name)
            if len(group) == 1 and group[0].seconds - group[0].transform > numbered:
                _draw_number(axes, timeline, group[0], place)
    pixel = (end - begin) / (axes.figure.get_figwidth() * PIXELS_PER_INCH)
    path = critical_path(timeline)
    for place, layer in enumerate(rows):
        _draw_path(axes, [span for span in path if span.layer == layer], place, pixel)
    names = [f"layer {layer}" if layer else TUNING_NAME for layer in rows]
    axes.set_yticks(range(len(rows)), names)
    axes.set(xlim=(begin, end), ylim=(len(rows) - 0.5, -0.5), xlabel="seconds")
    for at in timeline.resumed:
        axes.axvline(at, color="0.5", linestyle=":", linewidth=1)
    axes.tick_params(axis="y", length=0)
    for side in ("top", "right", "left"):
        axes.spines[side].set_visible(False)
    return titles


def first_second(timeline: Timeline) -> float:
    """Return when a diagram begins, on the clock of the run."""
    return timeline.began if timeline.spans else timeline.tuning[0].start


def _grouped(spans: Sequence[EpochSpan], most: int) -> list[tuple[EpochSpan, ...]]:
    """Return epochs in at most ``most`` groups that follow each other."""
    size = -(-len(spans) // most)
    return [tuple(spans[i : i + size]) for i in range(0, len(spans), max(1, size))]


def _draw_bar(axes: Any, group: Sequence[EpochSpan], place: int, name: str) -> None:
    first, last = group[0], group[-1]
    colour = colour_of(first.layer - 1) if first.layer else TUNING_COLOUR
    alpha = 1.0 if (first.epoch // len(group)) % 2 else PALER
    where = {"left": first.start, "height": HEIGHT}
    (bar,) = axes.barh(place, last.end - first.start, color=colour, linewidth=0, **where)
    bar.set(alpha=alpha, gid=name)
    if first.transform > 0 and len(group) == 1:
        axes.barh(place, first.transform, color=ASLEEP, alpha=TRANSFORM, **where)


def _draw_path(axes: Any, path: Sequence[EpochSpan], place: int, pixel: float) -> None:
    """Draw the critical path above a row as one line, with gaps where they can be seen.

    A line for each epoch makes a page of thousands of epochs too large.
    """
    if not path:
        return
    ends = [path[0].start, path[0].end]
    for span in path[1:]:
        if span.start - ends[-1] < pixel:
            ends[-1] = max(ends[-1], span.end)
        else:
            ends += [math.nan, span.start, span.end]
    colour = axes.xaxis.label.get_color()
    heights = [place - HEIGHT / 2] * len(ends)
    axes.plot(ends, heights, color=colour, linewidth=2.2, solid_capstyle="butt")


def _draw_number(axes: Any, timeline: Timeline, span: EpochSpan, place: int) -> None:
    versions = span.layer > 1 and not timeline.is_streamed
    text = f"{span.epoch}({span.reads})" if versions else f"{span.epoch}"
    middle = (span.start + span.transform + span.end) / 2
    colour = "black" if span.layer and canvas.colour_of(span.layer - 1) in canvas.LIGHT else "white"
    style = {"ha": "center", "va": "center", "color": colour, "fontsize": "x-small"}
    axes.text(middle, place, text, clip_on=True, **style)


def _title(timeline: Timeline, group: Sequence[EpochSpan]) -> str:
    """Return the title of a bar: its epochs, times and errors in a sentence."""
    first, last = group[0], group[-1]
    name = f"layer {first.layer}" if first.layer else TUNING_NAME
    epochs = f"epoch {first.epoch}" if first is last else f"epochs {first.epoch} to {last.epoch}"
    read = f" on version {first.reads}" if first is last and first.layer > 1 else ""
    read = "" if timeline.is_streamed else read
    stipulated = timeline.epochs[first.layer - 1] if first.layer and timeline.epochs else None
    extra = ", a refresh" if stipulated is not None and first.epoch > stipulated else ""
    times = f"{last.end - first.start:.3g} s, from {first.start:.3g} to {last.end:.3g} s"
    parts = [f"{name}, {epochs}{read}{extra}: {times}"]
    if last.train_error is not None:
        parts.append(f"error {last.train_error:.4g}")
    if last.validation_error is not None:
        parts.append(f"validation {last.validation_error:.4g}")
    if first.transform > 0 and first is last:
        parts.append(f"its input took {first.transform:.3g} s")
    return ", ".join(parts)
