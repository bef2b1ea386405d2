"""The network that is fine-tuned: one flat vector of parameters, and its gradient.

Everything a step touches is allocated before the first one. The parameters are one flat vector,
so that an optimizer knows nothing of layers; each weight and bias is a view of it, and so are
their gradients.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from syncpretrain.backends.draws import Purpose, generator
from syncpretrain.kernels.backprop import Pair, backward, forward, output_delta
from syncpretrain.kernels.errors import cross_entropy, squared_error, wrong

__all__ = ["Dropout", "Network", "Step"]

Array = NDArray[np.float32]


@dataclass(frozen=True, slots=True)
class Step:
    """One layer of a chain: the means of ``units`` whose input is x W + b."""

    weight: Array
    bias: Array
    units: str


@dataclass(frozen=True, slots=True)
class Dropout:
    """Shares of the inputs and of the hidden units left out of each example (Hinton et al. 2012).

    Those that stay are scaled up, so that nothing is to be scaled when all are there.
    """

    input: float = 0.0
    hidden: float = 0.0
    seed: int = 0


class Network:
    """A chain of layers, trained so that its output comes near to a target.

    Parameters
    ----------
    chain : sequence of Step
        Weights of shape (fan in, fan out), biases of shape (fan out,); where the parameters
        start. They are copied, and their type, float32 or float64, is that of all arithmetic.
    loss : str
        "squared", or "cross-entropy" of a last layer of bernoulli or softmax units.
    batch_size : int
        The most examples that a minibatch can have.
    dropout : Dropout, optional

    Attributes
    ----------
    parameters, gradients : ndarray of shape (n_parameters,)
        In the order of the chain; weight, then bias.
    chain, chain_gradients : list of (weight, bias)
        Views of ``parameters`` and of ``gradients``.
    """

    def __init__(
        self,
        chain: Sequence[Step],
        *,
        loss: str,
        batch_size: int,
        dropout: Dropout | None = None,
    ) -> None:
        kind = chain[0].weight.dtype
        count = sum(step.weight.size + step.bias.size for step in chain)
        self.units = [step.units for step in chain]
        self.loss = loss
        self.parameters = np.zeros(count, dtype=kind)
        self.gradients = np.zeros(count, dtype=kind)
        self.chain = list(_views(self.parameters, chain))
        self.chain_gradients = list(_views(self.gradients, chain))
        self._dropout = dropout or Dropout()
        shapes = [(batch_size, len(step.bias)) for step in chain]
        self._activations = [np.empty(shape, dtype=kind) for shape in shapes]
        self._deltas = [np.empty(shape, dtype=kind) for shape in shapes]
        # What each layer reads: the data, then the activations below, with units left out.
        shapes = [(batch_size, len(chain[0].weight)), *shapes[:-1]]
        shares = [self._dropout.input] + [self._dropout.hidden] * (len(chain) - 1)
        self._masks = [
            np.empty(shape, dtype=np.float32) if share else None
            for shape, share in zip(shapes, shares, strict=True)
        ]
        self._shares = shares
        self._inputs = [
            np.empty(shape, dtype=kind) if share else None
            for shape, share in zip(shapes, shares, strict=True)
        ]
        for mine, given in zip(self.chain, chain, strict=True):
            np.copyto(mine[0], given.weight)
            np.copyto(mine[1], given.bias)

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
        n = len(x)
        activations = [buffer[:n] for buffer in self._activations]
        deltas = [buffer[:n] for buffer in self._deltas]
        masks = self._drawn_masks(n, epoch, step)
        inputs = [None if buffer is None else buffer[:n] for buffer in self._inputs]
        with np.errstate(over="ignore", invalid="ignore"):  # the caller checks the error
            y = forward(x, self.chain, self.units, out=activations, masks=masks, inputs=inputs)
            is_wrong = wrong(target, y) if self.units[-1] == "softmax" else None
            squared = output_delta(target, y, self.units[-1], self.loss, out=deltas[-1])
            backward(
                x,
                self.chain,
                self.units,
                activations,
                deltas,
                out=self.chain_gradients,
                masks=masks,
                inputs=inputs,
            )
        return squared if is_wrong is None or not math.isfinite(squared) else is_wrong

    def loss_of(self, x: Array, target: Array, *, epoch: int = 0, step: int = 0) -> float:
        """Return the loss that :meth:`gradient` differentiates, with the same units left out."""
        n = len(x)
        y = forward(
            x,
            self.chain,
            self.units,
            out=[buffer[:n] for buffer in self._activations],
            masks=self._drawn_masks(n, epoch, step),
            inputs=[None if buffer is None else buffer[:n] for buffer in self._inputs],
        )
        if self.loss == "squared":
            return squared_error(target, y, out=y) / n
        return cross_entropy(target, y, self.units[-1]) / n

    def error(self, X: Array, target: Array) -> float:
        """Return the mean error of the rows of X: squared, or the share of wrong classes."""
        total, size = 0.0, len(self._activations[0])
        with np.errstate(over="ignore", invalid="ignore"):
            for start in range(0, len(X), size):
                x, t = X[start : start + size], target[start : start + size]
                y = forward(x, self.chain, self.units, out=[a[: len(x)] for a in self._activations])
                if self.units[-1] == "softmax":
                    total += wrong(t, y)
                else:
                    total += squared_error(t, y, out=y)
        return total / len(X)

    def _drawn_masks(self, n: int, epoch: int, step: int) -> list[Array | None]:
        """Draw which units stay, each 0 or the factor that makes up for those left out."""
        if all(mask is None for mask in self._masks):
            return []
        draws = generator(self._dropout.seed, Purpose.DROPOUT, epoch=epoch, step=step)
        for mask, share in zip(self._masks, self._shares, strict=True):
            if mask is not None:
                draws.random(out=mask, dtype=np.float32)
                np.greater_equal(mask, np.float32(share), out=mask)
                mask *= np.float32(1 / (1 - share))
        return [None if mask is None else mask[:n] for mask in self._masks]


def _views(vector: Array, chain: Sequence[Step]) -> Iterator[Pair]:
    """Cut a flat vector into arrays of the shapes of a chain."""
    at = 0
    for step in chain:
        middle, end = at + step.weight.size, at + step.weight.size + step.bias.size
        yield vector[at:middle].reshape(step.weight.shape), vector[middle:end]
        at = end
