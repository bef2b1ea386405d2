"""Products of factors rounded to bfloat16, their sums taken number by number in NumPy."""

from collections.abc import Callable

import numpy as np

from syncpretrain.kernels.precision import rounded

LAYOUTS = ("rows", "columns")  # that lie side by side


def laid_out(x: np.ndarray, order: str, beside: int = 3) -> np.ndarray:
    """Return a matrix whose rows or columns lie side by side, within a larger one of NaN."""
    if order == "columns":
        return laid_out(x.T, "rows", beside).T
    wide = np.full((len(x) + 2, x.shape[1] + 2 * beside), np.nan, dtype=np.float32)
    wide[1:-1, beside : beside + x.shape[1]] = x
    return wide[1:-1, beside : beside + x.shape[1]]


def factors(rows: int, inner: int, columns: int, seed: int = 0) -> tuple[np.ndarray, np.ndarray]:
    rng = np.random.default_rng(seed)
    a, b = rng.standard_normal((rows, inner)), rng.standard_normal((inner, columns))
    return a.astype(np.float32), b.astype(np.float32)


def by_pairs(a: np.ndarray, b: np.ndarray) -> np.ndarray:
    """Return the product whose sums are taken pair by pair, the second number of each first."""
    a, b = rounded(a), rounded(b)
    total = np.zeros((len(a), b.shape[1]), dtype=np.float32)
    for first in range(0, len(b), 2):
        for k in (first + 1, first):
            if k < len(b):
                total = total + a[:, k, None] * b[k]
    return total


def by_tiles(a: np.ndarray, b: np.ndarray) -> np.ndarray:
    """Return the product whose terms are sums over 32 numbers, the even and the odd ones apart."""
    a, b = rounded(a), rounded(b)
    total = np.zeros((len(a), b.shape[1]), dtype=np.float32)
    for first in range(0, len(b), 32):
        parts = [np.zeros_like(total), np.zeros_like(total)]
        for k in range(first, min(first + 32, len(b))):
            parts[k % 2] = parts[k % 2] + a[:, k, None] * b[k]
        total = total + (parts[0] + parts[1])
    return total


DEFINITIONS = {"pairs": by_pairs, "tiles": by_tiles}


def definition_of(form: str) -> Callable[[np.ndarray, np.ndarray], np.ndarray]:
    """Return the definition of a compiled form."""
    return DEFINITIONS[form.removeprefix("portable ")]
