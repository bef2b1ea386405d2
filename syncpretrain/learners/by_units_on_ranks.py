"""Model parallelism between ranks: each rank of a group has some of the units of an RBM.

A rank works its shards of each phase of :class:`~syncpretrain.learners.by_units.ByUnits`, and sends
the others the columns that these have filled: activations of a minibatch, whatever the size of the
layer. It moves the weights of its visible units, which are exchanged at the end.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from syncpretrain.cluster.group import AgreedStop
from syncpretrain.kernels.arrays import Array
from syncpretrain.kernels.program import PhaseRunner, Program, in_turn
from syncpretrain.learners.by_units import ByUnits
from syncpretrain.learners.step_on_ranks import StepOnRanks

__all__ = ["ByUnitsOnRanks"]

Columns = tuple[Array, Callable[[range], slice]]  # an array, and the columns of a rank's shards


class Sent(NamedTuple):
    """Message after a phase: the columns of this rank, and the errors of its shards.

    ``stops`` is whether it was asked to stop.
    """

    columns: list[Array]
    errors: list[float]
    stops: bool


class ByUnitsOnRanks(StepOnRanks):
    """The shards of this rank.

    Parameters
    ----------
    whole : ByUnits
    stop : AgreedStop
        As of :class:`StepOnRanks`.
    """

    def __init__(self, whole: ByUnits, stop: AgreedStop) -> None:
        hidden = whole.learner.weight.shape[1]
        rows = [visible for visible, _ in whole.own]
        slices = [
            [slice(own.start * hidden, own.stop * hidden) for own in rows],
            rows,
            [own for _, own in whole.own],
        ]
        super().__init__(whole.learner, whole, slices, stop)
        self._units = whole
        self._programs: dict[int, list[Program]] = {}  # one a phase, by the size of a minibatch

    def train_step(
        self, X: Array, rows: NDArray[np.intp], *, epoch: int, step: int, run: PhaseRunner = in_turn
    ) -> float:
        """Train on some rows of X; return their summed squared reconstruction error."""
        n = len(rows)
        if n not in self._programs:
            self._programs[n] = [
                Program([[phase[shard] for shard in self.own]], self.shards)
                for phase in self._units.operations(n)
            ]
        programs, filled = self._programs[n], self._filled(n)
        self._units.take(X, rows)
        errors: list[list[float]] = []  # of all shards, by phase
        for program, columns in zip(programs, filled, strict=True):
            self._units.prepare(program, epoch=epoch, step=step)
            run(program, program.shards)
            if columns:
                errors.append(self._exchange(columns, program))
        self.share_parameters()
        return float(np.array(errors[-2]).sum())  # of the last reconstruction

    def copy_hidden(self, out: Array) -> bool:
        """Copy the hidden means of the last minibatch."""
        return self._units.copy_hidden(out)

    def shard_state(self, shard: int) -> dict[str, Array]:
        """Return nothing: a gradient depends on the parameters alone."""
        return {}

    def _filled(self, n: int) -> list[list[Columns]]:
        """Return what each phase of a step on n examples fills."""
        rbm = self._units.learner
        v, h, states, *_ = rbm.buffers
        draw, down = (states[:n], self._hidden), (v[n : 2 * n], self._visible)
        first: list[list[Columns]] = [[(h[:n], self._hidden), draw], [down]]
        more: list[list[Columns]] = [[draw], [down]] * (rbm.settings.cd_steps - 1)
        return [*first, *more, [(h[n : 2 * n], self._hidden)], []]

    def _visible(self, shards: range) -> slice:
        return self.slices_of_rank(shards)[1]

    def _hidden(self, shards: range) -> slice:
        return self.slices_of_rank(shards)[2]

    def _exchange(self, columns: list[Columns], program: Program) -> list[float]:
        """Exchange what a phase has filled; return the errors of all shards."""
        # Copies: they are not in one piece.
        own = [x[:, part(self.own)].copy() for x, part in columns]
        errors = [float(program.results[shard]) for shard in self.own]
        found: list[Sent] = self.group.all_gather(Sent(own, errors, self.stop.asked()))
        self.stop.record(sent.stops for sent in found)
        for shards, sent in zip(self.ranks, found, strict=True):
            if shards != self.own:
                for (x, part), new in zip(columns, sent.columns, strict=True):
                    np.copyto(x[:, part(shards)], new)
        return [error for sent in found for error in sent.errors]
