"""Steps that the ranks of a group make together: each rank works some shards of every minibatch.

Every rank has all parameters and the same minibatches. It updates one slice of each parameter, the
slice of its shards, with velocities that it keeps alone. After a step the slices are exchanged.

One step by examples, of two ranks with two shards each, where each row is a rank::

    gradients of shards 0, 1  |  sum of the lower slice, update of it  |  next step
    gradients of shards 2, 3  |  sum of the upper slice, update of it  |  next step
                        1 slices of gradients                  2 slices of parameters

By units, the ranks exchange columns of activations after each phase instead of gradients.

Guarantees:

* The bits are the bits of the same step on one rank with as many shards, whatever the number of
  ranks: gradients are added up in the same tree, and a rank sends the sums of whole subtrees.
* No array changes before the ranks that it was sent to have received it: a rank leaves exchange 2
  only when all ranks have its message of exchange 1, and exchange 1 when all have its message of
  the exchange 2 before.

Assumption: all ranks of the group call every method, in the same order.
"""

from __future__ import annotations

from bisect import bisect_left
from collections.abc import Callable, Sequence
from typing import Any, NamedTuple, Protocol

import numpy as np

from syncpretrain.cluster.group import AgreedStop
from syncpretrain.kernels.arrays import LONG_BLOCK, Array, Rows, blocks_in, ordered_sum, slices_of
from syncpretrain.kernels.averaging import add_subtrees, add_tree, subtrees
from syncpretrain.kernels.program import Phase, PhaseRunner, Program, in_turn
from syncpretrain.learners.base import copy_hidden
from syncpretrain.learners.by_examples import ByExamples
from syncpretrain.learners.steps import ByUnits


class StepOnRanks:
    """The part of a step that one rank of a group has; all ranks call every method together.

    Parameters
    ----------
    parameters : sequence of ndarray
        The parameters of all ranks, which all move.
    slices : sequence of sequence of slice
        For each parameter, seen as flat, the slice of each shard.
    stop : AgreedStop
        The request to stop, agreed on in every step, by a group of at most as many ranks as shards.
    """

    def __init__(
        self, parameters: Sequence[Array], slices: Sequence[Sequence[slice]], stop: AgreedStop
    ) -> None:
        self.group, self.stop = stop.group, stop
        self._parameters, self._slices = [x.reshape(-1) for x in parameters], slices
        self.shards = len(slices[0])
        self.ranks = [range(own.start, own.stop) for own in slices_of(self.shards, self.group.size)]
        self.own = self.ranks[self.group.number]
        sizes = [own.stop - own.start for own in self.slices_of_rank(self.own)]
        self._moved = [np.empty(size, dtype=np.float32) for size in sizes]
        # Before the first step each rank has all of the state, afterwards only its slices' part.
        self._is_spread = False

    def slices_of_rank(self, shards: range) -> list[slice]:
        """Return the slice of each parameter that the shards of a rank have together."""
        first, last = shards.start, shards.stop - 1
        return [slice(each[first].start, each[last].stop) for each in self._slices]

    def share_parameters(self) -> None:
        """Send every rank the slices that this one has moved, and take theirs."""
        self._is_spread = True
        # A copy, as the parameters may be taken back before all ranks have them.
        own_slices = self.slices_of_rank(self.own)
        for moved, x, own in zip(self._moved, self._parameters, own_slices, strict=True):
            np.copyto(moved, x[own])
        for shards, found in zip(self.ranks, self.group.all_gather(self._moved), strict=True):
            if shards != self.own:
                pieces = self.slices_of_rank(shards)
                for x, own, new in zip(self._parameters, pieces, found, strict=True):
                    np.copyto(x[own], new)

    def collect(self, vectors: Sequence[Sequence[Array]]) -> None:
        """Fill vectors on the first rank with the slices of every rank.

        ``vectors`` has, for each parameter, the vectors of its size that are moved with it.
        """
        if not self._is_spread:
            return
        own = self.slices_of_rank(self.own)
        given = [
            [vector.reshape(-1)[piece].copy() for vector in some]
            for some, piece in zip(vectors, own, strict=True)
        ]
        found: list[list[list[Array]]] | None = self.group.gather(given)
        for shards, slices in zip(self.ranks, found or [], strict=False):
            for some, piece, news in zip(vectors, self.slices_of_rank(shards), slices, strict=True):
                for vector, new in zip(some, news, strict=True):
                    np.copyto(vector.reshape(-1)[piece], new)


class Sharded(Protocol):
    """A model that cuts a minibatch into shards of examples; a rank computes some of the shards.

    Attributes
    ----------
    parameters : sequence of ndarray
    gradients : sequence of sequence of ndarray
        The gradient of each shard, an array for each parameter.
    errors : list of float
        Error of each shard in the last minibatch.
    added : sequence of int
        The shards with gradients that are added up, in their order: the leaves of the tree.
    """

    parameters: Any
    gradients: Any
    errors: list[float]
    added: Any

    def begin(self, X: Any, rows: Any, *, epoch: int, step: int) -> None:
        """Take a minibatch; :meth:`gradient` is then called for every shard of the rank."""

    def gradient(self, shard: int) -> None:
        """Fill the gradient of a shard: its part of the gradient of the minibatch."""

    def move(self, i: int, block: slice, total: Array) -> None:
        """Move a block of the i-th parameter along the sum of the shards' gradients."""


class ExamplesOnRanks(StepOnRanks):
    """The step of a model split by examples; this rank works its shards.

    Parameters
    ----------
    sharded : Sharded
    stop : AgreedStop
        As for :class:`StepOnRanks`.
    """

    def __init__(self, sharded: Sharded, stop: AgreedStop) -> None:
        slices = [slices_of(p.size, len(sharded.gradients)) for p in sharded.parameters]
        super().__init__(sharded.parameters, slices, stop)
        self._sharded = sharded
        self._added: Sequence[int] = ()
        self._subtrees: list[list[range]] = []  # each rank's, in places among the added shards
        self._phases: list[Phase] = []
        self._shares: Sequence[Share] = ()

    def train_step(
        self, X: Any, rows: Any, *, epoch: int, step: int, run: PhaseRunner = in_turn
    ) -> float:
        """Train on some rows of X; return their summed squared reconstruction error."""
        self._rows = len(rows)
        self._sharded.begin(X, rows, epoch=epoch, step=step)
        self._plan(self._sharded.added)
        run(self._phases, len(self.own))
        stops = self.stop.asked()  # once, so that all ranks get the same answer
        given = [self._share(shards, stops) for shards in self.ranks]
        shares: list[Share] = self.group.exchange(given)
        self._shares = shares
        self.stop.record(share.stops for share in shares)
        run((self._move,), len(self.own))
        self.share_parameters()
        return ordered_sum((error for share in shares for error in share.errors), 0.0)

    def hidden(self, shard: int) -> Array | None:
        """Return what a shard hands up; None where nothing is handed up."""
        return None

    def _plan(self, added: Sequence[int]) -> None:
        r"""Cut the tree over the shards that are added up into subtrees of each rank.

        Six shards, 0 to 2 on rank 0 and 3 to 5 on rank 1, are added up in this tree::

                       0-5
                  /           \
                0-3            4-5
              /     \         /   \
            0-1     2-3      4     5
           /   \   /   \
          0     1 2     3

        Rank 0 sends the sums of its largest whole subtrees, 0-1 and 2; rank 1 sends 3 and 4-5. With
        all four a rank finishes the tree: 2 + 3, then (0-1) + (2-3), then (0-3) + (4-5). So the
        order of the sums, and their bits, do not depend on how shards are dealt to ranks.
        """
        # The same in every step, but fine-tuning leaves out shards that have no rows.
        if added == self._added:
            return
        self._added, every = added, range(len(added))
        ends = ((bisect_left(added, end) for end in (own.start, own.stop)) for own in self.ranks)
        self._subtrees = [subtrees(range(*own), every) for own in ends]
        self._phases = [self._gradient]
        if any(len(subtree) > 1 for subtree in self._subtrees[self.group.number]):
            self._phases.append(self._add_up)

    def _gradient(self, i: int) -> None:
        self._sharded.gradient(self.own[i])

    def _add_up(self, i: int) -> None:
        """Add up the gradients of each subtree of this rank's shards, in a part of the numbers."""
        for subtree in self._subtrees[self.group.number]:
            for k, parameter in enumerate(self._parameters):
                leaves = [self._gradient_of(place, k) for place in subtree]
                for block in blocks_in(slices_of(parameter.size, len(self.own))[i], LONG_BLOCK):
                    add_tree([leaf[block] for leaf in leaves])

    def _gradient_of(self, place: int, k: int) -> Array:
        """Return the k-th gradient of the shard at a place among the added shards."""
        flat: Array = self._sharded.gradients[self._added[place]][k].reshape(-1)
        return flat

    def _share(self, shards: range, stops: bool) -> Share:
        """Return the message to the rank of some shards."""
        pieces = self.slices_of_rank(shards)
        return Share(
            [
                [self._gradient_of(subtree.start, k)[piece] for k, piece in enumerate(pieces)]
                for subtree in self._subtrees[self.group.number]
            ],
            [self._sharded.errors[shard] for shard in self.own],
            [self.hidden(shard) for shard in self.own],
            stops,
        )

    def _move(self, i: int) -> None:
        """Add up the gradients of the slice of a shard, and move it, block by block."""
        whole = self.slices_of_rank(self.own)
        for k in range(len(self._parameters)):
            for block in blocks_in(self._slices[k][self.own[i]], LONG_BLOCK):
                near = slice(block.start - whole[k].start, block.stop - whole[k].start)
                sums = {
                    subtree: own[k][near]
                    for trees, share in zip(self._subtrees, self._shares, strict=True)
                    for subtree, own in zip(trees, share.sums, strict=True)
                }
                self._sharded.move(k, block, add_subtrees(sums, range(len(self._added))))


class ByExamplesOnRanks(ExamplesOnRanks):
    """The shards of a learner that this rank has.

    Parameters
    ----------
    whole : ByExamples
        The step of all shards.
    stop : AgreedStop
        As for :class:`StepOnRanks`.
    hands_up : bool
        True if :meth:`hand_up` is called, so that hidden means are exchanged too.
    """

    def __init__(self, whole: ByExamples, stop: AgreedStop, *, hands_up: bool = False) -> None:
        super().__init__(whole, stop)
        self.learner, self._whole, self._hands_up = whole.learner, whole, hands_up

    def hidden(self, shard: int) -> Array | None:
        """Return the hidden means of a shard, if they are handed up."""
        return self._whole.hidden_means(shard) if self._hands_up else None

    def hand_up(self, out: Array) -> bool:
        """Copy the hidden means from before the update; return False if they must be recomputed."""
        hidden = (means for share in self._shares for means in share.hidden)
        return copy_hidden(zip(slices_of(self._rows, self.shards), hidden, strict=True), out)

    def state(self) -> dict[str, Array]:
        """Return the state of all shards; on other ranks than the first only their own is new."""
        self.collect([[velocity] for velocity in self.learner.velocities().values()])
        if self._is_spread:
            self._collect_shards()
        return self._whole.state()

    def restart(self) -> None:
        """Set :meth:`state` back to before the first step, on every rank."""
        self._whole.restart()
        self._is_spread = False

    def _collect_shards(self) -> None:
        states = [part.own_state() for part in self._whole.parts]
        own = [{name: x.copy() for name, x in states[shard].items()} for shard in self.own]
        found: list[list[dict[str, Array]]] | None = self.group.gather(own)
        for shards, given in zip(self.ranks, found or [], strict=False):
            for shard, arrays in zip(shards, given, strict=True):
                for name, array in states[shard].items():
                    np.copyto(array, arrays[name])


class ByUnitsOnRanks(StepOnRanks):
    """The shards of this rank.

    Parameters
    ----------
    whole : ByUnits
    stop : AgreedStop
        As for :class:`StepOnRanks`.
    """

    def __init__(self, whole: ByUnits, stop: AgreedStop) -> None:
        hidden = whole.learner.weight.shape[1]
        rows = [visible for visible, _ in whole.own]
        slices = [
            [slice(own.start * hidden, own.stop * hidden) for own in rows],
            rows,
            [own for _, own in whole.own],
        ]
        super().__init__(whole.learner.parameters, slices, stop)
        self.learner, self._units = whole.learner, whole
        self._programs: dict[int, list[Program]] = {}  # one a phase, by the size of a minibatch

    def train_step(
        self, X: Array, rows: Rows, *, epoch: int, step: int, run: PhaseRunner = in_turn
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

    def hand_up(self, out: Array) -> bool:
        """Copy the hidden means of the last minibatch."""
        return self._units.hand_up(out)

    def state(self) -> dict[str, Array]:
        """Return the velocities; on other ranks than the first only this rank's slices are new."""
        self.collect([[velocity] for velocity in self.learner.velocities().values()])
        return self._units.state()

    def restart(self) -> None:
        """Set :meth:`state` back to before the first step, on every rank."""
        self._units.restart()
        self._is_spread = False

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


class Share(NamedTuple):
    """Message from one rank to another in a step: its part of the gradient of a slice.

    ``sums`` has the sum of each of its subtrees of shards, by parameter; ``errors`` the error of
    each of its shards; ``hidden`` the hidden means of each, if they are handed up. ``stops`` says
    whether it was asked to stop.
    """

    sums: list[list[Array]]
    errors: list[float]
    hidden: list[Array | None]
    stops: bool


Columns = tuple[Array, Callable[[range], slice]]  # an array, and the columns of a rank's shards


class Sent(NamedTuple):
    """Message after a phase: the columns of this rank, and the errors of its shards.

    ``stops`` is whether it was asked to stop.
    """

    columns: list[Array]
    errors: list[float]
    stops: bool
