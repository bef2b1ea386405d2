"""Likelihood of data under an RBM: free energy, pseudo-likelihood, and the partition function.

The symbols are as in Hinton 2010: v visible, h hidden, W of shape (V, H), a the visible and b
the hidden biases. The energy is E(v, h) = -v W h - a v - b h for binary units; a Gaussian visible
unit has |v - a|^2 / 2 in place of -a v, a Gaussian hidden unit |h - b|^2 / 2 in place of -b h; a
rectified unit stands for many binary units with biases b - 1/2, b - 3/2, ... (Nair and Hinton
2010). One choice in a group of softmax units, and the words of a document, have -a v. Z is the sum
of exp(-E) over all states. All sums are in float64.

The partition function of an RBM with binary hidden units, and visible units of any kind, is the sum
over the hidden units' states of exp(b h) prod_i sum_v exp(-E_i(v; x_i)), where x = h W^T + a is the
input of the visible units; the record of a kind has the inner sum. For counts the inner sum is over
the documents of D words, in their order, so that Z depends on D. Z is enumerated, or estimated by
annealing. Annealing keeps the visible biases, except for binary units: at the highest temperature
the visible units do not depend on the hidden ones.

For a replicated softmax, Z of documents of D words is sum_h exp(b h + D f(h)), where f(h) = log
sum_k exp(a_k + (W h)_k) is the log of the unnormalized probability of one word: the length is an
inverse temperature. So one pass of annealed importance sampling, from length 0, where the hidden
units are independent and Z is known, up to the longest document, gives log Z of every length on its
way (Salakhutdinov and Hinton 2009 anneal anew for each length). The chains hold hidden units alone,
drawn one after the other with the words summed out: chains of words and hidden units hardly move in
long documents, since many words determine the hidden units.

Chains are weighted by exp(dD f(h)) for each step dD of the length (Neal 2001). They form
populations; when the weights of a population have become uneven, its chains are resampled by their
weights (Del Moral, Doucet and Jasra 2006), so that the mean weight stays an unbiased estimate of Z.
The populations are independent: the spread of their estimates is the error bar.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from itertools import pairwise, product
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from syncpretrain.errors import DataError
from syncpretrain.kernels.arrays import Array
from syncpretrain.kernels.conditions import Conditions, draw_words, is_missing
from syncpretrain.kernels.contrastive_divergence import draw_noise, sample
from syncpretrain.models.layer import NO_RBM, DenseLayer, Layer
from syncpretrain.rng import Purpose, generator
from syncpretrain.units.kinds import kind_of

Doubles = NDArray[np.float64]
Floats = NDArray[Any]
RBMParameters = tuple[Doubles, Doubles, Doubles]
STATES_AT_ONCE = 1 << 12
POPULATIONS = 10
EVEN_SHARE = 0.5  # effective share of the chains, below which they are resampled
CERTAIN = 500.0  # largest log-odds: their exponential is still finite


def binary_states(units: int) -> Iterator[Doubles]:
    """Yield all states of binary units, a few thousand rows at a time."""
    states = product((0.0, 1.0), repeat=units)
    while chunk := [state for state, _ in zip(states, range(STATES_AT_ONCE), strict=False)]:
        yield np.array(chunk).reshape(len(chunk), units)


def summed_over_hidden(parameters: RBMParameters, units: str, words: tuple[float, ...]) -> float:
    """Return log Z by enumeration of the hidden units.

    ``words`` has the number of words D for each block of counts.
    """
    W, a, b = parameters
    total = -math.inf
    for h in binary_states(len(b)):
        terms = h @ b + _log_sums(h @ W.T + a, a, units, words)
        total = float(np.logaddexp(total, np.logaddexp.reduce(terms)))
    return total


def _annealed_binary(
    parameters: RBMParameters, betas: Doubles, chains: int, draws: np.random.Generator
) -> tuple[float, Doubles, Doubles]:
    """Return log Z at the highest temperature, each chain's logarithm of the ratio to it, and v.

    Binary visible units begin uniform, with annealed biases.
    """
    W, a, b = parameters
    v = _draw(np.full((chains, len(a)), 0.5), draws)
    weights = np.zeros(chains)
    for beta, hotter in zip(betas[1:], betas[:-1], strict=True):
        upward = v @ W + b
        # log p*_beta(v) of the visible units, the hidden ones summed out
        weights += (beta - hotter) * (v @ a)
        weights += _gained(upward, beta, hotter)
        h = _draw(_sigmoid(beta * upward), draws)
        v = _draw(_sigmoid(beta * (h @ W.T + a)), draws)
    return (len(a) + len(b)) * math.log(2), weights, v


def _gained(upward: Doubles, beta: float, hotter: float) -> Doubles:
    """Return the change of the hidden units' sum of log(1 + exp) from one beta to the next."""
    gained: Doubles = (np.logaddexp(0, beta * upward) - np.logaddexp(0, hotter * upward)).sum(1)
    return gained


def _draw(probabilities: Doubles, draws: np.random.Generator) -> Doubles:
    return (draws.random(probabilities.shape) < probabilities).astype(np.float64)


def _sigmoid(x: Doubles) -> Doubles:
    with np.errstate(over="ignore"):
        return 1 / (1 + np.exp(-x))


def _log_sums(x: Doubles, a: Doubles, units: str, words: tuple[float, ...]) -> Doubles:
    kind = kind_of(units)
    more = () if kind.blocks is None else (words,)
    assert kind.log_sum is not None
    sums: Doubles = kind.log_sum(np, x, a, *more).sum(axis=1)
    return sums


def drawn(x: Any, units: str, conditions: Conditions | None, draws: np.random.Generator) -> Floats:
    """Draw states of units with inputs x, which become their means."""
    noise = draw_noise(draws, units, out=np.empty(x.shape, dtype=np.float32))
    states = sample(x, units, noise, out=np.empty_like(x))
    return draw_words(states, units, noise, conditions)


class Words(NamedTuple):
    """Parameters of a replicated softmax: W of shape (V, H), a (V,), b (H,)."""

    W: Doubles
    a: Doubles
    b: Doubles

    def log_sums(self, h: Doubles) -> Doubles:
        """Return f(h) of each row of hidden states."""
        x = h @ self.W.T + self.a
        top = x.max(axis=1)
        x -= top[:, None]
        sums: Doubles = top + np.log(np.exp(x, out=x).sum(axis=1))
        return sums


def enumerated_over_lengths(words: Words, lengths: Doubles) -> Doubles:
    """Return log Z for each length by enumeration of the hidden units."""
    total = np.full(len(lengths), -np.inf)
    for h in binary_states(len(words.b)):
        terms = (h @ words.b)[:, None] + words.log_sums(h)[:, None] * lengths
        total = np.logaddexp(total, np.logaddexp.reduce(terms, axis=0))
    return total


def annealed_over_lengths(
    words: Words, lengths: Doubles, *, chains: int, steps: int, draws: np.random.Generator
) -> Doubles:
    """Estimate log Z for each length by annealed importance sampling over the length.

    Parameters
    ----------
    words : Words
    lengths : ndarray of shape (n,)
        Lengths, 0 or more.
    chains, steps : int
        Chains of each population, and steps from length 0 to the longest; the steps become longer
        with the length.
    draws : Generator

    Returns
    -------
    ndarray of shape (POPULATIONS, n)
        Logarithms of the populations' estimates of Z, which are unbiased and independent.
    """
    uniform = draws.random((POPULATIONS * chains, len(words.b)))
    h = (uniform < 1 / (1 + np.exp(-words.b))).astype(np.float64)
    weights = np.full((POPULATIONS, chains), np.logaddexp(0, words.b).sum())
    found = np.tile(weights[:, :1], len(lengths))  # right for length 0
    sums = words.log_sums(h)
    grid = np.expm1(np.linspace(0, np.log1p(lengths.max()), steps + 1))
    grid[-1] = lengths.max()
    for length, longer in pairwise(grid):
        sums = sums.reshape(weights.shape)
        own = np.flatnonzero((lengths > length) & (lengths <= longer))
        ahead = weights[..., None] + (lengths[own] - length) * sums[..., None]
        found[:, own] = _log_mean(ahead, axis=1)
        weights += (longer - length) * sums
        _resample(h, weights, draws)
        sums = _sweep(words, h, longer, draws)
    return found


def _resample(h: Doubles, weights: Doubles, draws: np.random.Generator) -> None:
    """Resample the chains of each population with uneven weights, in place."""
    chains = weights.shape[1]
    for number, own in enumerate(weights):
        share = np.exp(own - own.max())
        share /= share.sum()
        if 1 / np.square(share).sum() >= EVEN_SHARE * chains:
            continue
        points = (draws.random() + np.arange(chains)) / chains  # systematic resampling
        parents = np.minimum(np.searchsorted(np.cumsum(share), points), chains - 1)
        rows = slice(number * chains, (number + 1) * chains)
        h[rows] = h[rows][parents]
        own[:] = _log_mean(own, axis=0)


def _sweep(words: Words, h: Doubles, length: float, draws: np.random.Generator) -> Doubles:
    """Draw each hidden unit given the others, in place, for documents of a length; return f(h).

    p is proportional to the probability of each word. A unit that goes on multiplies p by exp of
    the unit's weights, a unit that goes off divides it, so that a sweep computes the exponentials
    of all words only once.
    """
    p = h @ words.W.T + words.a  # (chains, V)
    top = p.max(axis=1)
    p -= top[:, None]
    total = np.exp(p, out=p).sum(axis=1)
    uniform = draws.random(h.shape)
    for j, column in enumerate(words.W.T):
        on, off = np.exp(column), np.exp(-column)
        was_on = h[:, j] > 0
        flipped = np.where(was_on, p @ off, p @ on)
        gain = np.where(was_on, total / flipped, flipped / total)  # p(on) over p(off)
        odds = np.clip(words.b[j] + length * np.log(gain), -CERTAIN, CERTAIN)
        is_on = uniform[:, j] < 1 / (1 + np.exp(-odds))
        h[:, j] = is_on
        p[is_on & ~was_on] *= on
        p[was_on & ~is_on] *= off
        total = np.where(is_on == was_on, total, flipped)
    sums: Doubles = top + np.log(total)
    return sums


def _log_mean(x: Doubles, axis: int) -> Doubles:
    top = x.max(axis=axis, keepdims=True)
    mean: Doubles = np.log(np.exp(x - top).mean(axis=axis)) + np.squeeze(top, axis)
    return mean


MAX_ENUMERATED = 20  # binary units: their 2**20 states are enumerated


@dataclass(frozen=True, slots=True)
class LogZ:
    """Natural logarithm of Z, with ``low`` and ``high`` 3 standard errors away (0 if exact)."""

    value: float
    low: float
    high: float


def free_energy(layer: Layer, X: Array, *, missing: bool = False) -> Doubles:
    """Return F(v) = -log sum_h exp(-E(v, h)) of each row of X, in nats.

    F(v) = -a v - sum_j log(1 + exp(b_j + (v W)_j)) for binary units (Hinton 2010, section 16).
    ``missing`` says that X may have entries marked as missing, which are left out.

    Raises
    ------
    DataError
        If the layer is no RBM, or its units have no energy.
    """
    W, a, b = _parameters(layer)
    v = np.asarray(X, dtype=np.float64)
    if not has_energy(layer.visible_units, layer.hidden_units):
        got = f"{layer.visible_units} and {layer.hidden_units} units"
        raise DataError(f"layer: got {got}, which have no energy")
    normal = kind_of(layer.visible_units).normal_columns(np, len(a))  # whose energy is not 0 at 0
    own = np.where(is_missing(v) & normal, a, v) if missing else v
    return summed_out(own, v @ W + b, (layer.visible_units, a), (layer.hidden_units, b))


def has_energy(own: str, other: str) -> bool:
    """Return whether the units of one side have an energy, and the other side can be summed out."""
    return kind_of(own).energy is not None and kind_of(other).log_sum is not None


def summed_out(
    states: Floats, inputs: Floats, own: tuple[str, Floats], other: tuple[str, Floats]
) -> Doubles:
    """Return the free energy of states of one side of an RBM, in nats.

    ``inputs`` are the inputs that the states give the other side, biases included. ``own`` and
    ``other`` are the kind of units and the biases of each side.
    """
    energy, log_sum = kind_of(own[0]).energy, kind_of(other[0]).log_sum
    assert energy is not None and log_sum is not None
    sums = log_sum(np, inputs, other[1]).sum(axis=1, dtype=np.float64)
    energies: Doubles = energy(np, states, own[1]) - sums
    return energies


def pseudo_likelihood(layer: Layer, X: Array, *, seed: int = 0) -> float:
    """Return a stochastic estimate of the mean log pseudo-likelihood of the rows of X, in nats.

    For each row one unit i is drawn, and V log p(v_i | the others) stands for the sum over units
    (Besag 1975): V log sigmoid(F(v with i flipped) - F(v)). It is 0 at best.

    A value between 0 and 1 is taken as the probability of a binary unit, as in contrastive
    divergence: the other units are sampled, and unit i counts with both states in proportion, so
    that the best model of a grey value is equally unsure. Rounding, as in the Deep Learning
    Tutorials, would favour a model that is sure of 0 where v is 0.3. Binary rows stay as they are.

    Raises
    ------
    DataError
        If the layer is no RBM, or its visible units are not binary.
    """
    if not kind_of(layer.visible_units).is_binary:
        wanted = "bernoulli ones, which a pseudo-likelihood flips; use the free-energy gap instead"
        raise DataError(f"layer: got {layer.visible_units} visible units, expected {wanted}")
    draws = generator(seed, Purpose.PROBE)
    rows, units = np.arange(len(X)), draws.integers(X.shape[1], size=len(X))
    on = np.asarray(X, dtype=np.float64)[rows, units]
    v = (draws.random(X.shape) < X).astype(np.float32)
    v[rows, units] = 1
    energy_on = free_energy(layer, v)
    v[rows, units] = 0
    gain = free_energy(layer, v) - energy_on  # log of the odds that unit i is 1
    per_row = on * -np.logaddexp(0, -gain) + (1 - on) * -np.logaddexp(0, gain)
    return float(per_row.mean() * X.shape[1])


def log_z(layer: Layer, *, words: int | Sequence[int] = (), **annealing: int) -> LogZ:
    """Return log Z: exact if one side has at most 20 units, else estimated by annealing.

    Parameters
    ----------
    layer : Layer
        Dense layer with binary hidden units.
    words : int or sequence of int
        Number of words of a document, for each block of counts: Z depends on it.
    **annealing : int
        ``chains``, ``steps`` and ``seed`` of :func:`log_z_ais`.

    Raises
    ------
    DataError
        If the layer is no RBM, its hidden units are not binary, or ``words`` do not fit them.
    """
    parameters, lengths = _annealed(layer, words)
    W, a, b = parameters
    if len(a) < len(b) and kind_of(layer.visible_units).is_binary:
        parameters = W.T, b, a  # Z is the same with both sides exchanged
    if len(parameters[2]) <= MAX_ENUMERATED:
        value = summed_over_hidden(parameters, layer.visible_units, lengths)
        return LogZ(value, value, value)
    return log_z_ais(layer, words=words, **annealing)


def log_z_ais(
    layer: Layer,
    *,
    words: int | Sequence[int] = (),
    chains: int = 100,
    steps: int = 1000,
    seed: int = 0,
) -> LogZ:
    """Estimate log Z by annealed importance sampling (Salakhutdinov and Murray 2008).

    Parameters
    ----------
    layer : Layer
        Dense layer with binary hidden units and shared weights.
    words : int or sequence of int
        As for :func:`log_z`.
    chains, steps : int
        Independent chains, and temperatures between the uniform distribution and the RBM; with
        visible units that are not binary, between independent visible units and the RBM; with
        counts alone, lengths of documents from 0 on (``syncpretrain/models/likelihood.py``).
    seed : int
        Seed of the chains.

    Returns
    -------
    LogZ
        Estimate with 3 standard errors of the mean weight on each side; ``low`` is -inf if they
        reach below 0: more chains or steps are needed then.

    Raises
    ------
    DataError
        As :func:`log_z`, or if chains or steps are no whole number from 1 on.
    """
    for name, value in (("chains", chains), ("steps", steps)):
        if not isinstance(value, (int, np.integer)) or value < 1:
            raise DataError(f"{name}: got {value!r}, expected a whole number from 1 on")
    parameters, lengths = _annealed(layer, words)
    if kind_of(layer.visible_units).are_counts and len(lengths) == 1:
        each = max(chains // POPULATIONS, 1)
        draws = generator(seed, Purpose.ANNEALING)
        options: dict[str, Any] = {"chains": each, "steps": steps, "draws": draws}
        found = annealed_over_lengths(Words(*parameters), np.array(lengths), **options)
        return _with_error_bar(0.0, found[:, 0])
    return annealed_sample(layer, words=words, chains=chains, steps=steps, seed=seed)[0]


def annealed_sample(
    layer: Layer, *, words: int | Sequence[int] = (), chains: int, steps: int, seed: int = 0
) -> tuple[LogZ, Doubles, Doubles]:
    """Return log Z by annealed importance sampling, and its chains as a weighted sample.

    See Salakhutdinov and Murray 2008; for counts Salakhutdinov and Hinton 2009, section 4.1.

    Parameters
    ----------
    layer, words, chains, steps, seed
        As for :func:`log_z_ais`; not for counts alone.

    Returns
    -------
    log_z : LogZ
    weights : ndarray of shape (chains,)
        They add up to 1.
    v : ndarray of shape (chains, V)
        Visible states.
    """
    parameters, lengths = _annealed(layer, words)
    (W, a, b), units = parameters, layer.visible_units
    draws = generator(seed, Purpose.ANNEALING)
    betas = np.linspace(0, 1, steps + 1)
    if kind_of(units).is_binary:
        base, logs, v = _annealed_binary(parameters, betas, chains, draws)
    else:
        words_of = tuple(np.full((chains, 1), count) for count in lengths)
        conditions, logs = Conditions(words=words_of), np.zeros(chains)
        v = drawn(np.tile(a, (chains, 1)), units, conditions, draws)
        for beta, hotter in zip(betas[1:], betas[:-1], strict=True):
            upward = v @ W + b
            logs += _gained(upward, beta, hotter)
            h = drawn(beta * upward, "bernoulli", None, draws)
            v = drawn(beta * (h @ W.T) + a, units, conditions, draws)
        base = len(b) * math.log(2) + float(_log_sums(a[None], a, units, lengths)[0])
    weights = np.exp(logs - logs.max())
    return _with_error_bar(base, logs), weights / weights.sum(), v


def _with_error_bar(base: float, weights: Doubles) -> LogZ:
    largest = weights.max()
    relative = np.exp(weights - largest)
    mean = relative.mean()
    error = 3 * relative.std(ddof=1) / math.sqrt(len(weights)) if len(weights) > 1 else math.inf
    low = math.log(mean - error) if mean > error else -math.inf
    offset = base + largest
    return LogZ(offset + math.log(mean), offset + low, offset + math.log(mean + error))


def parameters_with_log_z(layer: Layer) -> RBMParameters:
    """Return W, a and b of an RBM in float64, once it is found to have a log Z.

    Raises
    ------
    DataError
        If the layer is no dense RBM, or its hidden units are not binary.
    """
    parameters = _parameters(layer)
    if not kind_of(layer.hidden_units).is_binary:
        got = f"{layer.hidden_units} hidden units"
        raise DataError(f"layer: got {got}, expected bernoulli ones for log Z")
    return parameters


def _annealed(layer: Layer, words: int | Sequence[int]) -> tuple[RBMParameters, tuple[float, ...]]:
    """Return the parameters of a layer that has a log Z, and the lengths of documents."""
    parameters = parameters_with_log_z(layer)
    counts = len(kind_of(layer.visible_units).counts)
    lengths = tuple(map(float, np.atleast_1d(words)))
    if len(lengths) != counts or not all(0 <= x < math.inf for x in lengths):
        each = f"one for each block of counts of {layer.visible_units}"
        raise DataError(
            f"words: got {words}, expected {counts or 'no'} lengths of documents, {each}"
        )
    return parameters, lengths


def _parameters(layer: Layer) -> RBMParameters:
    if layer.model != "rbm":
        raise DataError(f"layer: {NO_RBM} has no energy; measure an RBM before fine-tuning")
    if not isinstance(layer, DenseLayer):
        raise DataError(f"layer: got {layer.shape}, expected a dense RBM, whose energy is known")
    arrays = (layer.weight, layer.visible_bias, layer.hidden_bias)
    W, a, b = (np.asarray(array, dtype=np.float64) for array in arrays)
    return W, a, b
