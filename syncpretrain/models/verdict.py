"""The verdict on a result: sentences for what went wrong, and what to try.

An error means little by itself; what every error can be compared with is that of predicting the
mean, and a share of right classes with that of the most frequent one.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any, NamedTuple

import numpy as np

from syncpretrain.kernels.arrays import Array
from syncpretrain.kernels.losses import squared_error
from syncpretrain.models.diagnosis import NEAR_LIMIT
from syncpretrain.models.passes import rows_at_once
from syncpretrain.models.stack import Stack
from syncpretrain.observers.errors import ErrorCurve
from syncpretrain.units.kinds import kind_of

__all__ = ["Baseline", "baselines", "mean_error", "on_layers", "on_tuning", "share_text"]

ROWS_MEASURED = 500  # at once, in several arrays as wide as the data
MOST_CONSTANT = 0.5  # of a layer's units
LEAST_CHANGE = 0.05  # between examples, of a unit that says anything about them
GROWN = 1.05  # times the first epoch's error: less is noise
WORSE = 1.01  # times the share that the most frequent class has wrong: less prints alike
DEVIATIONS = 2.0  # by which the shares of wrong classes of two epochs have to differ


class Baseline(NamedTuple):
    """Figures of one layer to judge its error by.

    ``error`` is that of its reconstructions, ``mean_error`` that of predicting the mean of its
    input; ``constant`` is the number of its hidden ``units`` that hardly differ between examples,
    ``at_limit`` how many of these are off or on.
    """

    error: float
    mean_error: float
    units: int
    constant: int
    at_limit: int


def baselines(stack: Stack, X: Any) -> list[Baseline]:
    """Return the figures of each layer on examples of shape (n, input units); none without any."""
    if not len(X):
        return []
    found = [_Measured(layer.shape.biases[1]) for layer in stack.layers]
    count = rows_at_once(stack.layers, ROWS_MEASURED)
    for start in range(0, len(X), count):
        rows = np.asarray(X[start : start + count])
        below = stack.prepared(rows, missing=True)
        lost = np.isnan(rows) if rows.dtype.kind == "f" else None
        for layer, measured in zip(stack.layers, found, strict=True):
            above = layer.up(below)
            measured.add(below, layer.reconstruct(below, above), above, lost)
            below, lost = above, None
    units = (layer.hidden_units for layer in stack.layers)
    return [measured.baseline(name) for measured, name in zip(found, units, strict=True)]


class _Measured:
    """Sums over the rows seen so far; of a convolution each position counts as a row."""

    def __init__(self, units: int) -> None:
        self._rows, self._squares, self._errors = 0, 0.0, 0.0
        self._sums: Any = 0.0
        self._known: Any = 0.0
        self._low, self._high = np.full((2, units), [[np.inf], [-np.inf]])

    def add(self, below: Array, down: Array, above: Array, lost: Any) -> None:
        self._rows += len(below)
        if lost is not None:  # missing values, which are 0 below
            down[lost] = 0
        self._known = self._known + len(below) - (0 if lost is None else lost.sum(axis=0))
        self._errors += squared_error(below, down, out=down)
        self._sums = self._sums + below.sum(axis=0, dtype=np.float64)
        self._squares += _squares(below)
        hidden = above.reshape(-1, len(self._low))
        np.minimum(self._low, hidden.min(axis=0), out=self._low)
        np.maximum(self._high, hidden.max(axis=0), out=self._high)

    def baseline(self, units: str) -> Baseline:
        constant = self._high - self._low < LEAST_CHANGE
        if self._rows < 2:  # a single row says nothing
            constant[:] = False
        kind = kind_of(units)
        limits = (self._high < kind.lower + NEAR_LIMIT) | (self._low > kind.upper - NEAR_LIMIT)
        error, squares = self._errors / self._rows, self._squares / self._rows
        means = float((np.square(self._sums) / np.maximum(self._known, 1)).sum())
        by_mean = max(squares - means / self._rows, 0.0)
        counts = int(constant.sum()), int((constant & limits).sum())
        return Baseline(error, by_mean, len(constant), *counts)


def mean_error(X: Array) -> float:
    """Return the error of predicting the mean row of X, without an array of X's size."""
    mean = X.mean(axis=0, dtype=np.float64)
    return max(_squares(X) / len(X) - float(mean @ mean), 0.0)


def _squares(X: Array) -> float:
    return float(np.einsum("ij,ij->", X, X, dtype=np.float64))


def share_text(error: float, baseline: float) -> str:
    """Return an error's share of that of predicting the mean."""
    return f"{100 * error / baseline:.0f} %" if baseline > 0 else "-"


def on_layers(
    found: Sequence[Baseline],
    curves: Sequence[ErrorCurve],
    *,
    more: str = "more epochs",
    begun: bool = False,
) -> list[str]:
    """Return sentences about layers that learned nothing, or were spoiled.

    ``more`` is what to try if too little was trained; of a training that has but ``begun`` this is
    not said.
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
            sentences.append(
                f"layer {number}: {layer.constant} of its {layer.units} units {state}; {remedy}"
            )
        elif layer.mean_error and layer.error >= layer.mean_error:
            sentences.append(
                f"layer {number}: its error is {share_text(layer.error, layer.mean_error)} of the"
                f" mean's, so that predicting the mean of its input would be as good; {remedy}"
            )
        elif grew and number == 1:  # the input of the others changes
            sentences.append(
                f"layer 1: its error grew from {curve.train[0]:.4g} to {curve.train[-1]:.4g};"
                f" {remedy}"
            )
    return sentences


def on_tuning(
    objective: str, curve: ErrorCurve, baseline: float, *, examples: int = 0
) -> list[str]:
    """Return sentences about a fine-tuning.

    ``baseline`` is the error of a constant: the mean's, or of classes the share of all but the most
    frequent one. Of classes, with the number of ``examples``, the error grew only if it grew by
    more than chance explains.
    """
    if curve.last is None or not baseline:
        return []
    grew = _grew(curve)
    if grew and examples and objective == "classification":
        variance = (curve.train[0] + curve.train[-1]) / examples  # of the difference, at most
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
        return [
            f"fine-tuning: the error grew from {curve.train[0]:.4g} to {curve.train[-1]:.4g}; try"
            f" {remedy}"
        ]
    return []


def _grew(curve: ErrorCurve) -> bool:
    """Return whether the training error ended above that of the first epoch."""
    return len(curve.train) > 1 and curve.train[-1] > GROWN * curve.train[0]
