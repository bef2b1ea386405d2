"""Model parallelism inside an RBM: each shard owns some of its hidden and visible units.

As the columns of Yadan et al. 2013, in shared memory. A shard computes its hidden units of all
examples, then its visible ones, and moves the weights of its visible units itself: no gradient is
exchanged. It serves small minibatches, where averaging costs most beside the products.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np
from numpy.typing import NDArray

from syncpretrain.backends.draws import Address, Purpose
from syncpretrain.kernels.activations import affine, means
from syncpretrain.kernels.contrastive_divergence import draw_states, phase_differences
from syncpretrain.kernels.errors import squared_error
from syncpretrain.learners.sharding import Phase, Run, cuts

if TYPE_CHECKING:
    from syncpretrain.learners.rbm import RBM

__all__ = ["ByUnits"]

Array = NDArray[np.float32]


class ByUnits:
    """Contrastive divergence with the units of an RBM dealt out to shards.

    Parameters
    ----------
    rbm : RBM
        Without persistent chains, sparsity or dropout.
    shards : int
    """

    def __init__(self, rbm: RBM, shards: int) -> None:
        self._rbm = rbm
        rows, (visible, hidden) = rbm.batch_size, rbm.weight.shape
        self._visible, self._hidden = cuts(visible, shards), cuts(hidden, shards)
        self._shards = shards
        self._v = np.empty((2 * rows, visible), dtype=np.float32)  # v0 above v1
        self._h = np.empty((2 * rows, hidden), dtype=np.float32)  # h0 above h1
        self._states = np.empty((rows, hidden), dtype=np.float32)
        self._noise = [_scratch(rows, own) for own in self._hidden]
        self._difference = [_scratch(rows, own) for own in self._visible]
        self._errors = [0.0] * shards
        self._phases = self._plan()

    def train_step(
        self, X: Array, rows: NDArray[np.intp], *, epoch: int, step: int, run: Run
    ) -> float:
        """Train on some rows of X; return their summed squared reconstruction error."""
        self._X, self._rows, self._epoch, self._step = X, rows, epoch, step
        self._n = len(rows)
        run(self._phases, self._shards)
        return sum(self._errors)

    def memory(self) -> dict[str, Array]:
        """Return nothing: the units remember nothing from one minibatch to the next."""
        return {}

    def restart(self) -> None:
        """Do nothing."""

    def _plan(self) -> tuple[Phase, ...]:
        first, *others = range(self._rbm.settings.cd_steps)
        gibbs: list[Phase] = [self._draw(first), self._down]
        for k in others:
            gibbs += [self._draw(k), self._down]
        return (self._gather, *gibbs, self._up, self._move)

    def _gather(self, shard: int) -> None:
        """Copy a part of the examples."""
        own = cuts(self._n, self._shards)[shard]
        np.take(self._X, self._rows[own], axis=0, out=self._v[: self._n][own], mode="clip")

    def _draw(self, k: int) -> Phase:
        """Return the phase that draws a part of the hidden states for the k-th way down."""
        rbm = self._rbm

        def draw(shard: int) -> None:
            n, own = self._n, self._hidden[shard]
            half = slice(n, 2 * n) if k else slice(n)
            inputs, shard_of_k = self._h[half, own], shard | k << 32
            np.matmul(self._v[half], rbm.weight[:, own], out=inputs)
            draw_states(
                inputs,
                rbm.hidden_bias[own],
                rbm.settings.hidden_units,
                Address(rbm.seed, Purpose.HIDDEN, rbm.layer, self._epoch, self._step, shard_of_k),
                noise=self._noise[shard][:n],
                out=self._states[:n, own],
            )

        return draw

    def _down(self, shard: int) -> None:
        """Reconstruct a part of the visible units."""
        rbm, n, own = self._rbm, self._n, self._visible[shard]
        v1, difference = self._v[n : 2 * n, own], self._difference[shard][:n]
        weight, bias = rbm.weight[own].T, rbm.visible_bias[own]
        affine(self._states[:n], weight, bias, rbm.settings.visible_units, out=v1)
        self._errors[shard] = squared_error(self._v[:n, own], v1, out=difference)

    def _up(self, shard: int) -> None:
        """Find a part of the hidden means of the reconstruction."""
        rbm, n, own = self._rbm, self._n, self._hidden[shard]
        h1 = self._h[n : 2 * n, own]
        np.matmul(self._v[n : 2 * n], rbm.weight[:, own], out=h1)
        means(h1, rbm.hidden_bias[own], rbm.settings.hidden_units)

    def _move(self, shard: int) -> None:
        """Move the weights of a part of the visible units, and both parts' biases."""
        rbm, n = self._rbm, self._n
        visible, hidden = self._visible[shard], self._hidden[shard]
        v, h = self._v[: 2 * n, visible], self._h[: 2 * n]
        dW, da, db = rbm.gradients
        phase_differences(v, h[:, hidden], da=da[visible], db=db[hidden], examples=n)
        np.matmul(v.T, h, out=dW[visible])
        width = dW.shape[1]
        weights = slice(visible.start * width, visible.stop * width)
        for i, own in enumerate((weights, visible, hidden)):
            rbm.move(i, own, rbm.gradients[i].reshape(-1)[own], epoch=self._epoch)


def _scratch(rows: int, own: slice) -> Array:
    return np.empty((rows, own.stop - own.start), dtype=np.float32)
