"""Early stopping of one layer on held-out examples."""

from __future__ import annotations

import math

import numpy as np
from numpy.typing import NDArray

from syncpretrain.kernels.arrays import Array
from syncpretrain.kernels.conditions import is_missing
from syncpretrain.models.layer import Layer
from syncpretrain.models.likelihood import free_energy, pseudo_likelihood

__all__ = ["METRICS", "EarlyStopping"]

METRICS = ("free-energy-gap", "pseudo-likelihood", "validation-error")
ERROR_BARS = 3.0  # a gap of fewer standard errors may be chance


class EarlyStopping:
    """Says after an epoch whether the layer is to stop.

    Parameters
    ----------
    metric : str
        ``pseudo-likelihood`` of the held-out examples, or ``validation-error``, their
        reconstruction error: stop when its best is ``patience`` epochs old. ``free-energy-gap``,
        the mean free energy of held-out examples minus the mean of training examples: stop when it
        is significant and has grown ``patience`` times in a row, which is overfitting (Hinton 2010,
        section 6).
    patience : int
        Epochs, at least 1.
    seed : int
        The seed of the pseudo-likelihood's estimate.
    missing : bool
        True if values of the layer's input may be missing, and are marked.
    """

    def __init__(self, metric: str, patience: int, *, seed: int = 0, missing: bool = False) -> None:
        self._metric, self._patience, self._seed = metric, patience, seed
        self._missing = missing
        self._best = math.inf  # for the gap: the last epoch's
        self._bad = 0

    @property
    def state(self) -> tuple[float, int]:
        """The best value so far, and the number of epochs since that were worse."""
        return self._best, self._bad

    @state.setter
    def state(self, state: tuple[float, int]) -> None:
        self._best, self._bad = state

    @property
    def is_over(self) -> bool:
        """True if the newest answer was yes."""
        return self._bad >= self._patience

    def stops(self, layer: Layer, train: Array, held_out: Array) -> bool:
        """Record the layer after an epoch; return whether that was its last.

        ``train`` and ``held_out`` are samples of the layer's input.
        """
        if self._metric == "free-energy-gap":
            samples = (free_energy(layer, X, missing=self._missing) for X in (train, held_out))
            gap, error = _gap(*samples)
            worse = gap > self._best and gap > ERROR_BARS * error
            self._best = gap
        else:
            loss = self._loss(layer, held_out)
            worse = not loss < self._best
            self._best = min(self._best, loss)
        self._bad = self._bad + 1 if worse else 0
        return self.is_over

    def _loss(self, layer: Layer, X: Array) -> float:
        if self._metric == "pseudo-likelihood":
            return -pseudo_likelihood(layer, X, seed=self._seed)
        away = X - layer.reconstruct(X)
        if self._missing:
            away[is_missing(X)] = 0
        return float(np.square(away).sum()) / len(X)


def _gap(train: NDArray[np.float64], held_out: NDArray[np.float64]) -> tuple[float, float]:
    """Return the difference of two means, and its standard error."""
    variance = train.var() / len(train) + held_out.var() / len(held_out)
    return float(held_out.mean() - train.mean()), math.sqrt(variance)
