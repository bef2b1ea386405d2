"""The network that is fine-tuned: one flat vector of parameters, its gradient, and its step.

Everything a step touches is allocated before the first one. The parameters are one flat vector, so
that an optimizer knows nothing of layers; each weight and bias is a view of it, and so is each
gradient.

For minibatches that always lie in the same arrays, the step is also a program: the same operations
by the same slices, up through the layers and down again.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from functools import partial
from typing import Any, Protocol

import numpy as np

from syncpretrain.backends.base import Backend
from syncpretrain.backends.fused_tuning import FusedTuning, Rule
from syncpretrain.backends.numpy_backend import NumpyBackend
from syncpretrain.finetuning.chain import Affine, Dropout, places_of, views
from syncpretrain.finetuning.trainable import Follow, Move
from syncpretrain.finetuning.whole_steps import whole_step
from syncpretrain.kernels.activations import affine
from syncpretrain.kernels.arrays import Array, ordered_sum, slices_of
from syncpretrain.kernels.backprop import Pair, delta_below, forward, output_delta, weight_gradient
from syncpretrain.kernels.conditions import as_documents
from syncpretrain.kernels.losses import count_errors, loss_of, squared_error
from syncpretrain.kernels.operations import Operation, output_operations
from syncpretrain.kernels.precision import Precision
from syncpretrain.kernels.program import Phase, PhaseRunner, Program, in_turn
from syncpretrain.rng import Address, Purpose
from syncpretrain.units.kinds import kind_of

__all__ = ["Network", "network_program"]


class Network:
    """A chain of layers, trained so that its output comes near to a target.

    Parameters
    ----------
    chain : sequence of Affine
        Initial weights of shape (fan in, fan out) and biases of shape (fan out,). They are copied,
        and all arithmetic has their type, float32 or float64, except the products: these have the
        precision of the first layer.
    loss : str
        "squared", or "cross-entropy" of a last layer of bernoulli or softmax units.
    batch_size : int
        The most examples that a minibatch can have.
    dropout : Dropout, optional
    shards : int
        Number of parts that the units of each layer are dealt into, for workers to share.
    backend : Backend, optional
        Backend of its arrays; on a device errors are arrays too, not synchronized.

    Attributes
    ----------
    parameters, gradients : ndarray of shape (n_parameters,)
        In the order of the chain; weight, then bias. On a device with gaps of zeros, see
        :class:`syncpretrain.learners.base.Places`.
    chain, chain_gradients : list of (weight, bias)
        Views of ``parameters`` and of ``gradients``.
    """

    splits_examples = False  # programs are not supported with shards of examples
    weights: Array | None = None

    def __init__(
        self,
        chain: Sequence[Affine],
        *,
        loss: str,
        batch_size: int,
        dropout: Dropout | None = None,
        shards: int = 1,
        backend: Backend | None = None,
    ) -> None:
        self.backend = backend = backend or NumpyBackend()
        kind = chain[0].weight.dtype
        places = places_of(chain, backend)
        self.starts, count = places.starts, places.starts[-1]
        self.units = [step.units for step in chain]
        self.precision = chain[0].product
        self.loss = loss
        self.parameters = backend.zeros(count, kind)
        self.gradients = backend.zeros(count, kind)
        self.chain = list(views(self.parameters, chain, places))
        self.chain_gradients = list(views(self.gradients, chain, places))
        self._dropout = dropout or Dropout()
        shapes = [(batch_size, len(step.bias)) for step in chain]
        self.activations = [backend.empty(shape, kind) for shape in shapes]
        self.deltas = [backend.empty(shape, kind) for shape in shapes]
        # What each layer reads: the data, then the activations below, with units left out.
        shapes = [(batch_size, len(chain[0].weight)), *shapes[:-1]]
        shares = [self._dropout.input] + [self._dropout.hidden] * (len(chain) - 1)
        self.masks = [
            backend.empty(shape) if share else None
            for shape, share in zip(shapes, shares, strict=True)
        ]
        self._shares = shares
        self.inputs = [
            backend.empty(shape, kind) if share else None
            for shape, share in zip(shapes, shares, strict=True)
        ]
        self.shards, self.shard_number = shards, 0
        self.reads = [slices_of(len(weight), shards) for weight, _ in self.chain]
        self.owns = [slices_of(len(bias), shards) for _, bias in self.chain]
        self._is_exclusive = kind_of(self.units[-1]).is_exclusive
        if self._is_exclusive or kind_of(self.units[-1]).blocks is not None:  # need one another
            self.owns[-1] = [slice(0, len(self.chain[-1][1])), *[slice(0, 0)] * (shards - 1)]
        self._squared = [0.0] * shards
        self._wrong: float | None = None
        self._phases = self._plan()
        for mine, given in zip(self.chain, chain, strict=True):
            np.copyto(mine[0], backend.asarray(given.weight))
            np.copyto(mine[1], backend.asarray(given.bias))

    def gradient(self, x: Array, target: Array, *, epoch: int = 0, step: int = 0) -> float:
        """Fill the gradients of the loss on a minibatch of shape (B, inputs).

        ``target`` has shape (B, outputs); ``epoch`` and ``step`` are the address of what dropout
        draws.

        Returns
        -------
        float
            The error summed over the examples: squared, or 1 for each wrong class; NaN where the
            output is not finite.
        """
        with np.errstate(over="ignore", invalid="ignore"):  # the caller checks the error
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
        examples: int | None = None,
    ) -> float:
        """Fill the gradients as :meth:`gradient` does, shard by shard, and let them be followed.

        Parameters
        ----------
        move : callable, optional
            Given a shard, a slice of the flat vectors and whether it is of weights, as soon as the
            gradient there is known and the parameters there are no longer needed.
        examples : int, optional
            Size of the whole minibatch, if these examples are a part of one; the gradient is then
            this part's share.
        run : callable
            Works the phases; see :mod:`syncpretrain.kernels.program`.
        """
        n = len(x)
        masks, buffers = self._drawn_masks(n, epoch, step), self.inputs
        self._minibatch = Minibatch(
            x,
            target,
            [buffer[:n] for buffer in self.activations],
            [buffer[:n] for buffer in self.deltas],
            masks or [None] * len(self.chain),
            [None if buffer is None else buffer[:n] for buffer in buffers],
            move,
            n / (examples or n),
        )
        run(self._phases, self.shards)
        squared, is_wrong = ordered_sum(self._squared[1:], self._squared[0]), self._wrong
        # NaN where the output is not finite, without a look at it, for which a device must wait
        return squared if is_wrong is None else is_wrong + 0 * squared

    def _plan(self) -> tuple[Phase, ...]:
        """Return the phases of a step: up through the layers, and down again."""
        layers = range(len(self.chain))
        first: list[Phase] = [] if self.masks[0] is None else [self._mask_input]
        up: list[Phase] = [partial(self._forward, layer) for layer in layers]
        down: list[Phase] = [partial(self._backward, layer) for layer in reversed(layers)]
        return (*first, *up, *down)

    def _mask_input(self, shard: int) -> None:
        at, own = self._minibatch, self.reads[0][shard]
        mask, out = at.masks[0], at.inputs[0]
        assert mask is not None and out is not None
        np.multiply(at.x[:, own], mask[:, own], out=out[:, own])

    def _forward(self, layer: int, shard: int) -> None:
        """Fill a part of a layer's activations; at the top, of its delta too."""
        at, own = self._minibatch, self.owns[layer][shard]
        if own.start == own.stop:
            return
        (weight, bias), units, out = self.chain[layer], self.units[layer], at.activations[layer]
        multiply = self.precision.multiply
        affine(at.read(layer), weight[:, own], bias[own], units, out=out[:, own], multiply=multiply)
        if layer + 1 == len(self.chain):
            target, y = at.target[:, own], as_documents(out[:, own], at.target, units)
            if self._is_exclusive and shard == 0:
                self._wrong = count_errors(target, y)
            delta = at.deltas[-1][:, own]
            options: dict[str, Any] = {"share": at.share, "sums": self.chain_gradients[-1][1][own]}
            self._squared[shard] = output_delta(target, y, units, self.loss, out=delta, **options)
            if self.weights is not None:
                delta *= self.weights[: len(delta), own]
                np.sum(delta, axis=0, out=options["sums"])
        elif (mask := at.masks[layer + 1]) is not None:
            read = at.inputs[layer + 1]
            assert read is not None
            np.multiply(out[:, own], mask[:, own], out=read[:, own])

    def _backward(self, layer: int, shard: int) -> None:
        """Fill a part of a layer's gradients, and delta and bias gradient below; let it follow."""
        at, reads, owns = self._minibatch, self.reads[layer][shard], self.owns[layer][shard]
        (weight, _), (dW, db) = self.chain[layer], self.chain_gradients[layer]
        delta = at.deltas[layer]
        multiply = self.precision.multiply
        weight_gradient(at.read(layer), delta, reads, out=dW, multiply=multiply)
        if layer:
            given = at.activations[layer - 1], self.units[layer - 1], at.masks[layer]
            out, sums = at.deltas[layer - 1], self.chain_gradients[layer - 1][1]
            delta_below(delta, weight, reads, *given, out=out, sums=sums, multiply=multiply)
        if at.move is not None:
            start, width = self.starts[layer], len(db)
            at.move(shard, slice(start + reads.start * width, start + reads.stop * width), True)
            start += weight.size
            at.move(shard, slice(start + owns.start, start + owns.stop), False)

    def program(self, x: Array, target: Array, follow: Follow) -> Program | None:
        """Return the compiled step on these arrays, if it is; see :func:`network_program`."""
        return None if self.splits_examples else network_program(self, x, target, follow)

    def whole(self, moments: tuple[Array, ...], rule: Rule) -> FusedTuning | None:
        """Return the step and its optimizer's as one of the device; see :func:`whole_step`."""
        return None if self.splits_examples else whole_step(self, moments, rule)

    def stepwise(
        self, program: Program, *, epoch: int, step: int, run: PhaseRunner = in_turn
    ) -> float:
        """Work a compiled step of :meth:`program`; return what :meth:`step` does."""
        self._drawn_masks(0, epoch, step)
        run(program, self.shards)
        squared = float(program.results[:-1].sum())
        return program.results[-1] + 0 * squared if self._is_exclusive else squared

    def loss_of(self, x: Array, target: Array, *, epoch: int = 0, step: int = 0) -> float:
        """Return the loss that :meth:`gradient` differentiates, with the same units left out."""
        n = len(x)
        y = forward(
            x,
            self.chain,
            self.units,
            out=[buffer[:n] for buffer in self.activations],
            masks=self._drawn_masks(n, epoch, step),
            inputs=[None if buffer is None else buffer[:n] for buffer in self.inputs],
            multiply=self.precision.multiply,
        )
        as_documents(y, target, self.units[-1])
        return loss_of(target, y, self.units[-1], self.loss, self.weights) / n

    def error(self, X: Array, target: Array) -> float:
        """Return the mean error of the rows of X: squared, or the share of wrong classes."""
        total, size = 0.0, len(self.activations[0])
        with np.errstate(over="ignore", invalid="ignore"):
            for start in range(0, len(X), size):
                x, t = X[start : start + size], target[start : start + size]
                y = forward(x, self.chain, self.units, out=[a[: len(x)] for a in self.activations])
                as_documents(y, t, self.units[-1])
                if self._is_exclusive:
                    total += count_errors(t, y)
                else:
                    total += squared_error(t, y, out=y)
        return float(total) / len(X)

    def _drawn_masks(self, n: int, epoch: int, step: int) -> list[Array | None]:
        """Draw a factor for each unit: 0, or what makes up for the units left out."""
        if all(mask is None for mask in self.masks):
            return []
        draws = self.backend.generator(
            Address(self._dropout.seed, Purpose.DROPOUT, 0, epoch, step, self.shard_number)
        )
        for mask, share in zip(self.masks, self._shares, strict=True):
            if mask is not None:
                draws.random(out=mask, dtype=np.float32)
                np.greater_equal(mask, np.float32(share), out=mask)
                mask *= np.float32(1 / (1 - share))
        return [None if mask is None else mask[:n] for mask in self.masks]


@dataclass(slots=True)
class Minibatch:
    """The arrays that the phases of a step share."""

    x: Array
    target: Array
    activations: list[Array]
    deltas: list[Array]
    masks: list[Array | None]
    inputs: list[Array | None]  # with units left out
    move: Move | None
    share: float

    def read(self, layer: int) -> Array:
        """Return the input of a layer."""
        dropped = self.inputs[layer]
        if dropped is not None:
            return dropped
        return self.activations[layer - 1] if layer else self.x


class _Dense(Protocol):
    """The arrays of a dense network, and how they are dealt to shards."""

    backend: Backend
    shards: int
    loss: str
    precision: Precision
    parameters: Array
    units: list[str]
    starts: list[int]
    chain: list[Pair]
    chain_gradients: list[Pair]
    reads: list[list[slice]]
    owns: list[list[slice]]
    activations: list[Array]
    deltas: list[Array]
    masks: list[Array | None]
    inputs: list[Array | None]
    weights: Array | None


class _Steps:
    """The operations of one network on minibatches in given arrays."""

    def __init__(self, network: _Dense, x: Array, target: Array, follow: Follow) -> None:
        n = len(x)
        self.network, self.target, self.follow, self.n = network, target, follow, n
        self.activations = [a[:n] for a in network.activations]
        self.deltas = [delta[:n] for delta in network.deltas]
        self.masks = [None if mask is None else mask[:n] for mask in network.masks]
        self.inputs = [None if read is None else read[:n] for read in network.inputs]
        self.x = x

    def read(self, layer: int) -> Array:
        """Return the input of a layer."""
        dropped = self.inputs[layer]
        if dropped is not None:
            return dropped
        return self.activations[layer - 1] if layer else self.x

    def drop(self, layer: int, x: Array, own: slice) -> list[Operation]:
        """Leave units out of what a layer reads."""
        mask, out = self.masks[layer], self.inputs[layer]
        if mask is None or out is None:
            return []
        return [("multiply", x[:, own], mask[:, own], out[:, own])]

    def forward(self, layer: int, shard: int) -> list[Operation]:
        """Fill a part of a layer's activations; at the top, of its delta too."""
        network, own = self.network, self.network.owns[layer][shard]
        if own.start == own.stop:
            return []
        (weight, bias), units = network.chain[layer], network.units[layer]
        out = self.activations[layer][:, own]
        product = network.precision.operation
        operations: list[Operation] = [(product, self.read(layer), weight[:, own], out)]
        if kind_of(units).is_exclusive:
            operations += [("means", out, bias[own], "gaussian"), ("softmax", out)]
        else:
            operations += [("means", out, bias[own], units)]
        if layer + 1 < len(network.chain):
            return operations + self.drop(layer + 1, self.activations[layer], own)
        target, delta = self.target[:, own], self.deltas[layer][:, own]
        weights = None if network.weights is None else network.weights[: self.n, own]
        return operations + output_operations(
            *(target, out, delta, weights, units, network.loss),
            examples=self.n,
            squared=shard,
            wrong=network.shards,
        )

    def backward(self, layer: int, shard: int) -> list[Operation]:
        """Fill a part of a layer's gradients, and of delta below; follow them."""
        network = self.network
        reads, owns = network.reads[layer][shard], network.owns[layer][shard]
        (weight, _), (dW, db) = network.chain[layer], network.chain_gradients[layer]
        delta, start = self.deltas[layer], network.starts[layer]
        operations: list[Operation] = []
        product = network.precision.operation
        if reads.start < reads.stop:
            operations += [(product, self.read(layer)[:, reads].T, delta, dW[reads])]
            if layer:
                below = self.deltas[layer - 1][:, reads]
                operations += [(product, delta, weight[reads].T, below)]
                mask = self.masks[layer]
                if mask is not None:
                    operations += [("multiply", below, mask[:, reads], below)]
                a, units = self.activations[layer - 1][:, reads], network.units[layer - 1]
                operations += [("times_derivative", below, a, units)]
            part = slice(start + reads.start * len(db), start + reads.stop * len(db))
            operations += self.follow(part, True)
        if owns.start < owns.stop:
            operations += [("sum_rows", delta[:, owns], db[owns])]
            start += weight.size
            operations += self.follow(slice(start + owns.start, start + owns.stop), False)
        return operations


def network_program(network: _Dense, x: Array, target: Array, follow: Follow) -> Program | None:
    """Return the compiled step on the minibatch that lies in ``x`` and ``target``.

    None where programs are not supported or not compiled. ``follow`` returns the operations of the
    optimizer. The results are the squared errors of the shards, and how many classes are wrong.
    """
    if network.backend.name != "numpy":
        return None
    if {x.dtype, network.parameters.dtype} != {np.dtype("f4")}:
        return None
    if kind_of(network.units[-1]).blocks is not None:
        return None
    steps, shards = _Steps(network, x, target, follow), range(network.shards)
    layers = range(len(network.chain))
    first = [[steps.drop(0, x, network.reads[0][shard]) for shard in shards]]
    up = [[steps.forward(layer, shard) for shard in shards] for layer in layers]
    down = [[steps.backward(layer, shard) for shard in shards] for layer in reversed(layers)]
    phases = (first if network.masks[0] is not None else []) + up + down
    program = Program(phases, network.shards + 1)
    return program if program.is_compiled else None
