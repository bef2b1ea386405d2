"""The network that ranks fine-tune together: each has some shards of every minibatch.

Every rank has the whole network. A step is a step of
:class:`~syncpretrain.learners.on_ranks.ByExamplesOnRanks`, and has the same bits as the
same number of shards in one process: ranks exchange sums of gradients, each rank moves one slice of
the parameters with its own part of the optimizer's memory, and sends that slice to all.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from itertools import accumulate
from typing import Any, Protocol

import numpy as np

from syncpretrain.backends.base import Backend
from syncpretrain.backends.fused_tuning import Rule
from syncpretrain.cluster.group import AgreedStop
from syncpretrain.finetuning.trainable import Follow, Move
from syncpretrain.kernels.arrays import Array
from syncpretrain.kernels.backprop import Pair
from syncpretrain.kernels.program import PhaseRunner, Program, in_turn
from syncpretrain.learners.on_ranks import ByExamplesOnRanks

__all__ = ["NetworkOnRanks"]


class _Whole(Protocol):
    """The network with all shards of examples; a rank works some of them.

    ``shard_gradients`` are the gradients of each shard, and ``errors`` the errors of the shards in
    the last minibatch; :meth:`total` adds these up. For ``added`` see
    :class:`~syncpretrain.learners.on_ranks.ShardsOfExamples`.
    """

    backend: Backend
    shards: int
    parameters: Array
    gradients: Array
    chain: list[Pair]
    chain_gradients: list[Pair]
    weights: Array | None
    errors: list[float]
    shard_gradients: list[list[Pair]]

    @property
    def added(self) -> Sequence[int]: ...
    def begin(self, x: Array, target: Array, *, epoch: int, step: int) -> None: ...
    def shard_gradient(self, shard: int) -> None: ...
    def total(self, errors: list[float]) -> float: ...
    def step(
        self, x: Array, target: Array, *, epoch: int, step: int, move: Move | None, run: PhaseRunner
    ) -> float: ...
    def gradient(self, x: Array, target: Array, *, epoch: int, step: int) -> float: ...
    def loss_of(self, x: Array, target: Array, *, epoch: int, step: int) -> float: ...
    def error(self, X: Array, target: Array) -> float: ...


class NetworkOnRanks:
    """A network as one rank of a group sees it; all ranks call :meth:`step` at the same time.

    See :class:`syncpretrain.finetuning.trainable.Trainable`. Methods other than :meth:`step` and
    :meth:`collect` concern this rank alone.

    Parameters
    ----------
    whole : DataParallelNetwork or LinkedByExamples
    stop : AgreedStop
        Stop of the group, agreed on in every step. The group has at most as many ranks as shards.
    """

    def __init__(self, whole: _Whole, stop: AgreedStop) -> None:
        self._whole = whole
        self.backend, self.shards = whole.backend, whole.shards
        self.parameters, self.gradients = whole.parameters, whole.gradients
        self.chain, self.chain_gradients = whole.chain, whole.chain_gradients
        self._sharing = _Sharing(_Shards(whole), stop)
        self._group = stop.group

    @property
    def weights(self) -> Array | None:
        """Weights of the loss, of the shape of a minibatch's targets; None for no weights."""
        return self._whole.weights

    @weights.setter
    def weights(self, weights: Array | None) -> None:
        self._whole.weights = weights

    def gradient(self, x: Array, target: Array, *, epoch: int = 0, step: int = 0) -> float:
        """Fill the gradients; return the error summed over the examples."""
        return self._whole.gradient(x, target, epoch=epoch, step=step)

    def step(
        self,
        x: Array,
        target: Array,
        *,
        epoch: int,
        step: int,
        move: Move | None = None,
        run: PhaseRunner = in_turn,
    ) -> float:
        """Compute the gradients of this rank's shards, and move its slice of the parameters."""
        # Without a move nothing is exchanged: the other ranks take no part in it and wait for
        # nothing.
        if move is None:
            return self._whole.step(x, target, epoch=epoch, step=step, move=None, run=run)
        self._sharing.mover = move
        return self._sharing.train_step((x, target), range(len(x)), epoch=epoch, step=step, run=run)

    def program(self, x: Array, target: Array, follow: Follow) -> Program | None:
        """Return None: a step that ranks share is no program."""
        return None

    def whole(self, moments: tuple[Array, ...], rule: Rule) -> None:
        """Return None: it is shared."""

    def stepwise(
        self, program: Program, *, epoch: int, step: int, run: PhaseRunner = in_turn
    ) -> float:
        """Raise an error: there are no programs."""
        raise AssertionError("a step that ranks share is no program")

    def loss_of(self, x: Array, target: Array, *, epoch: int = 0, step: int = 0) -> float:
        """Return the loss that :meth:`gradient` differentiates."""
        return self._whole.loss_of(x, target, epoch=epoch, step=step)

    def error(self, X: Array, target: Array) -> float:
        """Return the mean error of rows."""
        return self._whole.error(X, target)

    def collect(self, vectors: Iterable[Array]) -> None:
        """Fill vectors of the parameters' size on the first rank with the slice of every rank.

        Shorter vectors stay as they are: they hold nothing of the parameters.
        """
        # All ranks have the same optimizer, so they pick the same vectors in the same order.
        whole = [vector for vector in vectors if len(vector) == len(self.parameters)]
        own = self._sharing.flat_slices(self._sharing.own)
        found = self._group.gather([[vector[part].copy() for part in own] for vector in whole])
        if found is None:
            return
        for shards, slices in zip(self._sharing.ranks, found, strict=True):
            for vector, new in zip(whole, slices, strict=True):
                for part, values in zip(self._sharing.flat_slices(shards), new, strict=True):
                    np.copyto(vector[part], values)


class _Shard:
    """The gradient of a shard, an array for each parameter."""

    def __init__(self, pairs: list[Pair]) -> None:
        self.gradients = [array for pair in pairs for array in pair]

    def own_state(self) -> dict[str, Array]:
        """Return nothing: the next gradient depends on the parameters alone."""
        return {}


class _Parameters:
    """The parameters of a network, an array for each weight and bias."""

    def __init__(self, network: _Whole) -> None:
        self.parameters = [array for pair in network.chain for array in pair]


class _Shards:
    """All shards of a network, for ``ByExamplesOnRanks``; only the optimizer has a memory."""

    def __init__(self, network: _Whole) -> None:
        self.network, self.learner = network, _Parameters(network)
        self.parts = [_Shard(pairs) for pairs in network.shard_gradients]
        self.errors = network.errors

    @property
    def added(self) -> Sequence[int]:
        """Shards that have a gradient to add up."""
        return self.network.added

    def begin(self, X: tuple[Array, Array], rows: Any, *, epoch: int, step: int) -> None:
        """Take a minibatch and its targets."""
        self.network.begin(*X, epoch=epoch, step=step)

    def gradient(self, shard: int) -> None:
        """Fill the gradient of a shard."""
        self.network.shard_gradient(shard)

    def hidden_means(self, shard: int) -> Array | None:
        """Return None: nothing is handed up."""
        return None

    def state(self) -> dict[str, Array]:
        """Return nothing."""
        return {}

    def restart(self) -> None:
        """Do nothing."""


class _Sharing(ByExamplesOnRanks):
    """The step of this rank; the rank's optimizer follows the gradients."""

    mover: Move

    def __init__(self, shards: _Shards, stop: AgreedStop) -> None:
        super().__init__(shards, stop)
        self._network, arrays = shards.network, shards.learner.parameters
        self._starts = list(accumulate((array.size for array in arrays), initial=0))
        self._are_weights = [array.ndim == 2 for array in arrays]

    def flat_slices(self, shards: range) -> list[slice]:
        """Return the slices of the flat vector that a rank with these shards moves."""
        slices = self.slices_of_rank(shards)
        return [self._flat(k, own) for k, own in enumerate(slices)]

    def total(self, errors: list[float]) -> float:
        """Return the error of a minibatch, the sum of its shards' errors."""
        return self._network.total(errors)

    def follow(self, shard: int, k: int, block: slice, total: Array) -> None:
        """Let the optimizer follow the gradient of a block."""
        own = self._flat(k, block)
        np.copyto(self._network.gradients[own], total)
        self.mover(shard, own, self._are_weights[k])

    def _flat(self, k: int, own: slice) -> slice:
        return slice(self._starts[k] + own.start, self._starts[k] + own.stop)
