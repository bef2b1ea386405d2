"""Drift of a layer: by how much the outputs of its versions on fixed examples differ."""

from __future__ import annotations

import math
from collections.abc import Iterable

import numpy as np
from numpy.typing import NDArray

__all__ = ["Outputs", "drift"]

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
