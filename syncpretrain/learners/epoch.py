"""One epoch of one layer, whatever its learner; its cursor, and the request to leave it there.

The cursor is the position in the epoch, with the sum of the errors so far. A device may still
compute the errors of the last blocks of minibatches.
"""

from __future__ import annotations

import math
from collections import deque
from collections.abc import Callable
from dataclasses import dataclass
from functools import partial
from typing import Any

import numpy as np
from numpy.typing import NDArray

from syncpretrain.backends.base import Backend, StepBlock
from syncpretrain.data.order import shuffled, steps_per_epoch
from syncpretrain.errors import DivergedError
from syncpretrain.kernels.program import PhaseRunner, in_turn
from syncpretrain.learners.base import Learner
from syncpretrain.learners.steps import Step
from syncpretrain.units.kinds import kind_of

# A weight of 1000 makes a step function of a unit: learning has stopped, finite or not.
LARGEST_WEIGHT = 1e3


@dataclass(frozen=True, slots=True)
class Cursor:
    """Position in an epoch: its minibatches so far, and the sum of their errors."""

    minibatches: int = 0
    error: float = 0.0


class Stopped(Exception):  # noqa: N818 - not an error: the run was asked to stop
    """The epoch was left after a minibatch because the run is to end.

    ``cursor`` is where, or None if no minibatch of the epoch was looked at.
    """

    def __init__(self, cursor: Cursor | None = None) -> None:
        super().__init__()
        self.cursor = cursor


class ErrorSum:
    """The sum of the errors of blocks of minibatches, added up in their order.

    Parameters
    ----------
    backend : Backend
        The backend that computes them.
    first : float
        The sum before the first block.

    Attributes
    ----------
    minibatches : int
        After which the sum was last looked at; 0 before.
    """

    def __init__(self, backend: Backend, first: float) -> None:
        self._backend, self._sum = backend, first
        self._later: deque[tuple[int, Callable[[], float]]] = deque()
        self.minibatches = 0

    def add(self, error: float, done: int) -> None:
        """Add the error of a block, behind which ``done`` minibatches of the epoch are worked."""
        self._later.append((done, self._backend.later(error)))

    def so_far(self, done: int, steps: int) -> float:
        """Return the sum that can be looked at while the device is busy; at the end all of it.

        It ends with the first error that is not finite.
        """
        return self._up_to(self._backend.blocks_behind if done < steps else 0)

    def symptom(self, done: int, steps: int) -> str:
        """Return what is wrong with the sum so far, or nothing."""
        known = self.so_far(done, steps)
        if math.isfinite(known):
            return ""
        return f"the error is {known} after {self.minibatches} minibatches"

    def sum(self) -> float:
        """Return the sum of all; waits for them."""
        return self._up_to(0)

    def _up_to(self, left: int) -> float:
        while len(self._later) > left and math.isfinite(self._sum):
            self.minibatches, later = self._later.popleft()
            self._sum += later()
        # Errors that are not looked at are waited for: others soon take their memory.
        while not math.isfinite(self._sum) and self._later:
            self._later.popleft()[1]()
        return float(self._sum)


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

    ``training`` is the learner's step; ``run`` executes its shards. ``begin`` is the position at
    which an interrupted epoch resumes. ``keep`` is called after a minibatch with the number of
    minibatches so far, and the sum of their errors.

    Raises
    ------
    DivergedError
        As soon as an error is seen not to be finite, or if a weight has run away by the epoch's
        end. On a device errors are looked at once in some minibatches.
    Stopped
        After the block of minibatches, on the host one, in which ``stop`` turned true.
    """
    backend, size = learner.backend, learner.batch_size
    steps = steps_per_epoch(len(X), size)
    order = backend.order(X, shuffled(len(X), seed=learner.seed, layer=learner.layer, epoch=epoch))
    errors = ErrorSum(backend, begin.error)
    work, constants = partial(training.train_step, run=run), learner.constants(epoch)
    with np.errstate(all="ignore"):  # what overflows is found by the check below
        if epoch == 1 and not begin.minibatches:
            learner.start(X)
        for step in range(begin.minibatches, steps, backend.steps_at_once):
            if stop():
                raise Stopped(Cursor(step, errors.sum()))
            done = min(step + backend.steps_at_once, steps)
            rows = order[step * size : done * size]
            error = learner.recorder.train(StepBlock(work, X, rows, size, epoch, step, constants))
            errors.add(error, done)
            if symptom := errors.symptom(done, steps):
                raise diverged(learner, epoch, symptom)
            progress(done / steps)
            if keep is not None:
                keep(done, errors.sum())
    if symptom := run_away(learner):
        raise diverged(learner, epoch, symptom)
    return errors.sum() / len(X)


def run_away(learner: Learner) -> str:
    """Return that a weight has grown too large, or nothing."""
    largest = learner.largest_weight()
    return "" if largest <= LARGEST_WEIGHT else f"a weight has grown to {largest:.3g}"


def diverged(learner: Learner, epoch: int, symptom: str) -> DivergedError:
    """Return the error of a layer that diverged, with its likely cause and what to try."""
    rate = learner.learning_rate
    now = learner.current()
    kinds = {now.hidden_units, now.visible_units}
    unbounded = {name for name in kinds if not kind_of(name).is_bounded}
    lower, whom = min(rate / 10, 0.1), "it"
    if unbounded:
        lower = min(rate / 10, 0.001)
        whom = f"{' and '.join(sorted(unbounded))} units, or the input is not scaled"
    return DivergedError(
        f"layer {learner.layer} diverged in epoch {epoch}: {symptom}. The learning rate of {rate:g}"
        f" is likely too high for {whom}; try {lower:g}, and a weight decay well below 0.01"
    )
