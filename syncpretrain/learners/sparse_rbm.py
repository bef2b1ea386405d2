"""An RBM that is trained on sparse rows, whose products leave the zeros out."""

from __future__ import annotations

from syncpretrain.kernels.arrays import Array
from syncpretrain.kernels.sparse_products import sparse_product, transposed_product
from syncpretrain.learners.rbm import RBM

__all__ = ["SparseRBM"]


class SparseRBM(RBM):
    """An RBM whose examples are mostly zeros; see :class:`RBM`.

    A minibatch is a dense array, but two of its five products, those with the data, are sparse.
    Reconstructions that are sampled, and the states of persistent chains, are sparse too: then only
    the product down to the visible units is dense.
    """

    def _up(self, v: Array, *, out: Array) -> Array:
        sparse_product(v, self.weight, out=out)
        return out

    def _correlate(self, v: Array, h: Array, *, out: Array) -> None:
        if self.settings.sampled or self.settings.persistent:
            transposed_product(v, h, out=out)
            return
        n = len(v) // 2
        transposed_product(v[n:], h[n:], out=out)
        transposed_product(v[:n], h[:n], out=out, adds=True)
