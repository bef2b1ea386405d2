"""Base of the predictors: pretraining on all rows, fine-tuning on those with a target."""

from __future__ import annotations

from typing import Any

import numpy as np
from numpy.typing import NDArray
from sklearn.base import clone

from syncpretrain import Stack
from syncpretrain.data.dataset import UNLABELLED
from syncpretrain.errors import SettingsError
from syncpretrain.sklearn.base import StackEstimator
from syncpretrain.sklearn.passes import Matrix

__all__ = ["StackPredictor"]


class StackPredictor(StackEstimator):
    """Base of the predictors: pretraining on all rows, fine-tuning on those with a target."""

    pretrained: Any
    finetune_epochs: int | None

    def _start(self, X: Matrix, targets: int, seed: int) -> Stack:
        """Return the stack to fine-tune: the one given, or one pretrained on all rows."""
        given = self.pretrained
        if given is None:
            return self._pretrained_for(X, targets, seed)
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

    def _pretrained_for(self, X: Matrix, targets: int, seed: int) -> Stack:
        """Return a stack pretrained on examples, of which some have targets."""
        return self._pretrained_on(X, seed)

    def _train(
        self, X: Matrix, rows: NDArray[np.intp], y: Matrix, weights: Matrix | None, objective: str
    ) -> None:
        """Train on examples of which some rows have the targets y, and weights."""
        self._check_tuning(objective, self.finetune_epochs)
        seed = self._seed()
        stack = self._to_train(self._start(X, len(rows), seed))
        stack, options = self._chosen(stack, X, rows, y, weights, seed)
        options["objective"] = objective
        if self.batch_size is not None:
            options["batch_size"] = min(self.batch_size, len(rows))
        if len(rows) < X.shape[0]:  # what suits few targets follows from the number of all rows
            none = UNLABELLED if objective == "classification" else np.nan
            y = _spread_out(y, rows, X.shape[0], none)
            weights = None if weights is None else _spread_out(weights, rows, X.shape[0], 0)
        options["weights"] = weights
        epochs = options.pop("epochs", self.finetune_epochs)
        self.stack_ = self._finetuned(stack, X, y, seed, epochs, **options)

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
