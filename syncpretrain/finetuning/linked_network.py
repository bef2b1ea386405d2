"""The network of links that is fine-tuned: convolutions and dense layers, worked as programs."""

from __future__ import annotations

from collections.abc import Sequence
from functools import partial
from typing import Any

import numpy as np
from numpy.typing import NDArray

from syncpretrain.backends.base import Backend
from syncpretrain.backends.fused_tuning import Rule
from syncpretrain.backends.numpy_backend import NumpyBackend
from syncpretrain.finetuning.chain import Dropout, Link, places_of, views
from syncpretrain.finetuning.linked_program import (
    Buffers,
    Section,
    forward_phases,
    sections_of,
    step_phases,
)
from syncpretrain.finetuning.trainable import Follow, Move
from syncpretrain.kernels.arrays import Array, slices_of
from syncpretrain.kernels.losses import count_errors, loss_of, squared_error
from syncpretrain.kernels.operations import Operation
from syncpretrain.kernels.program import PhaseRunner, Program, in_turn
from syncpretrain.rng import Address, Purpose
from syncpretrain.units.kinds import kind_of

__all__ = ["LinkedNetwork"]


class LinkedNetwork:
    """A chain of links, trained so that its output comes near to a target.

    Parameters
    ----------
    chain : sequence of Link
        The initial parameters are copied; all arithmetic has their type, float32 or float64.
    loss : str
        "squared", or "cross-entropy" of a last layer of bernoulli or softmax units.
    batch_size : int
        The most examples that a minibatch can have.
    dropout : Dropout, optional
        The units that are left out do not depend on shards or split.
    shards : int
        Number of parts that a step is cut into, for workers to share.
    split : str
        "examples": by the examples of the minibatch. "units" or "filters", which mean the same: by
        units, on the way down by channels. "hybrid": convolutions by examples, dense links by
        units. "columns": as hybrid, with the columns of the convolutions dealt out too; the number
        of shards is a multiple of the number of columns.
    backend : Backend, optional
        Backend of its arrays; on a device errors are arrays too, not synchronized.

    Attributes
    ----------
    parameters, gradients : ndarray of shape (n_parameters,)
        In the order of the chain; weight, then bias.
    chain, chain_gradients : list of (weight, bias)
        Views of ``parameters`` and of ``gradients``.
    """

    weights: Array | None = None

    def __init__(
        self,
        chain: Sequence[Link],
        *,
        loss: str,
        batch_size: int,
        dropout: Dropout | None = None,
        shards: int = 1,
        split: str = "hybrid",
        backend: Backend | None = None,
    ) -> None:
        self.backend: Backend = backend or NumpyBackend()
        self.loss, self.shards, self._dropout = loss, shards, dropout or Dropout()
        kind = chain[0].weight.dtype
        places = places_of(chain, self.backend)
        self.parameters, self.gradients = (
            self.backend.zeros(places.starts[-1], kind) for _ in range(2)
        )
        self.chain = list(views(self.parameters, chain, places))
        self.chain_gradients = list(views(self.gradients, chain, places))
        self._is_exclusive = kind_of(chain[-1].units).is_exclusive
        self._shares = [self._dropout.input] + [self._dropout.hidden] * (len(chain) - 1)
        self._buffers = self._allocate(chain, batch_size, sections_of(chain, split))
        self._x = self.backend.empty((batch_size, chain[0].reads.numbers), kind)
        self._target = self.backend.empty((batch_size, chain[-1].makes.numbers), kind)
        self._forward: dict[tuple[int, bool], Program] = {}
        self._gradient: dict[int, Program] = {}
        for mine, given in zip(self.chain, chain, strict=True):
            np.copyto(mine[0], self.backend.asarray(given.weight))
            np.copyto(mine[1], self.backend.asarray(given.bias))

    def gradient(self, x: Array, target: Array, *, epoch: int = 0, step: int = 0) -> float:
        """Fill the gradients of the loss on a minibatch of shape (B, inputs).

        As :meth:`syncpretrain.finetuning.network.Network.gradient`.
        """
        return self.step(x, target, epoch=epoch, step=step)

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
        """Fill the gradients, shard by shard, and let them be followed.

        As :meth:`syncpretrain.finetuning.network.Network.step`; slower than a program, which this
        copies the minibatch for.
        """
        n = len(x)
        if n not in self._gradient:
            self._gradient[n] = self._program(self._x[:n], self._target[:n], _stay)
        np.copyto(self._x[:n], x)
        np.copyto(self._target[:n], target)
        error = self.stepwise(self._gradient[n], epoch=epoch, step=step, run=run)
        if move is not None:
            run([partial(self._move, move)], self.shards)
        return error

    def program(self, x: Array, target: Array, follow: Follow) -> Program | None:
        """Return the step on the minibatch that lies in ``x`` and ``target``.

        None for arrays that a program cannot take. ``follow`` returns the operations of the
        optimizer.
        """
        kind = self.parameters.dtype
        given = (x, target)
        if not all(array.flags.c_contiguous and array.dtype == kind for array in given):
            return None
        return self._program(x, target, follow)

    def whole(self, moments: tuple[Array, ...], rule: Rule) -> None:
        """Return None: there are none with convolutions."""

    def stepwise(
        self, program: Program, *, epoch: int, step: int, run: PhaseRunner = in_turn
    ) -> float:
        """Work a step of :meth:`program`; return its error as :meth:`gradient` does."""
        self._draw_masks(epoch, step)
        with np.errstate(over="ignore", invalid="ignore"):  # the caller checks the error
            run(program, self.shards)
            return self._error_of(program.results)

    def loss_of(self, x: Array, target: Array, *, epoch: int = 0, step: int = 0) -> float:
        """Return the loss that :meth:`gradient` differentiates, with the same units left out."""
        self._draw_masks(epoch, step)
        y, units = self._output(x, drops=True), self._buffers.links[-1].units
        return loss_of(target, y, units, self.loss, self.weights) / len(x)

    def error(self, X: Array, target: Array) -> float:
        """Return the mean error of the rows of X: squared, or the share of wrong classes."""
        total, size = 0.0, len(self._x)
        with np.errstate(over="ignore", invalid="ignore"):
            for start in range(0, len(X), size):
                x, t = X[start : start + size], target[start : start + size]
                y = self._output(x, drops=False)
                total += count_errors(t, y) if self._is_exclusive else squared_error(t, y, out=y)
        return float(total) / len(X)

    def _allocate(self, chain: Sequence[Link], batch_size: int, sections: list[Section]) -> Buffers:
        kind = self.parameters.dtype

        def made(width: int) -> Array:
            array: Array = self.backend.empty((batch_size, width), kind)
            return array

        reads = [link.reads.numbers for link in chain]
        drops = list(zip(reads, self._shares, strict=True))
        makes = [link.makes.numbers for link in chain]
        places = [m if link.stores_argmax else 0 for link, m in zip(chain, makes, strict=True)]
        scratch = max(link.scratch for link in chain)
        own = [link for section in sections if section.columns for link in section.links]
        columns = max(1, *(section.columns for section in sections))
        gradients = [self.chain_gradients]
        for _ in range(1, self.shards // columns):
            some = [chain[link] for link in own]
            own_places = places_of(some, self.backend)
            vector = self.backend.zeros(own_places.starts[-1], kind)
            mine = dict(zip(own, views(vector, some, own_places), strict=True))
            gradients += [[mine.get(i, pair) for i, pair in enumerate(self.chain_gradients)]]
        gradients *= columns
        return Buffers(
            chain,
            sections,
            places_of(chain, self.backend).starts,
            self.chain,
            gradients,
            [made(width) for width in makes],
            [made(width) for width in makes],
            [made(width) for width in places],
            [made(width) if share else None for width, share in drops],
            [made(width) if share else None for width, share in drops],
            [self.backend.empty(scratch, kind) for _ in range(self.shards)],
            self.loss,
        )

    def _program(self, x: Array, target: Array, follow: Follow) -> Program:
        phases = step_phases(self._buffers, x, target, follow, self.weights)
        return Program(phases, 2 * self.shards, self._results(2 * self.shards))

    def _results(self, slots: int) -> Any:
        """Return where the results of a program go on a device, None on the host."""
        return None if self.backend.name == "numpy" else self.backend.zeros(slots, np.float64)

    def _output(self, x: Array, *, drops: bool) -> Array:
        """Return what comes out for a minibatch, in a buffer."""
        n = len(x)
        if (n, drops) not in self._forward:
            phases = forward_phases(self._buffers, self._x[:n], drops=drops)
            self._forward[n, drops] = Program(phases, 1, self._results(1))
        np.copyto(self._x[:n], x)
        in_turn(self._forward[n, drops], 1)
        return self._buffers.activations[-1][:n]

    def _error_of(self, results: NDArray[np.float64]) -> float:
        """Return the error that the results of a program's shards make up."""
        squared, is_wrong = np.split(results, 2)
        error: float = squared.sum()
        # NaN where the output is not finite
        return is_wrong.sum() + 0 * error if self._is_exclusive else error

    def _move(self, move: Move, shard: int) -> None:
        """Let a shard's part of the gradients be followed."""
        at = 0
        for array in (array for pair in self.chain for array in pair):
            own = slices_of(array.size, self.shards)[shard]
            move(shard, slice(at + own.start, at + own.stop), array.ndim == 2)
            at += array.size

    def _draw_masks(self, epoch: int, step: int) -> None:
        """Draw a factor for each unit: 0, or what makes up for the units left out."""
        masks = self._buffers.masks
        if all(mask is None for mask in masks):
            return
        address = Address(self._dropout.seed, Purpose.DROPOUT, 0, epoch, step)
        draws: Any = self.backend.generator(address)
        for mask, share in zip(masks, self._shares, strict=True):
            if mask is not None:
                drawn = mask if mask.dtype == np.float32 else np.empty(mask.shape, np.float32)
                draws.random(out=drawn, dtype=np.float32)
                np.greater_equal(drawn, np.float32(share), out=mask)
                mask *= np.float32(1 / (1 - share))


def _stay(part: slice, is_weight: bool) -> list[Operation]:
    """Return nothing: the parameters stay where they are."""
    return []
