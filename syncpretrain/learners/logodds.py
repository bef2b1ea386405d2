"""Initial visible biases from the mean of the data."""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

__all__ = ["log_odds"]

MOST_CERTAIN = 0.01  # a mean below it, or as near to 1, starts no larger bias than its log-odds


def log_odds(X: NDArray[np.float32], units: str) -> NDArray[np.float64]:
    """Return log(p / (1 - p)) of the mean p of each binary unit; of other units, the mean."""
    mean: NDArray[np.float64] = X.mean(axis=0, dtype=np.float64)
    if units == "bernoulli":
        mean = np.clip(mean, MOST_CERTAIN, 1 - MOST_CERTAIN)
        mean = np.log(mean / (1 - mean))
    return mean
