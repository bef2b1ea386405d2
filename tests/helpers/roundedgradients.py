"""Gradients of layers, and the distance of rounded ones from exact ones."""

import numpy as np

from syncpretrain.learners.base import Learner

ROUNDING = 2.0**-8  # of a factor, at most, as a share of it


def gradients(learner: Learner, X: np.ndarray, *, whole: bool = False) -> list[np.ndarray]:
    """Return the gradients of parameters that matter, which may be a few ones among zeros."""
    rng = np.random.default_rng(0)
    for parameter in learner.parameters:
        shape = parameter.shape
        parameter[:] = rng.random(shape) < 0.15 if whole else rng.normal(0, 0.3, shape)
    learner.gradient(X, np.arange(len(X)), epoch=1, step=3)
    return [g.copy() for g in learner.gradients]


def away(found, exact) -> float:
    """Return how far arrays are from the exact ones, as a share of these."""
    off = sum(np.square(np.float64(a) - b).sum() for a, b in zip(found, exact, strict=True))
    return float(np.sqrt(off / sum(np.square(np.float64(b)).sum() for b in exact)))
