"""An RBM that is trained on sparse rows, whose products leave the zeros out."""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

from syncpretrain.kernels.arrays import Array
from syncpretrain.kernels.binary_products import binary_product
from syncpretrain.kernels.sparse_products import sparse_product, transposed_product
from syncpretrain.learners.rbm import RBM
from syncpretrain.units.kinds import kind_of

__all__ = ["SparseRBM"]


class SparseRBM(RBM):
    """An RBM whose examples are mostly zeros; see :class:`RBM`.

    A minibatch is a dense array, but two of its five products, those with the data, are sparse.
    Documents, which are drawn, reconstructions that are sampled, and the states of persistent
    chains are sparse too: then only the product down to the visible units is dense. Of hidden
    states that are 0 or 1 it is a sum of weights, which are added several at once.
    """

    _reads_data = False  # the product up that comes next

    @property
    def _draws_states(self) -> bool:
        blocks = kind_of(self.settings.visible_units).blocks
        are_documents = blocks is not None and blocks.are_counts
        return are_documents or self.settings.sampled or self.settings.persistent

    def gradient(
        self,
        X: Array,
        rows: NDArray[np.intp],
        *,
        epoch: int,
        step: int,
        examples: int | None = None,
    ) -> float:
        """Fill the gradients; the first product is that with the data."""
        self._reads_data = True
        return super().gradient(X, rows, epoch=epoch, step=step, examples=examples)

    def _up(self, v: Array, *, out: Array) -> Array:
        reads_data, self._reads_data = self._reads_data, False
        if not (reads_data or self._draws_states):
            return super()._up(v, out=out)
        sparse_product(v, self.weight, out=out)
        return out

    def _down(self, h: Array, *, out: Array) -> Array:
        binary_product(h, self.weight, out=out)
        return out

    def _correlate(self, v: Array, h: Array, *, out: Array) -> None:
        if self._draws_states:
            transposed_product(v, h, out=out)
            return
        n = len(v) // 2
        super()._correlate(v[n:], h[n:], out=out)
        transposed_product(v[:n], h[:n], out=out, adds=True)
