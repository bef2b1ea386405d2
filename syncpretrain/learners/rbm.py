"""A restricted Boltzmann machine, trained by contrastive divergence or its persistent kind.

:class:`BaseRBM` has the chains and leaves the products to its subclasses: :class:`RBM` multiplies
dense rows, :class:`SparseRBM` rows that are mostly zeros.
"""

from __future__ import annotations

from abc import abstractmethod
from dataclasses import replace
from typing import Any

import numpy as np

from syncpretrain.kernels import activations, conditions
from syncpretrain.kernels import contrastive_divergence as cd
from syncpretrain.kernels.arrays import Array, Rows, slices_of
from syncpretrain.kernels.backprop import squared_error
from syncpretrain.learners.base import Learner
from syncpretrain.learners.first_layers import first_layer
from syncpretrain.models.layer import Layer
from syncpretrain.rng import Address, Purpose
from syncpretrain.settings.fields import LayerSettings
from syncpretrain.shapes import DenseShape, LayerShape
from syncpretrain.units.kinds import kind_of

INITIAL_SPREAD = 0.01  # standard deviation of the first weights (Hinton 2010, section 8)
ERROR_SHARE = 10  # one example in ten is reconstructed for the error of persistent chains
OFFSET_RATE = 0.01  # of the running means that are offsets (Melchior et al. 2016, section 5)


class BaseRBM(Learner):
    """An RBM of any shape: the chains of its gradient, without the products.

    Parameters
    ----------
    layer, first, settings
        As for :class:`Learner`.
    units : LayerShape
        The shape of the chains: its visible and hidden units.
    """

    model = "rbm"
    _fill_takes_means = False  # True if ``_fill`` replaces the inputs of h1 by means
    _is_counted = True  # False if the rows of a gradient only say the conditions of the chains

    def __init__(
        self, layer: int, first: Layer, settings: LayerSettings, units: LayerShape
    ) -> None:
        self._units = units
        # Activities are averaged over dropped units too; their means are 0.
        self._target = settings.sparsity_target * (1 - settings.hidden_dropout)
        super().__init__(layer, first, settings)
        self._sample = cd.sample_fixed if self.precision.name == "own" else cd.sample_states

    def _allocate(self, rows: int) -> None:
        visible, hidden = self._units.visible, self._units.hidden
        empty, zeros = self.backend.empty, self.backend.zeros
        if not self.settings.chains:
            self._states = zeros((rows, hidden))  # persistent chains start at 0
        elif self.shards == 1:
            self._states = zeros((self.settings.chains, hidden))
            self._now = replace(self._now, chains=self._states)
        else:  # a part of the chains, in the arrays of all
            own = slices_of(len(self._states), self.shards)[self.shard_number]
            self._states = self._states[own]
        self._has_begun = zeros(1)  # 1 once the chains have moved
        chains, most = len(self._states), max(rows, len(self._states))
        self._v = empty((rows + chains, visible))  # v0 above v1
        self._h = empty((rows + chains, hidden))  # h0 above h1
        self._noise = empty((most, hidden))
        self._difference = empty((most, visible))
        samples = self.settings.persistent or self.settings.sample_visible
        self._v1_inputs = empty((chains if samples else 0, visible))
        dropout = self.settings.hidden_dropout > 0
        self._kept = empty((rows, hidden) if dropout else (0, 0))

    def gradient(
        self, X: Array, rows: Rows, *, epoch: int, step: int, examples: float | None = None
    ) -> float:
        """Fill the gradients by contrastive divergence; return the error, of chains an estimate."""
        n, settings = len(rows), self.settings
        both = n + (len(self._states) if settings.chains else n)
        v, h = self._v[:both], self._h[:both]
        v0, h0 = v[:n], h[:n]
        self.backend.gather(X, rows, out=v0)
        self._known = conditions.conditions_of(v0, settings.visible_units, missing=settings.missing)
        if settings.sample_input:
            self._sample_input(v0, epoch, step)
        self._up(v0, out=h0)
        self._draw_dropout(epoch, step)
        chain = self._from_chains if settings.persistent else self._from_data
        error = chain(v, h, n, epoch=epoch, step=step)
        if not self._is_counted:
            v0.fill(0)
            h0.fill(0)
        self._own_weights = None if self.row_weights is None else self.row_weights[rows]
        if examples is None:
            self.take_mean_weight(rows)
        self._fill(v, h, n, examples or n)
        return error

    def gradient_without_rows(self, X: Array, rows: Rows, *, epoch: int, step: int) -> None:
        """Fill the gradients of a part that has none of the rows; its own chains move all the same.

        If rows have conditions, lengths of documents or missing values, these chains have the
        conditions of the first row.
        """
        if not self.settings.chains:
            super().gradient_without_rows(X, rows, epoch=epoch, step=step)
            return
        self._is_counted = False
        self.gradient(X, rows[:1], epoch=epoch, step=step, examples=len(rows))
        self._is_counted = True

    @property
    def buffers(self) -> tuple[Array, Array, Array, Array, Array]:
        """v0 above v1, h0 above h1, hidden states, their noise, and v0 - v1."""
        return self._v, self._h, self._states, self._noise, self._difference

    def _from_data(self, v: Array, h: Array, n: int, *, epoch: int, step: int) -> float:
        """Run CD-k from the data; documents are drawn, other visible units if asked for."""
        settings, error = self.settings, 0.0
        v0, v1, h1, states = v[:n], v[n:], h[n:], self._states[:n]
        inputs = h[:n]
        for k in range(settings.cd_steps):
            address = self.address(Purpose.HIDDEN, epoch, step, k)
            self._sample_hidden(inputs, address, out=states)
            self._drop(inputs, states)
            address = self.address(Purpose.VISIBLE, epoch, step, k)
            if settings.sample_visible:
                self._sample_visible(states, address, out=v1)
            else:
                self._down(states, out=v1)
                room = self._difference[:n] if k == settings.cd_steps - 1 else None
                own = (self._visible_biases(), v0, settings.visible_units, self._known)
                error = conditions.reconstruct(address, v1, *own, difference=room)
            self._up(v1, out=h1)
            inputs = h1
        if not self._fill_takes_means:
            self._take_means(h1)
            self._drop(h1)
        if settings.sample_visible:  # the error is the error of the means, not of their samples
            expected = conditions.impose(self._v1_inputs[:n], settings.visible_units, self._known)
            error = squared_error(v0, expected, out=self._difference[:n])
        return error

    def _from_chains(self, v: Array, h: Array, n: int, *, epoch: int, step: int) -> float:
        """Continue the chains (persistent CD), with visible states sampled too."""
        settings = self.settings
        v0, v1, h0, h1 = v[:n], v[n:], h[:n], h[n:]
        states = self._states[: len(h1)]
        if settings.chain_start == "data" and not self._has_begun[0]:
            address = self.address(Purpose.HIDDEN, epoch, step, settings.cd_steps)
            self._sample_hidden(h0[np.arange(len(states)) % n], address, out=states)
            self._has_begun.fill(1)
        self._take_means(h0)
        self._drop(h0)
        some = h0[::ERROR_SHARE] / np.float32(1 - settings.hidden_dropout)
        down = self._down(some, out=self.backend.empty((len(some), v0.shape[1])))
        known = None if self._known is None else self._known.of(slice(None, None, ERROR_SHARE))
        own = self._visible_biases(), v0[::ERROR_SHARE], settings.visible_units
        error = conditions.error_of_means(down, *own, known, out=down) * n / len(down)
        if settings.chains and self._known is not None:
            self._known = self._known.of(np.arange(len(states)) % n)
        for k in range(settings.cd_steps):
            self._sample_visible(states, self.address(Purpose.VISIBLE, epoch, step, k), out=v1)
            self._up(v1, out=h1)
            self._sample_hidden(h1, self.address(Purpose.HIDDEN, epoch, step, k), out=states)
            self._drop(h1, states)
        return error

    def _sample_input(self, v0: Array, epoch: int, step: int) -> None:
        """Replace means of binary units by states; values of other units are states."""
        draws = self.backend.generator(self.address(Purpose.INPUT, epoch, step))
        noise = draws.random(out=self._difference[: len(v0)], dtype="f4")
        kind = kind_of(self.settings.visible_units)
        parts = kind.blocks.parts if kind.blocks is not None else ()
        binary = [part.columns for part in parts if part.kind == "bernoulli"]
        for columns in [slice(None)] if kind.is_binary else binary:
            np.less(noise[:, columns], v0[:, columns], out=v0[:, columns])

    def _draw_dropout(self, epoch: int, step: int) -> None:
        dropout = self.settings.hidden_dropout
        if dropout:
            draws = self.backend.generator(self.address(Purpose.DROPOUT, epoch, step))
            kept = draws.random(out=self._kept, dtype="f4")
            np.greater_equal(kept, np.float32(dropout), out=kept)

    def _drop(self, means: Array, states: Array | None = None) -> None:
        """Leave units out of the means, and of states for the decoder, which are scaled up."""
        if len(self._kept):
            kept = self._kept[: len(means)]
            means *= kept
            if states is not None:
                states *= kept
                states /= np.float32(1 - self.settings.hidden_dropout)

    def _sample_hidden(self, inputs: Array, address: Address, *, out: Array) -> None:
        """Draw hidden states; replace the inputs, which are without bias, by means."""
        x, noise, states = map(self._by_bias, (inputs, self._noise[: len(out)], out))
        units = self.settings.hidden_units
        self._sample(x, self.hidden_bias, units, address, noise=noise, out=states)

    def _sample_visible(self, hidden: Array, address: Address, *, out: Array) -> None:
        """Draw visible states for hidden ones; leave their means, of words the shares, behind."""
        inputs, noise = self._v1_inputs[: len(out)], self._difference[: len(out)]
        self._down(hidden, out=inputs)
        biases, units = self._visible_biases(), self.settings.visible_units
        self._sample(inputs, biases, units, address, noise=noise, out=out)
        conditions.draw_words(out, units, noise, self._known)

    def _take_means(self, inputs: Array) -> None:
        """Replace the inputs of hidden units, which are without bias, by their means."""
        activations.means(self._by_bias(inputs), self.hidden_bias, self.settings.hidden_units)

    def _by_bias(self, hidden: Array) -> Array:
        """Return hidden units as an array of shape (..., biases), a view."""
        return hidden.reshape(-1, len(self.hidden_bias))

    @abstractmethod
    def _up(self, v: Array, *, out: Array) -> Array:
        """Fill ``out`` with the inputs of the hidden units without bias, and return it."""

    @abstractmethod
    def _down(self, h: Array, *, out: Array) -> Array:
        """Fill ``out`` with the inputs of the visible units without bias, and return it."""

    @abstractmethod
    def _visible_biases(self) -> Array:
        """Return the bias of each visible unit."""

    @abstractmethod
    def _fill(self, v: Array, h: Array, n: int, examples: float) -> None:
        """Fill the gradients from v0 above v1 and h0 above h1; ``v`` is scratch afterwards.

        The n rows of v0 and h0 are all ``examples`` of a minibatch, or a part of them.
        """

    def own_state(self) -> dict[str, Array]:
        """Return the persistent chains, if there are any, and whether they have left the data."""
        begun = {"has_begun": self._has_begun} if self.settings.chain_start == "data" else {}
        return {"chains": self._states} | begun if self.settings.persistent else {}

    def restart(self) -> None:
        """Start velocities and persistent chains anew."""
        super().restart()
        self._states.fill(0)
        self._has_begun.fill(0)


class RBM(BaseRBM):
    """One layer of ``visible`` to ``hidden`` units with shared weights; see :class:`Learner`."""

    def __init__(self, layer: int, visible: int, hidden: int, settings: LayerSettings) -> None:
        shape = DenseShape(visible, hidden)
        first = first_layer(layer, shape, settings, self.model, spread=INITIAL_SPREAD)
        self._fill_takes_means = not (settings.persistent or settings.hidden_dropout)
        super().__init__(layer, first, settings, first.shape)

    def _train(self, layer: Layer) -> None:
        super()._train(layer)
        if self.settings.centred:
            # Running means of visible and hidden units, and of 1: they begin at 0, as do Adam's,
            # and are divided by the last. They follow the means of a minibatch, which the shards
            # add up as they do gradients.
            self._offsets = np.zeros(sum(self.weight.shape) + 1, np.float32)
            self.parameters.append(self._offsets)
            self.gradients.append(np.zeros_like(self._offsets))

    def _allocate(self, rows: int) -> None:
        super()._allocate(rows)
        self._activity = self.backend.zeros(self._units.hidden)
        self._activity.fill(self._target)

    def hidden_means(self, n: int) -> Array | None:
        """Return the hidden means of the positive phase; None with dropout."""
        return None if self.settings.hidden_dropout else self._h[:n]

    def _up(self, v: Array, *, out: Array) -> Array:
        return self.precision.multiply(v, self.weight, out=out)  # (B, V) @ (V, H) -> (B, H)

    def _down(self, h: Array, *, out: Array) -> Array:
        return self.precision.multiply(h, self.weight.T, out=out)  # (B, H) @ (H, V) -> (B, V)

    def _correlate(self, v: Array, h: Array, *, out: Array) -> None:
        self.precision.multiply(v.T, h, out=out)  # (V, 2B) @ (2B, H) -> (V, H)

    def _visible_biases(self) -> Array:
        return self.visible_bias

    def _fill(self, v: Array, h: Array, n: int, examples: float) -> None:
        (dW, da, db, *_), settings = self.gradients, self.settings
        sums: dict[str, Any] = {"da": da, "db": db, "examples": examples}
        factors = self._factors(n, len(v) - n, examples)
        if factors is not None:
            cd.weighted_phases(v, h, factors, da=da, db=db)
        elif self._fill_takes_means:
            cd.means_and_differences(v, h, self.hidden_bias, settings.hidden_units, **sums)
        else:
            cd.phase_differences(v, h, **sums)
        self._correlate(v, h, out=dW)
        if settings.centred:
            shares = np.full(n, 1 / examples, np.float32) if factors is None else factors[:n]
            self._centre(v[:n], h[:n], shares, *self.gradients)
        if (cost := settings.sparsity_cost) and self._is_counted:
            own: dict[str, Any] = {"dW": dW, "db": db, "examples": examples}
            cd.sparsity_step(v[:n], h[:n], self._activity, target=self._target, cost=cost, **own)
        if kind_of(settings.visible_units).are_counts:
            db.fill(0)

    def weigh_rows(self, weights: Array) -> None:
        """Give each example a weight, 1 on average; see :meth:`Learner.weigh_rows`."""
        super().weigh_rows(weights)
        if self.row_weights is not None:
            self._fill_takes_means = False

    def _factors(self, n: int, chains: int, examples: float) -> Array | None:
        """Return the factor of each row of both phases; None where there is one for all."""
        weights, settings = self._own_weights, self.settings
        alike = not settings.chains or (n == chains and settings.chains == examples)
        if weights is None and alike:
            return None
        factors: Array = self.backend.empty(n + chains)
        factors[:n] = 1 / examples
        if weights is not None:
            factors[:n] *= weights
        # Chains that go on are all alike, and count together as the rows of the minibatch do; a
        # chain from the data has the weight of its row.
        share = self.mean_weight / settings.chains if settings.chains else None
        factors[n:] = -factors[:n] if share is None else -share
        return factors

    def _centre(
        self, v0: Array, h0: Array, shares: Array, dW: Array, da: Array, db: Array, seen: Array
    ) -> None:
        """Centre the gradient by the offsets so far; the first one stays plain.

        ``seen`` takes the means of these rows, by which the update moves the offsets.
        """
        visible, begun = len(da), self._offsets[-1]
        if begun:  # without hidden biases nothing can take the place of visible offsets
            has_bias = not kind_of(self.settings.visible_units).are_counts
            mu, lam = self._offsets[:visible] * has_bias / begun, self._offsets[visible:-1] / begun
            cd.centre(dW, da, db, mu, lam)
        cd.sum_rows(v0, out=seen[:visible])
        cd.sum_rows(h0 * shares[:, None], out=seen[visible:-1])
        seen[-1] = shares.sum() if self._is_counted else 0

    def update_slice(self, i: int, part: slice, gradient: Array, *, epoch: int) -> None:
        """Move a slice of the i-th parameter along its gradient, or of the offsets to the means."""
        if i < len(self._names):
            super().update_slice(i, part, gradient, epoch=epoch)
        else:
            self._offsets[part] += np.float32(OFFSET_RATE) * (gradient - self._offsets[part])

    def velocities(self) -> dict[str, Array]:
        """Return the velocity of each parameter by name, and the offsets, if there are any."""
        return super().velocities() | ({"offsets": self._offsets} if self.settings.centred else {})

    def own_state(self) -> dict[str, Array]:
        """Return the persistent chains and the mean activities, if there are any."""
        activity = {"activity": self._activity} if self.settings.sparsity_cost else {}
        return super().own_state() | activity

    def restart(self) -> None:
        """Start velocities, persistent chains and mean activities anew."""
        super().restart()
        self._activity.fill(self._target)


class SparseRBM(RBM):
    """An RBM for examples that are mostly zeros; see :class:`RBM`.

    A minibatch is a dense array, but two of its five products, the products with the data, are
    sparse.
    Documents, which are drawn, reconstructions that are sampled, and the states of persistent
    chains are sparse too: then only the product down to the visible units is dense. Of hidden
    states that are 0 or 1 it is a sum of weights, which are added several at once.
    """

    _reads_data = False  # the product up that comes next

    @property
    def _draws_states(self) -> bool:
        are_documents = kind_of(self.settings.visible_units).are_counts
        return are_documents or bool(self.settings.sample_visible or self.settings.persistent)

    def gradient(
        self, X: Array, rows: Rows, *, epoch: int, step: int, examples: float | None = None
    ) -> float:
        """Fill the gradients; the first product is with the data."""
        self._reads_data = True
        return super().gradient(X, rows, epoch=epoch, step=step, examples=examples)

    def _up(self, v: Array, *, out: Array) -> Array:
        reads_data, self._reads_data = self._reads_data, False
        if not (reads_data or self._draws_states):
            return super()._up(v, out=out)
        activations.sparse_product(v, self.weight, out=out)
        return out

    def _down(self, h: Array, *, out: Array) -> Array:
        activations.binary_product(h, self.weight, out=out)
        return out

    def _correlate(self, v: Array, h: Array, *, out: Array) -> None:
        if self._draws_states:
            activations.transposed_product(v, h, out=out)
            return
        n = len(v) // 2
        super()._correlate(v[n:], h[n:], out=out)
        activations.transposed_product(v[:n], h[:n], out=out, adds=True)
