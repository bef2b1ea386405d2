"""The unrolled autoencoder under training: one flat vector of parameters and its optimizer.

Everything a step touches is allocated before the first one. The parameters are one flat vector,
so that an optimizer knows nothing of layers; each weight and bias is a view of it, and so are
their gradients.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence

import numpy as np
from numpy.typing import NDArray

from syncpretrain.kernels.backprop import Pair, backward, forward, output_delta
from syncpretrain.kernels.errors import squared_error
from syncpretrain.kernels.optimizers import BLOCK, adam_step, sgd_step

__all__ = ["UnrolledAutoencoder"]

Array = NDArray[np.float32]


class UnrolledAutoencoder:
    """A chain of sigmoid layers whose output is to be its input.

    A step is ``gradient(x)``, then ``update()``; neither allocates arrays of a layer's size.

    Parameters
    ----------
    chain : sequence of (weight of shape (fan in, fan out), bias of shape (fan out,))
        Where the parameters start, from the input to the reconstruction; they are copied.
    batch_size : int
        The most examples that a minibatch can have.
    optimizer : "adam" or "sgd"
    learning_rate : float

    Attributes
    ----------
    parameters, gradients : ndarray of shape (n_parameters,), float32
        In the order of the chain; weight, then bias.
    chain : list of (weight, bias)
        Views of ``parameters``.
    steps : int
        Updates so far.
    """

    def __init__(
        self, chain: Sequence[Pair], *, batch_size: int, optimizer: str, learning_rate: float
    ) -> None:
        count = sum(weight.size + bias.size for weight, bias in chain)
        self.learning_rate = learning_rate
        self.steps = 0
        self.parameters = np.zeros(count, dtype=np.float32)
        self.gradients = np.zeros(count, dtype=np.float32)
        self.chain = list(_views(self.parameters, chain))
        self._chain_gradients = list(_views(self.gradients, chain))
        self._moments = np.zeros((2 if optimizer == "adam" else 0, count), dtype=np.float32)
        self._scratch = np.empty(min(BLOCK, count), dtype=np.float32)
        shapes = [(batch_size, len(bias)) for _, bias in chain]
        self._activations = [np.empty(shape, dtype=np.float32) for shape in shapes]
        self._deltas = [np.empty(shape, dtype=np.float32) for shape in shapes]
        for mine, given in zip(self.chain, chain, strict=True):
            np.copyto(mine[0], given[0])
            np.copyto(mine[1], given[1])

    def gradient(self, x: Array) -> float:
        """Fill the gradients of the loss on a minibatch of shape (B, inputs).

        Returns the squared error, summed over its units and examples.
        """
        activations = [buffer[: len(x)] for buffer in self._activations]
        deltas = [buffer[: len(x)] for buffer in self._deltas]
        with np.errstate(over="ignore", invalid="ignore"):  # the caller checks the error
            y = forward(x, self.chain, out=activations)
            error = output_delta(x, y, out=deltas[-1])
            backward(x, self.chain, activations, deltas, out=self._chain_gradients)
        return error

    def update(self) -> None:
        """Take the optimizer's step along the gradients."""
        self.steps += 1
        vectors, rate, scratch = (
            (self.parameters, self.gradients),
            self.learning_rate,
            self._scratch,
        )
        with np.errstate(over="ignore", invalid="ignore"):
            if len(self._moments):
                first, second = self._moments
                adam_step(
                    *vectors, first, second, step=self.steps, learning_rate=rate, scratch=scratch
                )
            else:
                sgd_step(*vectors, learning_rate=rate, scratch=scratch)

    def error(self, X: Array) -> float:
        """Return the squared error summed over units, averaged over the examples of X."""
        total, size = 0.0, len(self._activations[0])
        with np.errstate(over="ignore", invalid="ignore"):
            for start in range(0, len(X), size):
                x = X[start : start + size]
                y = forward(x, self.chain, out=[a[: len(x)] for a in self._activations])
                total += squared_error(x, y, out=y)
        return total / len(X)


def _views(vector: Array, chain: Sequence[Pair]) -> Iterator[Pair]:
    """Cut a flat vector into arrays of the shapes of a chain."""
    at = 0
    for weight, bias in chain:
        middle, end = at + weight.size, at + weight.size + bias.size
        yield vector[at:middle].reshape(weight.shape), vector[middle:end]
        at = end
