"""Measures that say when a layer has learned enough: held-out examples, and drift.

The drift of a layer is by how much the outputs of its versions on fixed examples differ.
"""

from __future__ import annotations

import math
from collections.abc import Iterable

import numpy as np
from numpy.typing import NDArray

from syncpretrain.kernels.arrays import Array
from syncpretrain.kernels.conditions import is_missing
from syncpretrain.models.layer import Layer
from syncpretrain.models.likelihood import free_energy, pseudo_likelihood

__all__ = ["METRICS", "EarlyStopping", "Outputs", "drift"]

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

    Attributes
    ----------
    state : tuple of float and int
        The best value so far, for the gap the last one, and the epochs since that were worse.
    """

    def __init__(self, metric: str, patience: int, *, seed: int = 0, missing: bool = False) -> None:
        self._metric, self._patience, self._seed = metric, patience, seed
        self._missing = missing
        self.state = math.inf, 0

    @property
    def is_over(self) -> bool:
        """True if the newest answer was yes."""
        return self.state[1] >= self._patience

    def stops(self, layer: Layer, train: Array, held_out: Array) -> bool:
        """Record the layer after an epoch; return whether that was its last.

        ``train`` and ``held_out`` are samples of the layer's input.
        """
        best, bad = self.state
        if self._metric == "free-energy-gap":
            samples = (free_energy(layer, X, missing=self._missing) for X in (train, held_out))
            gap, error = _gap(*samples)
            worse, best = gap > best and gap > ERROR_BARS * error, gap
        else:
            loss = self._loss(layer, held_out)
            worse, best = not loss < best, min(best, loss)
        self.state = best, bad + 1 if worse else 0
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


Kept = dict[int, NDArray[np.float32]]


def drift(old: NDArray[np.float32], new: NDArray[np.float32]) -> float:
    """Return the root mean square of the difference, relative to the root mean square of ``old``.

    Infinity where ``old`` is zero and ``new`` is not, or where a value is not finite.

    Parameters
    ----------
    old, new : ndarray of shape (n_examples, n_units)
    """
    with np.errstate(all="ignore"):
        difference = math.sqrt(float(np.square(np.subtract(new, old, dtype=np.float64)).sum()))
        size = math.sqrt(float(np.square(old, dtype=np.float64).sum()))
    if not math.isfinite(difference + size):
        return math.inf
    if difference == 0:
        return 0.0
    return difference / size if size else math.inf


class Outputs:
    """Outputs of the versions of a layer that newer versions will be compared with.

    Parameters
    ----------
    settle : float
        The layer is settled once an epoch changes its outputs by less, and all epochs together
        have changed them by no less: one that has hardly begun to learn changes little too. 0 for
        never.
    earliest : int
        The first epoch after which it may be settled, such as the first with its last momentum.

    Attributes
    ----------
    kept : dict of int to ndarray of shape (n_examples, n_units)
        Outputs by version, as long as they are needed: the newest version, the versions that it
        was compared with, and version 0, the layer before its first epoch.
    is_settled : bool
        True if the newest version is to be the last of the layer's own epochs.
    """

    def __init__(self, settle: float = 0.0, earliest: int = 1) -> None:
        self._settle, self._earliest = settle, earliest
        self.kept: Kept = {}
        self.is_settled = False

    def record(
        self, version: int, outputs: NDArray[np.float32], against: Iterable[int] = ()
    ) -> dict[int, float]:
        """Record a new version; return its drift from the version before and from named versions.

        Raises
        ------
        KeyError
            If a version is named that is not kept.
        """
        named = {older: self.kept[older] for older in against}
        compared = {older: self.kept[older] for older in self.kept if older == version - 1} | named
        drifts = {older: drift(old, outputs) for older, old in sorted(compared.items())}
        first = {0: self.kept[0]} if self._settle and 0 in self.kept else {}
        self.kept = first | named | {version: outputs}
        change = drifts.get(version - 1, math.inf)
        moved = max((drift(old, outputs) for old in first.values()), default=0.0)
        self.is_settled = version >= self._earliest and change < self._settle <= moved
        return drifts
