"""A convolutional RBM with probabilistic max pooling (Lee et al. 2009)."""

from __future__ import annotations

from typing import Any

from syncpretrain.kernels.arrays import Array
from syncpretrain.kernels.contrastive_divergence import draw_noise
from syncpretrain.kernels.probabilistic_pooling import block_means, block_sums, draw_blocks
from syncpretrain.learners.convolutional_rbm import ConvolutionalRBM
from syncpretrain.learners.rbm import RBMSettings
from syncpretrain.rng import Address
from syncpretrain.shapes import ConvolutionShape

__all__ = ["ProbabilisticRBM", "convolutional_rbm"]


class ProbabilisticRBM(ConvolutionalRBM):
    """One convolutional layer of binary units, of which at most one in a block is on.

    What is handed up is the probability that one is. There is no dropout: units that are left out
    would have to be so before the others share the probability.
    """

    def hidden_means(self, n: int) -> Array | None:
        """Return the code of the positive phase."""
        return block_sums(self._h[:n], self._shape, out=self._code[:n])

    def _sample_hidden(self, inputs: Array, address: Address, *, out: Array) -> None:
        self._add_bias(inputs)
        noise = self._noise.reshape(-1)[: len(inputs) * self._shape.hidden]
        noise = noise.reshape(len(inputs), -1)
        draws: Any = self.backend.generator(address)
        draw_noise(draws, self.settings.hidden_units, out=noise)
        draw_blocks(inputs, noise, self._shape, out=out)

    def _take_means(self, inputs: Array) -> None:
        self._add_bias(inputs)
        block_means(inputs, self._shape)

    def _add_bias(self, inputs: Array) -> None:
        by_bias = self._by_bias(inputs)
        by_bias += self.hidden_bias


def convolutional_rbm(
    layer: int, shape: ConvolutionShape, settings: RBMSettings
) -> ConvolutionalRBM:
    """Return the learner of a layer, by the kind of its pooling."""
    kind = ProbabilisticRBM if shape.pooling == "prob" else ConvolutionalRBM
    return kind(layer, shape, settings)
