"""Drift of a layer: by how much the outputs of its versions on fixed examples differ."""

from __future__ import annotations

import math
from collections.abc import Iterable

import numpy as np
from numpy.typing import NDArray

__all__ = ["Outputs", "drift"]

Kept = dict[int, NDArray[np.float32]]


def drift(old: NDArray[np.float32], new: NDArray[np.float32]) -> float:
    """Return the root mean square of the difference, relative to that of ``old``.

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
    """Outputs of those versions of a layer that newer ones are to be compared with.

    Parameters
    ----------
    settle : float
        The layer is settled once an epoch changes its outputs by less; 0 for never.

    Attributes
    ----------
    kept : dict of int to ndarray of shape (n_examples, n_units)
        By version: the newest, and those that the newest was compared with.
    """

    def __init__(self, settle: float = 0.0) -> None:
        self._settle = settle
        self.kept: Kept = {}

    def record(
        self, version: int, outputs: NDArray[np.float32], against: Iterable[int]
    ) -> dict[int, float]:
        """Record a new version; return its drift from the one before it and from those named.

        Raises
        ------
        KeyError
            If a version is named that is not kept.
        """
        named = {older: self.kept[older] for older in against}
        before = {older: self.kept[older] for older in self.kept if older == version - 1}
        self.kept = named | {version: outputs}
        return {older: drift(old, outputs) for older, old in sorted((before | named).items())}

    def is_settled(self, change: float | None) -> bool:
        """Return whether an epoch that changed the outputs by so much is to be the last."""
        return change is not None and change < self._settle
