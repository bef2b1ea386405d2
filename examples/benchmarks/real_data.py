"""Default estimators on tables, beside other classifiers and regressors.

    pip install 'syncpretrain[sklearn]'
    python examples/benchmarks/real_data.py
    python examples/benchmarks/real_data.py --share 0.05 --draws 10 --tables FOLDER

The tables are those of ``_tables.py``. A draw holds out 30 % of the rows, with the classes' shares,
and trains on the others, of which all or a share have their labels, at least three of each class.
Every method has its defaults. DBNClassifier, DBNRegressor and the trees get the table as it is, the
others standardized columns and numbers. DBN, label spreading and self-training see the rows without
labels too. ``--peers features`` has scikit-learn's own pretraining instead: logistic regression, or
ridge regression for numbers, on principal components with 95 % of the variance and on the codes of
BernoulliRBM, whose columns are in [0, 1]. ``--peers starts`` has the network of few labels, as
``docs/estimators.rst`` describes it, from three starts, with labels alone and with guessed classes:
random weights, denoising autoencoders, and RBMs. ``--peers committee`` has the committee that
DBNClassifier learns from, without its networks: scikit-learn's four classifiers alone. Figures are
accuracies, or R2 of numbers, in per cent, each the mean of the draws with its standard error.
"""

from __future__ import annotations

import warnings
from collections.abc import Iterator
from functools import partial
from time import perf_counter
from typing import Any

import numpy as np
from _tables import Array, Figures, Table, few_labels_network, parser_of, show, tables_asked
from sklearn.compose import TransformedTargetRegressor
from sklearn.decomposition import PCA
from sklearn.ensemble import (
    ExtraTreesClassifier,
    ExtraTreesRegressor,
    HistGradientBoostingClassifier,
    HistGradientBoostingRegressor,
)
from sklearn.linear_model import LogisticRegression, Ridge
from sklearn.metrics import r2_score
from sklearn.model_selection import train_test_split
from sklearn.neighbors import KNeighborsClassifier, KNeighborsRegressor
from sklearn.neural_network import BernoulliRBM, MLPClassifier, MLPRegressor
from sklearn.pipeline import make_pipeline
from sklearn.preprocessing import MinMaxScaler, StandardScaler
from sklearn.semi_supervised import LabelSpreading, SelfTrainingClassifier
from sklearn.svm import SVC, SVR

from syncpretrain.parallel.blas import at_once
from syncpretrain.sklearn import DBNClassifier, DBNRegressor
from syncpretrain.sklearn.committee import ForClasses, asked, models
from syncpretrain.sklearn.fit_choices import Targets

HELD_OUT = 0.3
FEWEST_OF_A_CLASS = 3
KEPT_VARIANCE = 0.95
OURS = "DBN"
STARTS: dict[str, dict[str, Any]] = {
    "random": {"schedule": "none"},
    "DAE": {"model": "denoising", "corruption": "gaussian:0.3"},
    "RBM": {"model": "rbm"},
}


class Started:
    """The network of few labels, from a start, with labels alone or with guessed classes."""

    def __init__(self, start: str, seed: int, *, guess: bool) -> None:
        self._start, self._seed, self._guess = start, seed, guess

    def fit(self, X: Array, y: Array) -> Started:
        """Train on rows and the numbers of their classes, -1 where there is no label."""
        guess = self._guess and bool((y < 0).any())
        start = STARTS[self._start]
        self._stack = few_labels_network(X, y, self._seed, guess=guess, **start)
        return self

    def predict(self, X: Array) -> Array:
        """Return the number of the class of each row."""
        return np.asarray(self._stack.predict(X))


class WithoutNetworks:
    """The four classifiers of the committee, pooled as in DBNClassifier, without a network."""

    def __init__(self, seed: int) -> None:
        self._seed = seed

    def fit(self, X: Array, y: Array) -> WithoutNetworks:
        """Keep the rows and the numbers of their classes, -1 where there is no label."""
        self._X, self._y = X, y
        return self

    def predict(self, X: Array) -> Array:
        """Return the number of the class of each row."""
        rows, kind = np.flatnonzero(self._y >= 0), ForClasses(int(self._y.max()) + 1)
        members = models(kind, self._X, self._seed)
        both = np.concatenate([self._X, X])
        targets, one = Targets(rows, self._y[rows]), partial(at_once, 1)
        shares, _ = asked(kind, members, both, targets, self._seed, one)
        return np.asarray(shares[len(self._X) :].argmax(axis=1))


SEE_ALL_ROWS = (LabelSpreading, SelfTrainingClassifier, Started, WithoutNetworks)


def peers(seed: int, kind: str, *, is_classes: bool) -> dict[str, tuple[Any, Any]]:
    """Return for each method what sees all rows, or None, and what learns from labels."""
    if kind == "committee":
        return {"no networks": (None, WithoutNetworks(seed))}
    if kind == "starts":
        ways = {"labels": False, "guesses": True}
        return {
            f"{start} {way}": (None, Started(start, seed, guess=guess))
            for start in STARTS
            for way, guess in ways.items()
        }
    linear = LogisticRegression(max_iter=1000) if is_classes else Ridge()
    if kind == "features":
        rbm = make_pipeline(MinMaxScaler(clip=True), BernoulliRBM(random_state=seed))
        return {
            "PCA": (make_pipeline(StandardScaler(), PCA(KEPT_VARIANCE)), linear),
            "RBM": (rbm, linear),
        }
    mlp = (MLPClassifier if is_classes else MLPRegressor)(random_state=seed)
    trees = (ExtraTreesClassifier if is_classes else ExtraTreesRegressor)(random_state=seed)
    boosted = HistGradientBoostingClassifier if is_classes else HistGradientBoostingRegressor
    standardized = {
        "linear": linear,
        "SVM": (SVC if is_classes else SVR)(),
        "kNN": (KNeighborsClassifier if is_classes else KNeighborsRegressor)(),
        "MLP": mlp,
    }
    if not is_classes:
        scaled = partial(TransformedTargetRegressor, transformer=StandardScaler())
        standardized = {name: scaled(own) for name, own in standardized.items()}
    found = {
        **{name: (StandardScaler(), own) for name, own in standardized.items()},
        "trees": (None, trees),
        "boosting": (None, boosted(random_state=seed)),
    }
    if is_classes:
        svc = SVC(probability=True, random_state=seed)
        found["spreading"] = StandardScaler(), LabelSpreading(kernel="knn")
        found["self-training"] = StandardScaler(), SelfTrainingClassifier(svc)
    return found


def learned(predictor: Any, train: Array, y: Array, kept: Array) -> Any:
    """Train on the labels that are kept; semi-supervised methods get the other rows too."""
    if not isinstance(predictor, SEE_ALL_ROWS):
        return predictor.fit(train[kept], y[kept])
    places = np.unique(y, return_inverse=True)[1]
    return predictor.fit(train, np.where(kept, places, -1))


def labels_kept(y: Array, share: float, seed: int, *, is_classes: bool) -> Array:
    """Return which rows keep their labels."""
    draw, kept = np.random.default_rng(seed), np.zeros(len(y), dtype=bool)
    if not is_classes:
        kept[draw.permutation(len(y))[: max(FEWEST_OF_A_CLASS, round(share * len(y)))]] = True
        return kept
    for label in np.unique(y):
        rows = draw.permutation(np.flatnonzero(y == label))
        kept[rows[: max(FEWEST_OF_A_CLASS, round(share * len(rows)))]] = True
    return kept


def with_labels(table: Table, share: float, draws: int, kind: str) -> Figures:
    """Train every method on a share of the labels; return their scores on held-out rows."""
    figures, is_classes = Figures(), table.is_classes
    for seed in range(draws):
        X, X_test, y, y_test = train_test_split(
            table.X,
            table.y,
            test_size=HELD_OUT,
            random_state=seed,
            stratify=table.y if is_classes else None,
        )
        kept = np.ones(len(y), dtype=bool)
        if share < 1:
            kept = labels_kept(y, share, seed, is_classes=is_classes)

        def score(predicted: Array, truth: Array = y_test) -> float:
            return float((predicted == truth).mean() if is_classes else r2_score(truth, predicted))

        started = perf_counter()
        ours = (DBNClassifier if is_classes else DBNRegressor)(random_state=seed)
        some = np.where(
            kept, y.astype(object if is_classes else float), None if is_classes else np.nan
        )
        predicted = ours.fit(X, some).predict(X_test)
        figures.add(OURS, score(predicted), perf_counter() - started)
        for name, (transformer, predictor) in peers(seed, kind, is_classes=is_classes).items():
            started = perf_counter()
            train, test = X, X_test
            if transformer is not None:
                train, test = transformer.fit_transform(X), transformer.transform(X_test)
            predicted = learned(predictor, train, y, kept).predict(test)
            if isinstance(predictor, SEE_ALL_ROWS):
                predicted = np.unique(y)[predicted]
            figures.add(name, score(predicted), perf_counter() - started)
    return figures


def main() -> None:
    """Run what the command line asks for."""
    parser = parser_of(__doc__, draws=3)
    parser.add_argument("--share", type=float, default=1.0, help="of the labels that are kept")
    parser.add_argument(
        "--peers", choices=("methods", "features", "starts", "committee"), default="methods"
    )
    options = parser.parse_args()
    warnings.simplefilter("ignore")  # of peers with their defaults
    tables = tables_asked(options)
    if options.peers in ("starts", "committee"):
        tables = [table for table in tables if table.is_classes]

    def rows() -> Iterator[tuple[str, Figures]]:
        for table in tables:
            yield table.name, with_labels(table, options.share, options.draws, options.peers)

    title = f"{100 * options.share:g} % of the labels, {options.draws} draws"
    found = show(f"{title}: accuracy (R2), per cent", rows())
    print(f"\n{OURS} minus the best other method, in points:")
    for table, figures in found.items():
        best = figures.best(without=(OURS,))
        apart, error = figures.difference(OURS, best)
        print(f"  {table:16}{apart:+6.1f} ({error:.1f})  {best}")


if __name__ == "__main__":
    main()
