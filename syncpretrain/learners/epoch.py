"""One epoch of one layer, whatever its learner."""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Any

import numpy as np
from numpy.typing import NDArray

from syncpretrain.data.order import minibatches, steps_per_epoch
from syncpretrain.errors import DivergedError
from syncpretrain.learners.rbm import RBM

__all__ = ["Stopped", "train_epoch"]

# A weight of 1000 makes a step function of a unit: learning has stopped, finite or not.
LARGEST_WEIGHT = 1e3


class Stopped(Exception):  # noqa: N818 - not an error: the run was asked to stop
    """The epoch was left after a minibatch because the run is to end."""


def train_epoch(
    learner: RBM,
    X: NDArray[np.float32],
    *,
    epoch: int,
    stop: Callable[[], bool],
    progress: Callable[[float], Any],
) -> float:
    """Train every row of X once; return the mean squared reconstruction error.

    Raises
    ------
    DivergedError
        As soon as an error is not finite, or if a weight has run away by the epoch's end.
    Stopped
        After the minibatch in which ``stop`` turned true.
    """
    settings = learner.settings
    steps = steps_per_epoch(len(X), settings.batch_size)
    batches = minibatches(
        len(X), settings.batch_size, seed=settings.seed, layer=learner.layer, epoch=epoch
    )
    total = 0.0
    with np.errstate(all="ignore"):  # what overflows is found by the check below
        for step, rows in enumerate(batches):
            if stop():
                raise Stopped
            total += learner.train_step(X, rows, epoch=epoch, step=step)
            if not math.isfinite(total):
                raise _diverged(
                    learner, epoch, f"the error is {total} after {step + 1} minibatches"
                )
            progress((step + 1) / steps)
    largest = float(max(learner.weight.max(), -learner.weight.min()))
    if not largest <= LARGEST_WEIGHT:
        raise _diverged(learner, epoch, f"a weight has grown to {largest:.3g}")
    return total / len(X)


def _diverged(learner: RBM, epoch: int, symptom: str) -> DivergedError:
    rate = learner.settings.learning_rate
    lower = min(rate / 10, 0.1)
    return DivergedError(
        f"layer {learner.layer} diverged in epoch {epoch}: {symptom}. The learning rate of"
        f" {rate:g} is likely too high for it; try {lower:g}, and a weight decay well below 0.01"
    )
