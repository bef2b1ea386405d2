"""Rectified units in layer 1, for classes with curved limits and for curved numbers.

Sigmoids that see standardized columns through the small weights of pretraining stay in their linear
part, which bends few limits. Rectified units bend them, and learn noise by heart sooner. So they
are taken where a network of them, briefly trained, is clearly better on rows left out than linear
models with little and with much regularization.
"""

from __future__ import annotations

import warnings
from collections.abc import Callable, Iterator
from typing import Any

import numpy as np
from numpy.typing import NDArray
from sklearn.exceptions import ConvergenceWarning
from sklearn.impute import SimpleImputer
from sklearn.linear_model import LogisticRegression, Ridge
from sklearn.model_selection import KFold, StratifiedKFold
from sklearn.pipeline import make_pipeline
from sklearn.preprocessing import StandardScaler

from syncpretrain import Stack
from syncpretrain.data.facts import facts_of
from syncpretrain.settings.by_data import BATCH_SHARE, OF_FEW_ROWS
from syncpretrain.settings.defaults import PER_LAYER
from syncpretrain.sklearn.few_labels import MOST_ITERATIONS
from syncpretrain.sklearn.passes import Matrix, outputs_of
from syncpretrain.sklearn.ranges import FEWEST_COLUMNS, are_bits
from syncpretrain.sklearn.trials import FOLDS, trial_epochs

__all__ = ["are_curved", "are_measurements", "rectified"]

TRIAL_UPDATES = 700  # of each of the short trainings
TRIAL_DECAY = 1.0  # of these, which then find curves among noise sooner
CLEARLY = 2  # standard errors
LARGEST_MINIBATCH = 20
PENALTIES = (1.0, 100.0)  # of the linear models; few rows of many columns need much


def are_measurements(examples: Any, visible_units: str) -> bool:
    """Return whether examples are numbers that were measured: no bits, no counts, no pictures."""
    if visible_units != "auto":
        return visible_units == "gaussian"
    facts = facts_of(examples)
    if facts.are_probabilities:
        return facts.columns < FEWEST_COLUMNS and not are_bits(examples)
    return not facts.are_counts


def rectified(layers: int, rows: int, batch_size: int | None) -> dict[str, Any]:
    """Return settings of pretraining with rectified units in layer 1.

    Binary units above them keep codes within limits, and train in half the time. Samples of
    rectified units cost most of it, so that minibatches are small unless a size is given.
    """
    units = ["relu"] + [PER_LAYER["hidden_units"]] * (layers - 1)
    is_large = batch_size is None and rows > BATCH_SHARE * LARGEST_MINIBATCH
    return {"hidden_units": units} | ({"batch_size": LARGEST_MINIBATCH} if is_large else {})


def are_curved(
    finetuned: Callable[..., Stack],
    X: Matrix,
    y: Matrix,
    weights: Matrix | None,
    seed: int,
    *,
    are_classes: bool,
) -> bool:
    """Return whether a network is clearly better than linear models on rows left out.

    Parameters
    ----------
    finetuned : callable
        Called with rows, targets, epochs and settings; returns a stack.
    X : array or sparse matrix of shape (n_examples, n_features)
    y : array of shape (n_examples,) or (n_examples, outputs)
        The classes from 0, or standardized numbers.
    weights : array of shape (n_examples,), optional
        Above 0.
    seed : int
        Of the folds.
    are_classes : bool
        Whether targets are classes.
    """
    if are_classes and np.bincount(y, minlength=2).min() < FOLDS:
        return False
    losses = _misses if are_classes else _squares
    split = (StratifiedKFold if are_classes else KFold)(FOLDS, shuffle=True, random_state=seed)
    epochs = trial_epochs(len(y), TRIAL_UPDATES)
    gains = np.zeros((len(PENALTIES), len(y)))
    for trained, held_out in split.split(np.empty((len(y), 0)), y):
        own = None if weights is None else weights[trained]
        options = {**OF_FEW_ROWS, "weight_decay": TRIAL_DECAY, "weights": own}
        options |= {"warn": False, "observers": ()}
        stack = finetuned(X[trained], y[trained], epochs=epochs, **options)
        lost = losses(outputs_of(stack, X[held_out]), y[held_out])
        linear = _linear(X[trained], y[trained], own, X[held_out], are_classes=are_classes)
        for gain, outputs in zip(gains, linear, strict=True):
            gain[held_out] = losses(outputs, y[held_out]) - lost
    if weights is not None:
        gains *= weights
    return bool((gains.sum(axis=1) > CLEARLY * np.sqrt(np.square(gains).sum(axis=1))).all())


def _linear(
    trained: Matrix, y: Matrix, weights: Matrix | None, held_out: Matrix, *, are_classes: bool
) -> Iterator[Matrix]:
    """Yield what linear models of standardized columns, trained on some rows, make of others."""
    is_dense = not hasattr(trained, "toarray")
    columns = make_pipeline(
        SimpleImputer(keep_empty_features=True), StandardScaler(with_mean=is_dense)
    ).set_output(transform="default")  # sparse rows have no other, whatever scikit-learn is set to
    rows, others = columns.fit_transform(trained), columns.transform(held_out)
    for penalty in PENALTIES:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore", ConvergenceWarning)
            if are_classes:
                model = LogisticRegression(C=1 / penalty, max_iter=MOST_ITERATIONS)
                yield model.fit(rows, y, sample_weight=weights).predict_proba(others)
            else:
                numbers = Ridge(penalty).fit(rows, y, sample_weight=weights).predict(others)
                yield np.reshape(numbers, (len(numbers), -1))


def _misses(outputs: Matrix, y: NDArray[Any]) -> NDArray[np.float64]:
    misses: NDArray[np.float64] = (outputs.argmax(axis=1) != y).astype(np.float64)
    return misses


def _squares(outputs: Matrix, y: Matrix) -> NDArray[np.float64]:
    squares: NDArray[np.float64] = np.square(outputs - y).sum(axis=1, dtype=np.float64)
    return squares
