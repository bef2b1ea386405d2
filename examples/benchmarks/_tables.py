"""What the benchmarks on tables share: the tables, the figures of each method, and their print.

Tables are scikit-learn's iris, wine, breast cancer, digits and diabetes, and the files of a folder:
``.csv`` with a header that ends with ``class``, or with ``number`` for numbers to predict, and
``.npz`` with ``X`` and ``y``. Columns of text become one column of 0 and 1 for each text, for all
methods alike.

A method with a star is within a standard error of the difference of the best one, or is the best.
"""

from __future__ import annotations

import argparse
import csv
from collections.abc import Iterable, Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray
from sklearn.datasets import load_breast_cancer, load_diabetes, load_digits, load_iris, load_wine
from sklearn.preprocessing import OneHotEncoder

from syncpretrain import Stack, finetune, pretrain
from syncpretrain.sklearn.committee import ForClasses, network_settings

__all__ = [
    "Array",
    "Figures",
    "Table",
    "few_labels_network",
    "parser_of",
    "show",
    "standard_error",
    "tables_asked",
]

Array = NDArray[Any]


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

    lower_is_better: bool = False
    scores: dict[str, list[float]] = field(default_factory=dict)
    seconds: dict[str, float] = field(default_factory=dict)

    def add(self, method: str, score: float, seconds: float) -> None:
        """Add those of a draw."""
        self.scores.setdefault(method, []).append(100 * score)
        self.seconds[method] = self.seconds.get(method, 0) + seconds

    def best(self, without: tuple[str, ...] = ()) -> str:
        """Return the method with the best mean."""
        means = {name: float(np.mean(own)) for name, own in self.scores.items()}
        choose = min if self.lower_is_better else max
        return choose(means.keys() - set(without), key=means.__getitem__)

    def difference(self, method: str, other: str) -> tuple[float, float]:
        """Return the mean difference of two methods over the draws, and its standard error."""
        apart = np.subtract(self.scores[method], self.scores[other])
        return float(apart.mean()), standard_error(apart)

    def text(self, method: str) -> str:
        """Return a method's mean and standard error."""
        scores, (behind, error) = self.scores[method], self.difference(self.best(), method)
        star = "*" if (-behind if self.lower_is_better else behind) <= error else " "
        return f"{np.mean(scores):6.1f} ({standard_error(scores):.1f}){star}"


def few_labels_network(X: Array, some: Array, seed: int, *, guess: bool, **start: Any) -> Stack:
    """Train the network of few labels, on all rows for guessed classes or on the labels alone.

    ``start`` are settings of pretraining; by default there is none. Classes are counted from 0, and
    a row of -1 has no label.
    """
    units: dict[str, Any] = {"hidden_units": "relu", "visible_units": "gaussian"}
    how: dict[str, Any] = {"seed": seed, "warn": False}
    start = start or {"schedule": "none"}
    stack = pretrain(X, layers=[X.shape[1], 128, 128], **units, **start, **how)
    kind = ForClasses(int(some.max()) + 1)
    settings = network_settings(kind, X.shape, int((some >= 0).sum()), guess=guess)
    return finetune(stack, X, some, objective="classification", **settings, **how)


def standard_error(values: Any) -> float:
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
    if header[-1] not in ("class", "number"):
        raise SystemExit(f"{path}: got {header[-1]} as the last column, expected class or number")
    cells = np.array(rows)
    X, y = np.hstack([_numbers(column) for column in cells[:, :-1].T]), cells[:, -1]
    if header[-1] == "number":
        return Table(path.stem, X, y.astype(float), is_classes=False)
    return Table(path.stem, X, y)


def _numbers(column: Array) -> Array:
    """Return a column of numbers as it is, or one of text as a column for each text."""
    try:
        return column.astype(np.float64).reshape(-1, 1)
    except ValueError:
        texts: Array = OneHotEncoder(sparse_output=False).fit_transform(column.reshape(-1, 1))
        return texts


def show(title: str, rows: Iterable[tuple[str, Figures]]) -> dict[str, Figures]:
    """Print a table, its columns the methods, each row as soon as it is there; return the rows."""
    print(f"\n{title}\n")
    found: dict[str, Figures] = {}
    for table, figures in rows:
        if not found:
            print(" " * 16 + "".join(f"{name:>16}" for name in figures.scores))
        found[table] = figures
        print(f"{table:16}" + "".join(f"{figures.text(n):>16}" for n in figures.scores), flush=True)
    seconds: dict[str, float] = {}
    for figures in found.values():
        for name, own in figures.seconds.items():
            seconds[name] = seconds.get(name, 0) + own
    print(f"{'seconds':16}" + "".join(f"{total:15.1f} " for total in seconds.values()))
    return found


def parser_of(doc: str | None, draws: int) -> argparse.ArgumentParser:
    """Return the options that all have: the number of draws, and which tables."""
    parser = argparse.ArgumentParser(description=str(doc).partition("\n")[0])
    parser.add_argument("--draws", type=int, default=draws)
    parser.add_argument("--tables", type=Path, metavar="FOLDER")
    parser.add_argument("--only", help="names of tables, separated by commas")
    return parser


def tables_asked(options: argparse.Namespace) -> list[Table]:
    """Return the tables that the options ask for."""
    tables = list(own_tables())
    if options.tables is not None:
        tables += tables_of(options.tables)
    names = options.only and options.only.split(",")
    return [table for table in tables if not names or table.name in names]
