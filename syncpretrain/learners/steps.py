"""The protocol of a training step, and the step that is not cut into shards."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Protocol

import numpy as np
from numpy.typing import NDArray

from syncpretrain.kernels.arrays import Array
from syncpretrain.kernels.program import PhaseRunner, in_turn
from syncpretrain.learners.base import Learner
from syncpretrain.models.layer import Layer

__all__ = ["LearnerStep", "Step", "WholeStep", "load_state"]


class Step(Protocol):
    """A step of one learner on a minibatch."""

    def train_step(
        self, X: Array, rows: NDArray[np.intp], *, epoch: int, step: int, run: PhaseRunner = in_turn
    ) -> float:
        """Train on some rows of X; return their summed squared reconstruction error.

        ``run`` executes the phases of a step that is cut into shards.
        """
        ...

    def copy_hidden(self, out: Array) -> bool:
        """Copy the hidden means of the last minibatch, as they were before its update.

        They are those of the positive phase. Return False, and copy nothing, where these are not
        the means for the plain input: with dropout, or with noise on the input.
        """
        ...

    def state(self) -> dict[str, Array]:
        """Return by name what the next step depends on beside the parameters; live arrays."""
        ...

    def restart(self) -> None:
        """Set :meth:`state` to what it was before the first step."""
        ...


class LearnerStep:
    """What the steps have in common that keep nothing beside their learner.

    Parameters
    ----------
    learner : Learner
        Whose parameters are trained.
    """

    def __init__(self, learner: Learner) -> None:
        self.learner = learner

    def copy_hidden(self, out: Array) -> bool:
        """Copy the hidden means of the last minibatch, where they are those of the plain input."""
        hidden = self.learner.hidden_means(len(out))
        if hidden is None:
            return False
        np.copyto(out, hidden)
        return True

    def state(self) -> dict[str, Array]:
        """Return the state of the learner."""
        return self.learner.state()

    def restart(self) -> None:
        """Set :meth:`state` to what it was before the first step."""
        self.learner.restart()


class WholeStep(LearnerStep):
    """The gradient of a whole minibatch, then the update."""

    def train_step(
        self, X: Array, rows: NDArray[np.intp], *, epoch: int, step: int, run: PhaseRunner = in_turn
    ) -> float:
        """Train on some rows of X; return their summed squared reconstruction error."""
        error = self.learner.gradient(X, rows, epoch=epoch, step=step)
        self.learner.update(epoch=epoch)
        return error


def load_state(learner: Learner, step: Step, snapshot: Layer, state: Mapping[str, Array]) -> None:
    """Go back to a snapshot and to what ``step.state()`` held then; the result is bit-identical.

    Raises
    ------
    ValueError, KeyError
        If they are those of another learner, or of another step.
    """
    learner.restore(snapshot)
    for name, array in step.state().items():
        np.copyto(array, learner.backend.asarray(state[name]))
