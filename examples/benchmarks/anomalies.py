"""Outliers that are known: ROC areas beside IsolationForest and PyOD's AutoEncoder.

    pip install 'syncpretrain[sklearn]'
    python examples/benchmarks/anomalies.py --tables FOLDER
    pip install pyod torch      # adds the column PyOD

``digits``, ``optdigits``: a draw leaves out one class, each in turn, to train on 70 % of the rows
of the others, and finds that class among the rest of them. A table with two classes, the rarer
below 10 %: a draw trains on one half of the rows, the rare class among them, and finds it in the
other half. Every method has its defaults; figures are ROC areas of the scores of new rows, in per
cent, each the mean of the draws with its standard error.
"""

from __future__ import annotations

import sys
from collections.abc import Callable, Iterator
from importlib import import_module
from time import perf_counter
from typing import Any

import numpy as np
from _tables import Array, Figures, Table, parser_of, show, tables_asked
from sklearn.ensemble import IsolationForest
from sklearn.metrics import roc_auc_score
from sklearn.model_selection import train_test_split

from syncpretrain.sklearn import StackAnomalyDetector

HELD_OUT = 0.3
RARE = 0.1
LEFT_OUT = ("digits", "optdigits")  # tables of which each class is left out in turn


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
    except ImportError as error:
        print(f"without PyOD: {error}", file=sys.stderr)
        return found
    found["PyOD"] = lambda X, new: np.asarray(
        auto_encoder(random_state=seed, verbose=0).fit(X).decision_function(new)
    )
    return found


def drawn(table: Table, seed: int) -> tuple[Array, Array, Array]:
    """Return rows to train on, new ones, and which of the new ones are outliers."""
    classes, counts = np.unique(table.y, return_counts=True)
    if table.name not in LEFT_OUT:
        X, new, _, truth = train_test_split(
            table.X,
            table.y == classes[counts.argmin()],
            test_size=0.5,
            random_state=seed,
            stratify=table.y,
        )
        return X, new, truth
    odd = table.y == classes[seed % len(classes)]
    X, new = train_test_split(table.X[~odd], test_size=HELD_OUT, random_state=seed)
    truth = np.repeat([False, True], [len(new), int(odd.sum())])
    return X, np.concatenate([new, table.X[odd]]), truth


def areas(table: Table, draws: int) -> Figures:
    """Return the ROC areas of every detector on a table."""
    figures = Figures()
    for seed in range(draws):
        X, new, truth = drawn(table, seed)
        for name, scores in detectors(seed).items():
            started = perf_counter()
            area = roc_auc_score(truth, scores(X, new))
            figures.add(name, float(area), perf_counter() - started)
    return figures


def has_outliers(table: Table) -> bool:
    """Return whether a table has a class that is left out, or a rare one."""
    is_pair = table.is_classes and len(np.unique(table.y)) == 2
    return table.name in LEFT_OUT or (is_pair and table.rarest < RARE)


def main() -> None:
    options = parser_of(__doc__, draws=10).parse_args()
    tables = list(filter(has_outliers, tables_asked(options)))

    def rows() -> Iterator[tuple[str, Figures]]:
        for table in tables:
            yield table.name, areas(table, options.draws)

    show(f"outliers: ROC area, per cent, {options.draws} draws", rows())


if __name__ == "__main__":
    main()
