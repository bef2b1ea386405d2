"""Which optimizer fine-tunes, and at which learning rate."""

from __future__ import annotations

import math
from collections.abc import Callable
from functools import partial

from syncpretrain.learners.network import Network
from syncpretrain.learners.optimizers import Adam, GradientDescent, LineSearches, Optimizer
from syncpretrain.settings import FinetuneSettings

__all__ = ["LEARNING_RATES", "optimizer_for", "optimizer_vectors", "scheduled"]

LEARNING_RATES = {"adam": 0.001, "sgd": 0.1, "cg": 1.0, "lbfgs": 1.0}  # the last two have none

# SciPy's are of float64: for cg points, gradients and directions, old and new; for lbfgs also the
# last 10 steps and changes of the gradient.
VECTORS = {"adam": 2, "sgd": 1, "cg": 28, "lbfgs": 80}


def scheduled(schedule: str, done: float) -> float:
    """Return the share of the learning rate left once a share ``done`` of all is trained."""
    if schedule == "linear":
        return 1 - done
    if schedule == "cosine":
        return 0.5 * (1 + math.cos(math.pi * done))
    return 1.0


def optimizer_for(options: FinetuneSettings) -> Callable[[Network], Optimizer]:
    """Return what builds the optimizer that the settings name.

    Raises
    ------
    SettingsError
        If a package that it needs is missing.
    """
    decay = options.weight_decay
    if options.optimizer == "adam":
        return partial(Adam, weight_decay=decay)
    if options.optimizer == "sgd":
        momentum, nesterov = options.momentum, options.nesterov
        return partial(GradientDescent, weight_decay=decay, momentum=momentum, nesterov=nesterov)
    searches = LineSearches(options.optimizer, weight_decay=decay)
    return lambda network: searches


def optimizer_vectors(options: FinetuneSettings) -> int:
    """Return how many vectors of the parameters' size, float32, the optimizer holds at most."""
    return VECTORS[options.optimizer]
