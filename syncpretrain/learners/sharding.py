"""How one step of a layer is cut into shards that may be worked on at the same time.

A step is a sequence of phases. A phase is a function of a shard's number; all its shards may run
at once, and the next phase begins when all are done. What is computed depends on the number of
shards, never on how many workers there are for them or on their order.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from itertools import pairwise
from typing import TYPE_CHECKING, Protocol

import numpy as np
from numpy.typing import NDArray

from syncpretrain.kernels.averaging import add_tree
from syncpretrain.kernels.program import Program

if TYPE_CHECKING:
    from syncpretrain.learners.base import Learner

__all__ = ["ByExamples", "Phase", "Run", "ShardedStep", "Work", "cuts", "in_turn"]

Array = NDArray[np.float32]
Phase = Callable[[int], None]
Work = Sequence[Phase] | Program  # of which a program knows its own phases
Run = Callable[[Work, int], None]  # works phases of so many shards
BLOCK = 2**18  # float32 numbers; smaller ones pass the lock of the interpreter around too often


def in_turn(work: Work, shards: int) -> None:
    """Work all shards of all phases, one after another."""
    if isinstance(work, Program):
        if work.is_compiled:
            work.work()
            return
        work = work.phases
    for phase in work:
        for shard in range(shards):
            phase(shard)


def cuts(size: int, shards: int) -> list[slice]:
    """Return slices of about equal length that make up ``range(size)``; some may be empty."""
    ends = [size * i // shards for i in range(shards + 1)]
    return [slice(start, end) for start, end in pairwise(ends)]


class ShardedStep(Protocol):
    """One learner's step in shards."""

    def train_step(
        self, X: Array, rows: NDArray[np.intp], *, epoch: int, step: int, run: Run
    ) -> float:
        """Train on some rows of X; return their summed squared reconstruction error."""
        ...

    def memory(self) -> dict[str, Array]:
        """Return by name what the next step depends on beside the learner's own memory."""
        ...

    def restart(self) -> None:
        """Forget what :meth:`memory` tells of."""
        ...


class ByExamples:
    """Data parallelism: each shard has a part of every minibatch.

    Each computes its part's gradient in arrays of its own. These are added up in a fixed tree, a
    slice of the parameters a shard, which then moves that slice along its gradient: nothing is
    copied back.

    Parameters
    ----------
    learner : Learner
        Whose parameters are trained.
    shards : int
    """

    def __init__(self, learner: Learner, shards: int) -> None:
        self._learner = learner
        self._parts = [learner.part(shard, shards) for shard in range(shards)]
        self._errors = [0.0] * shards
        self._phases: tuple[Phase, ...] = (self._gradient, self._move)

    def train_step(
        self, X: Array, rows: NDArray[np.intp], *, epoch: int, step: int, run: Run
    ) -> float:
        """Train on some rows of X; return their summed squared reconstruction error."""
        self._X, self._rows, self._epoch, self._step = X, rows, epoch, step
        self._own_rows = cuts(len(rows), len(self._parts))
        run(self._phases, len(self._parts))
        return sum(self._errors)

    def memory(self) -> dict[str, Array]:
        """Return what each shard keeps from one minibatch to the next."""
        return {
            f"shard{shard}.{name}": array
            for shard, part in enumerate(self._parts)
            for name, array in part.own_memory().items()
        }

    def restart(self) -> None:
        """Forget what :meth:`memory` tells of."""
        for part in self._parts:
            part.restart()

    def _gradient(self, shard: int) -> None:
        part, rows = self._parts[shard], self._rows[self._own_rows[shard]]
        self._errors[shard] = 0.0
        if len(rows):
            self._errors[shard] = part.gradient(
                self._X, rows, epoch=self._epoch, step=self._step, examples=len(self._rows)
            )
        else:  # the last minibatch may be smaller than the shards are many
            for gradient in part.gradients:
                gradient.fill(0)

    def _move(self, shard: int) -> None:
        """Add up the gradients of a slice of the parameters, and move it, block by block."""
        for i, parameter in enumerate(self._learner.parameters):
            own = cuts(parameter.size, len(self._parts))[shard]
            parts = [part.gradients[i].reshape(-1) for part in self._parts]
            for start in range(own.start, own.stop, BLOCK):
                block = slice(start, min(start + BLOCK, own.stop))
                total = add_tree([gradient[block] for gradient in parts])
                self._learner.move(i, block, total, epoch=self._epoch)
