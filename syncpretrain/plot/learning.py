"""Learning curves: the errors of each layer and of fine-tuning, by epoch."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from syncpretrain.errors import DataError
from syncpretrain.models.stack import Stack
from syncpretrain.observers.errors import ErrorCurve, ErrorHistory
from syncpretrain.observers.history import History
from syncpretrain.plot.canvas import MARKERS, colour_of, new_panels
from syncpretrain.runs.timeline import EpochSpan, Timeline, read_timeline, timeline_of

FEW_EPOCHS = 40  # at most so many epochs have a mark each
MARKS_OF_A_LINE = 10  # marks of a line with more epochs
POINTS_OF_A_LINE = 600  # at most: it has fewer pixels, and more make a large file
SQUARED, WRONG = "squared error", "share of wrong classes"


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
        raise DataError(
            "run: it has no finished epoch; expected the folder of a run that trained, or a stack"
            " as pretrain() returns it"
        )
    panels = new_panels(axes, len(curves))
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
    marks = MARKERS[2 * series : 2 * series + 2]
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
