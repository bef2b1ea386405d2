"""Short trainings of the predictors on some rows, which are judged on those left out."""

from __future__ import annotations

import math

import numpy as np
from numpy.typing import NDArray

from syncpretrain.settings.by_data import BATCH_SHARE, SMALLEST_MINIBATCH
from syncpretrain.sklearn.passes import Matrix

__all__ = ["FOLDS", "trial_epochs", "with_weight"]

FOLDS = 3


def with_weight(
    rows: NDArray[np.intp], y: Matrix, weights: Matrix | None
) -> tuple[NDArray[np.intp], Matrix, Matrix | None]:
    """Return the rows that count, their targets and weights: none can be trained on the others."""
    if weights is None:
        return rows, y, None
    counts = weights > 0
    return rows[counts], y[counts], weights[counts]


def trial_epochs(rows: int, updates: int) -> int:
    """Return the epochs of a short training on most of the rows, for a number of updates."""
    steps = min(rows // SMALLEST_MINIBATCH, BATCH_SHARE)
    return math.ceil(updates / steps)
