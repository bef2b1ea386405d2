"""Diagnosis of a result: errors and figures, and sentences on failures with remedies to try.

The reconstruction error, of each layer or of the whole stack, is the squared error summed over the
units of an example and averaged over examples, without sampling. For Gaussian visible units it is
measured on the standardized examples. A missing value has no error.

The reconstruction error alone says little about how well an RBM models its data (Hinton 2010,
section 5): the free-energy gap, the likelihood and the number of idle units say more. An error has
a meaning only compared with a baseline: the error of predicting the mean, or for classes the share
of errors of always predicting the most frequent one.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from syncpretrain.data.dataset import PARTS, Dataset, is_labelled
from syncpretrain.data.examples import evenly_spaced, has_missing
from syncpretrain.kernels.arrays import Array
from syncpretrain.kernels.backprop import squared_error
from syncpretrain.kernels.conditions import as_documents
from syncpretrain.models.layer import DenseLayer, Layer, blocks_through, up_through
from syncpretrain.models.likelihood import free_energy, log_z, pseudo_likelihood
from syncpretrain.models.stack import Stack
from syncpretrain.observers.history import ErrorCurve
from syncpretrain.units.kinds import kind_of

ROWS = 1000  # rows of each part, evenly spaced: enough for these means
NEAR_LIMIT = 0.01  # a unit so near to a limit on every example carries no information
ROWS_MEASURED = 500  # rows at once, in several arrays as wide as the data
ROWS_AT_ONCE = 1000  # the same for errors alone
MOST_CONSTANT = 0.5  # largest share of constant units in a good layer
LEAST_CHANGE = 0.05  # smallest range, over the examples, of a unit that carries information
GROWN = 1.05  # an error has grown beyond this many times the first epoch's: less is noise
WORSE = 1.01  # worse than the baseline from this many times its errors on: less prints alike
ROUNDING = 1e-12  # share of the squares up to which the error of predicting the mean is 0
DEVIATIONS = 2.0  # standard deviations by which the errors of two epochs must differ


class Baseline(NamedTuple):
    """Figures of one layer, to judge its error by.

    ``error`` is the reconstruction error, ``mean_error`` the error of predicting the mean of the
    layer's input. ``constant`` counts the hidden ``units`` that hardly differ between examples, and
    ``at_limit`` the constant units that are off or on.
    """

    error: float
    mean_error: float
    units: int
    constant: int
    at_limit: int


def diagnose_layers(
    stack: Stack, train: Array, held_out: Array, *, partition: bool = False
) -> list[dict[str, Any]]:
    """Return figures of each layer as JSON values, from at most 1,000 examples of each part.

    ``free_energy_gap`` is the mean free energy of held-out examples minus the mean of training
    examples, in nats: it grows as a layer overfits (Hinton 2010, section 6).
    ``pseudo_likelihood`` is measured on held-out examples, or on training examples if there are no
    others. ``dead_units`` and ``saturated_units`` count the hidden units that are off, or on, for
    every example (for a convolution, the filters that are so at every position); None for units
    without such limits. With ``partition``, ``log_z`` is log Z with its error bar, and
    ``log_likelihood`` the likelihood of the examples under it. Autoencoders, fine-tuned layers and
    convolutions have None for the figures of RBMs. The free energy leaves out missing values; with
    missing values there is neither a pseudo-likelihood nor a log-likelihood.
    """
    parts = [evenly_spaced(rows, ROWS) for rows in (train, held_out)]
    missing = any(map(has_missing, parts))
    below, held_out = (stack.prepared(rows, missing=True) if len(rows) else rows for rows in parts)
    found: list[dict[str, Any]] = []
    for layer in stack.layers:
        own = missing and not found  # only the data have missing values, codes have none
        figures = _rbm_figures(layer, below, held_out, partition=partition, missing=own)
        found.append(figures)
        below, held_out = up_through([layer], below), up_through([layer], held_out)
        hidden = held_out if len(held_out) else below
        hidden = hidden.reshape(-1, layer.shape.biases[1])  # each position of a convolution a row
        figures["dead_units"], figures["saturated_units"] = idle_units(layer.hidden_units, hidden)
    return found


def baselines(stack: Stack, X: Any) -> list[Baseline]:
    """Return the figures of each layer on examples of shape (n, input units); [] without any."""
    if not len(X):
        return []
    found = [_Measured(layer) for layer in stack.layers]
    for rows in map(np.asarray, blocks_through(stack.layers, X, ROWS_MEASURED)):
        below = stack.prepared(rows, missing=True)
        lost = np.isnan(rows) if rows.dtype.kind == "f" else None
        for layer, measured in zip(stack.layers, found, strict=True):
            above = layer.up(below)
            measured.add(below, layer.reconstruct(below, above), above, lost)
            below, lost = above, None
    return [measured.baseline() for measured in found]


def stack_error(stack: Stack, X: Array) -> float | None:
    """Return the error of going up all layers and down again (Santara et al. 2016, table 2).

    Return None without examples.
    """
    if not len(X):
        return None
    total = 0.0
    for rows in blocks_through(stack.layers, X, ROWS_AT_ONCE):
        lost, rows = np.isnan(rows), stack.prepared(rows, missing=True)
        down = stack.down(stack.up(rows))
        as_documents(down, rows, stack.units[0])
        down[lost] = 0
        total += squared_error(rows, down, out=down)
    return total / len(X)


def accuracies(stack: Stack, data: Dataset) -> dict[str, float | None] | None:
    """Return a classifier's share of right classes on each part's labelled rows, else None.

    A part without labelled rows has None. A class that the stack does not know counts as wrong.
    """
    return _by_part(stack, data, "classification", lambda found, y: float((found == y).mean()))


def regression_errors(
    stack: Stack, data: Dataset
) -> dict[str, dict[str, float | None] | None] | None:
    """Return a regression's error on each part's rows with a target, else None.

    ``rmse`` is the root of the mean squared error, ``r2`` the predicted share of the targets'
    variance: 0 for a constant guess, 1 at best, None if all targets are equal. A part without
    targets has None.
    """

    def errors(found: NDArray[Any], labels: NDArray[Any]) -> dict[str, float | None]:
        y = labels.astype(np.float64)
        error, spread = float(np.square(found - y).mean()), float(y.var())
        return {"rmse": math.sqrt(error), "r2": 1 - error / spread if spread else None}

    return _by_part(stack, data, "regression", errors)


def _by_part(
    stack: Stack, data: Dataset, kind: str, measured: Callable[[NDArray[Any], NDArray[Any]], Any]
) -> dict[str, Any] | None:
    """Return what is measured of the predictions and the targets of each part, if it has some."""
    if stack.head is None or stack.head.kind != kind:
        return None
    found: dict[str, Any] = {}
    for part in PARTS:
        X, labels = getattr(data, part), data.targets(part)
        found[part] = None
        if labels is not None and (rows := is_labelled(labels)).any():
            found[part] = measured(stack.predict(X[rows]), labels[rows])
    return found


def mean_error(X: Array, row: Array | None = None) -> float:
    """Return the error of predicting a row, or else X's mean, without an array of X's size."""
    mean = X.mean(axis=0, dtype=np.float64)
    row = mean if row is None else row
    return max(_squares(X) / len(X) - float(row @ (2 * mean - row)), 0.0)


def digits(value: float | None) -> str:
    """Return a figure as it is printed, a dash for none."""
    return "-" if value is None else f"{value:.4g}"


def share_text(error: float, baseline: float) -> str:
    """Return an error as a share of a baseline."""
    return f"{100 * error / baseline:.0f} %" if baseline > 0 else "-"


def on_layers(
    found: Sequence[Baseline],
    curves: Sequence[ErrorCurve],
    *,
    more: str = "more epochs",
    begun: bool = False,
) -> list[str]:
    """Return sentences about layers that learned nothing, or diverged.

    ``more`` is the remedy for too little training; a training that has just ``begun`` gets no such
    sentence.
    """
    sentences = []
    for number, (layer, curve) in enumerate(zip(found, curves, strict=False), start=1):
        grew = _grew(curve)
        remedy = "try a lower learning_rate" if grew else f"try {more}, or smaller minibatches"
        is_constant = layer.constant > MOST_CONSTANT * layer.units
        off = layer.at_limit > layer.constant / 2
        if begun and not (is_constant and off):
            continue
        if is_constant:
            state = "are off or on for every example" if off else "hardly differ between examples"
            remedy = "try a lower learning_rate" if off or grew else f"try {more}"
            text = f"{layer.constant} of its {layer.units} units {state}"
        elif layer.mean_error and layer.error >= layer.mean_error:
            text = (
                f"its error is {share_text(layer.error, layer.mean_error)} of the mean's, so that"
                " predicting the mean of its input would be as good"
            )
        elif grew and number == 1:  # the input of the others changes
            text = f"its error grew from {curve.train[0]:.4g} to {curve.train[-1]:.4g}"
        else:
            continue
        sentences.append(f"layer {number}: {text}; {remedy}")
    return sentences


def on_tuning(
    objective: str, curve: ErrorCurve, baseline: float, *, examples: int = 0
) -> list[str]:
    """Return sentences about a fine-tuning.

    ``baseline`` is the error of a constant prediction: of the mean, or for classes of the most
    frequent one. For classes, if the number of ``examples`` is given, the error has grown only if
    it grew by more than chance explains.
    """
    if curve.last is None or not baseline:
        return []
    grew = _grew(curve)
    if grew and examples and objective == "classification":
        variance = (curve.train[0] + curve.train[-1]) / examples  # upper bound for the difference
        grew = curve.train[-1] - curve.train[0] > DEVIATIONS * math.sqrt(variance)
    remedy = "a lower finetune learning_rate" if grew else "more epochs of fine-tuning"
    if curve.last >= baseline and objective == "classification":
        by = "more than" if curve.last > WORSE * baseline else "as"
        return [
            f"classifier: {100 * curve.last:.1f} % wrong, {by} by always naming the most frequent"
            f" class ({100 * baseline:.1f} % wrong); try {remedy}, or more labels"
        ]
    if curve.last >= baseline:
        return [
            f"{objective}: the error is {share_text(curve.last, baseline)} of the mean's, so that"
            f" predicting the mean would be as good; try {remedy}"
        ]
    if grew:
        growth = f"the error grew from {curve.train[0]:.4g} to {curve.train[-1]:.4g}"
        return [f"fine-tuning: {growth}; try {remedy}"]
    return []


def _rbm_figures(
    layer: Layer, train: Array, held_out: Array, *, partition: bool, missing: bool
) -> dict[str, Any]:
    names = ("free_energy_gap", "pseudo_likelihood", "log_z", "log_likelihood")
    figures: dict[str, Any] = dict.fromkeys(names)
    if layer.model != "rbm" or not isinstance(layer, DenseLayer):
        return figures
    rows = held_out if len(held_out) else train
    energy = float(free_energy(layer, rows, missing=missing).mean())
    if len(train) and len(held_out):
        energy_of_train = float(free_energy(layer, train, missing=missing).mean())
        figures["free_energy_gap"] = energy - energy_of_train
    visible, hidden = kind_of(layer.visible_units), kind_of(layer.hidden_units)
    if visible.is_binary and not missing:
        figures["pseudo_likelihood"] = pseudo_likelihood(layer, rows)
    has_log_z = hidden.is_binary and not visible.counts
    if partition and has_log_z and not missing:
        estimate = log_z(layer)
        bounds = (estimate.low, estimate.high)
        low, high = (bound if math.isfinite(bound) else None for bound in bounds)
        figures["log_z"] = {"value": estimate.value, "low": low, "high": high}
        figures["log_likelihood"] = -energy - estimate.value
    return figures


def idle_units(units: str, hidden: Array) -> tuple[int | None, int | None]:
    """Return how many units are at their lower, and upper, limit in every row; None: no limit."""
    lower, upper = kind_of(units).lower, kind_of(units).upper
    dead = int((hidden < lower + NEAR_LIMIT).all(axis=0).sum()) if math.isfinite(lower) else None
    on = int((hidden > upper - NEAR_LIMIT).all(axis=0).sum()) if math.isfinite(upper) else None
    return dead, on


class _Measured:
    """Sums over the rows so far; each position of a convolution counts as a row."""

    def __init__(self, layer: Layer) -> None:
        self._kind = kind_of(layer.hidden_units)
        self._rows, self._squares, self._errors = 0, 0.0, 0.0
        self._sums: Any = 0.0
        self._known: Any = 0.0
        self._low, self._high = np.full((2, layer.shape.biases[1]), [[np.inf], [-np.inf]])

    def add(self, below: Array, down: Array, above: Array, lost: Any) -> None:
        self._rows += len(below)
        if lost is not None:  # missing values are 0 in ``below``
            down[lost] = 0
        self._known = self._known + len(below) - (0 if lost is None else lost.sum(axis=0))
        self._errors += squared_error(below, down, out=down)
        self._sums = self._sums + below.sum(axis=0, dtype=np.float64)
        self._squares += _squares(below)
        hidden = above.reshape(-1, len(self._low))
        np.minimum(self._low, hidden.min(axis=0), out=self._low)
        np.maximum(self._high, hidden.max(axis=0), out=self._high)

    def baseline(self) -> Baseline:
        constant = self._high - self._low < LEAST_CHANGE
        if self._rows < 2:  # a single row says nothing
            constant[:] = False
        lower, upper = self._kind.lower + NEAR_LIMIT, self._kind.upper - NEAR_LIMIT
        limits = (self._high < lower) | (self._low > upper)
        error, squares = self._errors / self._rows, self._squares / self._rows
        means = float((np.square(self._sums) / np.maximum(self._known, 1)).sum())
        by_mean = squares - means / self._rows
        by_mean = by_mean if by_mean > ROUNDING * squares else 0.0
        counts = int(constant.sum()), int((constant & limits).sum())
        return Baseline(error, by_mean, len(constant), *counts)


def _squares(X: Array) -> float:
    return float(np.einsum("ij,ij->", X, X, dtype=np.float64))


def _grew(curve: ErrorCurve) -> bool:
    """Return whether the training error ended above the error of the first epoch."""
    return len(curve.train) > 1 and curve.train[-1] > GROWN * curve.train[0]
