"""Missing values: the error of what is filled in, beside columns' means and KNNImputer.

    pip install 'syncpretrain[sklearn]'
    python examples/benchmarks/imputation.py --tables FOLDER

A draw removes 30 % of the entries of a table at random, trains on what is left of all rows, and
fills the holes. Figures are root mean squared errors of the removed entries, in per cent of a
column's standard deviation, each the mean of the draws with its standard error: the columns' means
have 100. All methods see columns standardized by their known entries; constant ones are left out.
The stacks are :func:`syncpretrain.pretrain` with its defaults: one layer, twice as wide as the
table, of a denoising autoencoder and of an RBM.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from time import perf_counter

import numpy as np
from _tables import Array, Figures, Table, parser_of, show, tables_asked
from sklearn.impute import KNNImputer, SimpleImputer

from syncpretrain import pretrain

REMOVED = 0.3
MOST_ROWS = 3000  # KNNImputer compares all pairs of rows


def imputers(seed: int) -> dict[str, Callable[[Array], Array]]:
    """Return for each method what fills the holes of rows."""

    def stack_of(model: str) -> Callable[[Array], Array]:
        def filled(holes: Array) -> Array:
            width = 2 * holes.shape[1]
            stack = pretrain(holes, hidden=[width], model=model, seed=seed, warn=False)
            return stack.impute(holes)

        return filled

    return {
        "denoising": stack_of("denoising"),
        "RBM": stack_of("rbm"),
        "mean": SimpleImputer().fit_transform,
        "KNNImputer": KNNImputer().fit_transform,
    }


def errors(table: Table, draws: int) -> Figures:
    """Return the errors of every method on a table."""
    figures = Figures(lower_is_better=True)
    for seed in range(draws):
        draw = np.random.default_rng(seed)
        X = np.asarray(table.X, dtype=np.float64)
        X = X[draw.permutation(len(X))[:MOST_ROWS]]
        lost = draw.random(X.shape) < REMOVED
        holes = np.where(lost, np.nan, X)
        spread = np.nanstd(holes, axis=0)
        varies = spread > 0
        holes, X, lost = holes[:, varies], X[:, varies], lost[:, varies]
        mean, spread = np.nanmean(holes, axis=0), spread[varies]
        truth, holes = (X - mean) / spread, (holes - mean) / spread
        for name, fill in imputers(seed).items():
            started = perf_counter()
            apart = (fill(holes) - truth)[lost]
            seconds = perf_counter() - started
            figures.add(name, float(np.sqrt(np.square(apart).mean())), seconds)
    return figures


def main() -> None:
    options = parser_of(__doc__, draws=3).parse_args()
    tables = tables_asked(options)

    def rows() -> Iterator[tuple[str, Figures]]:
        for table in tables:
            yield table.name, errors(table, options.draws)

    show(f"imputation: error, per cent of the spread, {options.draws} draws", rows())


if __name__ == "__main__":
    main()
