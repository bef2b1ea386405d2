"""One epoch of one layer, whatever its learner."""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Any

import numpy as np
from numpy.typing import NDArray

from syncpretrain.data.order import minibatches, steps_per_epoch
from syncpretrain.errors import DivergedError
from syncpretrain.kernels.program import PhaseRunner, in_turn
from syncpretrain.learners.base import Learner
from syncpretrain.learners.cursor import Cursor, Stopped
from syncpretrain.learners.steps import Step
from syncpretrain.units.kinds import kind_of

__all__ = ["LARGEST_WEIGHT", "MAX_ROLLBACKS", "diverged", "train_epoch"]

# A weight of 1000 makes a step function of a unit: learning has stopped, finite or not.
LARGEST_WEIGHT = 1e3
MAX_ROLLBACKS = 3  # of one layer in one run
BEGINNING = Cursor()


def train_epoch(
    learner: Learner,
    training: Step,
    X: NDArray[np.float32],
    *,
    epoch: int,
    stop: Callable[[], bool],
    progress: Callable[[float], Any],
    begin: Cursor = BEGINNING,
    run: PhaseRunner = in_turn,
    keep: Callable[[int, float], Any] | None = None,
) -> float:
    """Train every row of X once; return the mean squared reconstruction error.

    ``training`` is the learner's step, whose shards ``run`` executes; ``begin`` is where an epoch
    that was interrupted resumes. ``keep`` is called after a minibatch with how many there were, and
    the sum of their errors.

    Raises
    ------
    DivergedError
        As soon as an error is seen not to be finite, or if a weight has run away by the epoch's
        end. On a device errors are looked at once in some minibatches.
    Stopped
        After the minibatch in which ``stop`` turned true.
    """
    steps = steps_per_epoch(len(X), learner.batch_size)
    batches = minibatches(
        len(X),
        learner.batch_size,
        seed=learner.seed,
        layer=learner.layer,
        epoch=epoch,
        device=learner.backend.asarray,
    )
    total, between = begin.error, learner.backend.steps_between_checks
    with np.errstate(all="ignore"):  # what overflows is found by the check below
        if epoch == 1 and not begin.minibatches:
            learner.start(X)
        for step, rows in enumerate(batches):
            if step < begin.minibatches:
                continue
            if stop():
                raise Stopped(Cursor(step, float(total)))
            total += training.train_step(X, rows, epoch=epoch, step=step, run=run)
            # On a device the sum is an array, and to look at it is to wait for all that is queued.
            looks = (step + 1) % between == 0 or step + 1 == steps
            if looks and not math.isfinite(total):
                symptom = f"the error is {float(total)} after {step + 1} minibatches"
                raise diverged(learner, epoch, symptom)
            progress((step + 1) / steps)
            if keep is not None:
                keep(step + 1, total)
    largest = learner.largest_weight()
    if not largest <= LARGEST_WEIGHT:
        raise diverged(learner, epoch, f"a weight has grown to {largest:.3g}")
    return float(total) / len(X)


def diverged(learner: Learner, epoch: int, symptom: str) -> DivergedError:
    """Return the error of a layer that diverged, with its likely cause and what to try."""
    rate = learner.learning_rate
    now = learner.current()
    kinds = {now.hidden_units, now.visible_units}
    unbounded = {name for name in kinds if not kind_of(name).is_bounded}
    if unbounded:
        lower = min(rate / 10, 0.001)
        units = " and ".join(sorted(unbounded))
        cause = (
            f"The learning rate of {rate:g} is likely too high for {units} units, or the input is"
            f" not scaled; try {lower:g}"
        )
    else:
        lower = min(rate / 10, 0.1)
        cause = f"The learning rate of {rate:g} is likely too high for it; try {lower:g}"
    return DivergedError(
        f"layer {learner.layer} diverged in epoch {epoch}: {symptom}. {cause}, and a weight decay"
        " well below 0.01"
    )
