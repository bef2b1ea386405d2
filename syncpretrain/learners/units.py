"""Model parallelism inside an RBM: each shard owns some of its hidden and visible units.

As the columns of Yadan et al. 2013, in shared memory. A shard computes its hidden units of all
examples, then its visible ones, and moves the weights of its visible units itself: no gradient is
exchanged. It serves small minibatches, where averaging costs most beside the products.
"""

from __future__ import annotations

from functools import partial
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


class _Part:
    """What one shard works on in a minibatch of ``n`` examples: views, taken once.

    A step is some ms long, and in each of its phases the interpreter's lock passes from one worker
    to the next: what can be found out beforehand is.
    """

    def __init__(self, whole: ByUnits, n: int, visible: slice, hidden: slice) -> None:
        rbm, v, h = whole.rbm, whole.v[: 2 * n], whole.h[: 2 * n]
        self.inputs = h[:n, hidden], h[n:, hidden]  # of the data, of the reconstruction
        self.above = v[:n], v[n:]
        self.weight_up, self.hidden_bias = rbm.weight[:, hidden], rbm.hidden_bias[hidden]
        self.noise = np.empty((n, hidden.stop - hidden.start), dtype=np.float32)
        self.states, self.own_states = whole.states[:n], whole.states[:n, hidden]
        self.v0, self.v1 = v[:n, visible], v[n:, visible]
        self.weight_down, self.visible_bias = rbm.weight[visible].T, rbm.visible_bias[visible]
        self.difference = np.empty((n, visible.stop - visible.start), dtype=np.float32)
        self.v, self.h, self.own_h = v[:, visible], h, h[:, hidden]
        dW, da, db = rbm.gradients
        self.dW, self.da, self.db = dW[visible], da[visible], db[hidden]
        width = dW.shape[1]
        weights = slice(visible.start * width, visible.stop * width)
        self.moves = [
            (i, own, rbm.gradients[i].reshape(-1)[own])
            for i, own in enumerate((weights, visible, hidden))
        ]


class ByUnits:
    """Contrastive divergence with the units of an RBM dealt out to shards.

    Parameters
    ----------
    rbm : RBM
        Without persistent chains, sparsity or dropout.
    shards : int
    """

    def __init__(self, rbm: RBM, shards: int) -> None:
        self.rbm = rbm
        rows, (visible, hidden) = rbm.batch_size, rbm.weight.shape
        self.v = np.empty((2 * rows, visible), dtype=np.float32)  # v0 above v1
        self.h = np.empty((2 * rows, hidden), dtype=np.float32)  # h0 above h1
        self.states = np.empty((rows, hidden), dtype=np.float32)
        self._cuts = list(zip(cuts(visible, shards), cuts(hidden, shards), strict=True))
        self._known: dict[int, list[_Part]] = {}  # by the size of a minibatch
        self._errors = [0.0] * shards
        first, *others = range(rbm.settings.cd_steps)
        gibbs: list[Phase] = [partial(self._draw, first), self._down]
        for k in others:
            gibbs += [partial(self._draw, k), self._down]
        self._phases: tuple[Phase, ...] = (*gibbs, self._up, self._move)

    def train_step(
        self, X: Array, rows: NDArray[np.intp], *, epoch: int, step: int, run: Run
    ) -> float:
        """Train on some rows of X; return their summed squared reconstruction error."""
        n = len(rows)
        if n not in self._known:
            self._known[n] = [_Part(self, n, *own) for own in self._cuts]
        self._parts, self._n, self._epoch, self._step = self._known[n], n, epoch, step
        np.take(X, rows, axis=0, out=self.v[:n], mode="clip")  # "raise" would buffer
        run(self._phases, len(self._parts))
        return sum(self._errors)

    def memory(self) -> dict[str, Array]:
        """Return nothing: the units remember nothing from one minibatch to the next."""
        return {}

    def restart(self) -> None:
        """Do nothing."""

    def _draw(self, k: int, shard: int) -> None:
        """Draw a part of the hidden states for the k-th way down."""
        rbm, part, half = self.rbm, self._parts[shard], 1 if k else 0
        np.matmul(part.above[half], part.weight_up, out=part.inputs[half])
        place = Address(
            rbm.seed, Purpose.HIDDEN, rbm.layer, self._epoch, self._step, shard | k << 32
        )
        draw_states(
            part.inputs[half],
            part.hidden_bias,
            rbm.settings.hidden_units,
            place,
            noise=part.noise,
            out=part.own_states,
        )

    def _down(self, shard: int) -> None:
        """Reconstruct a part of the visible units."""
        part, units = self._parts[shard], self.rbm.settings.visible_units
        affine(part.states, part.weight_down, part.visible_bias, units, out=part.v1)
        self._errors[shard] = squared_error(part.v0, part.v1, out=part.difference)

    def _up(self, shard: int) -> None:
        """Find a part of the hidden means of the reconstruction."""
        part, h1 = self._parts[shard], self._parts[shard].inputs[1]
        np.matmul(part.above[1], part.weight_up, out=h1)
        means(h1, part.hidden_bias, self.rbm.settings.hidden_units)

    def _move(self, shard: int) -> None:
        """Move the weights of a part of the visible units, and both parts' biases."""
        part = self._parts[shard]
        phase_differences(part.v, part.own_h, da=part.da, db=part.db, examples=self._n)
        np.matmul(part.v.T, part.h, out=part.dW)
        for i, own, gradient in part.moves:
            self.rbm.move(i, own, gradient, epoch=self._epoch)
