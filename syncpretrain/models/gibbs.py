"""Gibbs chains in an RBM, and in all RBMs of a stack: samples, and imputation of missing values.

By default, samples are the visible means at the end of chains in the top RBM, decoded to the input.
Samples of one level are states of the visible units of the RBM of that level.

In stacked tempering (Fernandez-de-Cossio-Diaz, Roussel, Cocco and Monasson 2024) there is a chain
at every level. The hidden units of level l and the visible units of level l + 1 are the same units,
h and v, and swap their states with the probability min(1, exp(-D)):

    D = Fh_l(v) - Fh_l(h) + Fv_{l+1}(h) - Fv_{l+1}(v)

Fh is the free energy of hidden states, with the visible units summed out; Fv is the free energy of
visible states. Both partition functions cancel. After a swap, the other side of both RBMs is drawn
anew, so that the joint distribution of all levels, a product of RBMs, stays as it is. The upper
levels are small and mix fast: a chain of level 1 gets far by going up and coming down again.

Imputation leaves out a row's missing values at first, as training does. Then it draws the lowest
RBM's hidden units and missing units in turn, while the observed units keep their values (clamped);
the result is the mean of the missing units, averaged over the last of these steps. The layers above
model the code and are not used. An autoencoder reconstructs the row once, with its missing values
left out as corruption leaves them out (Vincent et al. 2010): reconstructing the reconstruction was
further from the removed values.
"""

from __future__ import annotations

from collections.abc import Sequence
from itertools import pairwise

import numpy as np
from numpy.random import Generator
from numpy.typing import NDArray

from syncpretrain.errors import DataError
from syncpretrain.kernels.arrays import Array, blocks_in
from syncpretrain.kernels.conditions import Conditions, as_documents, conditions_of, impose
from syncpretrain.models.layer import DenseLayer, Layer, down_through, rows_at_once, up_through
from syncpretrain.models.likelihood import Doubles, drawn, has_energy, summed_out
from syncpretrain.units.kinds import kind_of

METHODS = ("gibbs", "stacked")


def sampled(
    layers: Sequence[Layer], start: Array | None, *, count: int, steps: int, draws: Generator
) -> Array:
    """Run chains in the top RBM, decode their ends down the layers; return prepared samples.

    Parameters
    ----------
    layers : sequence of Layer
        Layers from the lowest up.
    start : ndarray of shape (count, V) or None
        Prepared examples at which the chains start; None for noise.
    count, steps : int
    draws : Generator

    Raises
    ------
    DataError
        If the stack cannot have such chains.
    """
    check_finite(layers)
    top, below = _dense_rbm(layers[-1], "the top layer"), layers[:-1]
    _check_chains(top, start, count)
    if start is None:
        visible = draws.random((count, top.weight.shape[0]), dtype=np.float32)
    else:
        visible = up_through(below, start) if below else start
    states = as_states(visible, top.visible_units, draws)
    conditions = conditions_of(states, top.visible_units)  # documents keep their numbers of words
    for _ in range(steps):
        states, visible = gibbs_step(top, states, conditions, draws)
    if not below:
        return visible
    down = down_through(below, visible)
    return down if start is None else as_documents(down, start, below[0].visible_units)


def started(
    layers: Sequence[Layer],
    start: Array | None,
    *,
    level: int,
    method: str,
    count: int,
    draws: Generator,
    hidden: Array | None = None,
) -> Levels:
    """Return chains that are about to start.

    Parameters
    ----------
    layers : sequence of Layer
        Layers from the lowest up.
    start : ndarray of shape (count, V) or None
        Prepared examples at which the chains start; None for units without inputs.
    level : int
        The level to sample, from 1; stacked tempering has chains at all levels.
    method : str
        One of :data:`METHODS`.
    count : int
    draws : Generator
    hidden : ndarray of shape (count, H), optional
        Hidden states of the lowest of these levels, from which the chains go on.

    Raises
    ------
    DataError
        If the stack cannot have such chains.
    """
    check_finite(layers)
    rbms = levels_of(layers, level, method)
    _check_chains(rbms[0], start, count)
    if hidden is not None:
        states = drawn(_down(rbms[0], hidden), rbms[0].visible_units, None, draws)
        return Levels(rbms, states, draws)
    if start is None:
        return Levels(rbms, count, draws)
    visible = up_through(layers[: level - 1], start) if method == "gibbs" and level > 1 else start
    return Levels(rbms, as_states(visible, rbms[0].visible_units, draws), draws)


class Levels:
    """Chains in one RBM, or at every level of a stack, which swap states with the level above.

    Parameters
    ----------
    rbms : sequence of DenseLayer
        One RBM, or the RBMs of a stack from the lowest up, as :func:`levels_of` returns them.
    visible : ndarray of shape (chains, V), or int
        States of the lowest visible units at which the chains start, which set the other levels
        too; or a number of chains, which start at units without inputs.
    draws : Generator

    Attributes
    ----------
    visible, hidden : list of ndarray
        States of each level, of shape (chains, V) and (chains, H).
    tried, accepted : ndarray of int
        Swaps of each pair of levels, the lowest pair first.
    """

    def __init__(self, rbms: Sequence[DenseLayer], visible: Array | int, draws: Generator) -> None:
        self.rbms, self._draws = list(rbms), draws
        self.visible, self.hidden = list[Array](), list[Array]()
        lowest = self.rbms[0].visible_units
        self._conditions = None if isinstance(visible, int) else conditions_of(visible, lowest)
        below, is_start = visible, not isinstance(visible, int)
        for rbm in self.rbms:
            if isinstance(below, int):
                below = self._drawn(np.zeros((below, len(rbm.weight)), np.float32), rbm, up=False)
            self.visible.append(below)
            self.hidden.append(self._drawn(_up(rbm, below), rbm))
            below = self.hidden[-1] if is_start else len(below)
        pairs = list(range(len(self.rbms) - 1))
        self._turns = [own for own in (pairs[::2], pairs[1::2]) if own] or [[]]
        self._steps = 0
        self.tried, self.accepted = np.zeros((2, len(pairs)), dtype=np.int64)

    @property
    def acceptance(self) -> list[float]:
        """The share of accepted swaps of each pair of levels, the lowest pair first."""
        return [float(x) for x in self.accepted / np.maximum(self.tried, 1)]

    def run(self, steps: int) -> None:
        """Make some steps."""
        for _ in range(steps):
            self.step()

    def step(self) -> None:
        """Swap every second pair of levels, the others in the next step; draw all units anew."""
        swapped = self._turns[self._steps % len(self._turns)]
        self._steps += 1
        for pair in swapped:
            self._swap(pair)
        for level, rbm in enumerate(self.rbms):
            if level not in swapped:  # a lower level of a pair has drawn its hidden units last
                if level - 1 not in swapped:
                    self.hidden[level] = self._drawn(_up(rbm, self.visible[level]), rbm)
                self.visible[level] = self._drawn(_down(rbm, self.hidden[level]), rbm, up=False)

    def _swap(self, pair: int) -> None:
        """Swap h of one level and v of the next; draw v of the one and h of the other anew."""
        lower, upper = self.rbms[pair : pair + 2]
        h, v = self.hidden[pair], self.visible[pair + 1]
        cost, down, up = swap_cost(lower, upper, h, v)
        with np.errstate(under="ignore"):
            accepted = self._draws.random(len(h)) < np.exp(np.minimum(-cost, 0))
        self.tried[pair] += len(h)
        self.accepted[pair] += np.count_nonzero(accepted)
        is_swapped = accepted[:, None]
        self.visible[pair + 1] = np.where(is_swapped, h, v)
        self.visible[pair] = self._drawn(np.where(is_swapped, *down[::-1]), lower, up=False)
        self.hidden[pair] = self._drawn(_up(lower, self.visible[pair]), lower)
        self.hidden[pair + 1] = self._drawn(np.where(is_swapped, *up), upper)

    def _drawn(self, x: Array, rbm: DenseLayer, *, up: bool = True) -> Array:
        """Draw states of the hidden, or of the visible, units with inputs x."""
        units = rbm.hidden_units if up else rbm.visible_units
        return drawn(x, units, None if up else self._conditions, self._draws)


def swap_cost(
    lower: DenseLayer, upper: DenseLayer, h: Array, v: Array
) -> tuple[Doubles, tuple[Array, Array], tuple[Array, Array]]:
    """Return D of swapping h, hidden states of one level, with v, visible states of the next.

    Returns
    -------
    D : ndarray of shape (chains,), float64
        Change of both free energies, in nats.
    down, up : tuple of two ndarrays
        Inputs that h and v give the visible units of ``lower``, and the hidden units of ``upper``.
    """
    below = (lower.hidden_units, lower.hidden_bias), (lower.visible_units, lower.visible_bias)
    above = (upper.visible_units, upper.visible_bias), (upper.hidden_units, upper.hidden_bias)
    down, up = (_down(lower, h), _down(lower, v)), (_up(upper, h), _up(upper, v))
    at_h = summed_out(h, up[0], *above) - summed_out(h, down[0], *below)
    return at_h + summed_out(v, down[1], *below) - summed_out(v, up[1], *above), down, up


def check_numbers(**given: object) -> None:
    """Refuse arguments that are no whole numbers.

    Raises
    ------
    DataError
    """
    for name, value in given.items():
        if isinstance(value, bool) or not isinstance(value, (int, np.integer)):
            raise DataError(f"{name}: got {value!r}, expected a whole number")


def check_finite(layers: Sequence[Layer]) -> None:
    """Refuse layers with states that would be no samples.

    Raises
    ------
    DataError
    """
    for number, layer in enumerate(layers, start=1):
        if not all(np.isfinite(x).all() for _, x in layer.parameters()):
            raise DataError(f"layer {number} has weights that are NaN or infinite; train it anew")


def levels_of(layers: Sequence[Layer], level: int, method: str) -> list[DenseLayer]:
    """Return the RBMs with chains: of one level, or of all.

    Raises
    ------
    DataError
        If there is no such level or method, or a layer cannot have such chains.
    """
    if method not in METHODS:
        raise DataError(f"method: got {method!r}, expected {' or '.join(METHODS)}")
    if not 1 <= level <= len(layers):
        raise DataError(f"level: got {level}, expected 1 to {len(layers)}")
    if method == "gibbs":
        return [_dense_rbm(layers[level - 1], f"layer {level}")]
    if len(layers) < 2:
        raise DataError("method: got stacked for one layer, expected two RBMs or more; take gibbs")
    rbms = [_dense_rbm(layer, f"layer {n}") for n, layer in enumerate(layers, start=1)]
    for n, rbm in enumerate(rbms, start=1):
        own = (rbm.visible_units, rbm.hidden_units)
        if kind_of(own[0]).counts or not (has_energy(*own) and has_energy(*own[::-1])):
            got = f"stacked for {own[0]} and {own[1]} units of layer {n}"
            wanted = "bernoulli, gaussian or softmax ones; take gibbs"
            raise DataError(f"method: got {got}, expected {wanted}")
    for n, (lower, upper) in enumerate(pairwise(rbms), start=1):
        if lower.hidden_units != upper.visible_units:
            raise DataError(
                f"method: got stacked, but layer {n} has {lower.hidden_units} hidden units and"
                f" layer {n + 1} {upper.visible_units} visible ones; take gibbs"
            )
    return rbms


def _up(rbm: DenseLayer, v: Array) -> Array:
    """Return the inputs of the hidden units."""
    return rbm.up(v, units="gaussian")


def _down(rbm: DenseLayer, h: Array) -> Array:
    """Return the inputs of the visible units."""
    return rbm.down(h, units="gaussian")


def imputed(
    layers: Sequence[Layer],
    X: Array,
    missing: NDArray[np.bool_],
    *,
    steps: int,
    samples: int,
    draws: Generator,
) -> Array:
    """Return prepared examples with the means of their missing units.

    Parameters
    ----------
    layers : sequence of Layer
        Layers from the lowest up; if the lowest is an RBM, the others are not used.
    X : ndarray of shape (n, V)
        Prepared examples.
    missing : ndarray of shape (n, V), bool
    steps, samples : int
        Gibbs steps before the average, and steps that are averaged.
    draws : Generator

    Raises
    ------
    DataError
        If ``steps`` is no whole number from 0 on, or ``samples`` none from 1 on.
    """
    check_numbers(steps=steps, samples=samples)
    if steps < 0 or samples < 1:
        raise DataError(f"steps, samples: got {steps} and {samples}, expected 0 and 1 or more")
    filled: Array = X.copy()
    for own in blocks_in(slice(0, len(X)), rows_at_once(layers)):
        lost = missing[own].any(axis=1)
        if lost.any():
            lowest, rows_lost, mask = layers[0], X[own][lost], missing[own][lost]
            if lowest.model == "rbm" and isinstance(lowest, DenseLayer):
                found = _by_gibbs(lowest, rows_lost, mask, steps, samples, draws)
            else:
                down = down_through(layers, up_through(layers, rows_lost))
                as_documents(down, rows_lost, lowest.visible_units)
                found = np.where(mask, down, rows_lost)
            filled[own][lost] = found
    return filled


def gibbs_step(
    rbm: DenseLayer, states: Array, conditions: Conditions | None, draws: Generator
) -> tuple[Array, Array]:
    """Draw hidden states, then visible states; return these, and the visible means."""
    hidden = drawn(_up(rbm, states), rbm.hidden_units, None, draws)
    means = _down(rbm, hidden)
    states = drawn(means, rbm.visible_units, conditions, draws)
    return states, impose(means, rbm.visible_units, conditions)


def _dense_rbm(layer: Layer, name: str) -> DenseLayer:
    """Return a layer, once it is found to be a dense RBM.

    Raises
    ------
    DataError
        If it is none.
    """
    if layer.model != "rbm":
        advice = "sample a stack of RBMs as it was before fine-tuning"
        raise DataError(f"{name} is an autoencoder, or was fine-tuned, and is no RBM; {advice}")
    if not isinstance(layer, DenseLayer):
        example = "the top one of 1x28x28,conv:20x5,pool:2,500"
        advice = f"sample a level that is a dense RBM, such as {example}"
        raise DataError(f"{name} is a convolution, {layer.shape}; {advice}")
    return layer


def _check_chains(rbm: DenseLayer, start: Array | None, count: int) -> None:
    """Refuse a number of chains below 1, and a start that does not fit.

    Raises
    ------
    DataError
    """
    if count < 1:
        raise DataError(f"count: got {count}, expected 1 or more")
    if start is None and kind_of(rbm.visible_units).counts:
        wanted = "documents, whose numbers of words the samples have"
        raise DataError(f"start: got nothing for counts, expected {wanted}")
    if start is not None and len(start) != count:
        raise DataError(f"start: got {len(start)} examples for {count} chains; give one a chain")


def as_states(visible: Array, units: str, draws: Generator) -> Array:
    """Return states of visible means: binary units are drawn, other values are states."""
    states: Array = visible.copy()
    if kind_of(units).is_binary:
        np.less(draws.random(visible.shape, dtype=np.float32), visible, out=states)
    return states


def _by_gibbs(
    rbm: DenseLayer, X: Array, mask: NDArray[np.bool_], steps: int, samples: int, draws: Generator
) -> Array:
    conditions, states = conditions_of(X, rbm.visible_units), X.copy()
    total = np.zeros_like(X)
    for step in range(steps + samples):
        states, means = gibbs_step(rbm, states, conditions, draws)
        np.copyto(states, X, where=~mask)
        if step >= steps:
            total += means
    return np.where(mask, total / np.float32(samples), X)
