"""Training on few labels: pretraining of tables of 0 and 1, and a head before fine-tuning.

A code that separates classes better than the columns do is worth keeping, and long fine-tuning
with a random head moves the weights below further than a few labels justify (Kumar et al. 2022,
arXiv:2202.10054). There a logistic regression on the codes is the head to begin with, and
fine-tuning is slow and short. Elsewhere all layers are fine-tuned as usual.
"""

from __future__ import annotations

import math
import warnings
from dataclasses import replace
from typing import Any

import numpy as np
from numpy.typing import NDArray
from sklearn.exceptions import ConvergenceWarning
from sklearn.linear_model import LogisticRegression
from sklearn.model_selection import StratifiedKFold

from syncpretrain import Stack
from syncpretrain.data.visible import has_missing
from syncpretrain.models.stack import Head
from syncpretrain.settings.by_data import (
    BATCH_SHARE,
    FEW_LABELS,
    OF_FEW_LABELS,
    OF_FEW_ROWS,
    SMALLEST_MINIBATCH,
)
from syncpretrain.settings.defaults import PER_LAYER
from syncpretrain.settings.finetuning import FinetuneSettings
from syncpretrain.sklearn.passes import Matrix, codes_of
from syncpretrain.sklearn.ranges import in_shared_range
from syncpretrain.units.kinds import kind_of

__all__ = ["MOST_ITERATIONS", "are_few", "head_first", "of_bits"]

# Layer 1 learns noise by heart from zeros and ones by contrastive divergence. Persistent chains
# (Tieleman 2008), which need a lower rate, and more weight decay leave what columns have in common.
OF_BITS = {"persistent": True, "learning_rate": 0.01, "weight_decay": 0.01}
SLOW = 0.001  # the learning rate
UPDATES_WITH_A_HEAD = 1000
EPOCHS_WITH_A_HEAD = 100
LABEL_PARTS, TURNS = 5, 3
MOST_ITERATIONS = 1000


def are_few(rows: int, labels: int) -> bool:
    """Return whether labels are few, and few of the rows have one."""
    return labels < min(FEW_LABELS * rows, BATCH_SHARE * FinetuneSettings().batch_size)


def of_bits(layers: int) -> dict[str, list[Any]]:
    """Return settings of pretraining on zeros and ones, a value a layer: of layer 1 other ones."""
    return {name: [value] + [PER_LAYER[name]] * (layers - 1) for name, value in OF_BITS.items()}


def head_first(
    stack: Stack, X: Matrix, y: NDArray[Any], weights: Matrix | None, seed: int
) -> tuple[Stack, dict[str, Any]]:
    """Return a stack with a head for its codes, and settings of a short fine-tuning.

    The stack as it was and no settings, if it has a head already; if its visible units have no
    limits, whose codes need the usual fine-tuning; or unless a logistic regression on the codes is
    right for more of the labels left out than one on the columns, by more than a standard error.

    Parameters
    ----------
    stack : Stack
    X, y, weights : array of shape (n_labelled, n_features), and of shape (n_labelled,)
        The classes from 0.
    seed : int
        Of the parts.
    """
    if stack.head is not None or not kind_of(stack.units[0]).is_unit_interval:
        return stack, {}
    columns = X.astype(np.float32, copy=False)  # the same for examples of either precision
    codes = codes_of(stack, columns).astype(np.float64)
    if stack.scaling is not None:
        columns = in_shared_range(columns, stack.scaling)
    if has_missing(columns):
        columns = np.nan_to_num(columns)
    apart = _right(codes, y, weights, seed) - _right(columns, y, weights, seed)
    if apart.sum() <= math.sqrt((apart**2).sum()):  # a standard error
        return stack, {}
    own = _regression(codes, y, weights)
    steps = max(min(len(y) // SMALLEST_MINIBATCH, BATCH_SHARE), 1)
    epochs = min(math.ceil(UPDATES_WITH_A_HEAD / steps), EPOCHS_WITH_A_HEAD)
    settings = {**OF_FEW_ROWS, **OF_FEW_LABELS, "learning_rate": SLOW, "epochs": epochs}
    return replace(stack, head=_as_head(own)), settings


def _regression(inputs: Any, y: NDArray[Any], weights: Matrix | None) -> LogisticRegression:
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", ConvergenceWarning)  # it is a beginning
        return LogisticRegression(max_iter=MOST_ITERATIONS).fit(inputs, y, sample_weight=weights)


def _right(inputs: Any, y: NDArray[Any], weights: Matrix | None, seed: int) -> NDArray[np.float64]:
    """Return how often a logistic regression on other rows predicts each label, by its weight."""
    right = np.zeros(len(y))
    parts = min(LABEL_PARTS, int(np.bincount(y).min()))
    for turn in range(TURNS if parts > 1 else 0):
        split = StratifiedKFold(parts, shuffle=True, random_state=(seed + turn) % 2**32)
        for trained, held_out in split.split(inputs, y):
            own = None if weights is None else weights[trained]
            predicted = _regression(inputs[trained], y[trained], own).predict(inputs[held_out])
            right[held_out] += (predicted == y[held_out]) / TURNS
    return right if weights is None else right * weights


def _as_head(own: LogisticRegression) -> Head:
    """Return the same as a head, which has an output a class with two classes too."""
    weight, bias = own.coef_.T, own.intercept_
    if weight.shape[1] == 1:
        weight, bias = np.hstack([-weight, weight]) / 2, np.hstack([-bias, bias]) / 2
    weight, bias = (np.ascontiguousarray(x, dtype=np.float32) for x in (weight, bias))
    return Head(weight, bias, "classification", tuple(own.classes_.tolist()))
