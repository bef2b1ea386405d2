"""Accuracy of a fine-tuned classifier, and errors of a regression."""

from __future__ import annotations

import math

import numpy as np

from syncpretrain.data.dataset import PARTS, Dataset, is_labelled
from syncpretrain.models.stack import Stack

__all__ = ["accuracies", "regression_errors"]

Errors = dict[str, dict[str, float | None] | None]  # of the parts


def accuracies(stack: Stack, data: Dataset) -> dict[str, float | None] | None:
    """Return the share of right classes on each part's labelled rows; None if it is no classifier.

    A part without labelled rows has None. A class that the stack does not know counts as wrong.
    """
    if stack.head is None or stack.head.kind != "classification":
        return None
    found: dict[str, float | None] = {}
    for part in PARTS:
        X, labels = getattr(data, part), data.targets(part)
        found[part] = None
        if labels is not None and is_labelled(labels).any():
            rows = is_labelled(labels)
            found[part] = float((stack.predict(X[rows]) == labels[rows]).mean())
    return found


def regression_errors(stack: Stack, data: Dataset) -> Errors | None:
    """Return the error on each part's rows with a target; None if it is no regression.

    ``rmse`` is the root of the mean squared error, ``r2`` the share of the targets' variance that
    is predicted: 0 for a constant guess, 1 at best, None where they are all alike. A part without
    targets has None.
    """
    if stack.head is None or stack.head.kind != "regression":
        return None
    found: Errors = {}
    for part in PARTS:
        X, labels = getattr(data, part), data.targets(part)
        found[part] = None
        if labels is None or not is_labelled(labels).any():
            continue
        rows = is_labelled(labels)
        y = labels[rows].astype(np.float64)
        error = float(np.square(stack.predict(X[rows]) - y).mean())
        spread = float(y.var())
        r2 = 1 - error / spread if spread else None
        found[part] = {"rmse": math.sqrt(error), "r2": r2}
    return found
