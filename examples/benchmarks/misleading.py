"""Few labels on tables in which rows without a label may mislead: what DBNClassifier makes of them.

    pip install 'syncpretrain[sklearn]'
    python examples/benchmarks/misleading.py --first 60 --tables 60

Each table is drawn at random: clusters that are classes; clusters that planes cut into classes;
one cluster that a plane, two planes, spheres or boxes cut. 2, 5 or 10 % of 70 % of the rows have
their labels, at least three of each class; the other 30 % are held out. Printed are accuracies in
per cent: of the same network trained on the labels alone, with pseudo-labels, and on the committee
of ``DBNClassifier``, and the weight of pseudo-labels in it; at the end the means of each kind of
table, with their standard errors.
"""

from __future__ import annotations

import argparse
from collections.abc import Callable
from typing import Any

import numpy as np
from _tables import few_labels_network, standard_error
from numpy.typing import NDArray
from real_data import HELD_OUT, labels_kept
from sklearn.model_selection import train_test_split

from syncpretrain.sklearn import DBNClassifier

Array = NDArray[Any]
FIRST_SEED = 60_000
ROWS, SHARES = (1000, 2000, 4000), (0.02, 0.05, 0.1)


def clusters(draw: np.random.RandomState, rows: int) -> tuple[Array, Array]:
    """Each class is some clusters, which overlap."""
    classes, columns, each = draw.randint(2, 8), draw.randint(3, 30), draw.randint(1, 4)
    centres = draw.randn(classes * each, columns) * draw.uniform(0.8, 2)
    cluster = draw.randint(classes * each, size=rows)
    return centres[cluster] + draw.randn(rows, columns), cluster % classes


def cut_clusters(draw: np.random.RandomState, rows: int) -> tuple[Array, Array]:
    """Cut each cluster by a plane of its own."""
    count, columns = draw.randint(2, 9), draw.randint(3, 25)
    centres = draw.randn(count, columns) * draw.uniform(1, 4)
    cluster, around = draw.randint(count, size=rows), draw.randn(rows, columns)
    planes = draw.randn(count, columns)
    return centres[cluster] + around, ((around * planes[cluster]).sum(axis=1) > 0).astype(int)


def parity(draw: np.random.RandomState, rows: int) -> tuple[Array, Array]:
    """Cut one cluster by two planes, of which a class is on the same side or between."""
    columns = draw.randint(2, 7)
    X = draw.randn(rows, columns)
    X = np.sign(X) * np.abs(X) ** draw.uniform(0.5, 1)
    y = ((X[:, 0] > 0) ^ (X[:, 1] > 0)).astype(int)
    return X @ np.linalg.qr(draw.randn(columns, columns))[0], y


def plane(draw: np.random.RandomState, rows: int) -> tuple[Array, Array]:
    """Cut one cluster, which is long in some directions, by a plane, with noise."""
    columns = draw.randint(5, 30)
    X = draw.randn(rows, columns) * np.exp(draw.randn(columns) * 0.7)
    along = X @ (draw.randn(columns) / X.std(axis=0))
    return X, (along / along.std() + draw.randn(rows) * draw.uniform(0, 0.8) > 0).astype(int)


def boxes(draw: np.random.RandomState, rows: int) -> tuple[Array, Array]:
    """Cut one cluster into boxes by thresholds of columns."""
    columns = draw.randint(4, 20)
    X = draw.randn(rows, columns) @ draw.randn(columns, columns) / columns**0.5
    box = np.zeros(rows, dtype=int)
    for _ in range(draw.randint(2, 5)):
        column, threshold = draw.randint(columns), draw.randn() * 0.7
        box = 2 * box + (X[:, column] > threshold)
    return X, np.unique(box % draw.randint(2, 5), return_inverse=True)[1]


def spheres(draw: np.random.RandomState, rows: int) -> tuple[Array, Array]:
    """Cut one cluster into a ball and shells, of as many rows each."""
    X = draw.randn(rows, draw.randint(2, 8))
    far, classes = np.square(X).sum(axis=1), draw.randint(2, 4)
    return X, np.searchsorted(np.quantile(far, np.linspace(0, 1, classes + 1)[1:-1]), far)


Kind = Callable[[np.random.RandomState, int], tuple[Array, Array]]
KINDS: list[Kind] = [cut_clusters, parity, plane, clusters, boxes, spheres]


def row_of(number: int) -> tuple[str, list[float]]:
    """Return the line of a table, and the three accuracies."""
    draw = np.random.RandomState(FIRST_SEED + number)
    rows, kind = int(draw.choice(ROWS)), KINDS[number % len(KINDS)]
    table, classes = kind(draw, rows)
    X, X_test, y, y_test = train_test_split(
        table.astype(np.float32), classes, test_size=HELD_OUT, random_state=0, stratify=classes
    )
    kept = labels_kept(y, SHARES[number // len(KINDS) % len(SHARES)], 0, is_classes=True)
    some = np.where(kept, y, -1)
    ours = DBNClassifier(random_state=0).fit(X, some)
    ways = [few_labels_network(X, some, 0, guess=guess) for guess in (False, True)]
    predicted = [*(own.predict(X_test) for own in ways), ours.predict(X_test)]
    scores = [100 * float((own == y_test).mean()) for own in predicted]
    shape = f"{rows:,} x {table.shape[1]}"
    line = f"{kind.__name__:14}{shape:>12}{y.max() + 1:>9}{kept.sum():>8}"
    return f"{line}{ours.teachers_['guesses']:9.2f}", scores


def main() -> None:
    """Run what the command line asks for."""
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("--tables", type=int, default=48)
    parser.add_argument("--first", type=int, default=0, help="number of the first table")
    options = parser.parse_args()
    print("kind                 table  classes  labels   weight   alone  pseudo     fit")
    found: dict[str, list[list[float]]] = {kind.__name__: [] for kind in KINDS}
    for number in range(options.first, options.first + options.tables):
        line, scores = row_of(number)
        found[KINDS[number % len(KINDS)].__name__].append(scores)
        print(line + "".join(f"{score:8.1f}" for score in scores), flush=True)
    print("\nagainst labels alone, in points: pseudo-labels, and fit")
    found["all"] = [scores for of_kind in found.values() for scores in of_kind]
    for name, own in found.items():
        if own:
            gains = np.array(own)[:, 1:] - np.array(own)[:, :1]
            texts = (
                f"{each.mean():+8.2f} ({standard_error(each):.2f}), worst {each.min():+.1f}"
                for each in gains.T
            )
            print(f"{name:14}{len(own):4}{''.join(texts)}")


if __name__ == "__main__":
    main()
