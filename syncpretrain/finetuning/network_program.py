"""The step of a network that is fine-tuned, as a program: up through the layers, and down again.

The same operations as :meth:`syncpretrain.finetuning.network.Network.step`, by the same slices, for
minibatches that always lie in the same arrays.
"""

from __future__ import annotations

from typing import Protocol

import numpy as np

from syncpretrain.backends.base import Backend
from syncpretrain.finetuning.trainable import Follow
from syncpretrain.kernels.arrays import Array
from syncpretrain.kernels.backprop import Pair
from syncpretrain.kernels.operations import Operation, output_operations
from syncpretrain.kernels.precision import Precision
from syncpretrain.kernels.program import Program
from syncpretrain.units.kinds import kind_of

__all__ = ["network_program"]


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
        """Return what a layer reads."""
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
