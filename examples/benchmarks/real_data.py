"""Default estimators on tables: beside other classifiers and regressors, and as outlier detectors.

    pip install 'syncpretrain[sklearn]'
    python examples/benchmarks/real_data.py
    python examples/benchmarks/real_data.py --draws 10 --tables FOLDER

Tables are scikit-learn's iris, wine, breast cancer, digits and diabetes, and the files of FOLDER:
``.csv`` with a header whose last column is ``class``, ``.npz`` with ``X`` and ``y``. Columns of
text become one column of 0 and 1 for each text, for all methods alike.

``labels``
    A draw holds out 30 % of the rows, with the classes' shares, and trains on the others: once
    with all labels, once with 5 % of them, at least two of each class. Every method has its
    defaults. DBNClassifier and DBNRegressor get the table as it is; logistic regression (ridge
    regression for numbers), the MLP and the transformers get standardized columns, BernoulliRBM
    columns of [0, 1]. DBN, PCA and BernoulliRBM see the rows without labels too. PCA keeps 95 % of
    the variance. Figures are accuracies, or R2 of numbers, in per cent, each the mean of the draws
    with its standard error.
``anomalies``
    ROC area, in per cent, of the scores of new rows. ``digits``: a draw leaves out one class to
    train on 70 % of the others, and finds that class among the rest of them. A table of FOLDER
    with two classes, the rarer below 10 %: a draw trains on one half of the rows, the rare class
    among them, and finds it in the other half.

A method with a star is within a standard error of the difference of the best one, or is the best.
"""

from __future__ import annotations

import argparse
import csv
import warnings
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from importlib import import_module
from pathlib import Path
from time import perf_counter
from typing import Any

import numpy as np
from numpy.typing import NDArray
from sklearn.datasets import (
    load_breast_cancer,
    load_diabetes,
    load_digits,
    load_iris,
    load_wine,
)
from sklearn.decomposition import PCA
from sklearn.ensemble import IsolationForest, RandomForestClassifier, RandomForestRegressor
from sklearn.exceptions import ConvergenceWarning
from sklearn.linear_model import LogisticRegression, Ridge
from sklearn.metrics import r2_score, roc_auc_score
from sklearn.model_selection import train_test_split
from sklearn.neural_network import BernoulliRBM, MLPClassifier, MLPRegressor
from sklearn.pipeline import make_pipeline
from sklearn.preprocessing import MinMaxScaler, OneHotEncoder, StandardScaler

from syncpretrain.sklearn import DBNClassifier, DBNRegressor, StackAnomalyDetector

Array = NDArray[Any]
HELD_OUT = 0.3
LABELLED = 0.05
FEWEST_OF_A_CLASS = 2
RARE = 0.1
KEPT_VARIANCE = 0.95
OURS = "DBN"


@dataclass(frozen=True)
class Table:
    """Rows, and their classes or numbers."""

    name: str
    X: Array
    y: Array
    is_classes: bool = True

    @property
    def rarest(self) -> float:
        """Return the share of the rarest class."""
        counts = np.unique(self.y, return_counts=True)[1]
        return float(counts.min() / len(self.y))


@dataclass
class Figures:
    """Scores and seconds of each method on one table, a draw each."""

    scores: dict[str, list[float]] = field(default_factory=dict)
    seconds: dict[str, float] = field(default_factory=dict)

    def add(self, method: str, score: float, seconds: float) -> None:
        """Add those of a draw."""
        self.scores.setdefault(method, []).append(100 * score)
        self.seconds[method] = self.seconds.get(method, 0) + seconds

    def best(self, without: tuple[str, ...] = ()) -> str:
        """Return the method with the best mean."""
        return max(self.scores.keys() - set(without), key=lambda m: float(np.mean(self.scores[m])))

    def difference(self, method: str, other: str) -> tuple[float, float]:
        """Return the mean difference of two methods over the draws, and its standard error."""
        apart = np.subtract(self.scores[method], self.scores[other])
        return float(apart.mean()), _standard_error(apart)

    def text(self, method: str) -> str:
        """Return a method's mean and standard error."""
        scores, (behind, error) = self.scores[method], self.difference(self.best(), method)
        star = "*" if behind <= error else " "
        return f"{np.mean(scores):6.1f} ({_standard_error(scores):.1f}){star}"


def _standard_error(values: Any) -> float:
    return float(np.std(values, ddof=1) / np.sqrt(len(values))) if len(values) > 1 else 0.0


def own_tables() -> Iterator[Table]:
    """Yield scikit-learn's tables."""
    for name, load in {
        "iris": load_iris,
        "wine": load_wine,
        "breast cancer": load_breast_cancer,
        "digits": load_digits,
    }.items():
        X, y = load(return_X_y=True)
        yield Table(name, X, y)
    X, y = load_diabetes(return_X_y=True)
    yield Table("diabetes", X, y, is_classes=False)


def tables_of(folder: Path) -> Iterator[Table]:
    """Yield the tables of a folder's files."""
    for path in sorted([*folder.glob("*.csv"), *folder.glob("*.npz")]):
        if path.suffix == ".npz":
            with np.load(path) as file:
                yield Table(path.stem, file["X"], file["y"])
        else:
            yield _read_csv(path)


def _read_csv(path: Path) -> Table:
    with path.open(newline="", encoding="utf-8") as file:
        header, *rows = csv.reader(file)
    if header[-1] != "class":
        raise SystemExit(f"{path}: got {header[-1]} as the last column, expected class")
    cells = np.array(rows)
    columns = [_numbers(column) for column in cells[:, :-1].T]
    return Table(path.stem, np.hstack(columns), cells[:, -1])


def _numbers(column: Array) -> Array:
    """Return a column of numbers as it is, or one of text as a column for each text."""
    try:
        return column.astype(np.float64).reshape(-1, 1)
    except ValueError:
        texts: Array = OneHotEncoder(sparse_output=False).fit_transform(column.reshape(-1, 1))
        return texts


def peers(seed: int, *, is_classes: bool) -> dict[str, tuple[Any, Any]]:
    """Return for each method what sees all rows, or None, and what learns from labels."""
    linear = LogisticRegression(max_iter=1000) if is_classes else Ridge()
    mlp = (MLPClassifier if is_classes else MLPRegressor)(random_state=seed)
    forest = (RandomForestClassifier if is_classes else RandomForestRegressor)(random_state=seed)
    return {
        "linear": (StandardScaler(), linear),
        "MLP": (StandardScaler(), mlp),
        "forest": (None, forest),
        "PCA": (make_pipeline(StandardScaler(), PCA(KEPT_VARIANCE)), linear),
        "RBM": (make_pipeline(MinMaxScaler(clip=True), BernoulliRBM(random_state=seed)), linear),
    }


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


def with_labels(table: Table, share: float, draws: int) -> Figures:
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
        for name, (transformer, predictor) in peers(seed, is_classes=is_classes).items():
            started = perf_counter()
            train, test = X, X_test
            if transformer is not None:
                train, test = transformer.fit_transform(X), transformer.transform(X_test)
            predicted = predictor.fit(train[kept], y[kept]).predict(test)
            figures.add(name, score(predicted), perf_counter() - started)
    return figures


def detectors(seed: int) -> dict[str, Callable[[Array, Array], Array]]:
    """Return for each method what trains on rows and returns the scores of others: high is odd."""

    def of(detector: Any) -> Callable[[Array, Array], Array]:
        return lambda X, new: np.asarray(-detector.fit(X).score_samples(new))

    found = {
        "reconstruction": of(StackAnomalyDetector(random_state=seed)),
        "free energy": of(StackAnomalyDetector(by="free-energy", random_state=seed)),
        "IsolationForest": of(IsolationForest(random_state=seed)),
    }
    try:
        auto_encoder = import_module("pyod.models.auto_encoder").AutoEncoder
    except ImportError:
        return found
    found["PyOD"] = lambda X, new: np.asarray(
        auto_encoder(random_state=seed, verbose=0).fit(X).decision_function(new)
    )
    return found


def anomalies(table: Table, draws: int) -> Figures:
    """Return the ROC areas of every detector on a table."""
    figures = Figures()
    classes, counts = np.unique(table.y, return_counts=True)
    rare = classes[counts.argmin()]
    for seed in range(draws):
        if table.name == "digits":  # new to the detectors
            odd = classes[seed % len(classes)]
            X, new, _, _ = train_test_split(
                table.X[table.y != odd],
                table.y[table.y != odd],
                test_size=HELD_OUT,
                random_state=seed,
            )
            truth = np.repeat([0, 1], [len(new), int((table.y == odd).sum())])
            new = np.concatenate([new, table.X[table.y == odd]])
        else:
            X, new, _, truth = train_test_split(
                table.X, table.y == rare, test_size=0.5, random_state=seed, stratify=table.y
            )
        for name, scores in detectors(seed).items():
            started = perf_counter()
            area = roc_auc_score(truth, scores(X, new))
            figures.add(name, area, perf_counter() - started)
    return figures


def show(title: str, rows: dict[str, Figures]) -> None:
    """Print a table, its columns the methods."""
    names = {name: None for figures in rows.values() for name in figures.scores}
    print(f"\n{title}\n")
    print(" " * 16 + "".join(f"{name:>16}" for name in names))
    for table, figures in rows.items():
        cells = (figures.text(name) if name in figures.scores else "" for name in names)
        print(f"{table:16}" + "".join(f"{cell:>16}" for cell in cells))
    seconds = {n: sum(f.seconds.get(n, 0) for f in rows.values()) for n in names}
    print(f"{'seconds':16}" + "".join(f"{total:15.1f} " for total in seconds.values()))


def show_labels(title: str, rows: dict[str, Figures]) -> None:
    """Print a table of accuracies, and the difference to the best peer."""
    show(title, rows)
    print(f"\n{OURS} minus the best other method, in points:")
    for table, figures in rows.items():
        best = figures.best(without=(OURS,))
        apart, error = figures.difference(OURS, best)
        print(f"  {table:16}{apart:+6.1f} ({error:.1f})  {best}")


def main() -> None:
    """Run what the command line asks for."""
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0] if __doc__ else "")
    parser.add_argument("what", nargs="?", choices=("all", "labels", "anomalies"), default="all")
    parser.add_argument("--draws", type=int, default=3)
    parser.add_argument("--tables", type=Path, metavar="FOLDER")
    parser.add_argument("--only", help="names of tables, separated by commas")
    options = parser.parse_args()
    warnings.simplefilter("ignore", ConvergenceWarning)  # of peers with their defaults
    tables = list(own_tables())
    if options.tables is not None:
        tables += tables_of(options.tables)
    if options.only:
        tables = [table for table in tables if table.name in options.only.split(",")]
    if options.what != "anomalies":
        for share, title in ((1.0, "all labels"), (LABELLED, "5 % of the labels")):
            found = {table.name: with_labels(table, share, options.draws) for table in tables}
            show_labels(f"{title}: accuracy (R2), per cent", found)
    if options.what != "labels":
        odd = [
            table
            for table in tables
            if table.is_classes
            and (table.name == "digits" or (len(np.unique(table.y)) == 2 and table.rarest < RARE))
        ]
        found = {table.name: anomalies(table, options.draws) for table in odd}
        show("outliers: ROC area, per cent", found)


if __name__ == "__main__":
    main()
