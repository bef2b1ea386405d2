"""Base of the predictors: pretraining on all rows, fine-tuning on those with a target."""

from __future__ import annotations

import warnings
from functools import partial
from typing import Any

import numpy as np
from numpy.typing import NDArray
from sklearn.base import clone

from syncpretrain import Stack
from syncpretrain.data.scaling import Scaling
from syncpretrain.errors import PoorResultWarning, SettingsError
from syncpretrain.sklearn.base import StackEstimator, single
from syncpretrain.sklearn.passes import Matrix
from syncpretrain.sklearn.rectified import are_curved, are_measurements, rectified
from syncpretrain.sklearn.trials import with_weight
from syncpretrain.sklearn.weight_decay import is_for_choice

__all__ = ["StackPredictor"]


class StackPredictor(StackEstimator):
    """Base of the predictors: pretraining on all rows, fine-tuning on those with a target."""

    pretrained: Any
    finetune_epochs: int | None
    n_unlabelled_: int

    def _start(self, X: Matrix, targets: int, seed: int, **suited: Any) -> Stack:
        """Return the stack to fine-tune: the one given, or one pretrained on all rows."""
        given = self.pretrained
        if given is None:
            return self._pretrained_for(X, targets, seed, **suited)
        if not isinstance(given, (Stack, StackEstimator)) and not hasattr(given, "stack_"):
            raise SettingsError(
                f"pretrained: got a {type(given).__name__}, expected a Stack, a StackedRBM, a"
                " StackedAutoencoder or a fitted predictor"
            )
        if isinstance(given, StackPredictor) and not hasattr(given, "stack_"):
            raise SettingsError(
                f"pretrained: got a {type(given).__name__} that is not fitted, expected a fitted"
                " one, or a transformer, which is fitted on X"
            )
        if not isinstance(given, Stack):
            given = given if hasattr(given, "stack_") else clone(given).fit(X)
        stack: Stack = given if isinstance(given, Stack) else given.stack_
        self._check_width(stack, X, "pretrained")
        return stack

    def _pretrained_for(self, X: Matrix, targets: int, seed: int, **suited: Any) -> Stack:
        """Return a stack pretrained on examples, of which some have targets."""
        return self._pretrained_on(X, seed, **suited)

    def _for_curves(
        self,
        X: Matrix,
        rows: NDArray[np.intp],
        y: Matrix,
        weights: Matrix | None,
        seed: int,
        objective: str,
    ) -> dict[str, Any]:
        """Return settings of pretraining for targets that no linear model finds, if they are such.

        None for others, and if the user gave settings, which may not go together with these.
        """
        rows, y, weights = with_weight(rows, y, weights)
        is_free = self.learning_rate is None and not (self.settings or self._given_tuning())
        if not is_free or not is_for_choice(X.shape[0], len(rows), {}):
            return {}
        if not are_measurements(single(X), self.visible_units) or self._scaling(X) is not None:
            return {}
        layers = len(self._widths(X.shape[1]))
        suited = rectified(layers, X.shape[0], self.batch_size)
        untrained = {"epochs": None, "schedule": "none", "observers": ()}
        stack = self._pretrained_on(X, seed, **suited, **untrained)
        finetuned = partial(self._finetuned, stack, seed=seed, objective=objective)
        are_classes = objective == "classification"
        found = are_curved(finetuned, X[rows], y, weights, seed, are_classes=are_classes)
        return suited if found else {}

    def _scaling(self, X: Matrix) -> Scaling | None:
        """Return what scales columns to [0, 1] for binary units, if anything does."""
        return None

    def _train(
        self, X: Matrix, rows: NDArray[np.intp], y: Matrix, weights: Matrix | None, objective: str
    ) -> None:
        """Train on examples of which some rows have the targets y, and weights."""
        self._check_tuning(objective, self.finetune_epochs)
        seed, self.n_unlabelled_ = self._seed(), X.shape[0] - len(rows)
        suited = {}
        if self.pretrained is None:
            suited = self._for_curves(X, rows, y, weights, seed, objective)
        stack = self._to_train(self._start(X, len(rows), seed, **suited))
        stack, options = self._chosen(stack, X, rows, y, weights, seed)
        options["objective"] = objective
        if self.batch_size is not None:
            options["batch_size"] = min(self.batch_size, len(rows))
        if len(rows) < X.shape[0]:  # what suits few targets follows from the number of all rows
            y = _spread_out(y.astype(np.float64), rows, X.shape[0], np.nan)
            weights = None if weights is None else _spread_out(weights, rows, X.shape[0], 0)
        options |= {"weights": weights, "warn": False}
        epochs = options.pop("epochs", self.finetune_epochs)
        self.stack_ = self._finetuned(stack, X, y, seed, epochs, **options)
        for sentence in self.stack_.info.get("verdict", ()):
            warnings.warn(sentence, PoorResultWarning, stacklevel=3)

    def _to_train(self, stack: Stack) -> Stack:
        """Return a stack whose head, if it has one, is for targets as they are trained on."""
        raise NotImplementedError

    def _chosen(
        self,
        stack: Stack,
        X: Matrix,
        rows: NDArray[np.intp],
        y: Matrix,
        weights: Matrix | None,
        seed: int,
    ) -> tuple[Stack, dict[str, Any]]:
        """Return the stack to fine-tune, and settings of that, for the data of ``_train``."""
        return stack, {}

    def _given_tuning(self) -> dict[str, Any]:
        """Return the settings of fine-tuning that the user gave."""
        epochs = {} if self.finetune_epochs is None else {"epochs": self.finetune_epochs}
        return self._others(tuning=True) | epochs


def _spread_out(values: Matrix, rows: NDArray[np.intp], length: int, fill: float) -> Matrix:
    """Return an array for all rows, with values at some and ``fill`` at the others."""
    spread: Matrix = np.full((length, *values.shape[1:]), fill, dtype=values.dtype)
    spread[rows] = values
    return spread
