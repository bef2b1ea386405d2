"""Choices that ``fit`` of a predictor makes from the data, if the user left them open.

* Columns that share one range, such as pixels, are scaled to it: shares of a range are
  probabilities. Standardized, a pixel that is hardly ever on would count as much as one that
  separates digits; as a share of the common range, each pixel keeps the weight of its values.
* With 10,000 targets or more all units are rectified, and normalized in fine-tuning.
* With fewer targets a network learns from a committee, if they are few or the table is small enough
  for this to take seconds.
"""

from __future__ import annotations

import math
from collections.abc import Iterator
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray
from sklearn.impute import SimpleImputer
from sklearn.pipeline import Pipeline, make_pipeline
from sklearn.preprocessing import StandardScaler

from syncpretrain.data.blocks import chunks
from syncpretrain.data.facts import facts_of, look_like_counts
from syncpretrain.data.scaling import Scaling
from syncpretrain.settings.by_data import BATCH_SHARE, FEW_LABELS
from syncpretrain.settings.fields import PER_LAYER
from syncpretrain.settings.finetuning import FinetuneSettings
from syncpretrain.sklearn.passes import Matrix


class Targets(NamedTuple):
    """Rows that have a target: their numbers, their targets and, if given, their weights.

    A target is a class, counted from 0, or standardized numbers.
    """

    rows: NDArray[np.intp]
    y: NDArray[Any]
    weights: Matrix | None = None

    def part(self, kept: NDArray[Any]) -> Targets:
        """Return some of the rows, by their places or by a mask."""
        weights = None if self.weights is None else self.weights[kept]
        return Targets(self.rows[kept], self.y[kept], weights)

    def weighted(self) -> Targets:
        """Return the rows with a weight above 0; others train nothing."""
        return self if self.weights is None else self.part(self.weights > 0)

    def spread_out(self, n: int) -> tuple[Matrix, Matrix | None]:
        """Return a target, NaN if it has none, and a weight for each of n rows."""
        y = np.full((n, *self.y.shape[1:]), np.nan)
        y[self.rows] = self.y
        if self.weights is None:
            return y, None
        weights = np.zeros(n, dtype=self.weights.dtype)
        weights[self.rows] = self.weights
        return y, weights


SHARING = 0.5  # smallest share of the varying columns that reach both ends
FEWEST_COLUMNS = 25  # fewer are no picture
END_SHARE = 0.1  # width of either end, as a share of the range
# Smallest variance as a share of the variance of bits with the same means: uniform values have 1/12
# against 1/4, Gaussian values less than a tenth, since only the outermost reach the ends.
LEAST_SPREAD = 0.25
OUTLIERS = 10_000  # one in so many values may lie beyond either end, as by an error of a sensor
MOST_RANGE = float(np.finfo(np.float32).max)


def shared_range(X: Any) -> Scaling | None:
    """Return the scaling to [0, 1] of columns that share one range, else None.

    Columns share a range if half of the varying columns reach both of its ends, and their values
    lie towards the ends. A few far values in an array are left out if they are the only obstacle.
    NaN is left out. The range of a sparse matrix must begin at 0. Columns in [0, 1] need no
    scaling.

    Parameters
    ----------
    X : array or sparse matrix of shape (n_examples, n_features)
    """
    low, high = _ends(X)
    if not (np.isfinite(low) & np.isfinite(high)).all():
        return None
    least, most = float(low.min()), float(high.max())
    if least == most or (least >= 0 and most <= 1) or X.shape[1] < FEWEST_COLUMNS:
        return None
    is_sparse = hasattr(X, "toarray")  # its zeros stay zeros
    found = None if is_sparse and least else _shared_scaling(X, low, high, least, most)
    if is_sparse or found is not None or (least == 0 and look_like_counts(X)):
        return found
    inner = _inner_ends(X)
    if inner == (least, most) or inner[0] >= inner[1]:
        return None
    return _shared_scaling(X, np.clip(low, *inner), np.clip(high, *inner), *inner)


def _shared_scaling(X: Any, low: Matrix, high: Matrix, least: float, most: float) -> Scaling | None:
    """Return the scaling of columns with smallest values low and largest values high, or None."""
    if most - least > MOST_RANGE:
        return None
    varying, near = low < high, END_SHARE * (most - least)
    shares = (low <= least + near) & (high >= most - near)
    if shares.sum() < SHARING * varying.sum():
        return None
    means, squares = _moments(X, least, most - least)
    if (squares - means**2).sum() < LEAST_SPREAD * (means - means**2).sum():
        return None
    shift, scale = np.full((2, X.shape[1]), [[least], [most - least]], dtype=np.float32)
    return Scaling(shift, scale)


def in_shared_range(X: Any, scaling: Scaling) -> Any:
    """Return examples scaled to [0, 1], in float32; a sparse matrix stays sparse."""
    if hasattr(X, "toarray"):
        sparse = X.astype(np.float32)
        sparse.data = np.clip(sparse.data / scaling.scale[0], 0, 1)
        return sparse
    return np.clip(scaling.apply(X.astype(np.float32, copy=False)), 0, 1)


def are_bits(X: Any) -> bool:
    """Return whether all values of an array or a sparse matrix are 0 or 1."""
    parts = [X.data] if hasattr(X, "toarray") else _parts(X)
    return all(bool(((part == 0) | (part == 1)).all()) for part in parts)


def _parts(X: Matrix) -> Iterator[Matrix]:
    return (X[rows] for rows in chunks(X.shape))


def _ends(X: Any) -> tuple[NDArray[Any], NDArray[Any]]:
    """Return the smallest and the largest value of each column."""
    if hasattr(X, "toarray"):
        return X.min(axis=0).toarray().ravel(), X.max(axis=0).toarray().ravel()
    ends = [(np.fmin.reduce(part, axis=0), np.fmax.reduce(part, axis=0)) for part in _parts(X)]
    lows, highs = zip(*ends, strict=True)
    return np.fmin.reduce(lows, axis=0), np.fmax.reduce(highs, axis=0)


def _inner_ends(X: Matrix) -> tuple[float, float]:
    """Return the smallest and the largest value after leaving out the few outermost ones."""
    count = max(X.size // OUTLIERS, 1) + 1
    low = high = np.empty(0, dtype=X.dtype)
    for part in _parts(X):
        known = part[~np.isnan(part)]
        low = -_largest(-np.concatenate([low, known]), count)
        high = _largest(np.concatenate([high, known]), count)
    return float(low.max()), float(high.min())


def _largest(values: Matrix, count: int) -> Matrix:
    """Return the ``count`` largest values, in any order."""
    return values if len(values) <= count else np.partition(values, -count)[-count:]


def _moments(X: Any, shift: float, scale: float) -> tuple[NDArray[Any], NDArray[Any]]:
    """Return the means of scaled columns, and the means of their squares."""
    if hasattr(X, "toarray"):  # its shift is 0
        means = X.mean(axis=0), X.multiply(X).mean(axis=0)
        mean, square = (np.asarray(row).ravel() for row in means)  # a matrix of one row, or a row
        return mean / scale, square / scale**2
    known, sums, squares = np.zeros((3, X.shape[1]))
    for part in _parts(X):
        scaled = np.clip((part - shift) / scale, 0, 1)
        known += (~np.isnan(scaled)).sum(axis=0)
        sums += np.nansum(scaled, axis=0)
        squares += np.nansum(scaled * scaled, axis=0)
    known = np.maximum(known, 1)
    return sums / known, squares / known


# With contrastive divergence, layer 1 learns the noise of zeros and ones by heart. With persistent
# chains (Tieleman 2008), which need a lower rate, and more weight decay it learns their structure.
OF_BITS = {"persistent": True, "learning_rate": 0.01, "weight_decay": 0.01}
MOST_ITERATIONS = 1000
# With many labels nothing is tried out, and epochs are few: such a network learns most in them.
MANY_LABELS = BATCH_SHARE * FinetuneSettings().batch_size
OF_MANY = {"normalization": "batch", "learning_rate": 0.002, "rate_schedule": "cosine"}
OF_MANY_LABELS = OF_MANY | {"dropout": 0.2}
NUMBERS_UPDATES, NUMBERS_EPOCHS = 20_000, 60  # enough updates for many numbers, and most epochs


def of_many_numbers(targets: int) -> dict[str, Any]:
    """Return settings of fine-tuning on many numbers, without dropout, which loses some of them."""
    usual = FinetuneSettings()
    wanted = math.ceil(NUMBERS_UPDATES * usual.batch_size / targets)
    return OF_MANY | {"epochs": max(usual.epochs, min(wanted, NUMBERS_EPOCHS))}


def are_few(rows: int, labels: int) -> bool:
    """Return whether labels are few, in number and as a share of the rows."""
    return labels < min(FEW_LABELS * rows, MANY_LABELS)


MOST_CELLS = 1 << 21  # rows, columns and outputs, multiplied: a committee learns so many in seconds


def are_for_committee(shape: tuple[int, ...], targets: int, outputs: int) -> bool:
    """Return whether a committee is asked for the targets of a table.

    Parameters
    ----------
    shape : (int, int)
        Number of rows, and of columns.
    targets : int
        Number of rows with a target.
    outputs : int
        Number of classes, or of numbers of a row.
    """
    if targets < 2:  # normalization takes two
        return False
    is_small = targets < MANY_LABELS and math.prod(shape) * outputs <= MOST_CELLS
    return is_small or are_few(shape[0], targets)


def settings_for_bits(layers: int) -> dict[str, list[Any]]:
    """Return settings of pretraining on zeros and ones; only layer 1 differs from the defaults."""
    return {name: [value] + [PER_LAYER[name]] * (layers - 1) for name, value in OF_BITS.items()}


def are_measurements(examples: Any, visible_units: str) -> bool:
    """Return whether examples are measured numbers: no bits, no counts, no pictures."""
    if visible_units != "auto":
        return visible_units == "gaussian"
    facts = facts_of(examples)
    if facts.are_probabilities:
        return facts.columns < FEWEST_COLUMNS and not are_bits(examples)
    return not facts.are_counts


def standardizer(X: Any) -> Pipeline:
    """Return a fitted pipeline that fills missing values in and standardizes the columns of X."""
    scaler = StandardScaler(with_mean=not hasattr(X, "toarray"))
    columns = make_pipeline(SimpleImputer(keep_empty_features=True), scaler)
    # Sparse rows permit no other container, whatever the user has set.
    return columns.set_output(transform="default").fit(X)
