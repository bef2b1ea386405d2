"""Data parallelism: the shards of a step are parts of its minibatch."""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

from syncpretrain.kernels.arrays import LONG_BLOCK, Array, blocks_in, ordered_sum, slices_of
from syncpretrain.kernels.averaging import add_tree
from syncpretrain.kernels.program import Phase, PhaseRunner, in_turn
from syncpretrain.learners.base import Learner

__all__ = ["ByExamples"]


class ByExamples:
    """Data parallelism: each shard has a part of every minibatch.

    Each computes its part's gradient in arrays of its own. These are added up in a fixed tree, a
    slice of the parameters a shard, which then moves that slice along its gradient: nothing is
    copied back.

    Parameters
    ----------
    learner : Learner
        Its parameters are trained.
    shards : int

    Attributes
    ----------
    parameters, gradients : sequence of ndarray, and a sequence of them a shard
        The learner's parameters, and the gradients of each shard.
    parts : list of Learner
        The learner of each shard, which computes its gradient.
    errors : list of float
        Squared error of each shard in the last minibatch.
    added : range
        The shards with gradients that are added up: all, with zeros for a shard without rows.
    """

    def __init__(self, learner: Learner, shards: int) -> None:
        self.learner = learner
        self.parts = [learner.part(shard, shards) for shard in range(shards)]
        self.parameters, self.gradients = learner.parameters, [p.gradients for p in self.parts]
        self.errors, self.added = [0.0] * shards, range(shards)
        self._phases: tuple[Phase, ...] = (self.gradient, self._move)

    def train_step(
        self, X: Array, rows: NDArray[np.intp], *, epoch: int, step: int, run: PhaseRunner = in_turn
    ) -> float:
        """Train on some rows of X; return their summed squared reconstruction error."""
        self.begin(X, rows, epoch=epoch, step=step)
        run(self._phases, len(self.parts))
        return ordered_sum(self.errors, 0.0)

    def begin(self, X: Array, rows: NDArray[np.intp], *, epoch: int, step: int) -> None:
        """Take a minibatch; :meth:`gradient` is then to be called for every shard."""
        self._X, self._rows, self._epoch, self._step = X, rows, epoch, step
        self._own_rows = slices_of(len(rows), len(self.parts))

    def gradient(self, shard: int) -> None:
        """Fill the gradient of a shard: its contribution to the gradient of the minibatch."""
        part, rows = self.parts[shard], self._rows[self._own_rows[shard]]
        self.errors[shard] = 0.0
        if len(rows):
            self.errors[shard] = part.gradient(
                self._X, rows, epoch=self._epoch, step=self._step, examples=len(self._rows)
            )
        else:  # the last minibatch may be smaller than the shards are many
            for gradient in part.gradients:
                gradient.fill(0)

    def move(self, i: int, block: slice, total: Array) -> None:
        """Move a block of the i-th parameter along the sum of the shards' gradients."""
        self.learner.update_slice(i, block, total, epoch=self._epoch)

    def hidden_means(self, shard: int) -> Array | None:
        """Return the hidden means of a shard, a view; see :meth:`Learner.hidden_means`."""
        own = self._own_rows[shard]
        return self.parts[shard].hidden_means(own.stop - own.start)

    def hand_up(self, out: Array) -> bool:
        """Copy the hidden means from before the update; return False if they must be recomputed."""
        for shard, own in enumerate(self._own_rows):
            hidden = self.hidden_means(shard)
            if hidden is None:
                return False
            np.copyto(out[own], hidden)
        return True

    def state(self) -> dict[str, Array]:
        """Return the learner's velocities, and what each shard's gradient depends on."""
        return self.learner.velocities() | {
            f"shard{shard}.{name}": array
            for shard, part in enumerate(self.parts)
            for name, array in part.own_state().items()
        }

    def restart(self) -> None:
        """Set :meth:`state` back to before the first step."""
        for part in (self.learner, *self.parts):
            part.restart()

    def _move(self, shard: int) -> None:
        """Add up the gradients of a slice of the parameters, and move it, block by block."""
        for i, parameter in enumerate(self.learner.parameters):
            own = slices_of(parameter.size, len(self.parts))[shard]
            parts = [part.gradients[i].reshape(-1) for part in self.parts]
            for block in blocks_in(own, LONG_BLOCK):
                total = add_tree([gradient[block] for gradient in parts])
                self.move(i, block, total)
