"""Mixing of chains: occupancy from two starts, autocorrelation, annealing, and what follows.

Chains that start at data stay near the data for long, whatever the model, and look right. So as
many chains start at data as at noise. The first half of a run is left out. In the second half some
numbers of each chain are followed: whether it is in each region, and its position along the main
directions in which the chains differ at half time, and along the direction between both starts.

The integrated autocorrelation time of a number is T var(m) / var(x): m are the means of the chains
over T steps, and x all values. It is T for chains that never move, and one step for independent
values. The chains have mixed if each of them has many independent values of each number, and the
means of both starts agree within their errors. A region that no chain finds cannot be seen so:
annealed importance sampling, which begins at a distribution without barriers, may see it, and may
miss others.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from syncpretrain.data.examples import evenly_spaced
from syncpretrain.data.weights import checked_weights
from syncpretrain.errors import DataError
from syncpretrain.kernels.arrays import Array
from syncpretrain.models.gibbs import Levels, as_states, check_finite, levels_of, started
from syncpretrain.models.layer import DenseLayer, Layer, up_through
from syncpretrain.models.likelihood import Doubles, LogZ, annealed_sample
from syncpretrain.rng import Purpose, generator
from syncpretrain.units.kinds import kind_of

__all__ = ["Mixing", "mixing_of"]

ROWS = 1000  # examples that regions are made of
CLUSTERED = 200  # examples, for the main direction at which two clusters begin
DIRECTIONS = 3
MOST_REGIONS = 12  # of labels; more, or none, give way to two clusters of the examples
LEAST_CHAINS = 10  # from each start, so that errors of their means are known
LEAST_STEPS = 4
NO_LABEL = ("", "-1", "-1.0", "<NA>")
MEANS_STEPS = 20  # of the two clusters
LEAST_SAMPLES = 10.0  # independent values of each chain, and of annealing, to be believed
DEVIATIONS = 4.0  # standard errors that the means of two starts may be apart
WRONG_SHARE = 0.05  # difference of a region's shares in the model and in the data that matters
UNWEIGHTED = (
    "the shares of the data count all rows alike, and the model was trained with weights of rows:"
    " they do not judge the model"
)


@dataclass(frozen=True)
class Mixing:
    """How well chains mix, and what the model says of the regions of the data.

    Attributes
    ----------
    level : int
    method : str
    chains, steps : int
        Chains from each start, and steps of each.
    examples : int
        Examples that the regions are made of.
    regions : tuple of str
        Labels, or the two clusters of the examples; a state belongs to the nearest mean.
    occupancy : dict of str to ndarray of shape (regions,)
        Shares of the regions in the ``data``, in the chains ``from data`` and ``from noise``, and
        by annealed importance sampling, ``AIS``, if the hidden units are binary.
    autocorrelation : float
        The longest integrated autocorrelation time, in steps; at most the steps that are measured.
    samples : float
        Effective number of independent samples in all chains.
    apart : float
        Largest difference of a mean between both starts, in standard errors.
    log_z : LogZ or None
        log Z by annealed importance sampling.
    annealed_samples : float
        Effective number of the weighted samples of annealed importance sampling.
    acceptance : list of float
        Shares of accepted swaps of each pair of levels, of stacked tempering.
    effective_examples : float
        Effective number of these examples, by their weights.
    can_stack : bool
        True if the stack can have chains of method ``stacked``.
    is_weighted_alike : bool
        False if the examples here have no weights, and the training examples had some: the shares
        of the data then do not judge the model.
    """

    level: int
    method: str
    chains: int
    steps: int
    examples: int
    regions: tuple[str, ...]
    occupancy: dict[str, Doubles]
    autocorrelation: float
    samples: float
    apart: float
    log_z: LogZ | None
    annealed_samples: float
    acceptance: list[float]
    effective_examples: float
    can_stack: bool
    is_weighted_alike: bool = True

    @property
    def measured(self) -> int:
        """The number of steps that are measured: the second half."""
        return self.steps - self.steps // 2

    @property
    def starts_agree(self) -> bool:
        """True if the means of both starts agree within their errors."""
        return self.apart <= DEVIATIONS

    @property
    def mixed(self) -> bool:
        """True if both starts agree, and each chain has many independent samples."""
        return self.starts_agree and LEAST_SAMPLES * self.autocorrelation <= self.measured

    def sentences(self) -> list[str]:
        """Return what to make of the figures, in words."""
        why = (
            f"chains from data and from noise differ by {self.apart:.3g} standard errors"
            if not self.starts_agree
            else f"the autocorrelation time of {self.autocorrelation:.3g} steps is too long for"
            f" {self.measured} measured steps"
        )
        other = ", or method stacked" if self.can_stack and self.method != "stacked" else ""
        first = f"these chains have not mixed: {why}; take more steps{other}"
        if self.mixed:
            first = "these chains have mixed: both starts agree, and"
            first += f" {self.samples:.3g} of their samples are independent"
        return [first, *self._on_the_model()]

    def _on_the_model(self) -> list[str]:
        """Return a sentence if the model, not the chains, has other shares than the data."""
        if not self.is_weighted_alike:
            return [UNWEIGHTED]
        of_ais, of_chains = ("AIS", self.annealed_samples), ("from noise", self.samples / 2)
        name, samples = of_chains if self.mixed else of_ais
        if name not in self.occupancy or samples < LEAST_SAMPLES:
            return []
        model, data = self.occupancy[name], self.occupancy["data"]
        variance = np.maximum(data * (1 - data), model * (1 - model))
        error = np.sqrt(variance * (1 / samples + 1 / self.effective_examples))
        off = np.abs(model - data)
        worst = int(off.argmax())
        if off[worst] <= max(WRONG_SHARE, DEVIATIONS * error[worst]):
            return []
        how = "is wrong: by the chains" if self.mixed else "may be wrong: by AIS"
        return [
            f"the model {how} {100 * model[worst]:.3g} % of its samples are in region"
            f" {self.regions[worst]}, and {100 * data[worst]:.3g} % of the data; train with more"
            " chains, a longer k, the centred gradient, or a lower rate at the end"
        ]

    def rows(self) -> tuple[tuple[str, ...], list[tuple[str, ...]]]:
        """Return the head and the rows of a table of the regions' shares, in percent."""
        names = tuple(self.occupancy)
        shares = zip(*self.occupancy.values(), strict=True)
        cells = [
            (region, *(f"{100 * share:.1f} %" for share in own))
            for region, own in zip(self.regions, shares, strict=True)
        ]
        return ("region", *names), cells

    def figures(self) -> list[str]:
        """Return the figures as lines of text."""
        less = "at least " if self.autocorrelation > self.measured / 2 else ""
        lines = [
            f"level {self.level}, {self.method}: {self.chains} chains from each start,"
            f" {self.steps} steps",
            f"integrated autocorrelation time: {less}{self.autocorrelation:.3g} steps",
            f"effective number of samples: {self.samples:.3g}",
        ]
        if self.log_z is not None:
            z = self.log_z
            value = f"{z.value:.2f} ({z.low:.2f} to {z.high:.2f})"
            effective = f"effective samples: {self.annealed_samples:.3g}"
            lines.append(f"log Z by AIS: {value}, {effective}")
        for pair, share in enumerate(self.acceptance, start=1):
            lines.append(f"swaps of levels {pair} and {pair + 1}: {100 * share:.1f} % accepted")
        return lines


def mixing_of(
    layers: Sequence[Layer],
    X: Array,
    labels: Any = None,
    weights: Any = None,
    *,
    level: int,
    method: str,
    chains: int,
    steps: int,
    seed: int,
) -> Mixing:
    """Measure the mixing of chains from data and from noise.

    Parameters
    ----------
    layers : sequence of Layer
        Layers from the lowest up.
    X : ndarray of shape (n, V)
        Prepared examples.
    labels : array-like of shape (n,), optional
        Classes, which become the regions; "", -1, NaN and None are no class.
    weights : array-like of shape (n,), optional
        Weights of the examples; None if all count alike.
    level, method : int, str
        As for :func:`syncpretrain.models.gibbs.started`.
    chains, steps : int
        Chains from each start, and steps of each.
    seed : int

    Raises
    ------
    DataError
        If the stack cannot have such chains, labels or weights do not fit, or there are too few
        examples, chains or steps.
    """
    _check(layers, X, level=level, method=method, chains=chains, steps=steps)
    rows = evenly_spaced(np.arange(len(X)), ROWS)
    classes, own_weights = _classes(labels, len(X), rows), checked_weights(weights, len(X), rows)
    draws = generator(seed, Purpose.SAMPLE, layer=level)
    how: Any = {"level": level, "method": method, "count": chains, "draws": draws}
    start = X[draws.choice(len(X), chains, replace=chains > len(X))]
    runs = [started(layers, x, **how) for x in (start, None)]
    place = level - 1 if method == "stacked" else 0
    rbm = runs[0].rbms[place]
    names, means, near = _regions(layers[: level - 1], rbm, X[rows], classes, draws)
    data, effective = _shares(near, own_weights)
    for run in runs:
        run.run(steps // 2)
    directions = _directions(*(run.visible[place] for run in runs))
    values = [_followed(run, place, steps - steps // 2, means, directions) for run in runs]
    time, apart = _agreement(*values)
    shares = [x[:, :, : len(names)].mean(axis=(0, 1)) for x in values]
    occupancy = {"data": data, "from data": shares[0], "from noise": shares[1]}
    log_z, annealed = None, 0.0
    if kind_of(rbm.hidden_units).is_binary and not kind_of(rbm.visible_units).counts:
        log_z, weights, v = annealed_sample(rbm, chains=2 * chains, steps=steps, seed=seed)
        occupancy["AIS"] = weights @ _nearest(v, means)
        annealed = float(1 / np.square(weights).sum())
    count = 2 * chains * (steps - steps // 2) / time
    accepted = [float(x) for x in np.mean([run.acceptance for run in runs], axis=0)]
    own = (names, occupancy, time, count, apart, log_z, annealed, accepted)
    return Mixing(level, method, chains, steps, len(rows), *own, effective, _can_stack(layers))


def _check(
    layers: Sequence[Layer], X: Array, *, level: int, method: str, chains: int, steps: int
) -> None:
    """Refuse what mixing cannot be measured of.

    Raises
    ------
    DataError
    """
    examples = int(((X != 0) | ~np.signbit(X)).any(axis=1).sum())  # -0 is a missing value
    if examples < 2 or chains < LEAST_CHAINS or steps < LEAST_STEPS:
        wanted = f"2, {LEAST_CHAINS} and {LEAST_STEPS} or more"
        got = f"{examples} examples with a value, {chains} and {steps}"
        raise DataError(f"X, chains, steps: got {got}, expected {wanted}")
    if kind_of(levels_of(layers, level, method)[0].visible_units).counts:
        raise DataError(
            "mixing: got an RBM of counts, whose chains cannot start at noise, since they keep the"
            " numbers of words; take a level above, or sample with start"
        )
    check_finite(layers)


def _classes(labels: Any, count: int, rows: NDArray[np.intp]) -> NDArray[np.str_] | None:
    """Return the classes of some rows as texts, "" for none.

    Raises
    ------
    DataError
        If there is not one label a row, or they are not of two classes or more.
    """
    if labels is None:
        return None
    try:
        array: NDArray[Any] = np.asarray(labels)
    except ValueError as error:
        raise DataError(f"labels: got lists of several lengths, expected {count}") from error
    if array.shape != (count,):
        raise DataError(f"labels: got shape {array.shape}, expected ({count},), one a row of X")
    cells, texts = array.tolist(), array.astype(str)
    lost = [x is None or (isinstance(x, float) and x != x) for x in cells]
    classes = np.where(lost | np.isin(texts, NO_LABEL), "", texts)
    broken = [x for x in cells if isinstance(x, float) and x == x and not x.is_integer()]
    found = sorted(set(classes.tolist()) - {""})
    if broken or len(found) < 2:
        got = f"{broken[0]}, which is no class" if broken else f"the classes {found}"
        raise DataError(
            f"labels: got {got}, expected two classes or more, which become the regions; without"
            " labels two clusters of the examples do"
        )
    return classes[rows]


def _shares(near: Array, weights: Any) -> tuple[Doubles, float]:
    """Return the shares of the regions, and the effective number of the examples."""
    if weights is None:
        return near.mean(axis=0), float(len(near))
    mass = np.float64(weights[:, 0])
    return mass @ near / mass.sum(), float(mass.sum() ** 2 / np.square(mass).sum())


def _can_stack(layers: Sequence[Layer]) -> bool:
    try:
        levels_of(layers, 1, "stacked")
    except DataError:
        return False
    return True


def _regions(
    below: Sequence[Layer], rbm: DenseLayer, X: Array, classes: Any, draws: np.random.Generator
) -> tuple[tuple[str, ...], Array, Array]:
    """Return the names and means of the regions at a level, and 1 for the region of each row."""
    v = as_states(up_through(below, X) if below else X, rbm.visible_units, draws)
    names = [] if classes is None else [str(x) for x in np.unique(classes) if x]
    if classes is not None and 2 <= len(names) <= MOST_REGIONS:
        means = np.stack([v[classes == name].mean(axis=0) for name in names])
    else:
        names, means = ["A", "B"], _two_means(v)
    return tuple(names), means, _nearest(v, means)


def _two_means(v: Array) -> Array:
    """Return the means of two clusters of rows, which begin at both sides of the main direction."""
    first = (v - v.mean(axis=0)) @ _main(evenly_spaced(v, CLUSTERED), 1)[:, 0] > 0
    for _ in range(MEANS_STEPS):
        if first.all() or not first.any():
            break
        means = np.stack([v[first].mean(axis=0), v[~first].mean(axis=0)])
        first = _nearest(v, means)[:, 0] > 0
    else:
        return means
    return np.stack([v[:1].mean(axis=0), v[-1:].mean(axis=0)])


def _nearest(v: Any, means: Array) -> Array:
    """Return 1 for the nearest mean of each row, 0 for the others, of shape (rows, means)."""
    closeness = v @ means.T - np.square(means).sum(axis=1) / 2
    chosen: Array = np.eye(len(means), dtype=np.float32)[closeness.argmax(axis=1)]
    return chosen


def _main(v: Array, count: int) -> Array:
    """Return the main directions in which rows differ, of shape (units, count)."""
    directions: Array = np.linalg.svd(v - v.mean(axis=0), full_matrices=False)[2][:count].T
    return directions


def _directions(from_data: Array, from_noise: Array) -> Array:
    between = from_data.mean(axis=0) - from_noise.mean(axis=0)
    return np.column_stack([_main(np.concatenate([from_data, from_noise]), DIRECTIONS), between])


def _followed(run: Levels, place: int, steps: int, means: Array, directions: Array) -> Array:
    """Return regions and positions of each chain in the next steps: (steps, chains, numbers)."""
    found = []
    for _ in range(steps):
        run.step()
        v = run.visible[place]
        found.append(np.concatenate([_nearest(v, means), v @ directions], axis=1))
    return np.stack(found)


def _agreement(from_data: Array, from_noise: Array) -> tuple[float, float]:
    """Return the longest autocorrelation time, and the largest distance of both starts' means."""
    pooled = np.concatenate([from_data, from_noise], axis=1).astype(np.float64)
    spread = pooled.var(axis=(0, 1))
    moving = spread > 1e-12 * (1 + np.square(pooled).mean(axis=(0, 1)))
    if not moving.any():
        return 1.0, 0.0
    steps, chains = from_data.shape[:2]
    own = pooled[:, :, moving].mean(axis=0)  # (2 chains, numbers)
    time = steps * own.var(axis=0, ddof=1) / spread[moving]
    a, b = own[:chains], own[chains:]
    error = np.sqrt((a.var(axis=0, ddof=1) + b.var(axis=0, ddof=1)) / chains)
    gap = np.abs(a.mean(axis=0) - b.mean(axis=0))
    apart = np.where(gap > 0, gap / np.maximum(error, 1e-300), 0)
    return float(np.clip(time.max(), 1, steps)), float(min(apart.max(), 1e6))
