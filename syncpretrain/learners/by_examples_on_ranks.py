"""Data parallelism between ranks: each rank of a group has some shards of every minibatch.

One step of two ranks with two shards each, where each row is a rank::

    gradients of shards 0, 1  |  sum of the lower slice, update of it  |  next step
    gradients of shards 2, 3  |  sum of the upper slice, update of it  |  next step
                        1 slices of gradients                  2 slices of parameters

Guarantees:

* Every rank has all parameters and the same minibatches. The bits are those of
  :class:`~syncpretrain.learners.by_examples.ByExamples` with as many shards, whatever the ranks:
  gradients are added up in the same tree, of which a rank sends the sums of whole subtrees.
* A rank keeps the velocities of its own slice, and what the gradients of its own shards depend on.
  :meth:`ByExamplesOnRanks.state` collects them on the first rank.
* What is sent is not changed before it has arrived: a rank leaves exchange 2 only when all have
  what it sent in exchange 1, and exchange 1 when all have what it sent in exchange 2 before.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from syncpretrain.cluster.group import AgreedStop, Group
from syncpretrain.kernels.arrays import LONG_BLOCK, Array, blocks_in, slices_of
from syncpretrain.kernels.averaging import add_subtrees, add_tree, subtrees
from syncpretrain.kernels.program import Phase, PhaseRunner, in_turn
from syncpretrain.learners.by_examples import ByExamples
from syncpretrain.learners.steps import Step

__all__ = ["ByExamplesOnRanks"]


class Share(NamedTuple):
    """Message from one rank to another in a step: its part of the gradient of a slice.

    ``sums`` are those of each of its subtrees of shards, by parameter. ``errors``, and ``hidden``
    means if they are handed up, are those of each of its shards. ``stops`` is whether it was asked
    to stop.
    """

    sums: list[list[Array]]
    errors: list[float]
    hidden: list[Array | None]
    stops: bool


class SpreadState(NamedTuple):
    """Message for a checkpoint: velocities of a rank's slice, and the state of its shards."""

    velocities: list[Array]
    shards: list[dict[str, Array]]


class ByExamplesOnRanks:
    """The shards of this rank, one of a group that calls every method at the same time.

    Parameters
    ----------
    step : Step
        A :class:`ByExamples` of all shards, of which this rank takes its own.
    group : Group
        Of at most as many ranks as there are shards.
    stop : AgreedStop
        Agreed on in every step.
    hands_up : bool
        Whether :meth:`copy_hidden` is called, so that hidden means are exchanged too.

    Raises
    ------
    ValueError
        If the step is not split by examples.
    """

    def __init__(
        self, step: Step, group: Group, stop: AgreedStop, *, hands_up: bool = False
    ) -> None:
        if not isinstance(step, ByExamples):
            raise ValueError(f"step: got {type(step).__name__}, expected one split by examples")
        self.learner, self._whole = step.learner, step
        self._group, self._stop, self._hands_up = group, stop, hands_up
        self._shards = shards = len(step.parts)
        self._ranks = [range(own.start, own.stop) for own in slices_of(shards, group.size)]
        self._own = self._ranks[group.number]
        self._subtrees = [subtrees(own, range(shards)) for own in self._ranks]
        # A shard has a slice of each parameter, as in the step on one rank.
        self._slices = [slices_of(p.size, shards) for p in self.learner.parameters]
        self._moved = [
            np.empty(own.stop - own.start, dtype=np.float32) for own in self._slices_of(self._own)
        ]
        self._phases: list[Phase] = [self._gradient]
        if any(len(subtree) > 1 for subtree in self._subtrees[group.number]):
            self._phases.append(self._add_up)
        self._shares: Sequence[Share] = ()
        self._is_spread = False  # the state: it is on all ranks before the first step

    def train_step(
        self, X: Array, rows: NDArray[np.intp], *, epoch: int, step: int, run: PhaseRunner = in_turn
    ) -> float:
        """Train on some rows of X; return their summed squared reconstruction error."""
        self._epoch, self._rows = epoch, len(rows)
        self._whole.begin(X, rows, epoch=epoch, step=step)
        run(self._phases, len(self._own))
        self._shares = self._group.exchange([self._share(own) for own in self._ranks])
        self._stop.record(share.stops for share in self._shares)
        run((self._move,), len(self._own))
        self._is_spread = True
        for own, moved in zip(self._ranks, self._group.all_gather(self._moved), strict=True):
            if own != self._own:
                for p, piece, new in zip(
                    self.learner.parameters, self._slices_of(own), moved, strict=True
                ):
                    np.copyto(p.reshape(-1)[piece], new)
        return sum(error for share in self._shares for error in share.errors)

    def copy_hidden(self, out: Array) -> bool:
        """Copy the hidden means of the last minibatch, where they are those of the plain input."""
        pieces = slices_of(self._rows, self._shards)
        for own, share in zip(self._ranks, self._shares, strict=True):
            for shard, hidden in zip(own, share.hidden, strict=True):
                if hidden is None:
                    return False
                np.copyto(out[pieces[shard]], hidden)
        return True

    def state(self) -> dict[str, Array]:
        """Return the state of all shards on the first rank; elsewhere that of others is old."""
        if self._is_spread:
            self._collect()
        return self._whole.state()

    def restart(self) -> None:
        """Set :meth:`state` to what it was before the first step, on every rank."""
        self._whole.restart()
        self._is_spread = False

    def _slices_of(self, own: range) -> list[slice]:
        """Return the slice of each parameter that the shards of a rank have together."""
        return [slice(each[own.start].start, each[own.stop - 1].stop) for each in self._slices]

    def _gradient(self, i: int) -> None:
        self._whole.gradient(self._own[i])

    def _add_up(self, i: int) -> None:
        """Add up the gradients of each subtree of this rank's shards, in a part of the numbers."""
        for subtree in self._subtrees[self._group.number]:
            for k, parameter in enumerate(self.learner.parameters):
                leaves = [self._gradient_of(shard, k) for shard in subtree]
                for block in blocks_in(slices_of(parameter.size, len(self._own))[i], LONG_BLOCK):
                    add_tree([leaf[block] for leaf in leaves])

    def _gradient_of(self, shard: int, k: int) -> Array:
        flat: Array = self._whole.parts[shard].gradients[k].reshape(-1)
        return flat

    def _share(self, to: range) -> Share:
        """Return the message to the rank of some shards."""
        pieces = self._slices_of(to)
        return Share(
            [
                [self._gradient_of(subtree.start, k)[piece] for k, piece in enumerate(pieces)]
                for subtree in self._subtrees[self._group.number]
            ],
            [self._whole.errors[shard] for shard in self._own],
            [self._whole.hidden_means(shard) if self._hands_up else None for shard in self._own],
            self._stop.asked(),
        )

    def _move(self, i: int) -> None:
        """Add up the gradients of the slice of a shard, and move it, block by block."""
        whole = self._slices_of(self._own)
        for k, parameter in enumerate(self.learner.parameters):
            flat, start = parameter.reshape(-1), whole[k].start
            for block in blocks_in(self._slices[k][self._own[i]], LONG_BLOCK):
                near = slice(block.start - start, block.stop - start)
                sums = {
                    subtree: own[k][near]
                    for subtrees_of, share in zip(self._subtrees, self._shares, strict=True)
                    for subtree, own in zip(subtrees_of, share.sums, strict=True)
                }
                total = add_subtrees(sums, range(self._shards))
                self.learner.move(k, block, total, epoch=self._epoch)
                # A copy, as the parameters may be taken back before all ranks have this.
                np.copyto(self._moved[k][near], flat[block])

    def _collect(self) -> None:
        """Bring velocities and the state of shards to the first rank."""
        velocities = list(self.learner.velocities().values())
        found: list[SpreadState] | None = self._group.gather(
            SpreadState(
                [
                    velocity.reshape(-1)[piece].copy()
                    for velocity, piece in zip(velocities, self._slices_of(self._own), strict=True)
                ],
                [
                    {name: a.copy() for name, a in self._whole.parts[shard].own_state().items()}
                    for shard in self._own
                ],
            )
        )
        for own, state in zip(self._ranks, found or (), strict=False):
            for velocity, piece, new in zip(
                velocities, self._slices_of(own), state.velocities, strict=True
            ):
                np.copyto(velocity.reshape(-1)[piece], new)
            for shard, arrays in zip(own, state.shards, strict=True):
                for name, array in self._whole.parts[shard].own_state().items():
                    np.copyto(array, arrays[name])
