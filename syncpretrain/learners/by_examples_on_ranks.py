"""Data parallelism between ranks: each rank of a group has some shards of every minibatch.

One step of two ranks with two shards each, where each row is a rank::

    gradients of shards 0, 1  |  sum of the lower slice, update of it  |  next step
    gradients of shards 2, 3  |  sum of the upper slice, update of it  |  next step
                        1 slices of gradients                  2 slices of parameters

Guarantees:

* The bits are those of :class:`~syncpretrain.learners.by_examples.ByExamples` with as many shards,
  whatever the ranks: gradients are added up in the same tree, of which a rank sends the sums of
  whole subtrees.
* What is sent is not changed before it has arrived: a rank leaves exchange 2 only when all have
  what it sent in exchange 1, and exchange 1 when all have what it sent in exchange 2 before.
"""

from __future__ import annotations

from bisect import bisect_left
from collections.abc import Sequence
from typing import Any, NamedTuple, Protocol

import numpy as np

from syncpretrain.cluster.group import AgreedStop
from syncpretrain.kernels.arrays import LONG_BLOCK, Array, blocks_in, ordered_sum, slices_of
from syncpretrain.kernels.averaging import add_subtrees, add_tree, subtrees
from syncpretrain.kernels.program import Phase, PhaseRunner, in_turn
from syncpretrain.learners.step_on_ranks import StepOnRanks

__all__ = ["ByExamplesOnRanks", "Part", "ShardsOfExamples"]


class Part(Protocol):
    """What computes the gradient of a shard, an array for each parameter."""

    @property
    def gradients(self) -> Sequence[Array]: ...  # noqa: D102 - above
    def own_state(self) -> dict[str, Array]: ...  # noqa: D102


class ShardsOfExamples(Protocol):
    """All shards of a step, of which a rank works some.

    Its attributes and methods are those of :class:`~syncpretrain.learners.by_examples.ByExamples`.
    ``added`` are the shards of the minibatch whose gradients are added up, in their order: the
    leaves of the tree.
    """

    learner: Any
    errors: list[float]

    @property
    def parts(self) -> Sequence[Part]: ...  # noqa: D102 - above
    @property
    def added(self) -> Sequence[int]: ...  # noqa: D102
    def begin(self, X: Any, rows: Any, *, epoch: int, step: int) -> None: ...  # noqa: D102
    def gradient(self, shard: int) -> None: ...  # noqa: D102
    def hidden_means(self, shard: int) -> Array | None: ...  # noqa: D102
    def state(self) -> dict[str, Array]: ...  # noqa: D102
    def restart(self) -> None: ...  # noqa: D102


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


class ByExamplesOnRanks(StepOnRanks):
    """The shards of this rank.

    Parameters
    ----------
    whole : ShardsOfExamples
    stop : AgreedStop
        As of :class:`StepOnRanks`.
    hands_up : bool
        Whether :meth:`copy_hidden` is called, so that hidden means are exchanged too.
    """

    def __init__(
        self, whole: ShardsOfExamples, stop: AgreedStop, *, hands_up: bool = False
    ) -> None:
        shards = len(whole.parts)
        slices = [slices_of(p.size, shards) for p in whole.learner.parameters]
        super().__init__(whole.learner, whole, slices, stop)
        self._examples, self._hands_up = whole, hands_up
        self._added: Sequence[int] = ()
        self._subtrees: list[list[range]] = []  # of each rank, of places among those added
        self._phases: list[Phase] = []
        self._shares: Sequence[Share] = ()

    def train_step(
        self, X: Any, rows: Any, *, epoch: int, step: int, run: PhaseRunner = in_turn
    ) -> float:
        """Train on some rows of X; return their summed squared reconstruction error."""
        self._epoch, self._rows = epoch, len(rows)
        self._examples.begin(X, rows, epoch=epoch, step=step)
        self._plan(self._examples.added)
        run(self._phases, len(self.own))
        stops = self.stop.asked()  # once, so that all ranks get the same answer
        given = [self._share(shards, stops) for shards in self.ranks]
        shares: list[Share] = self.group.exchange(given)
        self._shares = shares
        self.stop.record(share.stops for share in shares)
        run((self._move,), len(self.own))
        self.share_parameters()
        return self.total([error for share in shares for error in share.errors])

    def copy_hidden(self, out: Array) -> bool:
        """Copy the hidden means of the last minibatch, where they are those of the plain input."""
        pieces = slices_of(self._rows, self.shards)
        for shards, share in zip(self.ranks, self._shares, strict=True):
            for shard, hidden in zip(shards, share.hidden, strict=True):
                if hidden is None:
                    return False
                np.copyto(out[pieces[shard]], hidden)
        return True

    def shard_state(self, shard: int) -> dict[str, Array]:
        """Return what the next gradient of a shard depends on; live arrays."""
        return self._examples.parts[shard].own_state()

    def total(self, errors: list[float]) -> float:
        """Return the error of a minibatch from those of all shards."""
        return ordered_sum(errors, 0.0)

    def _plan(self, added: Sequence[int]) -> None:
        """Cut the tree over the shards that are added up into subtrees of each rank."""
        if added == self._added:
            return
        self._added, every = added, range(len(added))
        places = (
            range(*(bisect_left(added, end) for end in (o.start, o.stop))) for o in self.ranks
        )
        self._subtrees = [subtrees(own, every) for own in places]
        self._phases = [self._gradient]
        if any(len(subtree) > 1 for subtree in self._subtrees[self.group.number]):
            self._phases.append(self._add_up)

    def _gradient(self, i: int) -> None:
        self._examples.gradient(self.own[i])

    def _add_up(self, i: int) -> None:
        """Add up the gradients of each subtree of this rank's shards, in a part of the numbers."""
        for subtree in self._subtrees[self.group.number]:
            for k, parameter in enumerate(self.learner.parameters):
                leaves = [self._gradient_of(place, k) for place in subtree]
                for block in blocks_in(slices_of(parameter.size, len(self.own))[i], LONG_BLOCK):
                    add_tree([leaf[block] for leaf in leaves])

    def _gradient_of(self, place: int, k: int) -> Array:
        """Return the k-th gradient of a shard, given its place among those added up."""
        flat: Array = self._examples.parts[self._added[place]].gradients[k].reshape(-1)
        return flat

    def _share(self, shards: range, stops: bool) -> Share:
        """Return the message to the rank of some shards."""
        whole, pieces = self._examples, self.slices_of_rank(shards)
        return Share(
            [
                [self._gradient_of(subtree.start, k)[piece] for k, piece in enumerate(pieces)]
                for subtree in self._subtrees[self.group.number]
            ],
            [whole.errors[shard] for shard in self.own],
            [whole.hidden_means(shard) if self._hands_up else None for shard in self.own],
            stops,
        )

    def _move(self, i: int) -> None:
        """Add up the gradients of the slice of a shard, and move it, block by block."""
        whole = self.slices_of_rank(self.own)
        for k in range(len(self.learner.parameters)):
            for block in blocks_in(self.own_slice(self.own[i], k), LONG_BLOCK):
                near = slice(block.start - whole[k].start, block.stop - whole[k].start)
                sums = {
                    subtree: own[k][near]
                    for trees, share in zip(self._subtrees, self._shares, strict=True)
                    for subtree, own in zip(trees, share.sums, strict=True)
                }
                total = add_subtrees(sums, range(len(self._added)))
                self.follow(self.own[i], k, block, total)

    def follow(self, shard: int, k: int, block: slice, total: Array) -> None:
        """Move a block of the slice that a shard has of the k-th parameter along its gradient."""
        self.learner.move(k, block, total, epoch=self._epoch)
