"""Which optimizer fine-tunes, and at which learning rate."""

from __future__ import annotations

import math

from syncpretrain.learners.network import Network
from syncpretrain.learners.optimizers import Adam, GradientDescent, LineSearches, Optimizer
from syncpretrain.settings import FinetuneSettings

__all__ = ["LEARNING_RATES", "optimizer_for", "scheduled"]

LEARNING_RATES = {"adam": 0.001, "sgd": 0.1, "cg": 1.0, "lbfgs": 1.0}  # the last two have none


def scheduled(schedule: str, done: float) -> float:
    """Return the share of the learning rate left once a share ``done`` of all is trained."""
    if schedule == "linear":
        return 1 - done
    if schedule == "cosine":
        return 0.5 * (1 + math.cos(math.pi * done))
    return 1.0


def optimizer_for(network: Network, options: FinetuneSettings) -> Optimizer:
    """Return the optimizer that the settings name."""
    if options.optimizer == "adam":
        return Adam(network, weight_decay=options.weight_decay)
    if options.optimizer == "sgd":
        return GradientDescent(
            network,
            weight_decay=options.weight_decay,
            momentum=options.momentum,
            nesterov=options.nesterov,
        )
    return LineSearches(options.optimizer, weight_decay=options.weight_decay)
