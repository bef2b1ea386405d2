"""Strategies for the fuzz of ``train``: small files of examples, with labels or without."""

from dataclasses import dataclass
from pathlib import Path

import numpy as np
from hypothesis import strategies as st


@dataclass(frozen=True)
class File:
    """A file of examples, not yet written."""

    name: str
    X: np.ndarray
    labels: np.ndarray | None

    def write(self, folder: Path) -> None:
        path = folder / self.name
        if path.suffix == ".npz":
            arrays = {"X": self.X} | ({} if self.labels is None else {"y": self.labels})
            np.savez(path, **arrays)
        elif path.suffix == ".csv":
            np.savetxt(path, self.X, delimiter=",", fmt="%.9g")
        else:
            np.save(path, self.X)

    def __repr__(self) -> str:
        found = "no" if self.labels is None else sorted(set(self.labels.tolist()))
        low, high = self.X.min(), self.X.max()
        return f"{self.name}: {self.X.dtype} {self.X.shape}, {low} to {high}, labels {found}"

    @property
    def bounded(self) -> bool:
        return self.X.dtype == np.uint8 or bool(self.X.min() >= 0 and self.X.max() <= 1)


@st.composite
def files(draw) -> File:
    """Draw 1 to 30 examples of 1 to 8 values."""
    shape = draw(st.integers(1, 30)), draw(st.integers(1, 8))
    chance = np.random.default_rng(draw(st.integers(0, 2**16)))
    uniform = chance.random(shape)
    X = draw(
        st.sampled_from(
            [
                uniform.astype(np.float32),
                uniform,
                (uniform < 0.3).astype(np.float32),
                uniform < 0.3,
                (256 * uniform).astype(np.uint8),
                (uniform < 0.5).astype(np.int64),
                np.zeros(shape, np.float32),
                np.ones(shape, np.float16),
                (1e-42 * uniform).astype(np.float32),
                chance.standard_normal(shape).astype(np.float32),
                1e17 * chance.standard_normal(shape),
                3 + 1e-7 * chance.standard_normal(shape),
            ]
        )
    )
    name = draw(st.sampled_from(["x.npy", "x.npz", "labelled.npz", "labelled.npz", "x.csv"]))
    labels = None
    if name == "labelled.npz":
        classes = draw(st.integers(1, 4))
        labels = chance.integers(0, classes, shape[0])
        if draw(st.booleans()):
            labels[chance.random(shape[0]) < 0.4] = -1
    return File(name, X.astype(np.float32) if name == "x.csv" else X, labels)
