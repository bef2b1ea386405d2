"""Weight decay of a regression on few rows, chosen by cross-validation.

How much decay is right depends on the noise of the targets, which no number about the table shows:
noisy numbers are learned by heart with little, and curved ones are not learned with much.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

import numpy as np
from numpy.typing import NDArray
from sklearn.model_selection import KFold

from syncpretrain import Stack
from syncpretrain.settings.by_data import BATCH_SHARE, FEW_LABELS, OF_FEW_ROWS
from syncpretrain.settings.finetuning import FinetuneSettings
from syncpretrain.sklearn.passes import Matrix, outputs_of
from syncpretrain.sklearn.trials import FOLDS, trial_epochs

__all__ = ["chosen_decay", "is_for_choice"]

DECAYS = (0.1, 1.0)
UPDATES = 1000  # of each of the short trainings
FEWEST_ROWS = 50  # fewer say little about each other
DECIDED_BY = {"optimizer", "weight_decay", "dropout", "input_dropout"}  # settings of the user


def is_for_choice(rows: int, targets: int, given: Mapping[str, Any]) -> bool:
    """Return whether the decay is chosen: for some rows, but not many, most of them with targets.

    Parameters
    ----------
    rows, targets : int
        The number of rows, and of those that have targets.
    given : mapping of str
        The settings of fine-tuning that the user gave, ``epochs`` included.
    """
    few = FEWEST_ROWS <= targets < BATCH_SHARE * FinetuneSettings().batch_size
    return few and targets >= FEW_LABELS * rows and not given.keys() & (DECIDED_BY | {"epochs"})


def chosen_decay(
    finetuned: Callable[..., Stack], X: Matrix, y: Matrix, weights: Matrix | None, seed: int
) -> float:
    """Return the weight decay with the smallest squared error on rows left out.

    Parameters
    ----------
    finetuned : callable
        Called with rows, targets, epochs and settings; returns a stack.
    X, y : array of shape (n_examples, n_features), and of shape (n_examples, outputs)
    weights : array of shape (n_examples,), optional
        Above 0: a part of the rows whose weights are all 0 cannot be trained on.
    seed : int
        Of the folds.
    """
    epochs = trial_epochs(len(y), UPDATES)
    usual = {name: value for name, value in OF_FEW_ROWS.items() if name != "weight_decay"}
    errors = dict.fromkeys(DECAYS, 0.0)
    for trained, held_out in KFold(FOLDS, shuffle=True, random_state=seed).split(y):
        own = None if weights is None else weights[trained]
        for decay in DECAYS:
            options = {**usual, "weights": own, "weight_decay": decay, "warn": False}
            stack = finetuned(X[trained], y[trained], epochs=epochs, observers=(), **options)
            squares = np.square(outputs_of(stack, X[held_out]) - y[held_out]).sum(axis=1)
            errors[decay] += float(_weighted(squares, weights, held_out).sum())
    return min(DECAYS, key=errors.__getitem__)


def _weighted(errors: Matrix, weights: Matrix | None, rows: NDArray[np.intp]) -> Matrix:
    return errors if weights is None else errors * weights[rows]
