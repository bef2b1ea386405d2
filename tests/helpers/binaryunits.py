"""The mathematics of binary units in float64, by its definition."""

from itertools import product

import numpy as np


def states(units: int) -> np.ndarray:
    """Return every binary state, of shape (2**units, units)."""
    return np.array(list(product((0.0, 1.0), repeat=units)))


def logistic(x: np.ndarray) -> np.ndarray:
    return 1 / (1 + np.exp(-x))


def means(x: np.ndarray, weight: np.ndarray, bias: np.ndarray) -> np.ndarray:
    """Return the means of units, of shape (rows, units), given the layer on the other side."""
    return logistic(x.astype(np.float64) @ weight + bias)
