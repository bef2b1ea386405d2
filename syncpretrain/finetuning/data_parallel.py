"""The choice of a network by the way its minibatches are split, and networks split by examples."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import numpy as np

from syncpretrain.backends.base import Backend
from syncpretrain.finetuning.chain import Link
from syncpretrain.finetuning.linked_network import LinkedNetwork
from syncpretrain.finetuning.linked_program import shard_gradients
from syncpretrain.finetuning.network import Network
from syncpretrain.finetuning.trainable import Move, Trainable
from syncpretrain.kernels.arrays import LONG_BLOCK, Array, blocks_in, ordered_sum, slices_of
from syncpretrain.kernels.averaging import add_tree
from syncpretrain.kernels.program import Phase, PhaseRunner, Program, in_turn

__all__ = ["DataParallelNetwork", "LinkedByExamples", "network_of"]


def network_of(
    chain: Sequence[Link],
    *,
    split: str,
    backend: Backend,
    precision: str = "float32",
    share: Callable[[Any], Trainable] | None = None,
    **options: Any,
) -> Trainable:
    """Return the network of a chain; ``options`` are the arguments that all networks take.

    ``precision`` is the precision of the products. Only dense chains are split by ``units`` or
    ``examples``; a device splits nothing. A network that others ``share`` is split by examples.
    """
    chain = [link.in_precision(precision) for link in chain]
    has_links = any(link.is_local for link in chain)
    if share is not None:
        whole = LinkedByExamples if has_links else DataParallelNetwork
        return share(whole(chain, backend=backend, **options))
    if has_links:
        return LinkedNetwork(chain, split=split, backend=backend, **options)
    parallel = split == "examples" and backend.name == "numpy"
    build: Any = DataParallelNetwork if parallel else Network
    network: Trainable = build(chain, backend=backend, **options)
    return network


class DataParallelNetwork(Network):
    """A network that cuts minibatches into shards of examples; see :class:`Network`.

    Each shard computes the gradient of its part in a vector of its own. Then each shard adds up one
    slice of all these vectors, in a fixed tree, and moves that slice of the parameters.
    """

    splits_examples = True

    def __init__(self, chain: Any, *, batch_size: int, shards: int, **options: Any) -> None:
        super().__init__(chain, batch_size=batch_size, **options)
        self.shards = shards
        part_size = -(-batch_size // shards)
        self.parts = [Network(chain, batch_size=part_size, **options) for _ in range(shards)]
        # All parts read the same parameters, each fills gradients of its own: so the shards of a
        # phase share nothing that is written.
        for number, part in enumerate(self.parts):
            part.parameters, part.chain, part.shard_number = self.parameters, self.chain, number
        self.shard_gradients = [part.chain_gradients for part in self.parts]
        self.errors, self.added = [0.0] * shards, range(shards)
        self._blocks = self._cut()

    def _cut(self) -> list[list[tuple[slice, bool]]]:
        """Return each shard's slices of the flat vector, and whether they are of weights."""
        blocks: list[list[tuple[slice, bool]]] = [[] for _ in range(self.shards)]
        at = 0
        for array in (array for pair in self.chain for array in pair):
            for shard, own in enumerate(slices_of(array.size, self.shards)):
                blocks[shard] += [
                    (slice(at + block.start, at + block.stop), array.ndim == 2)
                    for block in blocks_in(own, LONG_BLOCK)
                ]
            at += array.size
        return blocks

    def step(
        self,
        x: Array,
        target: Array,
        *,
        epoch: int,
        step: int,
        move: Move | None = None,
        run: PhaseRunner = in_turn,
        examples: int | None = None,
    ) -> float:
        """Fill the gradients, shard by shard, and let them be followed; see :class:`Network`."""
        self.begin(x, target, epoch=epoch, step=step, examples=examples)

        def follow(shard: int) -> None:
            for block, is_weight in self._blocks[shard]:
                total = add_tree([part.gradients[block] for part in self.parts])
                np.copyto(self.gradients[block], total)
                if move is not None:
                    move(shard, block, is_weight)

        # Two phases: a slice is moved by the shard that adds it up, when all gradients are there
        # and nobody reads the parameters any more.
        phases: tuple[Phase, ...] = (self.shard_gradient, follow)
        run(phases, self.shards)
        return self.total(self.errors)

    def total(self, errors: list[float]) -> float:
        """Return the error of a minibatch, the sum of its shards' errors."""
        return ordered_sum(errors, 0.0)

    def begin(
        self, x: Array, target: Array, *, epoch: int, step: int, examples: int | None = None
    ) -> None:
        """Take a minibatch; then call :meth:`shard_gradient` for every shard."""
        self._x, self._target, self._epoch, self._number = x, target, epoch, step
        self._rows, self._examples = slices_of(len(x), self.shards), examples or len(x)

    def shard_gradient(self, shard: int) -> None:
        """Fill the gradient of a shard, as its part of that of the whole minibatch."""
        own, part = self._rows[shard], self.parts[shard]
        self.errors[shard] = 0.0
        # The last minibatch may have fewer rows than there are shards. The tree adds up all of
        # them, so that an old gradient must not stay here.
        if own.start == own.stop:
            part.gradients.fill(0)
            return
        part.weights = None if self.weights is None else self.weights[own]
        self.errors[shard] = part.step(
            self._x[own],
            self._target[own],
            epoch=self._epoch,
            step=self._number,
            examples=self._examples,
        )


class LinkedByExamples(LinkedNetwork):
    """A network of links, split by examples, that can work its shards one by one.

    A shard has the same operations as in a step of the whole network, so its gradient has the same
    bits.

    Parameters
    ----------
    chain, options
        Parameters of :class:`LinkedNetwork`, except ``split``.

    Attributes
    ----------
    shard_gradients : list of list of (weight, bias)
        Gradients of each shard; the first shard's are ``chain_gradients``.
    errors : list of float
        Error of each shard in the last minibatch.
    added : tuple of int
        The shards that have rows of the minibatch. The others' gradients are old.
    """

    def __init__(self, chain: Sequence[Link], **options: Any) -> None:
        super().__init__(chain, split="examples", **options)
        self.shard_gradients = self._buffers.gradients
        self.errors = [0.0] * self.shards
        self.added: tuple[int, ...] = ()
        self._by_shard: dict[int, list[Program]] = {}  # by the rows of the minibatch

    def begin(self, x: Array, target: Array, *, epoch: int, step: int) -> None:
        """Take a minibatch; then call :meth:`shard_gradient` for every shard."""
        n = len(x)
        if n not in self._by_shard:
            self._by_shard[n] = self._programs(n)
        self._given, self._rows = (x, target), slices_of(n, self.shards)
        self.added = tuple(i for i, own in enumerate(self._rows) if own.start < own.stop)
        self._draw_masks(epoch, step)

    def shard_gradient(self, shard: int) -> None:
        """Fill the gradient of a shard, as its part of that of the whole minibatch."""
        own, (x, target) = self._rows[shard], self._given
        self.errors[shard] = 0.0
        if own.start == own.stop:
            return
        np.copyto(self._x[own], x[own])
        np.copyto(self._target[own], target[own])
        program = self._by_shard[len(x)][shard]
        with np.errstate(over="ignore", invalid="ignore"):  # the caller checks the error
            in_turn(program, 1)
            self.errors[shard] = self._error_of(program.results)

    def total(self, errors: list[float]) -> float:
        """Return the error of a minibatch, the sum of its shards' errors."""
        return float(np.sum(errors))

    def _programs(self, n: int) -> list[Program]:
        """Return the gradient of each shard of a minibatch of ``n`` examples."""
        x, target, slots = self._x[:n], self._target[:n], 2 * self.shards
        dealt = shard_gradients(self._buffers, x, target, self.weights)
        return [Program([[operations]], slots) for operations in dealt]
